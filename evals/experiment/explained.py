"""What SGLang will do in each server of ours, found out before one is started."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.experiment.serving import ServerSpec
from equipoise.evals.provenance import describe_hardware
from equipoise.quant.explain import (
    Explanation,
    Hardware,
    explain,
    find_hardware,
    hardware_of_gpu,
    pair_findings,
)
from equipoise.quant.variants import Device

__all__ = ["explain_servers"]

_COMMAND_WORDS = 3  # python -m module; SGLang's arguments follow


def explain_servers(specs: Sequence[ServerSpec], device: Device) -> dict[str, dict[str, Any]]:
    """Server label -> the explanation for the journal: ``lines`` for a report, ``answer`` in full.

    A model or GPU that the rules do not know is no fault: ``lines`` then says so, and ``answer`` is None.

    Raises
    ------
    UsageError
        A server would not start, or not do what the plan means by its arm, or two servers would read each
        other's cache. Names model, arms, rule and remedy.
    """
    hardware = _hardware(device)
    answers: dict[str, Explanation] = {}
    records: dict[str, dict[str, Any]] = {}
    for spec in specs:
        answer = _explain(spec, hardware)
        if isinstance(answer, str):
            records[spec.label] = {"lines": [f"not explained: {answer}"], "answer": None}
            continue
        answers[spec.label] = answer
        records[spec.label] = {"lines": list(answer.lines()), "answer": answer.as_json()}
    _refuse_problems(specs, answers)
    return records


def _hardware(device: Device) -> Hardware | str:
    """Where the servers will run, or why that is not known."""
    if device == "cpu":
        return find_hardware("cpu")
    names = [str(gpu).partition(",")[0] for gpu in describe_hardware()["gpus"]]
    known = hardware_of_gpu(names[0]) if names else None
    return known or f"the GPU {names[0] if names else '(none found)'} is not described"


def _explain(spec: ServerSpec, hardware: Hardware | str) -> Explanation | str:
    if isinstance(hardware, str):
        return hardware
    words = spec.launch.argv[_COMMAND_WORDS:]
    path = next(w.partition("=")[2] for w in words if w.startswith("--model-path="))
    try:
        return explain(path, words, hardware)
    except UsageError as e:  # a model family that the rules do not know; the server itself may well
        return str(e)


def _refuse_problems(specs: Sequence[ServerSpec], answers: Mapping[str, Explanation]) -> None:
    arms = {spec.label: ", ".join(arm.name for arm in spec.arms) for spec in specs}
    found = [(label, f) for label, answer in answers.items() for f in answer.problems]
    found += [
        (f"{one} and {other}", f)
        for one, other in combinations(answers, 2)
        for f in pair_findings(answers[one], answers[other])
    ]
    if not found:
        return
    said = "; ".join(
        f"{label} (arms {arms[label]}): {f.kind}: {f.message} [{f.rule}]: {f.remedy}"
        if label in arms
        else f"{label}: {f.kind}: {f.message} [{f.rule}]: {f.remedy}"
        for label, f in found
    )
    raise UsageError(
        f"nothing was started, SGLang would not do what the plan means: {said}; "
        "`equipoise quant explain MODEL -- SERVER ARGS` tells more"
    )
