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
from math import inf
from pathlib import Path

import numpy as np
import pytest
import yaml

from analysis.advice.job import answer, request
from analysis.advice.job.advise import Decision, SetChoice
from analysis.advice.job.answer import LoneJob, PredictedSet, SetMeasurement
from analysis.advice.job.numbers import Alone, Estimate, Together
from analysis.advice.job.request import Request
from analysis.advice.predict import Prediction
from collocate.app import main
from tests.fakes import machine
from tests.studio import until, workload
from workflow.collocation import gpu
from workflow.collocation.record.cycles import StepBlocks
from workflow.collocation.record.probe import LoneReading, ProbeRecord
from workflow.collocation.record.run_json import GpuRecord
from workflow.collocation.record.values import Telemetry, WindowTelemetry

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


def measured(n: int, method: str, stp: float, slowdown: float, low=None, gb=None, **more):
    """STP from `low`, or a hundredth below, to as far above."""
    half = stp - (0.99 * stp if low is None else low)
    gain = Estimate(stp, stp - half, stp + half)
    slowed = Estimate(slowdown, slowdown, slowdown)
    numbers = Together(gain, gain, (slowed,), **more)
    return SetMeasurement(option(n, method, stp), numbers, gb)


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
        ({"methods": ("naive",)}, {}, {"naive": 8}),
        ({"card": "NVIDIA GB10", "card_gb": 0.0}, {}, {"naive": 8, "mps": 8}),  # tells no memory
    ],
)
def test_sets_are_those_that_memory_has_room_for(of, bounds, most):
    sets = answer.predicted_sets(job(**of), asked(**bounds))
    assert {picked(each) for each in sets} == {
        (n, method) for method, top in most.items() for n in range(2, top + 1)
    }
    assert all(each.prediction for each in sets)


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
    ("of", "sets", "fits"),
    [
        ({}, [(4, "mps"), (5, "naive")], True),  # 1 + 9 * 10 GB of 95; the lone copy is one of 5
        ({}, [(4, "mps"), (6, "naive")], False),
        ({}, [(4, "mps"), (8, "mps")], True),  # one is part of the other
        ({}, [(9, "mps")], False),
        ({}, [(9, "naive")], True),
        ({"card": "CPU", "card_gb": 0.0}, [(8, "naive"), (48, "naive")], True),
        ({"card": "NVIDIA GB10", "card_gb": 0.0}, [(8, "naive"), (8, "mps")], True),
    ],
)
def test_sets_that_take_turns_fit_on_the_card_with_the_lone_copy(of, sets, fits):
    options = [option(n, method, 1.0) for n, method in sets]
    assert answer.fit_with_lone(job(**of), options) is fits


@pytest.mark.parametrize(
    ("memory_gb", "groups"),
    [
        (2.0, [(True, ["4xmps", "8xmps"])]),
        (11.0, [(True, ["4xmps"]), (False, ["8xmps"])]),
    ],
)
def test_sets_without_room_beside_the_lone_copy_come_last(memory_gb, groups):
    started = answer.groups_to_start(job(memory_gb=memory_gb), LADDER, asked())
    assert [(group.with_lone, [each.name for each in group.sets]) for group in started] == groups


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


PREDICT = {"measure_sets": False}
FULL = {"gract": 1.0, "smact": 0.95}


def record(**changes) -> ProbeRecord:
    """A probe of one script, of which nothing but these fields is known."""
    member = {"member": 0, "workload": "t", "status": "completed", "optimizer": "AdamW"}
    fields = {"jobs": {}, "started_at": "", "gpu": None, "host": {}, "windows": []}
    fields |= {"provenance": {}, "members": [member], "sets": [], "peak_bytes": None, "flags": []}
    fields |= {"no_mps": None}
    fields |= {"telemetry": {"status": "off"}, "evidence": {}, "needed_s": None}
    fields |= {"problem": None, "seconds": {"wall": 180.0, "counted": 100.0}, "files": {}}
    return ProbeRecord(**fields | changes)


def decision(sets=(), shares=SHARES, bounds=None, flags=(), cycle_s=None, notes=(), **changes):
    """What is told of one job with these shares, after a probe that measured these sets."""
    question, lone = asked(**bounds or {}), job(shares=shares, flags=flags)
    steady = StepBlocks(np.ones(8), np.ones(8) / 9, pauses=False)
    alone = Alone(Estimate(9.0, 8.0, 10.0), None, cycle_s, (), steady, notes=notes)
    predicted = answer.predicted_sets(lone, question)
    return Decision(question, lone, predicted, sets, record(**changes), alone)


