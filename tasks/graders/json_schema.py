"""Whether a JSON value satisfies a tool's JSON schema, at a bounded cost.

Validation is jsonschema's, in the draft that ``$schema`` names (2020-12 without). References are resolved
within the schema only, nothing is fetched. Values come from a model: patterns run with a time limit,
``uniqueItems`` in linear time, and few keywords are evaluated, as recursive alternatives multiply.
"""

import functools
import json
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import regex
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend, validator_for
from referencing import Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY, specification_with

__all__ = ["check_schema", "violation"]

MAX_KEYWORDS = 50_000  # evaluated for one value
MAX_PATTERN_S = 0.5  # of CPU time, spent on patterns for one value
_MAX_SAID = 200
_NO_FORMATS = FormatChecker(formats=())
_LITERAL = frozenset({"const", "default", "enum", "example", "examples"})


class _TooCostly(Exception):
    """Validation was given up; the message says why."""


@dataclass(slots=True)
class _Budget:
    keywords: int = MAX_KEYWORDS
    pattern_s: float = MAX_PATTERN_S

    def spend(self) -> None:
        self.keywords -= 1
        if self.keywords < 0:
            raise _TooCostly(f"it takes more than {MAX_KEYWORDS:,} steps")


_budget: ContextVar[_Budget] = ContextVar("_budget")


def check_schema(schema: Any) -> None:
    """Raise if arguments cannot be validated against a schema.

    Raises
    ------
    ValueError
        Not a schema of its draft; a reference out of it; a pattern that cannot be compiled.
    """
    _prepared(json.dumps(schema))


def violation(schema: Any, value: Any) -> str:
    """Why a value does not satisfy the schema; empty if it does. Never raises on a value.

    Raises
    ------
    ValueError
        As `check_schema`.
    """
    validator = _prepared(json.dumps(schema))
    token = _budget.set(_Budget())
    try:
        error: ValidationError | None = next(validator.iter_errors(value), None)
        return "" if error is None else f"{error.json_path}: {error.message}"[:_MAX_SAID]
    except (_TooCostly, Unresolvable, ArithmeticError) as e:
        return f"cannot be validated: {e}"[:_MAX_SAID]
    except RecursionError:
        return "cannot be validated: the schema recurses without end"
    finally:
        _budget.reset(token)


@functools.lru_cache(maxsize=1024)
def _prepared(text: str) -> Any:
    schema = json.loads(text)
    if not isinstance(schema, dict | bool):
        raise ValueError(f"a schema is an object, not {text[:40]}")
    draft: Any = validator_for(schema, default=Draft202012Validator)
    own = _without_identity(schema)
    try:
        draft.check_schema(own, format_checker=_NO_FORMATS)  # whose regex is Python's own
    except SchemaError as e:
        raise ValueError(f"not a JSON schema: {e.json_path}: {e.message}"[:_MAX_SAID]) from e
    except (RecursionError, Unresolvable) as e:
        raise ValueError(f"not a JSON schema that can be read: {type(e).__name__}") from e
    _check_references(own, draft)
    _check_patterns(own)
    return _bounded(draft)(own, registry=EMPTY_REGISTRY)


def _without_identity(node: Any) -> Any:
    """A schema less what its validation does not need: ``$schema`` (of the draft that was chosen), and names
    with a fragment, which drafts since 2019 do not allow and vendors accept."""
    if isinstance(node, list):
        return [_without_identity(v) for v in node]
    if not isinstance(node, dict):
        return node
    return {
        k: v if k in _LITERAL else _without_identity(v)
        for k, v in node.items()
        if not (isinstance(v, str) and (k == "$schema" or (k == "$id" and "#" in v)))
    }


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Every object in a schema but those that are literal values."""
    if isinstance(node, dict):
        yield node
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        if key not in _LITERAL:
            yield from _nodes(child)


def _check_references(schema: Any, draft: Any) -> None:
    specification = specification_with(draft.META_SCHEMA["$schema"], default=DRAFT202012)
    resource = Resource.from_contents(schema, default_specification=specification)
    uri = resource.id() or ""
    resolver = EMPTY_REGISTRY.with_resource(uri, resource).crawl().resolver(uri)
    for node in _nodes(schema):
        reference = node.get("$ref")
        if isinstance(reference, str):
            try:
                resolver.lookup(reference)
            except Unresolvable as e:
                raise ValueError(f"the reference {reference[:80]!r} leads out of the schema") from e


def _check_patterns(schema: Any) -> None:
    keywords: set[str] = set()
    for node in _nodes(schema):
        keywords |= node.keys()
        named = node.get("patternProperties")
        for pattern in (node.get("pattern"), *(named if isinstance(named, dict) else ())):
            if isinstance(pattern, str):
                _compiled(pattern)
    if {"patternProperties", "unevaluatedProperties"} <= keywords:
        raise ValueError("patternProperties with unevaluatedProperties cannot be validated in bounded time")


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> regex.Pattern[str]:
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError) as e:
        raise ValueError(f"the pattern {pattern[:80]!r} cannot be compiled: {e}") from e


def _found(pattern: str, text: str) -> bool:
    budget = _budget.get()
    budget.spend()
    started = time.thread_time()
    try:
        found = _compiled(pattern).search(text, timeout=max(budget.pattern_s, 1e-3))
    except TimeoutError:
        raise _TooCostly(f"the pattern {pattern[:80]!r} takes too long") from None
    budget.pattern_s -= time.thread_time() - started
    if budget.pattern_s < 0:
        raise _TooCostly(f"its patterns take more than {MAX_PATTERN_S:g} s")
    return found is not None


@functools.cache
def _bounded(draft: Any) -> Any:
    """A draft's validator with every keyword counted, and those with patterns replaced."""
    keywords = {**draft.VALIDATORS, "pattern": _pattern, "additionalProperties": _additional_properties}
    if "patternProperties" in keywords:
        keywords["patternProperties"] = _pattern_properties
    if "uniqueItems" in keywords:
        keywords["uniqueItems"] = _unique_items
    counted = {name: _counted(check) for name, check in keywords.items()}
    return extend(draft, counted)  # type: ignore[no-untyped-call]


def _counted(check: Any) -> Any:
    def run(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _budget.get().spend()
        return check(validator, value, instance, schema)

    return run


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError(f"{instance[:80]!r} does not match {pattern[:80]!r}")


def _pattern_properties(
    validator: Any, named: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, inner in named.items():
        for name, value in instance.items():
            if _found(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, inner: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in known or any(_found(pattern, name) for pattern in patterns):
            continue
        if inner is False:
            yield ValidationError(f"the property {name[:80]!r} is not one of the schema's")
        elif isinstance(inner, dict):
            yield from validator.descend(value, inner, path=name)


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not unique or not isinstance(instance, list):
        return
    if len({json.dumps(_canonical(v), sort_keys=True) for v in instance}) < len(instance):
        yield ValidationError("has non-unique elements")


def _canonical(value: Any) -> Any:
    """A value in which 1 and 1.0 are one number, as they are in JSON."""
    if isinstance(value, dict):
        return {k: _canonical(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_canonical(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
