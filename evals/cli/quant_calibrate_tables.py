"""Tables of ``equipoise quant calibrate``, for 80 columns."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from equipoise.quant.calibration.output import PLAN_NOTE, Output
from equipoise.quant.calibration.report import CalibrationReport, PartReport

__all__ = ["print_calibration"]


def print_calibration(out: Console, report: CalibrationReport, output: Output) -> None:
    """Storage by layer and part, effects by layer, the plan, and how it is served."""
    percent = f" {report.percentile:g}" if report.percentile is not None else ""
    out.print(
        Text(
            f"{report.model}: {report.layout}, scales by {report.method}{percent} "
            f"({report.granularity}), {report.data['prompts']:,} prompts, {report.data['tokens']:,} tokens"
        )
    )
    _storage(out, report)
    _effects(out, report)
    _plan(out, report)
    out.print()
    for note in output.notes:
        out.print(Text(note))
    if output.served is False:
        out.print(Text("SGLang 0.5.23 on a GPU would not apply what is written here.", style="bold"))
    for file in output.files:
        out.print(Text(f"wrote {file}"), soft_wrap=True)
    for i, launch in enumerate(output.launch):
        out.print(Text(f"{'serve with' if i == 0 else 'or with'} {launch}"), soft_wrap=True)


def _table(out: Console, header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _storage(out: Console, report: CalibrationReport) -> None:
    rows = []
    for layer in report.layers:
        for part, found in layer.parts.items():
            rest, sinks = found.rest, found.sinks
            rows.append(
                (
                    str(layer.layer),
                    part,
                    _scale(found),
                    _number(rest.amax),
                    _number(rest.percentiles["99.99"]),
                    _decibel(rest.stored.sqnr_db),
                    _decibel(rest.at_unit_scale.sqnr_db),
                    _fixed(rest.stored.cosine, 5),
                    _share(rest.stored.saturated_share),
                    _share(rest.stored.flushed_share),
                    _number(sinks.amax),
                    _decibel(sinks.stored.sqnr_db),
                )
            )
    header = ("", "part", "scale", "amax", "p99.99", "dB", "dB@1", "cosine", "sat%", "flush%", "sinks", "dB")
    _table(out, header, rows, 2)
    heads = "; scale: the largest of its heads" if report.granularity == "head" else ""
    out.print(
        Text(
            f"dB: SQNR, @1: at scale 1. sinks: amax and SQNR of the first {report.sink_tokens} tokens, which "
            f"are in no other column{heads}."
        )
    )


def _effects(out: Console, report: CalibrationReport) -> None:
    rank = {layer: i + 1 for i, layer in enumerate(report.ranking)}
    rows = [
        (
            str(x.layer),
            _share(x.attention_error),
            _share(x.attention_error_at_unit_scale),
            _nats(x.kl_nats),
            _nats(x.kl_max_nats),
            f"{x.top1_changed:,}",
            str(rank[x.layer]),
        )
        for x in report.layers
    ]
    for name, whole in (("all", report.calibrated), ("all at scale 1", report.at_unit_scale)):
        rows.append(
            (name, "", "", _nats(whole.kl_nats), _nats(whole.kl_max_nats), f"{whole.top1_changed:,}", "")
        )
    out.print()
    header = ("layer", "attention%", "at 1", "KL nats", "max", "top-1 changed", "sensitivity")
    _table(out, header, rows, 1)
    out.print(
        Text(
            "attention%: relative L2 error of the layer's output. KL from the unquantized cache, with "
            f"that layer's cache alone quantized, over {report.kl_tokens:,} tokens of "
            f"{report.kl_prompts:,} prompts."
        )
    )


def _plan(out: Console, report: CalibrationReport) -> None:
    plan = report.plan
    if plan is None:
        return
    kept = ", ".join(map(str, plan.bf16_layers)) or "none"
    out.print()
    out.print(
        Text(
            f"KL budget {plan.kl_budget_nats:g} nats: keep in BF16: {kept}. "
            f"Measured {_nats(plan.measured_nats)} (sum of the layers' own: {_nats(plan.predicted_nats)}); "
            f"{plan.bytes_per_token:,} bytes a token, between {plan.bytes_all_quantized:,} (all quantized) "
            f"and {plan.bytes_all_bf16:,} (all BF16)."
        )
    )
    if plan.bf16_layers:
        out.print(Text(PLAN_NOTE))


def _scale(found: PartReport) -> str:
    return _number(max(found.scales)) if found.scales else "-"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def _fixed(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _decibel(value: float) -> str:
    return "exact" if value == math.inf else _fixed(value, 1)


def _share(value: float) -> str:
    """In percent; a share that is not zero never looks like one."""
    if math.isnan(value):
        return "-"
    return "0" if value == 0 else "<.01" if value < 1e-4 else f"{100 * value:.2f}"


def _nats(value: float) -> str:
    return f"{value:.3g}" if value >= 1e-6 or value == 0 else "<1e-6"
