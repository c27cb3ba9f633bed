"""`collocate advise` of any job: what is asked, what follows from numbers, and the real command.

Scripts are trained on the CPU; the sets under MPS are of a GPU that is not there (tests/fakes).
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from math import inf
from pathlib import Path

import pytest
import yaml

from analysis.advice.job import advise as answers
from analysis.advice.job import answer, request
from analysis.advice.job.answer import LoneJob, PredictedSet, SetMeasurement
from analysis.advice.job.request import Request
from analysis.advice.predict import Prediction
from analysis.estimates.table import INTERVAL, Row
from collocate.app import main
from tests.fakes import machine
from tests.studio import until, workload
from workflow.collocation import gpu

SHARES = {"gract": 0.5, "smact": 0.2}


def job(**changes) -> LoneJob:
    """A job of 10 GB on a card of 100 GB, which holds 1 GB when idle."""
    values = {"rate": 100.0, "shares": SHARES, "memory_gb": 10.0, "idle_gb": 1.0, "busy_cores": 1.0}
    values |= {"usable_cores": 2, "watts": 300.0, "card": "NVIDIA X", "card_gb": 100.0}
    return LoneJob(**values | changes)


def asked(**bounds) -> Request:
    entry = {"kind": "command", "run": ["python", "t.py"], "batch_size": 1}
    return Request("t", "python t.py", entry, entry["run"], ".", "paper_step", **bounds)


def option(n: int, method: str, stp: float) -> PredictedSet:
    return PredictedSet(n, method, 1.0, Prediction(stp, 0.9 * stp, 1.1 * stp, 0.1))


def measured(n: int, method: str, stp: float, slowdown: float, low=None, gb=None, flags=""):
    """STP from `low`, or a hundredth below, to as far above."""
    half = stp - (0.99 * stp if low is None else low)
    told = {
        "value": stp,
        "low": stp - half,
        "high": stp + half,
        "spread": INTERVAL,
        "n": 1,
        "flags": flags,
    }
    of = Row(**dict.fromkeys(Row._fields) | told | {"unit": "", "jobs": n})
    slowed = of._replace(value=slowdown, low=slowdown, high=slowdown)
    return SetMeasurement(option(n, method, stp), of, of, slowed, gb, None)


def picked(found) -> tuple[int, str] | None:
    chosen = getattr(found, "predicted", found)
    return chosen and (chosen.n, chosen.method)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a script and a catalogue, where the command is typed."""
    (tmp_path / "config").mkdir()
    catalogue = yaml.safe_dump({"resnet26_toy": workload()})
    (tmp_path / "config" / "workloads.yaml").write_text(catalogue)
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


# -- what follows from numbers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "bounds", "most"),
    [
        ({}, {}, {"naive": 8, "mps": 8}),
        ({}, {"max_jobs": 3}, {"naive": 3, "mps": 3}),
        ({}, {"max_jobs": 48}, {"naive": 9, "mps": 9}),  # 1 + 9 * 10 GB of 95
        ({"memory_gb": 94.0}, {}, {}),
        ({}, {"max_memory_gb": 41.0}, {"naive": 4, "mps": 4}),
        ({}, {"max_memory_gb": 40.9}, {"naive": 3, "mps": 3}),
        ({"card": "CPU", "card_gb": 0.0, "memory_gb": 0.0, "shares": {}}, {}, {"naive": 8}),
        ({"card": "NVIDIA GB10", "card_gb": 0.0}, {}, {"naive": 8, "mps": 8}),  # tells no memory
    ],
)
def test_sets_are_those_that_memory_has_room_for(of, bounds, most):
    sets = answer.predicted_sets(job(**of), asked(**bounds))
    assert {picked(each) for each in sets} == {
        (n, method) for method, top in most.items() for n in range(2, top + 1)
    }
    assert all((each.prediction is not None) is (not job(**of).on_cpu) for each in sets)


def test_nothing_is_predicted_without_counters():
    sets = answer.predicted_sets(job(shares={"gract": 0.5}), asked())
    assert sets and not any(each.prediction for each in sets)


