"""Of two result sets, the items whose score changed: counted, and the first of each task shown."""

from collections.abc import Iterable, Mapping

from equipoise.evals.experiment.compare import ComparedModel
from equipoise.evals.experiment.report_flips import SHOWN_PER_DIRECTION
from equipoise.evals.interop.result_set import ItemResult
from equipoise.evals.types import ArmRole
from equipoise.reports.model import Excerpt, Flip, Flips

__all__ = ["flips_of"]

_NOT_LOGGED = "(not in the log)"


def flips_of(model: ComparedModel) -> Flips:
    """Lost ones first. An item with several answers flips where its mean score changed."""
    counts = {"lost": 0, "gained": 0}
    shown: dict[str, list[Flip]] = {"lost": [], "gained": []}
    for task, by_role in model.results.items():
        table = model.paired[task][ArmRole.CANDIDATE].table
        ours = _by_item(by_role[ArmRole.BASELINE].items)
        theirs = _by_item(by_role[ArmRole.CANDIDATE].items)
        change = table.candidate.mean(axis=1) - table.baseline.mean(axis=1)
        here = {"lost": 0, "gained": 0}
        for item_id, delta in zip(table.item_ids, change.tolist(), strict=True):
            if delta == 0.0:
                continue
            direction = "lost" if delta < 0.0 else "gained"
            counts[direction] += 1
            here[direction] += 1
            if here[direction] <= SHOWN_PER_DIRECTION:
                shown[direction].append(_flip(task, direction, ours[item_id], theirs[item_id]))
    return Flips(lost=counts["lost"], gained=counts["gained"], shown=(*shown["lost"], *shown["gained"]))


def _by_item(items: Iterable[ItemResult]) -> dict[str, dict[int, ItemResult]]:
    found: dict[str, dict[int, ItemResult]] = {}
    for item in items:
        found.setdefault(item.item_id, {})[item.repeat] = item
    return found


def _flip(
    task: str, direction: str, ours: Mapping[int, ItemResult], theirs: Mapping[int, ItemResult]
) -> Flip:
    """The first repeat that changed the same way; of sets with other repeats, the first of each."""
    sign = -1.0 if direction == "lost" else 1.0
    common = sorted(ours.keys() & theirs.keys())
    changed = (r for r in common if sign * ((theirs[r].score or 0.0) - (ours[r].score or 0.0)) > 0.0)
    repeat = next(changed, None)
    one = ours[min(ours) if repeat is None else repeat]
    other = theirs[min(theirs) if repeat is None else repeat]
    return Flip(
        task=task,
        item_id=one.item_id,
        direction=direction,
        prompt=_excerpt(one.prompt or other.prompt),
        target=_excerpt(one.target or other.target),
        baseline=_excerpt(one.answer),
        candidate=_excerpt(other.answer),
        baseline_finish=one.finish_reason,
        candidate_finish=other.finish_reason,
    )


def _excerpt(text: str | None) -> Excerpt:
    return Excerpt.of(_NOT_LOGGED if text is None else text)
