"""The tables of a plan: models, arms, tasks, decision, looks, runner, seeds."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from equipoise.evals.types import ArmRole

__all__ = [
    "ArmSpec",
    "DecisionSpec",
    "GenerationSpec",
    "LooksSpec",
    "ModelSpec",
    "Name",
    "RunnerSpec",
    "SeedSpec",
    "Strict",
    "TaskSpec",
]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Scalar = bool | int | float | str


class Strict(BaseModel):
    """Unknown keys are refused, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_written_as_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """TOML tells 1 from true and "1"; so do plans."""
        field = cls.model_fields[info.field_name or ""]
        kinds = {field.annotation, *get_args(field.annotation)}
        if kinds & {int, float} and not kinds & {bool, str} and isinstance(value, bool | str):
            raise ValueError(f"must be a number, not {value!r}")
        return value


class ModelSpec(Strict):
    """A model under test: a checkpoint directory, ``embedded:NAME`` or ``hub:ORG/NAME``.

    ``checkpoints`` gives arms (by name) other weights of the same model: a directory each, which must be the
    same but for the weights. Only a candidate or a control that we serve may have one.
    """

    name: Name
    path: str = Field(min_length=1)
    checkpoints: dict[str, Annotated[str, Field(min_length=1)]] = {}


class ArmSpec(Strict):
    """One arm: a variant that we serve ourselves, or a URL that already serves it.

    Arms of one model with the same variant are one server asked twice, each with a prefix-cache
    namespace of its own.
    """

    name: Name
    role: ArmRole
    variant: str | None = None
    url: str | None = Field(default=None, pattern=r"^https?://\S+$")
    api: Literal["sglang", "openai"] = "sglang"
    served_model: str | None = None  # the model name to ask an OpenAI-compatible endpoint for
    api_key_env: str | None = None  # name of the environment variable; the key itself is never stored
    stream: bool = False  # whether an OpenAI-compatible endpoint is asked for streamed replies
    replay: str | None = None  # a run directory whose journal answers instead of a server
    #: server facts in which this arm alone may differ, beyond those that the plan allows every arm
    allowed_differences: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_source(self) -> "ArmSpec":
        given = [k for k in ("variant", "url", "replay") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(
                f"arm {self.name!r} needs exactly one of variant, url and replay (it has {given or 'none'})"
            )
        if self.url is not None and "@" in self.url.split("//", 1)[1].split("/", 1)[0]:
            raise ValueError(
                f"arm {self.name!r}: its url holds a user name or password; put the key into an environment "
                "variable and name that in api_key_env"
            )
        if self.api == "openai" and self.url is None:
            raise ValueError(f'arm {self.name!r}: api = "openai" goes with url')
        if self.api == "openai" and self.served_model is None:
            raise ValueError(f'arm {self.name!r}: api = "openai" needs served_model')
        if self.stream and self.api != "openai":
            raise ValueError(f'arm {self.name!r}: stream goes with api = "openai"')
        return self

    @property
    def served(self) -> tuple[str | None, str | None]:
        """The endpoint and the model there, however the URL is written."""
        url = None if self.url is None else self.url.rstrip("/").removesuffix("/v1").lower()
        return url, self.served_model


class GenerationSpec(Strict):
    """How answers are generated; what is None is left to the task (budget, greedy decoding) or server.

    ``thinking`` and ``reasoning_effort`` become arguments of the chat template (``thinking`` and
    ``enable_thinking``, by which Kimi's and GLM's templates know it) and are checked on the rendered prompt.
    ``template_kwargs`` are handed to the chat template as they are.
    """

    thinking: Literal["on", "off"] | None = None
    reasoning_effort: str | None = Field(default=None, pattern=r"^[a-z0-9_.-]{1,16}$")
    template_kwargs: dict[str, Scalar] = {}
    max_new_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=1, le=1_000_000)
    min_p: float | None = Field(default=None, ge=0, le=1)

    def over(self, base: "GenerationSpec") -> "GenerationSpec":
        """These settings where they are given, else those of ``base``."""
        given = {k: v for k, v in self.model_dump().items() if v is not None and k != "template_kwargs"}
        kwargs = base.template_kwargs | self.template_kwargs
        return base.model_copy(update={**given, "template_kwargs": kwargs})


