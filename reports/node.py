"""The base of every part of a report: plain values only, checked when the part is made.

A report is read by renderers, by other programs and by later versions of this one, so nothing in
it may depend on numpy, on an enum's class or on what a float can hold that JSON cannot.
"""

import math
import numbers
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

__all__ = ["Node"]


class Node:
    """Base of the frozen dataclasses of a report.

    On construction every value is made plain: numpy reals and enum members become float, int and
    str; lists become tuples; lone surrogates become U+FFFD. A float that is NaN or infinite becomes
    None, and ``undefined[field]`` says so (a reason that the caller gave is kept).

    Raises
    ------
    TypeError
        If a value is none of str, int, float, bool, None, a Node, or a tuple or dict of these.
    """

    __slots__ = ()

    undefined: Mapping[str, str]

    def __post_init__(self) -> None:
        why = dict(getattr(self, "undefined", {}))
        for field in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            if field.name == "undefined":
                continue
            where = f"{type(self).__name__}.{field.name}"
            value = getattr(self, field.name)
            if isinstance(value, numbers.Real) and not math.isfinite(value):
                if type(None) not in get_args(field.type) or not hasattr(self, "undefined"):
                    raise ValueError(f"{where} is {float(value)}; it must be a finite number")
                why.setdefault(field.name, "not a number" if math.isnan(value) else "infinite")
                object.__setattr__(self, field.name, None)
            else:
                object.__setattr__(self, field.name, _plain(value, where))
        if hasattr(self, "undefined"):
            object.__setattr__(self, "undefined", _plain(why, f"{type(self).__name__}.undefined"))
        self.check()

    def check(self) -> None:
        """Refuse what this part must never say; overridden where there is a rule."""


def _plain(value: Any, where: str) -> Any:
    match value:
        case None | bool() | Node():
            return value
        case str():
            return str.encode(value, "utf-16", "surrogatepass").decode("utf-16", "replace")
        case numbers.Integral():
            return int(value)
        case numbers.Real():
            if not math.isfinite(value):
                raise ValueError(
                    f"{where} holds {float(value)}; leave the entry out, or give a finite number"
                )
            return float(value)
        case tuple() | list():
            return tuple(_plain(item, where) for item in value)
        case Mapping():
            return {_plain(key, where): _plain(item, where) for key, item in value.items()}
    raise TypeError(
        f"{where} is a {type(value).__module__}.{type(value).__name__}; a report holds plain values "
        "(str, int, float, bool, None, tuples and dicts of them)"
    )
