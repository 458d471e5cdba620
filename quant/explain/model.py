"""What an explanation consists of: rules with their source, scales by layer, findings."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from equipoise.quant.variants import SGLANG_VERSION

__all__ = [
    "EXIT_PROBLEM",
    "Evidence",
    "Explanation",
    "Finding",
    "Kind",
    "Row",
    "Rule",
    "ScaleRow",
    "layer_ranges",
]

EXIT_PROBLEM = 1

Evidence = Literal["executed", "read"]
Kind = Literal["crash", "wrong", "ignored", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one version of SGLang does, and where.

    ``evidence``: "executed" rules are run against the installed package by the tests (functions called with
    stand-ins for the hardware); of "read" ones the tests compare the source text.
    """

    id: str
    statement: str
    file: str  # below sglang/srt, or below quant/ for our CPU server
    symbol: str
    evidence: Evidence
    version: str = f"sglang {SGLANG_VERSION}"

    @property
    def source(self) -> str:
        return f"{self.file}: {self.symbol}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know before the launch.

    "crash": the server ends with an error, at launch or at the first request of the kind. "wrong": it
    answers, but not with what was meant. "ignored": something given has no effect, silently. "note": no
    fault, but a reader of the results should know it.
    """

    kind: Kind
    rule: str
    message: str
    remedy: str = ""

    @property
    def is_problem(self) -> bool:
        return self.kind != "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: what, its value, why, and the rules that say so."""

    what: str
    value: str
    why: str = ""
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRow:
    """Layers whose scales come from the same place and are used alike.

    Scales are descales: a cache holds x / s and is read as x * s. ``k`` and ``v`` are (least, greatest) of
    the layers, None where the values cannot be known here.
    """

    layers: tuple[int, ...]
    role: Literal["target", "draft"]
    k_source: str
    v_source: str
    k: tuple[float, float] | None
    v: tuple[float, float] | None
    on_write: bool | None  # divided by the scale when stored
    on_read: bool | None  # multiplied by it when read; None: not known
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What one server will do, before it is started.

    ``kv_cache_dtype`` is the resolved one; ``kv_cache_word`` what SGLang calls it, which the two sides of a
    PD pair compare ("auto", "bf16" and "bfloat16" are different words). ``bytes_per_token`` counts all
    layers, stored once; None for a dtype whose layout is not described here. ``capacity_tokens`` is None
    where it cannot be computed; ``capacity_note`` says from what, or why not.
    """

    model: str
    architecture: str
    attention: str  # gqa, mla, dsa
    hardware: str
    tp_size: int
    disaggregation_mode: str
    asked_kv_cache_dtype: str
    kv_cache_dtype: str
    kv_cache_word: str
    layout: str
    bytes_per_token: int | None
    prefill_backend: str
    decode_backend: str
    page_size: int
    rows: tuple[Row, ...]
    scales: tuple[ScaleRow, ...]
    findings: tuple[Finding, ...]
    rules: tuple[Rule, ...]
    unread: tuple[str, ...] = ()  # flags that were not looked at; their values are not kept
    cache_storage: str = ""  # who may read this server's KV pages from storage; "" if nobody
    capacity_tokens: int | None = None
    capacity_note: str = ""
    sglang_version: str = SGLANG_VERSION

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.is_problem)

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if not f.is_problem)

    @property
    def exit_code(self) -> int:
        return EXIT_PROBLEM if self.problems else 0

    @property
    def stored_as(self) -> tuple[object, ...]:
        """Equal for two servers whose cached bytes mean the same."""
        scales = tuple((s.layers, s.k, s.v, s.on_write) for s in self.scales if s.on_write)
        return (self.kv_cache_dtype, self.layout, self.page_size, scales)

    def lines(self) -> tuple[str, ...]:
        """The answer in a few lines, for a report; notes by the names of their rules."""
        size = f", {self.bytes_per_token:,} bytes a token" if self.bytes_per_token is not None else ""
        said = [
            f"KV {self.kv_cache_dtype}, layout {self.layout}{size}; prefill {self.prefill_backend}, decode "
            f"{self.decode_backend}, page size {self.page_size}"
        ]
        for s in self.scales:
            source = s.k_source if s.k_source == s.v_source else f"{s.k_source} and {s.v_source}"
            said.append(
                f"scales of {'draft ' if s.role == 'draft' else ''}layers {layer_ranges(s.layers)}: {source}"
            )
        said += [f"{f.kind}: {f.message} [{f.rule}]" for f in self.problems]
        if self.notes:
            said.append(f"notes: {', '.join(dict.fromkeys(f.rule for f in self.notes))}")
        return tuple(said)

    def as_json(self) -> dict[str, Any]:
        """JSON values only; rules are those that the answer cites."""
        found = asdict(self)
        found["rules"] = [asdict(r) | {"source": r.source} for r in self.rules]
        found["problems"] = len(self.problems)
        found["exit_code"] = self.exit_code
        for row in found["scales"]:
            row["layers"] = layer_ranges(row["layers"])
            for part in ("k", "v"):  # JSON has no inf and nan
                if row[part] is not None:
                    row[part] = [x if math.isfinite(x) else str(x) for x in row[part]]
        return found


def layer_ranges(layers: tuple[int, ...]) -> str:
    """``0-2, 5`` for (0, 1, 2, 5)."""
    said: list[str] = []
    start = previous = None
    for layer in (*sorted(layers), None):
        if previous is not None and layer == previous + 1:
            previous = layer
            continue
        if start is not None:
            said.append(f"{start}" if start == previous else f"{start}-{previous}")
        start = previous = layer
    return ", ".join(said)
