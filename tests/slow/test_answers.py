"""python -m bench.answers: what is stated beside what is true; and its jobs, which train."""

import importlib.util
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.studio import REPOSITORY, until

pytest.importorskip("torch")

from bench.answers import __main__ as answers  # noqa: E402
from bench.answers import report, scores, starts  # noqa: E402
from bench.answers.starts import Failed, ScriptJob  # noqa: E402

SECOND = 10**9

# -- scores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "rate"),
    [
        ({"7": f"{SECOND}\n{2 * SECOND}\n"}, 0.5),
        ({"7": f"{SECOND}\n{2 * SECOND}\n3"}, 0.5),  # the last line is not whole yet
        ({"7": f"{SECOND - 1}\n{SECOND}\n{5 * SECOND}\n"}, 0.25),  # before, first, and after
        ({"7": f"{SECOND}\n", "8": f"{2 * SECOND}\n{3 * SECOND}\n"}, 0.75),
        ({"7": "", "8": f"{SECOND}\n"}, 0.25),
        ({}, 0.0),
    ],
)
def test_the_rate_of_all_copies_is_that_of_steps_in_the_common_time(tmp_path, texts, rate):
    for pid, text in texts.items():
        (tmp_path / f"{pid}.txt").write_text(text)
    ends = scores.step_ends(tmp_path)
    assert {*ends} == {int(pid) for pid in texts}
    assert scores.rate_in(ends.values(), SECOND, 5 * SECOND) == rate


def test_the_rate_of_whole_runs_has_their_starts_in_it():
    ends = {1: np.arange(100), 2: np.arange(50)}
    assert scores.rate_of_runs(ends, {1: 20.0, 2: 25.0}) == 7.0


@pytest.mark.parametrize(
    ("stated", "true", "ratio", "holds"),
    [
        ([10.0, 9.0, 11.0], 10.5, 10 / 10.5, True),
        ([10.0, 9.0, 11.0], 8.0, 1.25, False),
        ([10.0, None, None], 8.0, 1.25, None),
        ([None, None, None], 8.0, None, None),
        ([10.0, 9.0, 11.0], 0.0, None, False),
    ],
)
def test_a_stated_number_beside_the_true_one(stated, true, ratio, holds):
    comparison = scores.compare(stated, true)
    assert (comparison["ratio"], comparison["holds"]) == (ratio, holds)


def advice(jobs: int, method: str = "mps") -> dict:
    """Of a job that makes 10 steps/s alone; 4 under MPS make 30, 2 separate 15."""
    sets = {(4, "mps"): 3.0, (2, "naive"): 1.5}
    measured = [
        {"jobs": n, "method": name, "rate": [10 * stp, 9 * stp, 11 * stp], "stp": [stp, 1.4, 3.2]}
        for (n, name), stp in sets.items()
    ]
    predicted = [
        {"jobs": n, "method": "mps", "stp": 0.8 * n, "low": 0.7 * n, "high": n, "rescaled": False}
        for n in (2, 4, 8)
    ]
    return {
        "jobs": jobs,
        "method": method,
        "measured": measured,
        "predicted": predicted,
        "card": "NVIDIA X",
        "verdict": "Run 4 under MPS.",
        "seconds": {"wall": 180.0, "counted": 90.0},
    }


@pytest.mark.parametrize(
    ("of", "key", "is_advised"),
    [
        (advice(2, "naive"), (2, "naive"), True),
        (advice(1, "naive"), (4, "mps"), False),  # one at a time: the best that was measured
        (advice(1) | {"measured": []}, None, None),
    ],
)
def test_the_set_that_is_started_afresh(of, key, is_advised):
    assert scores.set_to_start(of) == key
    if key:
        score = scores.score_set(of, *key, rate=15.0, lone_rate=10.0)
        assert score["advised"] is is_advised and score["stp"]["true"] == 1.5


def test_what_was_advised_and_predicted_beside_a_grid():
    rates = {(1, "naive"): 10.0, (2, "mps"): 19.0, (4, "mps"): 30.0, (8, "mps"): 40.0}
    assert scores.share_of_best(advice(4), rates) == 0.75
    assert scores.share_of_best(advice(1, "naive"), rates) == 0.25
    assert scores.share_of_best(advice(3), rates) is None
    predictions = scores.score_predictions(advice(4), rates, lone_rate=10.0)
    assert [each["holds"] for each in predictions] == [True, True, False]
    assert not any(each["rescaled"] for each in predictions)


def test_a_line_for_each_job_whatever_failed():
    of_set = scores.score_set(advice(4), 4, "mps", rate=32.0, lone_rate=10.0)
    whole = {"advice": advice(4), "wall_s": 191.0, "problems": [], "set": of_set}
    whole["lone"] = scores.compare([10.0, 9.9, 10.1], 10.5)
    whole["predictions"] = scores.score_predictions(advice(4), {(4, "mps"): 32.0}, 10.0)
    partial = {"advice": advice(4), "wall_s": 180.0, "problems": ["no MPS daemon | a"]}
    lines = report.markdown({"a": whole, "b": {"problems": ["no step"]}, "c": partial}).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in table[:5]}) == 1
    assert "| 4xmps | 30 [27, 33] | 32 | 0.938 | yes |" in table[2] and "50%" in table[2]
    assert "FAILED: no step" in table[3]
    assert "Run 4 under MPS. FAILED: no MPS daemon / a" in table[4]
    assert "one alone" in table[-1]
    assert any(re.match("- steps/s of sets: 1 of 1 intervals hold", line) for line in lines)


