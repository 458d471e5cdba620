"""The process that runs what the model wrote. It is told the code and what to call; never what is right.

It may lie about what its functions return, which is what the tests are for. Frames come on descriptor 3 and
go to descriptor 4.
"""

import builtins
import random
import sys
import types
from collections import deque
from typing import Any

from equipoise.tasks.sandbox.inside.layers import Layers, more_cpu
from equipoise.tasks.sandbox.inside.programs import serve_programs
from equipoise.tasks.sandbox.inside.wire import WireError, decode, encode, read_frame, write_frame

__all__ = ["REQUESTS", "RESULTS", "serve"]

REQUESTS, RESULTS = 3, 4
_MODULE = "solution"
_TEXT = 2000
_CHANGEABLE = (list, dict, set, bytearray, deque)


def serve(layers: Layers, limits: dict[str, Any]) -> None:
    """Answer requests until they end; the first says how the code is to be run."""
    random.seed(0)
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # which the site module would give
    first = read_frame(REQUESTS)
    if first is None:
        return
    if first["mode"] == "stdin":
        serve_programs(REQUESTS, RESULTS, layers, limits, first)
    else:
        layers.before_code(limits)
        _serve_functions(first, limits)


def _serve_functions(first: dict[str, Any], limits: dict[str, Any]) -> None:
    """Run the code once, then call its functions as asked."""
    module = types.ModuleType(_MODULE)
    sys.modules[_MODULE] = module
    space = module.__dict__
    kept: list[Any] = []
    _send(_outcome(_execute, first, space))
    while (asked := read_frame(REQUESTS)) is not None:
        more_cpu(limits)
        _send(_outcome(_call, asked, space, kept))


def _execute(first: dict[str, Any], space: dict[str, Any]) -> dict[str, Any]:
    for source in (first["preamble"], first["code"]):
        exec(compile(source, "<solution>", "exec", dont_inherit=True), space)  # noqa: S102 the sandbox's purpose
    return {"result": None}


def _call(asked: dict[str, Any], space: dict[str, Any], kept: list[Any]) -> dict[str, Any]:
    """The result, and the positional arguments that the function changed."""

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    positional = decode(asked["args"], kept.__getitem__)
    named = {name: decode(v, kept.__getitem__) for name, v in asked["kwargs"].items()}
    held = {i: v for i, v in enumerate(positional) if isinstance(v, _CHANGEABLE)}
    before = {i: encode(v, _nothing) for i, v in held.items()}
    result = encode(_function(asked, space)(*positional, **named), keep)
    after = {i: encode(v, _nothing) for i, v in held.items()}
    return {"result": result, "changed": [[i, v] for i, v in after.items() if v != before[i]]}


def _nothing(value: Any) -> int:
    return 0


def _function(asked: dict[str, Any], space: dict[str, Any]) -> Any:
    """A method of the code's ``Solution`` where one is asked for and there; else a name of the module."""
    name, solution = asked["name"], space.get("Solution")
    if asked["method"] and isinstance(solution, type) and hasattr(solution, name):
        if "Solution()" not in space:
            space["Solution()"] = solution()
        return getattr(space["Solution()"], name)
    if name not in space:
        raise NameError(f"name {name!r} is not defined")
    return space[name]


def _outcome(action: Any, *arguments: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = action(*arguments)
        return found
    except WireError as e:
        return {"error": "TypeError", "message": str(e)}
    except BaseException as e:  # noqa: BLE001 also SystemExit: the tests decide what it means
        return {"error": type(e).__name__[:100], "message": _said(e)}


def _said(error: BaseException) -> str:
    try:
        return str(error)[:_TEXT]
    except BaseException:  # noqa: BLE001 an exception class of the program's own
        return ""


def _send(answer: dict[str, Any]) -> None:
    try:
        write_frame(RESULTS, answer)
    except (WireError, MemoryError) as e:
        write_frame(RESULTS, {"error": type(e).__name__, "message": _said(e)})
