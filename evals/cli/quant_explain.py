"""``equipoise quant explain``: what a server will do, before it is started."""

import json
import shlex
import sys

import click

from equipoise.evals.cli.shell import errors_exit
from equipoise.evals.errors import UsageError
from equipoise.quant.explain import HARDWARE, Explanation, explain, with_peer
from equipoise.quant.explain.arguments import KV_CACHE_DTYPES, parse_arguments
from equipoise.quant.explain.text import as_text

__all__ = ["explain_command"]

_WIDTH = 80


@click.command("explain", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
@click.argument("model", metavar="MODEL")
@click.argument("server_args", nargs=-1, type=click.UNPROCESSED, metavar="[--] [SERVER ARGS]...")
@click.option(
    "--gpu",
    type=click.Choice(list(HARDWARE), case_sensitive=False),
    help="Where it will run; cpu is this project's CPU server.  [default: H200, cpu with --device cpu]",
)
@click.option("--peer", metavar="ARGS", help="Server arguments of the other PD side, or of another arm.")
@click.option(
    "--peer-kv-cache-dtype", type=click.Choice(KV_CACHE_DTYPES), help="Of the other PD side, else alike."
)
@click.option("--rules", "with_rules", is_flag=True, help="Print every rule cited, with its source.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@errors_exit
def explain_command(
    *,
    model: str,
    server_args: tuple[str, ...],
    gpu: str | None,
    peer: str | None,
    peer_kv_cache_dtype: str | None,
    with_rules: bool,
    as_json: bool,
) -> None:
    """What SGLang will do with a KV cache: dtype, layout, backends, scales, and what is wrong.

    MODEL is a checkpoint folder, a config.json, embedded:NAME, or a built-in name (kimi-k2.6, glm-4.6, ...).
    Server arguments are those of sglang.launch_server: equipoise quant explain kimi-k2.6 --gpu B200 --
    --tp 8 --kv-cache-dtype fp8_e4m3. Exit code 1: the server would not start, or not do what was meant.
    """
    if model.startswith("embedded:"):
        from equipoise.evals.experiment.checkpoints import resolve_model

        model = resolve_model(model)
    words = list(server_args)
    if gpu is None:
        gpu = "cpu" if parse_arguments(words).device == "cpu" else "H200"
    answer = explain(model, words, gpu)
    if peer is not None and peer_kv_cache_dtype is not None:
        raise UsageError("give one of --peer and --peer-kv-cache-dtype")
    if peer is not None:
        answer = with_peer(answer, explain(model, _split(peer), gpu))
    elif peer_kv_cache_dtype is not None:
        answer = _other_side(model, words, gpu, peer_kv_cache_dtype)
    if as_json:
        click.echo(json.dumps(answer.as_json(), indent=2))
    else:
        click.echo(as_text(answer, width=_WIDTH, with_rules=with_rules))
    sys.exit(answer.exit_code)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as e:
        raise UsageError(f"--peer {text!r} is not a command line ({e})") from e


def _other_side(model: str, words: list[str], gpu: str, dtype: str) -> Explanation:
    """The same server as the two sides of a PD pair, the other one with ``dtype``."""
    mode = parse_arguments(words).disaggregation_mode
    mode = "decode" if mode == "null" else mode
    other = "prefill" if mode == "decode" else "decode"
    # The last of a repeated flag counts, as in SGLang.
    own = explain(model, [*words, f"--disaggregation-mode={mode}"], gpu)
    return with_peer(
        own, explain(model, [*words, f"--disaggregation-mode={other}", f"--kv-cache-dtype={dtype}"], gpu)
    )
