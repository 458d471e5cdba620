"""Fields of one token's row of bytes, and rows to and from tensors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

__all__ = ["Field", "pack_row", "row_bytes", "unpack_row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A named array in each token's row, little-endian as on every machine that serves."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]  # of one token

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.itemsize)


def row_bytes(fields: Sequence[Field]) -> int:
    """Bytes of one row: its fields, one after the other without padding."""
    return sum(field.nbytes for field in fields)


def pack_row(fields: Sequence[Field], values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Lay the fields of each token one after the other.

    Parameters
    ----------
    values : mapping
        By field name, [tokens, *field.shape] of the field's dtype.

    Returns
    -------
    Tensor
        uint8 [tokens, row_bytes(fields)].

    Raises
    ------
    ValueError
        Another dtype or shape than the field's; names the field.
    """
    parts = []
    for field in fields:
        value = values[field.name]
        if value.dtype != field.dtype or tuple(value.shape[1:]) != field.shape:
            raise ValueError(
                f"field {field.name!r} holds {field.dtype} [tokens, {', '.join(map(str, field.shape))}], "
                f"not {value.dtype} {list(value.shape)}"
            )
        parts.append(value.contiguous().view(torch.uint8).flatten(1))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def unpack_row(fields: Sequence[Field], rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """The fields of each row, by name; the inverse of :func:`pack_row`, bit for bit.

    Raises
    ------
    ValueError
        Not uint8 [tokens, row_bytes(fields)].
    """
    if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] != row_bytes(fields):
        raise ValueError(
            f"rows of {', '.join(f.name for f in fields)} are uint8 [tokens, {row_bytes(fields)}], "
            f"not {rows.dtype} {list(rows.shape)}: another layout wrote them, or other dimensions"
        )
    values, start = {}, 0
    for field in fields:
        piece = rows[:, start : start + field.nbytes].contiguous()  # a view in place may be misaligned
        values[field.name] = piece.view(field.dtype).view(len(rows), *field.shape)
        start += field.nbytes
    return values
