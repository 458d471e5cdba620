"""``equipoise signoff``: hold a run against a policy, vouch for it or refuse, and check that later."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.evals.cli.shell import data_dir_option, errors_exit, suites_folder
from equipoise.evals.errors import UsageError

if TYPE_CHECKING:
    from equipoise.evals.experiment.signoff_verify import Verification
    from equipoise.evals.signoff_document import Signoff

__all__ = ["signoff"]

_ledger = click.option(
    "--ledger",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="EQUIPOISE_LEDGER",
    help="Ledger of attempts (default: ledger.jsonl beside the run directory; EQUIPOISE_LEDGER).",
)


class _WithDefault(click.Group):
    """A group whose first command is meant where none is named: ``signoff RUN_DIR``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["make", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_WithDefault)
def signoff() -> None:
    """Sign a run off under an organisation's policy: `signoff RUN_DIR --policy POLICY`, or `signoff verify`.

    `signoff RUN_DIR` is short for `signoff make RUN_DIR`.
    """


@signoff.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--policy", required=True, metavar="NAME|FILE", help="A policy TOML file, or one that ships (release)."
)
@click.option("--key", type=click.Path(path_type=Path), help="Sign with this Ed25519 key (PEM or OpenSSH).")
@click.option("--key-passphrase-env", metavar="VARIABLE", help="Environment variable with its passphrase.")
@click.option("--output", type=click.Path(path_type=Path), help="Default: signoff.json in RUN_DIR.")
@click.option("--force", is_flag=True, help="Replace a sign-off that was given.")
@_ledger
@data_dir_option
@errors_exit
def make(
    *,
    run_dir: Path,
    policy: str,
    key: Path | None,
    key_passphrase_env: str | None,
    output: Path | None,
    force: bool,
    ledger: Path | None,
) -> None:
    """Decide the run in RUN_DIR again from its journal, hold it against the policy, and write signoff.json.

    Exits 0 if it is signed off. A refusal is written too, with its reasons, and exits by the run's verdict
    (1 degraded, 3 inconclusive, 4 invalid or changed since), or 3 where the policy is not met.

    report.json must be what the journal gives; report.html, report.md and other files are vouched for as they
    lie. Make them anew with `equipoise report` where somebody else brought the run.
    """
    from equipoise.evals import signoff_signature
    from equipoise.evals.experiment.signoff import make_signoff
    from equipoise.evals.signoff_document import SIGNOFF_NAME, manifest_path, payload, write_signoff
    from equipoise.evals.signoff_policy import find_policy, load_policy

    path = output or run_dir / SIGNOFF_NAME
    wanted = load_policy(find_policy(policy))
    private = signoff_signature.load_private_key(key, key_passphrase_env) if key is not None else None
    _keep_given(path, force=force)
    made = make_signoff(
        run_dir,
        wanted,
        manifest_name=manifest_path(path).name,
        output=path,
        ledger=ledger,
        suites=suites_folder(),
    )
    result = made.signoff
    if private is not None and result.exit_code == 0:
        signature = signoff_signature.sign(payload(result), private)
        result = result.model_copy(update={"signature": signature})
    write_signoff(path, result, made.manifest)
    _show(result)
    if private is not None and result.exit_code != 0:
        click.echo("A refusal is not signed with the key.")
    click.echo(f"wrote {path}", err=True)
    sys.exit(result.exit_code)


def _keep_given(path: Path, *, force: bool) -> None:
    from equipoise.evals.errors import SignoffError
    from equipoise.evals.signoff_document import read_signoff

    if not path.exists():
        return
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give a file with --output")
    if force:
        return
    try:
        given = read_signoff(path).decision == "SIGNED OFF"
    except SignoffError:
        given = True  # whatever it is, it is not ours to replace
    if given:
        raise UsageError(f"{path} is there already; give another --output, or --force to replace it")


@signoff.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="RUN_DIR|SIGNOFF")
@click.option("--run", "run_dir", type=click.Path(path_type=Path), help="Its run (default: its directory).")
@click.option("--policy", metavar="NAME|FILE", help="It must have been made under this policy.")
@click.option("--public-key", type=click.Path(path_type=Path), help="It must be signed by this key.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@_ledger
@data_dir_option
@errors_exit
def verify(
    *,
    path: Path,
    run_dir: Path | None,
    policy: str | None,
    public_key: Path | None,
    as_json: bool,
    ledger: Path | None,
) -> None:
    """Decide the run again and name whatever changed since it was signed off: samples, plan, files, ledger.

    Exits 0 if the sign-off holds, 4 if anything changed, 3 if it has ended; an unchanged refusal exits as it
    did when it was made.
    """
    from equipoise.evals import signoff_signature
    from equipoise.evals.experiment.signoff_verify import Trust, verify_signoff
    from equipoise.evals.signoff_document import SIGNOFF_NAME
    from equipoise.evals.signoff_policy import find_policy, load_policy

    file = path / SIGNOFF_NAME if path.is_dir() else path
    trust = Trust(
        policy=load_policy(find_policy(policy)) if policy is not None else None,
        public_key=signoff_signature.load_public_key(public_key) if public_key is not None else None,
        ledger=ledger,
        suites=suites_folder(),
    )
    found = verify_signoff(file, run_dir or file.parent, trust)
    if as_json:
        click.echo(json.dumps(_as_json(found), indent=1))
    else:
        _show_verification(found)
    sys.exit(found.exit_code)


def _as_json(found: "Verification") -> dict[str, object]:
    return {
        "decision": found.signoff.decision,
        "holds": found.exit_code == 0,
        "exit_code": found.exit_code,
        "changed": found.changed,
        "ended": found.ended,
        "notes": found.notes,
    }


def _show_verification(found: "Verification") -> None:
    signed = found.signoff
    if found.changed:
        _say("DOES NOT HOLD", f"the sign-off does not speak of what lies there (exit code {found.exit_code})")
    elif found.ended:
        _say("HAS ENDED", f"nothing changed, and it holds no longer (exit code {found.exit_code})")
    elif signed.exit_code:
        _say("REFUSED", f"as it was made; nothing changed (exit code {found.exit_code})")
    else:
        _say("HOLDS", f"{signed.run.id} is signed off under policy {signed.policy.name}, {signed.signed}")
    _list("changed: ", found.changed)
    _list("ended: ", found.ended)
    _list("note: ", found.notes)


def _show(result: "Signoff") -> None:
    under = f"under policy {result.policy.name} {result.policy.sha256[:12]}"
    if result.exit_code == 0:
        until = f", until {result.valid_until}" if result.valid_until else ""
        _say("SIGNED OFF", f"{result.run.id} {under}{until}")
    else:
        _say("REFUSED", f"{result.run.id} {under} (exit code {result.exit_code})")
    _list("", result.reasons)
    for clause in result.policy.clauses:
        mark = "met    " if clause.met else "NOT MET"
        _say(f"  {mark}", f"{clause.name}: demanded {clause.demanded}; found {clause.found}", sep=" ")


def _list(lead: str, texts: Sequence[str]) -> None:
    for text in texts:
        _say("  -", f"{lead}{text}", sep=" ")


def _say(word: str, text: str, *, sep: str = ": ") -> None:
    from equipoise.reports.escape import one_line

    click.echo(f"{word}{sep}{one_line(text, 600)}")
