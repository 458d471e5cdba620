"""Write the sgl-eval logs in ``logs/`` by running sgl-eval against a stub server.

sgl-eval pins older releases of what the core environment has (datasets < 5, pandas < 3), so its logs are
made once, in an environment of its own, and kept::

    python -m venv ENV && ENV/bin/pip install sgl-eval==0.1.3
    ENV/bin/python tests/evals/interop/make_sgl_eval_logs.py

The logs in ``logs/`` are of sgl-eval 0.1.3.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "doubles"))

from stub_model import Answer, serve  # noqa: E402

N = 24
REPEATS = 2


def answers(wrong: set[int]):
    """Sums are right but for ``wrong``; 20 runs into the budget, 21 fails for good, 22 is null."""
    asked: Counter[int] = Counter()

    def answer(prompt: str) -> Answer:
        i = int(re.findall(r"(\d+) \+ 1000", prompt)[-1])
        asked[i] += 1
        if i == 20:
            return Answer(f"Let me think: {i} + 1000 is", finish_reason="length", tokens=16)
        if i == 21:
            return Answer("", status=400)
        if i == 22:
            return Answer(None)
        right = i not in wrong or asked[i] > 1  # the first repeat is wrong, the second right
        return Answer(f"The answer is \\boxed{{{i + 1000 if right else 7}}}.")

    return answer


def main() -> None:
    tool = Path(sys.executable).parent / "sgl-eval"
    for name, wrong in (("baseline", {1}), ("candidate", {2, 3, 4})):
        with tempfile.TemporaryDirectory() as scratch, serve(answers(wrong)) as url:
            data = Path(scratch) / "sums.jsonl"
            rows = (
                {"id": f"sum-{i}", "problem": f"What is {i} + 1000?", "expected_answer": i + 1000}
                for i in range(N)
            )
            data.write_text("".join(json.dumps(row) + "\n" for row in rows))
            subprocess.run(
                [tool, "run", "gsm8k", "--from-dataset", data, "--base-url", f"{url}/v1",
                 "--n-repeats", str(REPEATS), "--temperature", "0.6", "--num-threads", "1",
                 "--out-dir", Path(scratch) / "out"],
                check=True,
            )  # fmt: skip
            (run,) = (Path(scratch) / "out").iterdir()
            target = HERE / "logs" / "sgl_eval" / name / run.name
            shutil.rmtree(target.parent, ignore_errors=True)
            shutil.copytree(run, target)


if __name__ == "__main__":
    main()
