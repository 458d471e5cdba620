"""The production commands are ones that the installed SGLang's own parser takes, word for word."""

import argparse

import pytest

from equipoise.quant.production import PRODUCTION_ARMS
from equipoise.quant.production_launch import production_launch
from equipoise.quant.sglang.launch import prepare_process


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    prepare_process()
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    return parser


def test_every_flag_and_choice_exists(parser: argparse.ArgumentParser) -> None:
    count = 0
    for arm in PRODUCTION_ARMS.values():
        for gpu in arm.gpus:
            launch = production_launch(arm, gpu, revision="0123abc", extra_args=("--weight-version=x",))
            words = [w.replace("$NODE_RANK", "1") for w in launch.argv[3:]]
            args, unknown = parser.parse_known_args(words)
            assert not unknown, (arm.name, unknown)
            assert args.kv_cache_dtype == arm.kv_cache_dtype
            assert args.tp_size == launch.tp
            assert args.model_path == arm.release.hub
            count += 1
    assert count > 50


def test_a_misspelt_flag_would_be_seen(parser: argparse.ArgumentParser) -> None:
    _, unknown = parser.parse_known_args(["--model-path=x", "--kv-cache-type=fp8_e4m3"])
    assert unknown