LADDER = [option(2, "naive", 1.65), option(2, "mps", 1.9), option(4, "naive", 1.8)]
LADDER += [option(4, "mps", 3.0), option(6, "mps", 3.2), option(8, "mps", 3.3)]


@pytest.mark.parametrize(
    ("sets", "slowdown", "best", "rival"),
    [
        (LADDER, inf, (4, "mps"), (8, "mps")),  # the fewest within a tenth; then the next best
        (LADDER, 1.9, (4, "mps"), (6, "mps")),
        (LADDER, 1.3, (2, "mps"), (2, "naive")),  # as many by the other method, if near
        (LADDER, 1.2, (2, "mps"), None),
        (LADDER, 1.01, None, None),
        ([], inf, None, None),
        # Separate processes need no daemon: at 97 % of MPS they are preferred.
        ([option(2, "naive", 1.85), option(2, "mps", 1.9)], inf, (2, "naive"), (2, "mps")),
        ([option(2, "naive", 1.84), option(2, "mps", 1.9)], inf, (2, "mps"), (2, "naive")),
        ([option(2, "naive", 0.9)], inf, (2, "naive"), None),
    ],
)
def test_the_set_to_measure_and_its_rival(sets, slowdown, best, rival):
    request = asked(max_slowdown=slowdown)
    chosen = answer.best_prediction(sets, request)
    assert picked(chosen) == best
    assert picked(chosen and answer.rival_of(chosen, sets, request)) == rival


@pytest.mark.parametrize(
    ("of", "sets", "held"),
    [
        ({}, [(4, "mps"), (4, "naive")], True),  # 1 + 9 * 10 GB of 95
        ({}, [(4, "mps"), (5, "naive")], False),
        ({}, [(4, "mps"), (8, "mps")], True),  # one is part of the other
        ({"card": "CPU", "card_gb": 0.0}, [(8, "naive"), (48, "naive")], True),
        ({"card": "NVIDIA GB10", "card_gb": 0.0}, [(8, "naive"), (8, "mps")], True),
    ],
)
def test_sets_that_take_turns_fit_on_the_card_at_once(of, sets, held):
    assert answer.fit_together(job(**of), [option(n, method, 1.0) for n, method in sets]) is held


BOTH = [measured(2, "mps", 1.9, 1.1, gb=20), measured(4, "mps", 3.0, 1.4, gb=40)]


@pytest.mark.parametrize(
    ("found", "bounds", "expected"),
    [
        (BOTH, {}, (4, "mps")),
        (BOTH, {"max_slowdown": 1.39}, (2, "mps")),
        (BOTH, {"max_memory_gb": 39}, (2, "mps")),
        (BOTH, {"max_slowdown": 1.05}, None),
        ([*BOTH, measured(6, "mps", 3.3, 1.9)], {}, (4, "mps")),
        ([*BOTH, measured(6, "mps", 3.4, 1.9)], {}, (6, "mps")),
        ([measured(2, "naive", 1.11, 1.8)], {}, None),  # not worth it: under a tenth
        ([measured(2, "naive", 1.12, 1.8)], {}, (2, "naive")),
        ([measured(2, "naive", 1.5, 1.4), measured(2, "mps", 1.6, 1.3)], {}, (2, "mps")),
        ([], {}, None),
    ],
)
def test_what_was_measured_decides(found, bounds, expected):
    assert picked(answer.decide(found, asked(**bounds))) == expected


FULL = {"gract": 1.0, "smact": 0.95}


class Measurer:
    """In place of the study beneath: measures nothing."""

    def __init__(self, asked, results, settings, progress):
        self.folder = Path("study")
        self.folder.mkdir()

    def locked(self):
        return nullcontext()

    def measure_alone(self): ...

    def measure_sets(self, sets, interleaved): ...

    def make_pages(self): ...


