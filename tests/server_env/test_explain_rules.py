"""Every rule of `quant explain` against the installed sglang: a version that changes one fails it by name."""

import importlib.metadata
import logging
from collections.abc import Iterator

import pytest
from installed_sglang import node, source
from rule_checks_backends import CHECKS as BACKEND_CHECKS
from rule_checks_launch import CHECKS as LAUNCH_CHECKS
from rule_checks_override import CHECKS as OVERRIDE_CHECKS
from rule_checks_scale_file import CHECKS as SCALE_FILE_CHECKS
from rule_checks_scales import CHECKS as SCALE_CHECKS
from rule_pins import PINS, pins_of

from equipoise.quant.explain import RULES
from equipoise.quant.explain.arguments import KV_CACHE_DTYPES, _parser
from equipoise.quant.variants import SGLANG_VERSION

CHECKS = LAUNCH_CHECKS | BACKEND_CHECKS | SCALE_CHECKS | SCALE_FILE_CHECKS | OVERRIDE_CHECKS
EXECUTED = [r.id for r in RULES.values() if r.evidence == "executed"]
READ = [r.id for r in RULES.values() if r.evidence == "read"]
# The CPU server's own flags, and short ones, which SGLang completes.
OURS = {"--kv-control", "--kv-layout", "--tp", "--dp", "--pp"}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_the_installed_sglang_is_the_version_that_the_rules_are_of() -> None:
    assert importlib.metadata.version("sglang") == SGLANG_VERSION
    assert {r.version for r in RULES.values()} == {f"sglang {SGLANG_VERSION}"}


def test_every_rule_is_checked_as_its_evidence_says() -> None:
    assert set(CHECKS) == set(EXECUTED)
    assert set(PINS) == set(READ)


@pytest.mark.parametrize("rule", EXECUTED)
def test_rule_holds_when_the_installed_code_is_run(rule: str) -> None:
    CHECKS[rule]()


@pytest.mark.parametrize("rule", READ)
def test_rule_still_reads_so_in_the_installed_source(rule: str) -> None:
    for file, symbol, fragment in pins_of(rule):
        assert " ".join(fragment.split()) in source(file, symbol), f"{file}: {symbol}"


@pytest.mark.parametrize("rule", list(RULES))
def test_the_source_that_a_rule_names_exists(rule: str) -> None:
    assert node(RULES[rule].file, RULES[rule].symbol)


def test_arguments_are_words_of_the_installed_launcher() -> None:
    import argparse

    from sglang.srt.server_args import ServerArgs

    theirs = argparse.ArgumentParser()
    ServerArgs.add_cli_args(theirs)
    known = theirs._option_string_actions
    assert set(_parser()._option_string_actions) - OURS <= set(known)
    assert set(known["--kv-cache-dtype"].choices or ()) == set(KV_CACHE_DTYPES)
    for name, action in _parser()._option_string_actions.items():
        if name in known and name not in ("--cuda-graph-backend-prefill",):
            assert (action.nargs == 0) == (known[name].nargs == 0), name
