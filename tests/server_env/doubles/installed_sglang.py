"""The installed sglang: its source by file and symbol, and functions of it run without a GPU."""

import ast
import importlib.util
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import equipoise.quant.sglang as ours

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
OURS = Path(next(iter(ours.__path__))).resolve()
if (stand_in := str(OURS / "server_path")) not in sys.path:
    sys.path.insert(0, stand_in)  # sgl_kernel, which sglang imports unconditionally


@cache
def sglang_srt() -> Path:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "srt"


@cache
def tree(file: str) -> ast.Module:
    path = OURS.parents[1] / file if file.startswith("quant/") else sglang_srt() / file
    return ast.parse(path.read_text(encoding="utf-8"))


def node(file: str, symbol: str) -> Any:
    """The definition of a dotted symbol; fails by name where the file or the symbol is gone."""
    found: Any = tree(file)
    for name in symbol.split("."):
        body = [n for n in found.body if getattr(n, "name", None) == name]
        assert body, f"{file} has no {symbol}"
        found = body[-1]
    return found


def source(file: str, symbol: str) -> str:
    """Without comments and with one space where there is white space, so that only code counts."""
    return " ".join(ast.unparse(node(file, symbol)).split())


def isolated(file: str, symbol: str, **names: Any) -> Callable[..., Any]:
    """A function of a module that cannot be imported here, with ``names`` for the globals it uses."""
    definition = node(file, symbol)
    definition = ast.parse(textwrap.dedent(ast.unparse(definition))).body[0]
    definition.decorator_list = []
    definition.returns = None
    for argument in (*definition.args.args, *definition.args.kwonlyargs):
        argument.annotation = None
    space: dict[str, Any] = dict(names)
    exec(compile(ast.Module([definition], []), file, "exec"), space)
    return space[definition.name]  # type: ignore[no-any-return]


def calls(file: str, symbol: str, function: str) -> list[ast.Call]:
    """Calls of ``function`` by name inside a definition."""
    return [
        n
        for n in ast.walk(node(file, symbol))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == function
    ]


HOPPER = SimpleNamespace(
    is_hopper_with_cuda_12_3=True, is_sm100=False, is_sm90=True, is_sm120=False, is_sm100_or_sm110=False,
    is_blackwell=False, is_hip=False, is_npu=False, is_xpu=False, is_cuda=True, has_flashinfer=True,
    capability=(9, 0),
)  # fmt: skip
SM100 = SimpleNamespace(
    is_hopper_with_cuda_12_3=False, is_sm100=True, is_sm90=False, is_sm120=False, is_sm100_or_sm110=True,
    is_blackwell=True, is_hip=False, is_npu=False, is_xpu=False, is_cuda=True, has_flashinfer=True,
    capability=(10, 0),
)  # fmt: skip
PLATFORMS = {"H200": HOPPER, "B200": SM100}


class View(SimpleNamespace):
    """Server arguments, each unset unless given."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return {
            "kv_cache_dtype": "auto",
            "disaggregation_mode": "null",
            "dcp_size": 1,
            "pp_size": 1,
            "tp_size": 1,
            "enable_hisparse": False,
            "enable_prefill_cp": False,
            "enable_deterministic_inference": False,
            "model_path": "/m",
        }.get(name)


@contextmanager
def on_platform(module: Any, platform: Any, config: Any = None, *, mla: bool = True) -> Iterator[None]:
    """``module``'s questions about hardware and model answered by hand."""
    answers = {
        "get_platform": lambda: platform,
        "model_config_of": lambda _view: config,
        "resolving_view": lambda view: view,
        "resolved_view": lambda view: view,
        "use_mla_backend": lambda _view: mla,
        "is_mps": lambda: False,
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, answer))
        stack.enter_context(patch("torch.cuda.get_device_capability", lambda *_: platform.capability))
        yield


def model_config(architecture: str, **text: Any) -> SimpleNamespace:
    """A ModelConfig as far as the argument hooks look."""
    hf = SimpleNamespace(architectures=[architecture], **text)
    return SimpleNamespace(hf_config=hf, has_asymmetric_kv=False, has_attention_sinks=False)