@pytest.mark.parametrize(
    ("shares", "words", "found", "said"),
    [
        (SHARES, [], [measured(4, "mps", 3.0, 1.4)], r"^Run 4 under MPS: 3\.00 .* 1\.40 times as"),
        (SHARES, [], [measured(2, "naive", 1.3, 1.6, low=0.9)], "^Undecided: 2 as separate"),
        (SHARES, [], [measured(2, "naive", 1.05, 1.9)], r"^One at a time: 2 as .* STP of 1\.05"),
        (SHARES, ["--max-slowdown", "1.2"], [measured(2, "mps", 1.5, 1.3)], "^One at a time"),
        (SHARES, ["--max-slowdown", "1.2"], [measured(4, "mps", 2.5, 1.6)], "bounds; 4 under"),
        (SHARES, ["--max-memory", "15"], [], "^One at a time: no set respects the bounds"),
        (SHARES, ["--no-measure"], [], r"^Predicted: run \d under MPS, STP \d.* Not measured"),
        (FULL, ["--no-measure"], [], r"^One at a time: predicted STP .* Not measured"),
        (SHARES | {"gract": 0.3}, [], [measured(4, "mps", 3.0, 1.4)], "^Rewrite first: .* 70%"),
        (
            SHARES,
            [],
            [measured(4, "mps", 3.0, 1.4, flags="cores_shared;uneven")],
            "share CPUs.*20 %",
        ),
        (SHARES, [], [measured(4, "mps", 3.0, 1.4)], "^Start it: collocate recipe .*advice.json"),
    ],
)
def test_the_verdict_says_what_is_known(place, monkeypatch, capsys, shares, words, found, said):
    monkeypatch.setattr("collocate.advise._refuse_if_unable", lambda words: None)
    monkeypatch.setattr("analysis.advice.job.measuring.AdviceStudy", Measurer)
    monkeypatch.setattr(answers.table, "read_estimates", lambda path: None)
    monkeypatch.setattr(answer, "lone_job", lambda record: job(shares=shares))
    monkeypatch.setattr(answer, "set_measurements", lambda *_: found)
    assert main(["advise", *words, "--", "python", "train.py"]) == 0
    out = capsys.readouterr().out
    assert re.search(said, re.sub(r"\n  +", " ", out), re.M), out
    told = json.loads((place / "study" / "advice.json").read_text())
    one = "One at a time" in out or "Undecided" in out
    assert told["jobs"] == 1 if one else told["jobs"] > 1


def test_flags_of_the_job_alone_are_told_too(place, monkeypatch, capsys):
    monkeypatch.setattr("collocate.advise._refuse_if_unable", lambda words: None)
    monkeypatch.setattr("analysis.advice.job.measuring.AdviceStudy", Measurer)
    lone = job(shares=FULL, flags=["stalled", "telemetry_disagrees"])
    monkeypatch.setattr(answer, "lone_job", lambda record: lone)
    assert main(["advise", "--no-measure", "--", "python", "train.py"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search("Beware, alone: a job made no step for .*contradict", shown)
    told = json.loads((place / "study" / "advice.json").read_text())
    assert told["alone"]["flags"] == lone.flags


# -- what is asked ---------------------------------------------------------------------------------


def script(*words: str, **more) -> Request:
    return request.of_script(words, Path.cwd(), **more)


def test_the_same_question_has_the_same_study(place):
    words = ("python", "train.py", "--lr", "0.1")
    first = script(*words)
    assert re.fullmatch(r"advise-train-\w+", first.study)
    assert script(*words, budget_s=3600.0, max_slowdown=2).study == first.study
    others = [script(*words[:-1], "0.2"), script(*words, max_jobs=4)]
    others.append(request.of_catalogue("resnet26_toy", Path("config/workloads.yaml")))
    others.append(request.of_model("resnet18", 64))
    names = [other.study for other in others]
    assert len({first.study, *names}) == 5
    assert [re.sub(r"-\w+$", "", name) for name in names[2:]] == [
        "advise-resnet26_toy",
        "advise-resnet18_b64",
    ]
    with pytest.raises(ValueError, match="'resnet26_tiy'.*resnet26_toy"):
        request.of_catalogue("resnet26_tiy", Path("config/workloads.yaml"))


def test_of_the_shells_variables_those_of_a_list_are_recorded_with_their_values(place, monkeypatch):
    values = {"OMP_PROC_BIND": "1", "NVIDIA_TF32_OVERRIDE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4:8"}
    values |= {"PYTORCH_CUDA_ALLOC_CONF": "x:1", "TORCH_LOGS": "a", "LD_PRELOAD": "x.so"}
    names = ["NVIDIA_API_KEY", "LD_SDK_KEY", "NVIDIA_X", "LD_X", "TORCH_TOKEN", "CUDA_PASS", "MINE"]
    for name in (*values, *names):
        monkeypatch.setenv(name, values.get(name, "secret"))
    recorded = script("python", "train.py").entry["environment"]
    expected = values | dict.fromkeys(names)
    assert expected.items() <= recorded.items() and "secret" not in recorded.values()


def test_a_program_is_that_of_the_shell(place, monkeypatch):
    assert script("python", "train.py", "a b").command == [sys.executable, "train.py", "a b"]
    monkeypatch.setenv("VIRTUAL_ENV", "/theirs")
    (place / "python").write_text("")
    (place / "python").chmod(0o755)
    monkeypatch.setenv("PATH", str(place))
    assert script("python", "train.py").command == [str(place / "python"), "train.py"]


# -- the command -----------------------------------------------------------------------------------

TRAIN = """
import time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.01)
"""
OPTIONS = ["--max-jobs", "2", "--budget", "90s", "--results", "results"]
SCRIPT = ["--", "python", "train.py"]


def start(studio, *words: str) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, "-m", "collocate", "advise", *OPTIONS, *words],
        cwd=studio.folder,
        env=studio.environment(),
        start_new_session=True,
        **pipes,
    )