@pytest.mark.parametrize(
    ("decided", "verdict", "jobs"),
    [
        (decision([measured(4, "mps", 3.0, 1.4)]), r"Run 4 under MPS: 3\.00 .* 1\.40 times as", 4),
        (decision([measured(2, "naive", 1.3, 1.6, low=0.9)]), "Undecided: 2 as separate", 1),
        (decision([measured(2, "naive", 1.05, 1.9)]), r"One at a time: 2 as .* STP of 1\.05", 1),
        (
            decision([measured(2, "mps", 1.5, 1.3)], bounds={"max_slowdown": 1.2}),
            "One at a time",
            1,
        ),
        (decision([measured(4, "mps", 2.5, 1.6)], bounds={"max_slowdown": 1.2}), ".*bounds; 4", 1),
        (decision(bounds={"max_memory_gb": 15}), "One at a time: no set respects the bounds", 1),
        (decision(bounds=PREDICT), r"Predicted: run \d under MPS, STP \d.* Not measured", 5),
        (decision(shares=FULL, bounds=PREDICT), r"One at a time: predicted .* Not measured", 1),
        (decision(), "Undecided: fewer than two copies had room", 1),
        (
            decision([measured(2, "mps", 2.4, 0.8, doubt="2 jobs did more than 2 times")]),
            "Undecided on 2 under MPS: 2 jobs did more than 2 times",
            1,
        ),
        (decision(needed_s=262.0, cycle_s=30.0), "Undecided: it pauses every 30 s.* 4.5m", 1),
        (decision(needed_s=400.0), "Undecided: it pauses for long.* --budget 7m or more", 1),
        (decision(problem="member 3: failed"), "Undecided: copies of it do not run together", 1),
    ],
)
def test_the_verdict_says_what_is_known(decided, verdict, jobs):
    assert re.match(verdict, decided.verdict()), decided.verdict()
    assert decided.as_json()["jobs"] == jobs


@pytest.mark.parametrize(
    ("decided", "note"),
    [
        (decision(shares=SHARES | {"gract": 0.3}), "^Rewrite first: .* 70%"),
        (decision([measured(2, "mps", 1.5, 1.3, flags=("halves_differ",))]), "together: .*20 %"),
        (
            decision(flags=["stalled", "telemetry_disagrees"]),
            "alone: a job made no step.*contradict",
        ),
        (decision(cycle_s=3.1), "pauses every 3.1 s; rates are over whole cycles"),
        (decision(notes=("Alone it made 70 and 56.",)), "Alone it made 70 and 56"),
        (
            decision(members=[record().members[0].model_copy(update={"starts_ns": [1, 2, 3]})]),
            "started again, 2 times",
        ),
    ],
)
def test_what_to_know_before_a_verdict_is_believed(decided, note):
    assert any(re.search(note, each) for each in decided.notes()), decided.notes()


def test_other_predictions_follow_from_the_set_that_was_measured():
    """By the same method; a set in doubt says nothing."""
    before = {(e["jobs"], e["method"]): e["stp"] for e in decision().as_json()["predicted"]}
    low = measured(4, "mps", 2.5, 1.6)
    for sets, changes in (([low], True), ([measured(4, "mps", 2.5, 1.6, doubt="x")], False)):
        after = {(e["jobs"], e["method"]): e for e in decision(sets).as_json()["predicted"]}
        assert after[6, "naive"]["stp"] == before[6, "naive"]
        assert (after[6, "mps"]["stp"] < before[6, "mps"]) is changes
        assert after[6, "mps"]["rescaled"] is changes


def test_sets_are_chosen_from_what_the_job_alone_shows():
    sentences = []
    window = WindowTelemetry(seconds=9.0, entities={"gpu": SHARES | {"power": 300.0}})
    telemetry = Telemetry(status="complete", windows={"alone": window})
    reading = LoneReading(10.0, telemetry, peak_bytes=10**10, cores=2, methods=("naive", "mps"))
    card = GpuRecord(uuid="GPU-x", name="NVIDIA X", memory_bytes=10**11, driver="1")
    choice = SetChoice(asked(), card, sentences.append)
    [group] = choice(reading)
    assert {each.method for each in group.sets} == {"mps"} and len(sentences) == 1
    [separate] = choice(reading._replace(methods=("naive",)))
    assert {each.method for each in separate.sets} == {"naive"}
    [few] = choice(reading._replace(telemetry=Telemetry(status="off")))
    assert {each.n for each in few.sets} <= {2, 4}
    assert SetChoice(asked(measure_sets=False), card)(reading) == []


# -- what is asked ---------------------------------------------------------------------------------


def script(*words: str, **more) -> Request:
    return request.of_script(words, Path.cwd(), **more)


def test_a_question_is_named_after_its_job(place):
    asked_for = [script("python", "train.py", "--lr", "0.1"), request.of_model("resnet18", 64)]
    asked_for.append(request.of_catalogue("resnet26_toy", Path("config/workloads.yaml")))
    assert [each.job for each in asked_for] == ["train", "resnet18_b64", "resnet26_toy"]
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

# Bursts of steps and pauses, as of reinforcement learning; sleeps alone, so two do twice as much.
TRAIN = """
import time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    time.sleep(1.0)
    for _ in range(50):
        time.sleep(0.01)
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
"""
OPTIONS = ["--budget", "60s", "--results", "results"]
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


def probes(studio) -> list[Path]:
    return sorted(studio.folder.glob("results/*/probe.json"))


