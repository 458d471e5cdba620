"""``equipoise quant calibrate``: KV scales from data, and what they do."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from equipoise.evals.cli.numbers import SIZE, Number
from equipoise.evals.cli.quant import needs_modules
from equipoise.evals.cli.quant_calibrate_tables import print_calibration
from equipoise.evals.cli.shell import console, errors_exit
from equipoise.evals.errors import InterruptedRunError, UsageError
from equipoise.evals.experiment.checkpoints import resolve_model
from equipoise.quant.calibration.output import describe, write
from equipoise.quant.calibration.report import to_json
from equipoise.quant.calibration.settings import GRANULARITIES, METHODS, Granularity, Method, Settings

__all__ = ["calibrate"]


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--data",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Prompts, one a line: text, or .jsonl with text, messages or token_ids. May be repeated.",
)
@click.option("--method", type=click.Choice(METHODS), default="amax", show_default=True)
@click.option("--granularity", type=click.Choice(GRANULARITIES), default="tensor", show_default=True)
@click.option(
    "--percentile",
    type=Number("a percentile", 0, 100, closed="high"),
    default=99.99,
    show_default=True,
    metavar="P",
    help="Of --method percentile.",
)
@click.option(
    "--kl-budget",
    type=Number("a KL divergence in nats", 0, 100),
    metavar="NATS",
    help="Find which layers to keep in BF16 so that the mean KL stays below this.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write an overlay checkpoint.")
@click.option(
    "--overlay-of",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Link this release of the model (a quantized one) instead of MODEL.",
)
@click.option("--tp", type=SIZE, default=1, show_default=True, metavar="N", help="Ranks in SGLang's JSON.")
@click.option("--max-prompts", type=SIZE, default=128, show_default=True, metavar="N")
@click.option("--max-tokens", type=SIZE, default=2048, show_default=True, metavar="N", help="Of each prompt.")
@click.option(
    "--kl-prompts", type=SIZE, default=8, show_default=True, metavar="N", help="Prompts that measure KL."
)
@click.option(
    "--sink-tokens",
    type=click.IntRange(0, 1024),
    default=4,
    show_default=True,
    metavar="N",
    help="First tokens counted apart.",
)
@click.option("--compute", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1 ...")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@errors_exit
@needs_modules("torch", "transformers", "safetensors")
def calibrate(
    *,
    model: str,
    data: tuple[Path, ...],
    method: Method,
    granularity: Granularity,
    percentile: float,
    kl_budget: float | None,
    out: Path | None,
    overlay_of: Path | None,
    tp: int,
    max_prompts: int,
    max_tokens: int,
    kl_prompts: int,
    sink_tokens: int,
    compute: str,
    device: str,
    as_json: bool,
) -> None:
    """KV scales of a model from prompts like those it will serve, and what they do to its answers.

    MODEL is embedded:NAME or a checkpoint folder in BF16; no code of the checkpoint is run. Every
    layer's cache is reported at these scales and at scale 1. With --out, MODEL is linked into a
    new folder that has the scales.
    """
    if overlay_of is not None and out is None:
        raise UsageError("--overlay-of says what is linked into --out: add it")
    if out is not None and (out.exists() or out.is_symlink()):
        raise UsageError(f"{out} exists; nothing is overwritten: choose another --out or remove it")
    if out is not None and granularity == "token-tile":
        raise UsageError("--granularity token-tile leaves nothing to write: drop --out")
    folder = Path(resolve_model(model))
    if not folder.is_dir():
        raise UsageError(f"{folder} is not on this disk; download it and give its folder")
    settings = Settings(
        method=method,
        granularity=granularity,
        percentile=percentile,
        sink_tokens=sink_tokens,
        kl_prompts=kl_prompts,
        kl_budget_nats=kl_budget,
    )
    # Imported only now: these import torch and transformers.
    from equipoise.quant.calibration.calibrate import calibrate as run
    from equipoise.quant.calibration.model import load_model, load_tokenizer
    from equipoise.quant.calibration.prompts import read_prompts, tokenize

    prompts = read_prompts(data, max_prompts=max_prompts)
    try:
        loaded = load_model(folder, dtype=compute, device=device)
        sequences = tokenize(
            prompts.prompts,
            lambda: load_tokenizer(folder),
            vocab_size=loaded.geometry.vocab_size,
            max_tokens=max_tokens,
        )
        with _progress() as stages:
            described = {
                "files": [{"name": name, "sha256": digest} for name, digest in prompts.files],
                "more_prompts_unread": prompts.unread,
            }
            report = run(loaded, sequences, settings, stages=stages, describe_data=described)
        source = overlay_of or folder
        output = write(report, source, out, tp_size=tp) if out else describe(report, source, None)
    except KeyboardInterrupt as e:
        raise InterruptedRunError("calibration was interrupted; nothing was written") from e
    if as_json:
        click.echo(json.dumps(to_json(report) | {"sglang": to_json(output)}, indent=2, allow_nan=False))
        return
    print_calibration(console(), report, output)


_STAGES = {
    "observe": "Observing what is cached",
    "choose": "Choosing by attention error",
    "attention": "Measuring attention",
    "divergence": "Measuring KL, layer by layer",
    "plan": "Measuring a mixed plan",
}


@contextmanager
def _progress() -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    err = console(err=True)
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:

        def begin(stage: str, tokens: int) -> Callable[[int], None]:
            task = progress.add_task(_STAGES[stage], total=tokens)
            return lambda done: progress.advance(task, done)

        yield begin
