"""BF16 values to exponents below a base, escapes, and signs with mantissas; and back, bit for bit.

Of n values each exponent becomes its distance below a base modulo 256, 0 to 14, or 15 for an *escape*, whose
exponent is kept apart. ``pairs`` has two distances a byte: of the first half in the low bits, of the second
half in the high ones. A base holds for one row of the values, all rows of one length.

``split`` and ``join`` use the compiled routine (``cpu/bf16_split.c``) where there is one, else the numpy code
below, which is also its reference: the results are the same bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.kernels.cpu.compiled import load

__all__ = [
    "ESCAPE",
    "Split",
    "backend",
    "count_escapes",
    "count_escapes_reference",
    "join",
    "join_reference",
    "split",
    "split_reference",
]

ESCAPE = 15
_SIGN_MANTISSA = 0x807F  # of a BF16 bit pattern: sign, 8 bits of exponent, 7 of mantissa

Bytes = NDArray[np.uint8]
Values = NDArray[np.uint16]


class Split(NamedTuple):
    """``pairs`` [ceil(n / 2)], ``escapes`` [as many as there are], ``rest`` [n]: sign, then mantissa."""

    pairs: Bytes
    escapes: Bytes
    rest: Bytes


def split(values: Values, bases: Bytes) -> Split:
    """Split ``values`` [n], uint16, contiguous, with ``bases`` [rows]; rows divide n."""
    _check(values, bases)
    return _implementation().split(values, bases)


def join(parts: Split, bases: Bytes, out: Values) -> bool:
    """Put the values together in ``out`` [n], contiguous.

    Returns
    -------
    bool
        False if the pairs ask for another number of escapes than there are; ``out`` is then meaningless.
    """
    _check(out, bases)
    if parts.pairs.shape != ((out.size + 1) // 2,) or parts.rest.shape != out.shape:
        raise ValueError(f"pairs {parts.pairs.shape} and rest {parts.rest.shape} for {out.size} values")
    return _implementation().join(parts, bases, out)


def count_escapes(pairs: Bytes) -> int:
    """How many escapes ``pairs``, uint8, contiguous, ask for."""
    if pairs.dtype != np.uint8 or not pairs.flags.c_contiguous:
        raise ValueError(f"pairs must be contiguous uint8, not {pairs.dtype}")
    return _implementation().count_escapes(pairs)


def backend() -> str:
    """What `split` and `join` use, and why."""
    return _implementation().backend


def _check(values: Values, bases: Bytes) -> None:
    if values.dtype != np.uint16 or values.ndim != 1 or not values.flags.c_contiguous:
        raise ValueError(f"values must be contiguous uint16, not {values.dtype} of shape {values.shape}")
    if bases.dtype != np.uint8 or bases.ndim != 1 or (values.size and not bases.size):
        raise ValueError(f"bases must be uint8, at least one, not {bases.dtype} of shape {bases.shape}")
    if bases.size and values.size % bases.size:
        raise ValueError(f"{values.size} values are not {bases.size} rows")


def split_reference(values: Values, bases: Bytes) -> Split:
    """`split` in numpy."""
    count = values.size
    exponents = np.empty(count, np.uint8)
    np.copyto(exponents, values >> 7, casting="unsafe")
    distance = np.empty(count, np.uint8)
    rows = (len(bases), count // max(1, len(bases)))
    # Above the base it wraps round: an escape, unless it is 242 or more above.
    np.subtract(bases[:, None], exponents.reshape(rows), out=distance.reshape(rows))
    escaped = np.flatnonzero(distance >= ESCAPE)
    escapes = exponents[escaped]
    distance[escaped] = ESCAPE
    half = (count + 1) // 2
    pairs = distance[:half].copy()
    pairs[: count - half] |= distance[half:] * np.uint8(16)
    wide = values & _SIGN_MANTISSA
    wide |= wide >> 8
    np.copyto(exponents, wide, casting="unsafe")
    return Split(pairs=pairs, escapes=escapes, rest=exponents)


def count_escapes_reference(pairs: Bytes) -> int:
    """`count_escapes` in numpy."""
    high, low = np.count_nonzero(pairs >= ESCAPE << 4), np.count_nonzero(pairs & ESCAPE == ESCAPE)
    return int(high + low)


def join_reference(parts: Split, bases: Bytes, out: Values) -> bool:
    """`join` in numpy."""
    count = out.size
    half = (count + 1) // 2
    distance = np.empty(count, np.uint8)
    np.bitwise_and(parts.pairs, ESCAPE, out=distance[:half])
    np.right_shift(parts.pairs[: count - half], 4, out=distance[half:])
    escaped = np.flatnonzero(distance == ESCAPE)
    if escaped.size != parts.escapes.size:
        return False
    rows = distance.reshape(len(bases), count // max(1, len(bases)))
    np.subtract(bases[:, None], rows, out=rows)
    distance[escaped] = parts.escapes
    np.copyto(out, parts.rest)
    out *= np.uint16(0x0101)  # the byte twice: its high bit in place of the sign, the rest as mantissa
    out &= np.uint16(_SIGN_MANTISSA)
    exponents = distance.astype(np.uint16)
    exponents <<= 7
    out |= exponents
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Implementation:
    split: Callable[[Values, Bytes], Split]
    join: Callable[[Split, Bytes, Values], bool]
    count_escapes: Callable[[Bytes], int]
    backend: str


def _numpy(reason: str) -> _Implementation:
    return _Implementation(
        split=split_reference,
        join=join_reference,
        count_escapes=count_escapes_reference,
        backend=f"numpy ({reason})",
    )


@cache
def _implementation() -> _Implementation:
    from equipoise.kernels.cpu import bf16_split as compiled

    loaded = load("bf16_split")
    if loaded.library is None:
        return _numpy(loaded.how)
    # A wrong instruction here would be found only when the values are needed: try every pattern first.
    values = np.arange(1 << 16, dtype=np.uint16)
    bases = np.array([130, 100], np.uint8)
    parts, again = compiled.compiled_split(values, bases), np.empty_like(values)
    expected = split_reference(values, bases)
    same = all(np.array_equal(a, b) for a, b in zip(parts, expected, strict=True))
    same &= compiled.compiled_count_escapes(parts.pairs) == parts.escapes.size
    if not (same and compiled.compiled_join(parts, bases, again) and np.array_equal(again, values)):
        return _numpy(f"{loaded.how}: its results are wrong")
    return _Implementation(
        split=compiled.compiled_split,
        join=compiled.compiled_join,
        count_escapes=compiled.compiled_count_escapes,
        backend=f"compiled ({loaded.how})",
    )