def test_the_time_is_known_before_it_starts():
    quick = answers.estimate_s(asked=1, of_best=0, budget_s=60, set_s=20)
    usual = answers.estimate_s(asked=1, of_best=0, budget_s=180, set_s=60)
    grid = answers.estimate_s(asked=0, of_best=1, budget_s=180, set_s=60)
    assert 100 < quick < usual < 400 < grid < 600  # each within one call of ten minutes


# -- the whole, on the CPU -------------------------------------------------------------------------

# Sleeps alone, so that two do twice as much. Is an MPS client as the stand-in of MPS has it.
STEADY = """
import os, time, torch
from pathlib import Path
from truth import tick
clients = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", ""), "clients")
if clients.is_dir():
    (clients / str(os.getpid())).touch()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while step < LAST:
    time.sleep(0.02)
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    step += 1
    tick()
"""
JOBS = {
    "steady": ScriptJob(["steady.py"]),
    "ends": ScriptJob(["ends.py"], ends=True),
    "fails": ScriptJob(["fails.py"]),
}


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """A folder of small jobs, on a machine whose nvidia-smi shows a card."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    shutil.copy(answers.FOLDER / "truth.py", folder)
    (folder / "steady.py").write_text(STEADY.replace("LAST", "1e9"))
    (folder / "slow.py").write_text(STEADY.replace("LAST", "1e9").replace("0.02", "0.05"))
    (folder / "ends.py").write_text(STEADY.replace("LAST", "50"))
    (folder / "fails.py").write_text("raise SystemExit('no data here')")
    monkeypatch.setattr(answers, "FOLDER", folder)
    monkeypatch.setattr(answers, "JOBS", JOBS)
    monkeypatch.setattr(answers, "LONE_S", 4.0)
    monkeypatch.setattr(answers, "GRID_S", 2.0)
    monkeypatch.setattr(answers, "GRID", [(2, "naive")])
    monkeypatch.setattr(starts, "SETTLE_S", 0.5)
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    path = [str(REPOSITORY / "tests" / "fakes"), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    return folder


@pytest.mark.parametrize("method", ["separate", "mps"])
def test_copies_by_their_own_clocks(jobs, method):
    recipe = ["--jobs", "2", "--method", method, "--", sys.executable]
    rate = starts.true_rate([*recipe, "steady.py"], 2, JOBS["steady"], jobs, 3.0)
    assert 20 < rate <= 100
    pair = [JOBS["steady"], ScriptJob(["slow.py"])]
    quick, slow = starts.rates_of_pair(pair, method, 1, jobs, 3.0)
    assert 1.5 < quick / slow < 3
    whole_runs = starts.true_rate([*recipe, "ends.py"], 2, JOBS["ends"], jobs, 3.0)
    assert 0 < whole_runs < 100  # at most 50 steps/s each, and it has to start
    with pytest.raises(Failed, match="ended with status 1.*no data here"):
        starts.true_rate([*recipe, "fails.py"], 2, JOBS["fails"], jobs, 3.0)


def test_an_answer_is_held_against_fresh_starts_and_another_job_fails(jobs, tmp_path, capsys):
    options = ["--gpu", "cpu", "--budget", "60s", "--max-jobs", "2", "--seconds", "4"]
    options += ["--out", str(tmp_path / "out")]
    before = signal.getsignal(signal.SIGINT)
    try:
        code = answers.main(["--jobs", "steady", "fails", "--best", "steady", *options])
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 1
    assert "2 questions, 1 grids: about" in capsys.readouterr().out
    stored = json.loads((tmp_path / "out" / "answers.json").read_text())
    assert "no data here" in stored["fails"]["problems"][0]
    steady = stored["steady"]
    assert steady["problems"] == [] and steady["wall_s"] > 30
    assert (steady["set"]["jobs"], steady["set"]["method"]) == (2, "naive")
    for comparison in (steady["lone"], steady["set"]["rate"], steady["set"]["stp"]):
        assert 0.5 < comparison["ratio"] < 2
    assert len(steady["grid"]) == 2 and 0 < steady["share_of_best"] <= 1
    text = (tmp_path / "out" / "answers.md").read_text()
    assert "| steady | 2xnaive" in text and "FAILED" in text


# -- the jobs --------------------------------------------------------------------------------------

NEEDED = {"lora_gpt2": "transformers", "vit_loader": "timm", "jax_mlp": "jax"}


@pytest.mark.parametrize("name", answers.JOBS)
def test_each_job_trains(name, tmp_path):
    """For some steps, of which it says the loss, and its clock the ends."""
    if name in NEEDED and not importlib.util.find_spec(NEEDED[name]):
        pytest.skip(f"{NEEDED[name]} is not installed")
    if name == "compiled_encoder" and not shutil.which("g++"):
        pytest.skip("torch.compile needs a compiler")
    code = f"import runpy; from models import compat; runpy.run_module('{name}', None, '__main__')"
    surroundings = {"TINY": "1", "TRUTH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    surroundings |= {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
    output = tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=answers.FOLDER,
            env=os.environ | surroundings | {"CUDA_VISIBLE_DEVICES": "-1"},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def losses() -> list[float]:
        return [float(loss) for loss in re.findall(r"loss (\S+)", output.read_text())]

    def trained() -> bool:
        steps = sum(map(len, scores.step_ends(tmp_path).values()))
        return len(losses()) > 2 and steps > 5

    try:
        until(lambda: trained() or process.poll() is not None, output.read_text)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert len({*losses()}) > 2 and all(map(math.isfinite, losses())), output.read_text()
