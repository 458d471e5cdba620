"""KV-cache variants of a model, and the command line that serves one with SGLang.

Pure: nothing is started and torch is not imported here. An arm of an experiment is a model with
one of these variants; ``equipoise serve MODEL@VARIANT --print`` shows what this module builds.
"""

import difflib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from equipoise.quant.kv_layouts import KV_LAYOUT_KINDS

__all__ = [
    "KV_CONTROL_NAMES",
    "KV_VARIANTS",
    "SGLANG_VERSION",
    "KVVariant",
    "LaunchCommand",
    "ServeOptions",
    "build_launch_command",
    "find_variant",
    "resolve_server_python",
]

SGLANG_VERSION = "0.5.23"  # the one the CPU plugin was read against

Device = Literal["cpu", "cuda"]

# Planted faults of the CPU server; kv_controls.py implements them.
KV_CONTROL_NAMES = ("int4-tensor", "int4-token", "clip2", "drift")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVVariant:
    """One way of storing the KV cache.

    ``kv_cache_dtype`` is SGLang's ``--kv-cache-dtype``; ``control`` names a planted fault in a
    bfloat16 cache and ``layout`` another layout of an FP8 cache, which only the CPU server has.
    ``arm`` labels reports.
    """

    name: str
    kv_cache_dtype: str
    control: str | None
    description: str
    layout: str | None = None  # a key of KV_LAYOUT_KINDS
    weights: str = "bf16"

    @property
    def arm(self) -> str:
        """``w=bf16,kv=fp8_e4m3``; ``...+kv-control=clip2`` or ``...+kv-layout=ds656`` behind it."""
        suffix = f"+kv-control={self.control}" if self.control else ""
        suffix += f"+kv-layout={self.layout}" if self.layout else ""
        return f"w={self.weights},kv={self.kv_cache_dtype}{suffix}"


def _variant(name: str, kv_cache_dtype: str, description: str, control: str | None = None) -> KVVariant:
    return KVVariant(name=name, kv_cache_dtype=kv_cache_dtype, control=control, description=description)


KV_VARIANTS: dict[str, KVVariant] = {
    v.name: v
    for v in (
        _variant("bf16", "bf16", "bfloat16 KV cache: the baseline"),
        _variant("fp8_e4m3", "fp8_e4m3", "FP8 E4M3 KV cache at the checkpoint's scales, else 1.0"),
        _variant("fp8_e5m2", "fp8_e5m2", "FP8 E5M2 KV cache: more range, two mantissa bits"),
        _variant(
            "control-int4-tensor",
            "bf16",
            "positive control, gross: int4 with one calibrated amax a layer (kv_amax.json)",
            control="int4-tensor",
        ),
        _variant(
            "control-int4-token",
            "bf16",
            "positive control, mild: int4 with one amax a token and layer",
            control="int4-token",
        ),
        _variant(
            "control-clip2",
            "bf16",
            "positive control: FP8 E4M3 with a scale 2x too small, clips at amax / 2 (kv_amax.json)",
            control="clip2",
        ),
        _variant(
            "control-drift",
            "bf16",
            "positive control of long contexts: int8 to position 64, then twice as coarse every 32 tokens",
            control="drift",
        ),
        *(
            KVVariant(
                name=kind.name if kind.name.startswith("fp8") else f"fp8_{kind.name}",
                kv_cache_dtype="fp8_e4m3",
                control=None,
                layout=kind.name,
                description=f"{kind.description}; {kind.attention.upper()} models, CPU server",
            )
            for kind in KV_LAYOUT_KINDS.values()
        ),
    )
}


def find_variant(name: str) -> KVVariant:
    """Look a variant up.

    Raises
    ------
    ValueError
        Unknown name; says the nearest and lists the known ones.
    """
    try:
        return KV_VARIANTS[name]
    except KeyError:
        near = difflib.get_close_matches(name, KV_VARIANTS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"unknown KV variant {name!r}: {meant}choose one of {', '.join(KV_VARIANTS)}"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What may differ between servers besides the variant; the defaults suit the embedded models.

    ``max_total_tokens`` fixes the KV pool's size in tokens (CPU; SGLang's own guess follows free
    memory, and two arms would get different pools). None leaves it to SGLang.
    """

    host: str = "127.0.0.1"
    served_model_name: str | None = None
    max_total_tokens: int | None = None
    max_running_requests: int | None = None
    threads: int = 1  # OMP_NUM_THREADS of a CPU server
    extra_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """A command, the variables to set on top of the caller's environment, and where it listens."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


# Variables of every server of ours. PYTHONSAFEPATH keeps the working directory off sys.path.
_COMMON_ENV = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}

