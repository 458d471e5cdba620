"""A signed-off run to copy, and policies, for tests of sign-offs."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli_runs import cli, plan_file, record_run
from click.testing import Result
from fake_sglang import share

__all__ = ["EASY", "copy_of", "make_run", "policy_file", "sign", "signoff_of"]

MARGIN = 0.1
#: What a healthy recorded run meets.
EASY = {
    "decision": {"max_suite_margin": 0.1, "max_task_margin": 0.1, "max_alpha": 0.05, "max_attempts": 1,
                 "max_false_sign_off": 0.05, "require_worst_case": True, "require_indistinguishable": True,
                 "allow_detected": False},
    "tasks": {"critical": ["copy", "sort"]},
    "evidence": {"require_noise_floor": True, "require_control": True, "max_detectable_loss": 0.1,
                 "require_ledger": True},
    "origin": {"models": ["m", "kimi-*"], "max_age_days": 1},
}  # fmt: skip


def make_run(root: Path, *, wrong: Mapping[str, float] | None = None, items: int = 100) -> Path:
    """A run of two critical tasks in ``root/run``, its ledger beside it; ``wrong`` is by arm a share."""
    root.mkdir(parents=True, exist_ok=True)
    rates = {"A1": 0.1, "A2": 0.1, "B": 0.1, "P": 0.6, "M": 0.2} | dict(wrong or {})
    arms = record_run(
        root / "recorded",
        {"copy": items, "sort": items},
        lambda arm, task, i: not share(rates[arm], task)(str(i)),
    )
    tasks = [{"name": n, "critical": True, "items": items, "margin": MARGIN} for n in ("copy", "sort")]
    cli("run", plan_file(root / "plan.toml", arms, tasks), "--out", root / "run")
    return root / "run"


def copy_of(run: Path, to: Path) -> Path:
    """The run with its ledger, to be changed."""
    shutil.copytree(run.parent, to, dirs_exist_ok=True)
    return to / run.name


def policy_file(
    path: Path, *changes: Mapping[str, Mapping[str, Any]], base: Mapping[str, Any] = EASY
) -> Path:
    """A policy: ``base`` with some sections' keys replaced; None leaves a key out."""
    lines = ["schema_version = 1", f'name = "{path.stem}"']
    for section in ("decision", "tasks", "evidence", "origin"):
        values = dict(base.get(section, {}))
        for change in changes:
            values |= change.get(section, {})
        lines += ["", f"[{section}]"]
        for key, value in values.items():
            if isinstance(value, dict):
                pairs = ", ".join(f"{k} = {json.dumps(v)}" for k, v in value.items())
                lines.append(f"{key} = {{ {pairs} }}")
            elif value is not None:
                lines.append(f"{key} = {json.dumps(value)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def signoff_of(run: Path) -> dict[str, Any]:
    """What its signoff.json says."""
    found: dict[str, Any] = json.loads((run / "signoff.json").read_text())
    return found


def sign(run: Path, policy: Path, *args: str | Path) -> Result:
    return cli("signoff", run, "--policy", policy, *args)