def interrupted(studio, words) -> tuple[int, str, str]:
    """As `advise`, but for Ctrl-C while the job is measured."""
    before = {*studio.folder.glob("results/*/log/member0.log")}
    process = start(studio, *words)

    def measures() -> bool:
        logs = {*studio.folder.glob("results/*/log/member0.log")} - before
        return bool(logs)

    until(lambda: measures() or process.poll() is not None, lambda: "never started")
    time.sleep(5)
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
    assert code == 1 and not out and not probes(studio)
    assert "--set gpu=cpu" in err and err.count("\n") == 1


def test_a_script_that_pauses_is_advised_on_the_cpu(studio, capsys):
    """It fails, is mended, is interrupted, is measured."""
    pytest.importorskip("torch")
    studio.folder.mkdir()
    phrase = "hunter" + "2"
    script = studio.folder / "train.py"
    words = ["--max-jobs", "2", "--set", "gpu=cpu", *SCRIPT, "--password", phrase]
    script.write_text("raise SystemExit('no data here')")
    code, out, err = advise(studio, *words)
    assert code == 1 and not out
    assert re.search("train.py.*: .*exit code 1: no data here; log: ", err.splitlines()[-1])

    script.write_text(TRAIN)
    code, out, err = interrupted(studio, words)
    assert code == 130 and not out and len(probes(studio)) == 1
    assert err.splitlines()[-1].startswith("interrupted")
    assert not studio.alive()

    code, out, err = advise(studio, "--json", *words)
    assert code == 0, err
    content = json.loads(out)
    [measured_set] = content["measured"]
    assert 30 < content["alone"]["rate"] < 36  # 50 steps in 1.5 s, and some work
    assert 1.8 < measured_set["stp"][0] <= 2.0 and content["jobs"] == 2
    assert any("pauses every 1." in note for note in content["notes"])
    assert content["alone"]["optimizer"] in ("SGD", None)
    assert content["run"][-2:] == ["--password", "***"] and content["asked"].endswith(
        "--password ***"
    )
    assert content["card"] == "CPU" and not content["predicted"]
    assert content["seconds"]["counted"] > content["seconds"]["wall"] / 2

    *_, folder = [path.parent for path in probes(studio)]
    files = [path for path in studio.folder.rglob("*") if path.is_file()]
    holding = [path for path in files if phrase.encode() in path.read_bytes()]
    assert {path.name for path in holding} == {"command.json"}
    advice = folder / "advice.json"
    assert json.loads(advice.read_text()) == content
    private = [advice, folder / "probe.json", *holding]
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}
    capsys.readouterr()
    assert main(["recipe", str(advice)]) == 0
    recipe = capsys.readouterr().out
    assert "on a CPU" in recipe and f"--password {phrase}" in recipe
    (folder / "command.json").unlink()
    assert main(["recipe", str(advice)]) == 1


def test_two_jobs_are_advised_together(studio):
    """One of them is four times as fast as the other; both wait, so they go well together."""
    pytest.importorskip("torch")
    studio.folder.mkdir()
    for name, step_s in (("quick", 0.01), ("slow", 0.04)):
        text = TRAIN.replace("time.sleep(1.0)", "pass").replace("sleep(0.01)", f"sleep({step_s})")
        (studio.folder / f"{name}.py").write_text(text)
    words = ["--", "python", "quick.py", "---", "python", "slow.py"]
    code, out, err = advise(studio, "--json", "--set", "gpu=cpu", *words)
    assert code == 0, err
    content = json.loads(out)
    quick, slow = (alone["rate"][0] for alone in content["alone"])
    assert 3 < quick / slow < 5
    [together] = content["together"]
    assert together["method"] == "naive" and 1.7 < together["stp"][0] <= 2
    assert all(0.8 < slowdown[0] < 1.3 for slowdown in together["slowdowns"])
    assert 0.4 < together["time"] < 0.7
    assert re.match("Run both as separate processes", content["verdict"])
    assert len(content["asked"]) == 2
    code, out, err = advise(studio, "--", "python", "quick.py", "---")
    assert code == 2 and err.count("\n") == 1 and "---" in err


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
    content = json.loads(file.read_text())
    predicted = {(each["jobs"], each["method"]): each["stp"] for each in content["predicted"]}
    sets = {(each["jobs"], each["method"]): each for each in content["measured"]}
    assert len(sets) == 2 and {method for _, method in sets} == {"mps"}
    slow = {key: key[0] / stp for key, stp in predicted.items()}
    assert all(slow[key] <= 1.15 for key in sets) and max(slow.values()) > 1.15
    assert all(each["memory_gb"] and each["joules"] for each in sets.values())
    advised = sets.get((content["jobs"], content["method"]))
    assert advised["slowdown"][0] <= 1.15 if advised else content["jobs"] == 1
    probe = json.loads(file.with_name("probe.json").read_text())
    assert all(proof["verified"] is not False for proof in probe["evidence"].values())
    code, out, err = advise(studio, *words, "--no-measure")
    assert code == 0 and "Not measured" in out, err
