"""Samples as canonical JSON: the form in which the journal keeps them.

One line of pure ASCII with sorted keys, no spaces, and no key whose value is the default. NUL and
lone surrogates are escaped, so any text that a JSON reply can carry survives SQLite and comes back
the same; floats are written with Python's shortest exact representation. Lists of likely tokens, by
far the largest part of a sample that has them, are packed arrays in base64: a third of the size.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

from equipoise.evals.types import Output, Sample, SampleKey, ToolCall, TopLogprobs

__all__ = ["canonical_json", "sample_from_json", "sample_to_json"]

_OUTPUT_FIELDS = tuple(f.name for f in fields(Output))
_OUTPUT_DEFAULTS = {f.name: f.default for f in fields(Output) if f.default is not MISSING}
_OUTPUT_REQUIRED = frozenset(_OUTPUT_FIELDS) - frozenset(_OUTPUT_DEFAULTS)
_SAMPLE_FIELDS = tuple(f.name for f in fields(Sample) if f.name not in ("key", "outputs"))
_KEY_FIELDS = tuple(f.name for f in fields(SampleKey))

_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))


def canonical_json(value: object) -> str:
    """``value`` as one line of ASCII JSON with sorted keys.

    Raises
    ------
    ValueError
        For NaN and infinities, which JSON cannot hold.
    """
    return _encoder.encode(value)


def _output_dict(output: Output) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in _OUTPUT_FIELDS:
        value = getattr(output, name)
        if isinstance(value, TopLogprobs):
            packed = {k: base64.b64encode(getattr(value, k)).decode("ascii") for k in ("ids", "logprobs")}
            row[name] = {"positions": value.positions, "k": value.k, **packed}
        elif name == "tool_calls" and value is not None:
            row[name] = [asdict(call) for call in value]
        elif name in _OUTPUT_REQUIRED or value is not None:
            row[name] = value
    return row


def sample_to_json(sample: Sample) -> str:
    """A sample, whole, as canonical JSON.

    Raises
    ------
    ValueError
        For a number that is not finite.
    """
    row: dict[str, Any] = {name: getattr(sample, name) for name in _SAMPLE_FIELDS}
    if row["error"] is None:
        del row["error"]
    row["key"] = {name: getattr(sample.key, name) for name in _KEY_FIELDS}
    row["outputs"] = [_output_dict(o) for o in sample.outputs]
    return _encoder.encode(row)


def _output_from(row: Mapping[str, Any]) -> Output:
    unknown = row.keys() - set(_OUTPUT_FIELDS)
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r} in an output")
    # JSON has no tuples: every list in an output is a tuple field.
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    if values.get("prompt_top_logprobs") is not None:
        values["prompt_top_logprobs"] = _top_logprobs_from(values["prompt_top_logprobs"])
    if values.get("tool_calls") is not None:
        values["tool_calls"] = tuple(ToolCall(**call) for call in values["tool_calls"])
    return Output(**values)


def _top_logprobs_from(row: Mapping[str, Any]) -> TopLogprobs:
    try:
        return TopLogprobs(
            positions=tuple(row["positions"]),
            k=row["k"],
            ids=base64.b64decode(row["ids"], validate=True),
            logprobs=base64.b64decode(row["logprobs"], validate=True),
        )
    except binascii.Error as e:
        raise ValueError(f"the lists of likely tokens are not base64 ({e})") from e


def sample_from_json(text: str) -> Sample:
    """The sample that `sample_to_json` wrote.

    Raises
    ------
    ValueError
        When the text is not such a sample; the message says what is wrong with it.
    """
    try:
        row = json.loads(text)
        return Sample(
            key=SampleKey(**row.pop("key")),
            outputs=tuple(_output_from(o) for o in row.pop("outputs")),
            **row,
        )
    except (TypeError, KeyError, AttributeError, RecursionError) as e:
        raise ValueError(f"not a sample: {e}") from e