def advise(studio, *words: str) -> tuple[int, str, str]:
    return ended(start(studio, *words))


def records(studio) -> dict:
    found = studio.folder.glob("results/*/cells/*/*/*/*/*/run.json")
    return {path: path.stat().st_mtime_ns for path in found}


def interrupted(studio, words) -> tuple[int, str, str]:
    """As `advise`, but for Ctrl-C while the job is measured."""
    began, process = time.time_ns(), start(studio, *words)

    def measures() -> bool:
        logs = studio.folder.glob("results/*/cells/*/*/*/*/*/log/conductor.log")
        new = [path for path in logs if path.stat().st_mtime_ns > began]
        return any("started:" in path.read_text() for path in new)

    until(lambda: measures() or process.poll() is not None, lambda: "never started")
    os.killpg(process.pid, signal.SIGINT)
    return ended(process)


def ended(process) -> tuple[int, str, str]:
    """Exit code, what is said, and what is said meanwhile."""
    out, err = process.communicate(timeout=400)
    return process.returncode, out, err


def test_without_a_gpu_one_line_says_how_to_try_it(studio):
    if gpu.find():
        pytest.skip("there is a GPU")
    studio.folder.mkdir()
    (studio.folder / "train.py").write_text(TRAIN)
    code, out, err = advise(studio, *SCRIPT)
    assert code == 1 and not out and not records(studio)
    assert "--set gpu=cpu" in err and err.count("\n") == 1


