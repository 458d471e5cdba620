"""The built wheel lives beside Hugging Face's ``kernels`` and brings neither torch nor sglang."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("evals", "tasks", "quant", "kernels", "reports")

CHECK = """
import importlib.util, sys
from kernels import get_kernel  # Hugging Face's own package
import kernels
import equipoise, equipoise.evals.cli, equipoise.tasks.registry, equipoise.reports.terminal
import equipoise.kernels
assert "site-packages" in kernels.__file__ and "equipoise" not in kernels.__file__, kernels.__file__
assert equipoise.kernels is not kernels
for name in ("evals", "tasks", "quant", "reports"):
    spec = importlib.util.find_spec(name)
    assert spec is None, f"{name} is importable at the top level: {spec}"
for name in ("torch", "sglang"):
    assert importlib.util.find_spec(name) is None, f"the core brought {name}"
print("both import", equipoise.__version__)
"""


def _run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.wheel
def test_wheel_holds_the_five_rooms_under_equipoise_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {n.split("/")[0] for n in names}
    assert tops == {"equipoise", next(t for t in tops if t.endswith(".dist-info"))}
    for room in ROOMS:
        assert any(n.startswith(f"equipoise/{room}/") for n in names), room
    for model in ("kimi_tiny", "glm_tiny"):
        folder = f"equipoise/tasks/embedded/{model}/"
        for file in ("model.safetensors", "config.json", "tokenizer.json", "README.md", "kv_amax.json"):
            assert folder + file in names
    for file in ("templates/page.html", "assets/base.css", "assets/explorer.js"):
        assert f"equipoise/reports/html/{file}" in names
    assert "equipoise/py.typed" in names
    assert any(n.startswith("equipoise/tasks/plans/") and n.endswith("embedded.toml") for n in names)
    assert not any("__pycache__" in n or n.startswith("equipoise/tests") for n in names)


@pytest.mark.wheel
def test_wheel_installs_beside_hugging_face_kernels_without_torch(wheel: Path, tmp_path: Path) -> None:
    env = tmp_path / "env"
    _run(sys.executable, "-m", "venv", env, cwd=tmp_path)
    python = env / "bin" / "python"
    _run(python, "-m", "pip", "install", "-q", wheel, "kernels>=0.14.1,<0.15", cwd=tmp_path)
    assert "both import" in _run(python, "-c", CHECK, cwd=tmp_path)
    assert "Usage" in _run(env / "bin" / "equipoise", "--help", cwd=tmp_path)


def test_editable_install_reaches_the_rooms_through_equipoise_only() -> None:
    code = "import equipoise.evals as e, importlib.util as u; print(e.__file__, u.find_spec('evals'))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    file, spec = done.stdout.split()
    assert spec == "None"
    assert Path(file).resolve() == ROOT / "evals" / "__init__.py"