class TaskSpec(Strict):
    """One task of the plan.

    ``p_d`` is the share of discordant pairs assumed for the power: of single answers, candidate against
    baseline (for graded scores their mean squared difference); ``noise_p_d`` the same of the baseline asked
    twice, the part that repeats shrink.
    ``repeats`` asks every item so many times in every arm. ``temperature`` and ``top_p`` replace the
    task's own sampling (greedy), the same in every arm; without them repeats show only the server's noise.
    ``generation`` replaces the plan's. ``options`` are the task's own settings (length, depth, subset; see
    ``equipoise tasks show``). ``file``, relative to the plan, is a task of your own: TOML that names its
    rows, an lm-eval YAML, or Python, which runs only where EQUIPOISE_TASK_CODE=allow. ``lm_eval`` is a task
    of lm-eval by its name.
    ``max_kl_nats`` asks a teacher-forced task for a mean KL below it too. Lists of likely tokens that are not
    the whole vocabulary bound KL from above only with ``max_drop_nats``: the assumption that no token's
    logprob falls by more than that.
    """

    name: Name
    items: int = Field(gt=0, le=1_000_000)
    critical: bool = False
    margin: Fraction | None = None  # accuracy tasks
    margin_nats: float | None = Field(default=None, gt=0)  # teacher-forced tasks
    max_kl_nats: float | None = Field(default=None, gt=0)
    max_drop_nats: float | None = Field(default=None, ge=1, le=1000)
    repeats: int = Field(default=1, ge=1, le=1024)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    generation: GenerationSpec = GenerationSpec()
    options: dict[str, Scalar | list[Scalar]] = {}
    file: str | None = Field(default=None, min_length=1)
    file_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")  # filled in when a plan is read
    lm_eval: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._,:/-]{0,127}$")
    p_d: Fraction = 0.045
    noise_p_d: float = Field(default=0.0, ge=0, lt=0.5)


class DecisionSpec(Strict):
    """The thresholds of the decision; see evals/policy.py for the rules.

    ``max_attempts`` is how often this candidate may be tried; every test runs at ``effective_alpha``.
    ``control_size`` lowers the level of each right-or-wrong task until its exact size is at most that.
    """

    alpha: float = Field(default=0.05, gt=0, le=0.2)
    max_attempts: int = Field(default=1, ge=1, le=100)
    control_size: bool = False
    suite_margin: Fraction
    assumed_loss: float = Field(default=0.0, ge=0, lt=1)
    min_joint_power: float = Field(default=0.85, ge=0, lt=1)
    allow_detected: bool = False
    require_noise_floor: bool = True
    require_control: bool = True
    max_baseline_truncation: float = Field(default=0.02, ge=0, lt=1)
    max_missing: float = Field(default=0.005, ge=0, lt=1)

    @property
    def effective_alpha(self) -> float:
        """One-sided alpha of every test: ``alpha`` split over the attempts that the plan allows."""
        return self.alpha / self.max_attempts


class LooksSpec(Strict):
    """Looks at the run before its end, which may stop it as degraded or as futile; see evals/looks.py.

    ``fractions`` are shares of every task's items. ``futility`` stops where sign-off has a probability below
    ``gamma`` left, at the plan's assumed loss and p_d.
    """

    fractions: tuple[Fraction, ...] = Field(default=(0.25, 0.5, 0.75), min_length=1, max_length=20)
    spending: Literal["pocock", "obrien-fleming"] = "pocock"
    futility: bool = True
    gamma: float = Field(default=0.02, gt=0, le=0.2)

    @model_validator(mode="after")
    def _increasing(self) -> "LooksSpec":
        if any(a >= b for a, b in zip(self.fractions, self.fractions[1:], strict=False)):
            raise ValueError(f"fractions must increase, got {list(self.fractions)}")
        return self


class RunnerSpec(Strict):
    """How the requests are sent; none of it may change an answer's meaning."""

    concurrency: int = Field(default=32, ge=1, le=4096)  # per arm
    timeout_s: float = Field(default=120.0, gt=0)
    max_attempts: int = Field(default=4, ge=1, le=20)
    block_items: int = Field(default=16, ge=1)
    context_tokens: int = Field(default=4096, ge=64)  # longest prompt + answer, sizes our servers
    output_logprobs: bool = False  # also record the logprob of every generated token, for the flips


class SeedSpec(Strict):
    items: int = Field(default=1, ge=0)
    schedule: int = Field(default=1, ge=0)
    bootstrap: int = Field(default=1, ge=0)
