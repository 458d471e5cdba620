"""Checkpoints rounded to a weight format and stored in BF16 again: how the CPU server serves those formats.

A server without the format's kernels cannot load it. Rounding every weight to what the format can say, and
storing the result in BF16, keeps the error of the weights and leaves out what else such a kernel does
(quantized activations, its own accumulation); the value itself is rounded to BF16 once more.

``python -m equipoise.quant.rounded OUT SOURCE... --format F --format G`` writes OUT/NAME.F for each:
converted as by ``quant convert``, proved as by ``quant verify``, decoded as by ``quant dequantize``.
Needs torch.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import read_json
from equipoise.quant.weights.names import FORMAT_NAMES

__all__ = ["ROUNDING_NAME", "Rounding", "main", "rounded", "rounding_of"]

ROUNDING_NAME = "equipoise_rounding.json"
_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """The format whose values a BF16 checkpoint holds."""

    weights: str

    @property
    def note(self) -> str:
        return (
            f"weights in {self.weights} were decoded to BF16 before serving: their rounding is measured, not "
            "what else the format's kernels do (quantized activations, their own accumulation)"
        )


def rounding_of(folder: Path) -> Rounding | None:
    """The record of a rounded checkpoint; None for any other.

    Raises
    ------
    CheckpointError
        The record cannot be read.
    """
    path = folder / ROUNDING_NAME
    if not path.exists():
        return None
    weights = read_json(path, max_bytes=_MAX_BYTES).get("weights")
    if weights not in FORMAT_NAMES:
        raise CheckpointError(f"{path} names no weight format; make the checkpoint again")
    return Rounding(weights=str(weights))


def rounded(source: Path, target: Path, format_name: str, *, workers: int | None = None) -> None:
    """Round the weights of ``source`` to a format, into ``target``, which appears whole or not at all.

    Raises
    ------
    UsageError, CheckpointError
        ``target`` exists, or the conversion is refused or does not verify.
    """
    from equipoise.quant.weights.convert import convert, dequantize
    from equipoise.quant.weights.engine import REPORT_NAME
    from equipoise.quant.weights.verify import verify

    if target.exists():
        raise UsageError(f"{target} exists; remove it to make it again")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
        stored, decoded = Path(work) / "stored", Path(work) / "decoded"
        convert(source, stored, format_name=format_name, workers=workers)
        proof = verify(source, stored, workers=workers)
        if not proof.passed:
            raise CheckpointError(f"{source} in {format_name} does not verify; see `equipoise quant verify`")
        dequantize(stored, decoded, workers=workers)
        # Their report has times of writing, which would make each rounding another checkpoint to a ledger.
        (decoded / REPORT_NAME).unlink(missing_ok=True)
        (decoded / ROUNDING_NAME).write_text(json.dumps({"weights": format_name}) + "\n", encoding="utf-8")
        decoded.rename(target)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m equipoise.quant.rounded", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("source", type=Path, nargs="+")
    parser.add_argument("--format", action="append", required=True, choices=FORMAT_NAMES, dest="formats")
    parser.add_argument("--replace", action="store_true", help="what is there already is made again")
    arguments = parser.parse_args(argv)
    try:
        for source in arguments.source:
            for name in arguments.formats:
                target = arguments.out / f"{source.name}.{name}"
                if arguments.replace and rounding_of(target) is not None:
                    shutil.rmtree(target)
                rounded(source, target, name, workers=1)
                print(f"wrote {target}")
    except UsageError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