_CPU_ENV = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_PLUGINS": "equipoise_cpu",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "passive",
    # Large tensors come from the heap and stay there: without this glibc maps and unmaps each one,
    # and page faults take several times as long as the arithmetic.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "2147483648",
    "MALLOC_TOP_PAD_": "67108864",
}

# Pool of an embedded server: 64 requests of 1,000 tokens.
_CPU_MAX_TOTAL_TOKENS = 65536
_CPU_MAX_RUNNING_REQUESTS = 64

_CPU_ARGS = (
    "--attention-backend=torch_native",
    "--mem-fraction-static=0.5",
    "--disable-overlap-schedule",  # overlaps GPU work; on a CPU it only adds a thread
    "--sleep-on-idle",  # else an idle scheduler spins on a core
    "--log-level-http=warning",  # else a line for every request
)


def build_launch_command(
    model_path: str,
    variant: KVVariant,
    *,
    port: int,
    device: Device,
    python: str,
    options: ServeOptions | None = None,
) -> LaunchCommand:
    """The command that serves ``model_path`` with ``variant``.

    On ``cuda`` it is SGLang's own launcher with ``--kv-cache-dtype``, nothing of ours. On ``cpu``
    it is our launcher, which loads the CPU plugin into the same server.

    Raises
    ------
    ValueError
        A control or a layout on ``cuda``; an impossible port.
    """
    options = options or ServeOptions()
    if not 0 < port < 65536:
        raise ValueError(f"port {port} is not in 1..65535")
    if device == "cuda" and variant.control is not None:
        raise ValueError(
            f"variant {variant.name} plants a fault through the CPU server and cannot run on a GPU: "
            "use it with device cpu, or choose a variant without a control"
        )
    if device == "cuda" and variant.layout is not None:
        raise ValueError(
            f"variant {variant.name} is a layout of the CPU server and cannot be chosen on a GPU: "
            f"{KV_LAYOUT_KINDS[variant.layout].on_gpu}"
        )
    module = "sglang.launch_server" if device == "cuda" else "equipoise.quant.sglang.launch"
    argv = [python, "-m", module, f"--model-path={model_path}", f"--device={device}"]
    argv += [f"--host={options.host}", f"--port={port}", f"--kv-cache-dtype={variant.kv_cache_dtype}"]
    max_total_tokens, max_running_requests = options.max_total_tokens, options.max_running_requests
    env = dict(_COMMON_ENV)
    if device == "cpu":
        argv += _CPU_ARGS
        env |= _CPU_ENV | {"OMP_NUM_THREADS": str(options.threads)}
        max_total_tokens = max_total_tokens or _CPU_MAX_TOTAL_TOKENS
        max_running_requests = max_running_requests or _CPU_MAX_RUNNING_REQUESTS
    if max_total_tokens is not None:
        argv.append(f"--max-total-tokens={max_total_tokens}")
    if max_running_requests is not None:
        argv.append(f"--max-running-requests={max_running_requests}")
    if options.served_model_name is not None:
        argv.append(f"--served-model-name={options.served_model_name}")
    if variant.control is not None:
        argv.append(f"--kv-control={variant.control}")
    if variant.layout is not None:
        argv.append(f"--kv-layout={variant.layout}")
    argv += options.extra_args
    return LaunchCommand(argv=tuple(argv), env=env, host=options.host, port=port)


def resolve_server_python(environ: Mapping[str, str], *, checkout: Path | None = None) -> str:
    """Which Python runs the server: the environment that has torch and sglang.

    In order: ``EQUIPOISE_SGLANG_PYTHON``; ``.venv-sglang/bin/python`` beside the checkout; this
    interpreter, if it has sglang.

    Parameters
    ----------
    environ : mapping
        Usually ``os.environ``.
    checkout : Path or None
        Where to look for ``.venv-sglang``; None is the checkout this file is in, if it is in one.

    Raises
    ------
    FileNotFoundError
        None of the three; says what to run.
    """
    if chosen := environ.get("EQUIPOISE_SGLANG_PYTHON"):
        if not Path(chosen).is_file():
            raise FileNotFoundError(
                f"EQUIPOISE_SGLANG_PYTHON is {chosen}, which does not exist: "
                "point it at the Python that has sglang"
            )
        return chosen
    root = checkout or Path(__file__).resolve().parents[1]
    beside = root / ".venv-sglang" / "bin" / "python"
    if beside.is_file():
        return str(beside)
    if importlib.util.find_spec("sglang") is not None:
        return sys.executable
    raise FileNotFoundError(
        f"no Python with sglang: looked at EQUIPOISE_SGLANG_PYTHON (unset), {beside} and {sys.executable}; "
        "run `make setup`, or set EQUIPOISE_SGLANG_PYTHON"
    )