def test_a_script_is_advised_on_the_cpu(studio, capsys):
    """It fails, is mended, is interrupted, is measured, and then known."""
    pytest.importorskip("torch")
    studio.folder.mkdir()
    phrase = "hunter" + "2"
    script = studio.folder / "train.py"
    words = ["--set", "gpu=cpu", *SCRIPT, "--password", phrase]
    script.write_text("raise SystemExit('no data here')")
    code, out, err = advise(studio, *words)
    assert code == 1 and not out and len(records(studio)) == 1
    assert re.search("train.py.*: failed: .*exit code 1: no data here$", err.splitlines()[-1])

    script.write_text(TRAIN)
    code, out, err = interrupted(studio, words)
    assert code == 130 and not out and len(records(studio)) == 1
    assert re.fullmatch(r"alone \.\.\.\ninterrupted; .*carries on\n", err)
    assert not studio.alive()

    code, out, err = advise(studio, *words)
    assert code == 0, err
    assert re.search("says nothing about .*GPU", out) and max(map(len, out.splitlines())) <= 72
    assert re.search(r"^  2 separate +\d", out, re.M)
    known = records(studio)
    assert len(known) == 3
    [page] = studio.folder.glob("results/*/results.md")
    [explorer] = studio.folder.glob("results/*/explorer.html")
    [picture] = studio.folder.glob("results/*/figures/rate_against_n.svg")
    for text in (page.read_text(), explorer.read_text(), picture.read_text()):
        assert "steps/s" in text and "as it is" in text
        assert "samples/s" not in text and "TF32, synchronised" not in text

    files = {path for path in studio.folder.rglob("*") if path.is_file()}
    holding = {path for path in files if phrase.encode() in path.read_bytes()}
    assert {path.parent.name for path in holding} <= {"plan", "a1", "a2", "r1"} and holding
    [file] = studio.folder.glob("results/*/advice.json")
    private = holding | known.keys() | {file}
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}, private

    words[-1] += "3"  # it is renewed
    code, out, err = advise(studio, "--json", *words)
    said = json.loads(out)
    assert code == 0 and records(studio) == known
    assert said["run"][-2:] == ["--password", "***"] and said["asked"].endswith("--password ***")
    assert json.loads(file.read_text()) == said
    assert said["card"] == "CPU" and said["alone"]["rate"] > 0 and not said["predicted"]
    assert not main(["recipe", str(file)])
    recipe = capsys.readouterr().out
    assert "on a CPU" in recipe and f"--password {phrase}3" in recipe


@pytest.fixture(scope="module", autouse=True)
def asked_for_a_gpu(request, module_studio):
    """The command for a job on a stand-in whose members sleep: it waits most of the time, so it is
    started before the other tests. Its studio, words and process.
    """
    if not any("begun" in item.fixturenames for item in request.session.items):
        return None
    studio = module_studio().with_card()  # whose path is so short that a socket's holds it
    machine.does(studio.card, gract=0.5, smact=0.2, drama=0.1, power=300.0)
    (studio.folder / "config").mkdir()
    catalogue = yaml.safe_dump({"toy": workload(memory_mb=1000, step_s=0.02)})
    (studio.folder / "config" / "workloads.yaml").write_text(catalogue)
    settings = ("trainer=tests.torchfree", "source=synthetic", f"data={studio.data}")
    words = ["--workload", "toy", "--max-jobs", "8", "--max-slowdown", "1.15"]
    words += [word for pair in settings for word in ("--set", pair)]
    return studio, words, start(studio, *words)


@pytest.fixture
def begun(asked_for_a_gpu):
    return asked_for_a_gpu


def test_sets_under_mps_are_predicted_and_measured_within_bounds(begun):
    studio, words, process = begun
    code, out, err = ended(process)
    assert code == 0, err
    assert "\ntoy\non NVIDIA H200" in out and max(map(len, out.splitlines())) <= 72
    assert re.search(r"50% GPU busy.*20% SMs busy.*10% memory busy", out.replace("\n ", ""))
    for name in ("separate", "under MPS"):
        assert re.search(rf"^  {name}( +\d\.\d\d){{7}}$", out, re.M)
    [file] = studio.folder.glob("results/*/advice.json")
    said = json.loads(file.read_text())
    predicted = {(each["jobs"], each["method"]): each["stp"] for each in said["predicted"]}
    sets = {(each["jobs"], each["method"]): each for each in said["measured"]}
    assert len(sets) == 2 and {method for _, method in sets} == {"mps"}
    slow = {key: key[0] / stp for key, stp in predicted.items()}
    assert all(slow[key] <= 1.15 for key in sets) and max(slow.values()) > 1.15
    assert all(each["memory_gb"] and each["joules"] for each in sets.values())
    advised = sets.get((said["jobs"], said["method"]))
    assert advised["slowdown"][0] <= 1.15 if advised else said["jobs"] == 1
    known = records(studio)
    code, out, err = advise(studio, *words, "--no-measure")
    assert code == 0 and "Not measured" in out and records(studio) == known, err
