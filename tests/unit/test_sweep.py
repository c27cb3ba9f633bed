"""Sweeps: their commands, the queue in a folder, what follows from an end, and who is admitted."""

import errno
import json
import os
import platform
import random
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collocate.app import main
from collocate.folders import project_folder
from collocate.run import predicted_gain
from collocate.terminal import Progress
from tests.studio import REPOSITORY
from workflow.collocation.gpu.lock import LockHeld, folder_lock, local_locks
from workflow.collocation.study.errors import NotInForce
from workflow.collocation.study.redaction import write_private
from workflow.collocation.sweep import journal, table
from workflow.collocation.sweep.admission import SETTLE_S, Admission
from workflow.collocation.sweep.commands import listed, missing_program, numbered
from workflow.collocation.sweep.journal import RunClaim, Sweep, find_or_make, open_or_make
from workflow.collocation.sweep.mps_watch import FAULT_S, PROOF_S, MpsWatch
from workflow.collocation.sweep.record import (
    ALL_SLOTS,
    End,
    Outcome,
    Run,
    RunAttempt,
    State,
    conclude,
)

# -- commands --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "second"),
    [
        ("x", "x"),
        ("{n}", "1"),
        ("seed={n},{n}", "seed=1,1"),
        ("{{n}}", "{n}"),
        ("{{{n}}}", "{1}"),
        ('{{"lr": 1e-{n}}}', '{"lr": 1e-1}'),
        ("", ""),
    ],
)
def test_the_number_of_a_run_stands_for_its_placeholder(word, second):
    assert numbered(["run", word], 2)[1] == ["run", second]


@pytest.mark.parametrize("word", ["{", "}", "{m}", "{n:3}", "{{n}", "{n}}", "{}"])
def test_other_braces_are_refused(word):
    with pytest.raises(ValueError, match="write {{ and }} for braces"):
        numbered(["run", word], 1)


def test_a_file_has_a_command_a_line(tmp_path):
    path = tmp_path / "runs.txt"
    path.write_text("# it's all\ntrain --lr '1 2' # one's\n\n  echo {n} \"#\" å\\ b a#3 '; #'\n")
    assert listed(path) == [["train", "--lr", "1 2"], ["echo", "{n}", "#", "å b", "a#3", "; #"]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\nb 'c\n", "runs.txt:2: No closing"),
        ("#\n", "runs.txt: no command"),
        ("cd x && a\n", "runs.txt:1: '&&' is for a shell"),
        ("a > log\n", "runs.txt:1: '>' is for a shell"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path, text, words):
    (tmp_path / "runs.txt").write_text(text)
    with pytest.raises(ValueError, match=words):
        listed(tmp_path / "runs.txt")


def test_a_program_that_is_not_there_is_named():
    assert missing_program([["true"], ["sh", "-c", "x"]]) == ""
    assert "'A=1'" in missing_program([["true"], ["A=1", "true"]])


def test_a_dry_run_prints_each_command_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--runs", "2", "--dry-run", "--", "echo", "--seed", "{n}", "a b"]) == 0
    lines = ["0000  echo --seed 0 'a b'", "0001  echo --seed 1 'a b'"]
    assert capsys.readouterr().out.splitlines() == lines
    Path("runs.txt").write_text("true 1 # one\ntrue '{n}'\n")
    assert main(["run", "--commands", "runs.txt", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == ["0000  true 1", "0001  true '{n}'"]
    assert [path.name for path in tmp_path.iterdir()] == ["runs.txt"]


ON_CPU = ["--gpus", "cpu", "--jobs", "2", "--runs", "2"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--jobs", "2"], "give one of: -- COMMAND, --commands"),
        (["--commands", "none.txt", "--", "true"], "give one of"),
        (["--jobs", "2", "--", "true"], "--runs"),
        (["--commands", "runs.txt", "--runs", "2"], "--runs"),
        (["--commands", "none.txt"], "none.txt: no such file"),
        (["--commands", "runs.txt"], "'no-such-program' is no program"),
        (["--runs", "2", "--", "echo", "{m}"], "{m}: {n} is"),
        (["--runs", "0", "--", "true"], "--runs"),
        (["--gpus", "cpu", "--runs", "2", "--", "true"], "--jobs: give a number"),
        ([*ON_CPU, "--method", "mps", "--", "true"], "--method mps: needs a GPU"),
        ([*ON_CPU, "--method", "streams", "--", "true"], "--method"),
        ([*ON_CPU, "--timeout", "2x", "--", "true"], "--timeout 2x: give a time such as"),
        ([*ON_CPU, "--timeout", "0s", "--", "true"], "--timeout 0s: allowed: 1s or more"),
        ([*ON_CPU, "--folder", "other", "--", "true"], "--folder: other holds a sweep of other"),
        ([*ON_CPU, "--folder", "broken", "--", "true"], "--folder: broken/sweep.json"),
    ],
)
def test_what_is_typed_wrong_is_one_line_and_nothing_starts(
    tmp_path, monkeypatch, capsys, words, named
):
    monkeypatch.chdir(tmp_path)
    Path("runs.txt").write_text("true\nno-such-program x\n")
    open_or_make(Path("other"), [["false"]], tmp_path)
    Path("broken").mkdir()
    Path("broken", "sweep.json").write_text("{")
    assert main(["run", *words]) == 2
    complaint = capsys.readouterr().err
    assert named in complaint and complaint.count("\n") == 1
    assert not Path("collocate").exists()


@pytest.mark.parametrize(
    ("package", "words"),
    [
        *((package, ["run", "--runs", "2"]) for package in ("pandas", "numpy", "pyarrow")),
        ("psutil", ["run", *ON_CPU]),
        ("pandas", ["advise"]),
        ("scipy", ["advise"]),
    ],
)
def test_a_package_that_is_missing_is_named_before_anything_starts(
    tmp_path, monkeypatch, capsys, package, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    assert main([*words, "--", "true"]) == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"not installed: {package}; ") and complaint.count("\n") == 1
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.parametrize("options", [[], ["--folder", "shared"]])
def test_a_folder_without_locks_is_refused_in_one_line(
    tmp_path, monkeypatch, capsys, number, options
):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fcntl.flock", refuse)
    assert main(["run", *ON_CPU, *options, "--", "touch", "ran-{n}"]) == 1
    complaint = capsys.readouterr().err
    assert os.strerror(number) in complaint and "set --folder to another folder" in complaint
    assert complaint.count("\n") == 1 and not [*tmp_path.glob("ran-*")]


LOCAL_LOCKS = [
    ("rw,vers=3,nolock,addr=10.0.0.1", "nolock"),
    ("rw,vers=3,local_lock=all", "local_lock=all"),
    ("rw,localflock", "localflock"),
    ("rw,vers=4.2,local_lock=none", None),
]


@pytest.mark.parametrize(("mount_options", "named"), LOCAL_LOCKS)
def test_a_folder_whose_locks_other_machines_do_not_see_is_told(
    tmp_path, monkeypatch, capsys, mount_options, named
):
    mounts = [("/", "rw,nolock" if named is None else "rw"), (str(tmp_path), mount_options)]
    partitions = [SimpleNamespace(mountpoint=place, opts=opts) for place, opts in mounts]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: partitions)
    monkeypatch.chdir(tmp_path)
    assert local_locks(Path("not-there/yet")) == named


# -- the folder ------------------------------------------------------------------------------------

COMMANDS = [["true", str(number)] for number in range(4)]


def test_a_sweep_is_found_by_its_commands_and_folder(tmp_path):
    parent = tmp_path / "collocate"
    first = find_or_make(parent, COMMANDS, tmp_path)
    assert first == parent / "run-1" == find_or_make(parent, COMMANDS, tmp_path)
    assert find_or_make(parent, COMMANDS[1:], tmp_path) == parent / "run-2"
    assert find_or_make(parent, COMMANDS, parent) == parent / "run-3"
    open_or_make(first, COMMANDS, tmp_path)
    with pytest.raises(ValueError, match="other commands"):
        open_or_make(first, COMMANDS[1:], tmp_path)
    with folder_lock(parent, {}), pytest.raises(LockHeld):
        find_or_make(parent, COMMANDS, tmp_path)


def test_one_that_was_made_by_half_is_made_anew(tmp_path):
    folder = find_or_make(tmp_path, COMMANDS, tmp_path)
    (folder / "sweep.json").unlink()
    open_or_make(folder, COMMANDS, tmp_path)
    assert len(Sweep(folder).runs()) == 4


def test_sweeps_in_the_clone_go_to_its_results(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    assert project_folder() == Path("results")


def test_files_that_hold_commands_are_their_owners_alone(tmp_path):
    folder = find_or_make(tmp_path, COMMANDS, tmp_path)
    assert folder.stat().st_mode & 0o077 == 0


HERE = platform.node()
MEMORY = ("loading", "RuntimeError: CUDA out of memory")
FAULT = {"code": 1, "fault": True}


def sweep_of(tmp_path: Path, count: int = 4) -> Path:
    return find_or_make(tmp_path, COMMANDS[:count], tmp_path)


def begin(claim: RunClaim, sweep: Sweep, shared: bool = False, host: str = HERE) -> None:
    """Start an attempt on the GPU "g", without a process."""
    place = {"session": sweep.session, "host": host, "gpu": "g", "method": "mps"}
    place |= {"slots": [0], "cores": [0], "wanted": claim.run.wanted, "shared": shared}
    claim.run.attempts.append(RunAttempt(**place, start="2026-01-01T00:00:00+00:00"))
    claim.write()


def finish(claim: RunClaim, end: End) -> None:
    conclude(claim.run, end, any_size=False)
    claim.write()
    claim.release()


def test_no_two_claim_the_same_run(tmp_path):
    one, other = (Sweep(sweep_of(tmp_path)) for _ in range(2))
    claims = [sweep.claim_next(1, 1, "g") for sweep in (one, other, one, other, one)]
    assert [claim and claim.run.run for claim in claims] == [0, 1, 2, 3, None]
    claims[2].release()
    assert other.claim_next(1, 1, "g").run.run == 2


def test_what_a_killed_supervisor_had_is_lost_and_starts_again(tmp_path):
    one, other = (Sweep(sweep_of(tmp_path)) for _ in range(2))
    claim = one.claim_next(1, 1, "g")
    begin(claim, one)
    assert other.read(0).state(other.session) is State.running
    claim.release()  # as the kernel does for a process that is killed
    again = other.claim_next(1, 1, "g")
    assert again.run.run == 0 and again.run.attempts[0].outcome == Outcome.lost


def test_a_session_lasts_while_anybody_works_and_the_next_tries_failures_again(tmp_path):
    folder = sweep_of(tmp_path, count=1)
    one, other = Sweep(folder), Sweep(folder)
    assert (one.session, other.session) == (1, 1)
    claim = one.claim_next(1, 1, "g")
    begin(claim, one)
    finish(claim, End(code=1))
    assert other.claim_next(1, 1, "g") is None
    one.close()
    third = Sweep(folder)
    assert third.session == 1 and third.claim_next(1, 1, "g") is None
    other.close()
    third.close()
    later = Sweep(folder)
    assert later.session == 2 and later.claim_next(1, 1, "g").run.run == 0


def test_those_that_failed_come_last(tmp_path):
    first = Sweep(sweep_of(tmp_path, count=2))
    claim = first.claim_next(1, 1, "g")
    begin(claim, first)
    finish(claim, End(code=1))
    first.close()
    later = Sweep(first.folder)
    assert [later.claim_next(1, 1, "g").run.run for _ in range(2)] == [1, 0]


def test_a_file_system_that_fails_for_a_moment_ends_nothing(tmp_path, monkeypatch):
    sweep = Sweep(sweep_of(tmp_path))
    claim, before = sweep.claim_next(1, 1, "g"), sweep.runs()
    begin(claim, sweep)

    def fail(*_, **__):
        raise OSError("stale file handle")

    with monkeypatch.context() as failing:
        failing.setattr(journal, "read_json", fail)
        failing.setattr(journal, "write_private", fail)
        assert sweep.runs() == before
        assert not claim.save() and "stale file handle" in claim.problem
        with pytest.raises(OSError, match="stale"):
            sweep.claim_next(1, 1, "g")
    assert claim.save() and claim.problem == ""
    assert sweep.claim_next(1, 1, "g").run.run == 1  # whose claim was given up


@pytest.mark.parametrize("end", [End(code=1, lines=MEMORY), End(**FAULT, first=True)])
@pytest.mark.parametrize(("host", "gpu"), [(HERE, "other"), ("there", "g")])
def test_a_run_that_needs_more_room_is_waited_for_by_its_own_gpu_alone(tmp_path, end, host, gpu):
    sweep = Sweep(sweep_of(tmp_path, count=3))
    claim = sweep.claim_next(1, 4, "g")
    begin(claim, sweep, shared=True)
    finish(claim, end)
    assert sweep.claim_next(1, 4, "g") is None
    elsewhere = Sweep(sweep.folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("platform.node", lambda: host)
        assert elsewhere.claim_next(1, 4, gpu).run.run == 1
    assert sweep.claim_next(4, 4, "g").run.run == 0
    assert elsewhere.claim_next(1, 1, "g").run.run == 2


# -- what follows from an end ----------------------------------------------------------------------

PLACE = {"session": 1, "host": "h", "gpu": "g", "method": "mps", "slots": [0], "cores": []}
ONE_ATTEMPT = {"run": 0, "command": ["x"], "attempts": [PLACE]}
# Ends of the attempts of one run, each with whether it shared the GPU → outcome of the last, and
# slots for another attempt.
ENDS = [
    ([(End(code=0), True)], "ended", None),
    ([(End(code=2, lines=("x", "no data")), True)], "failed", None),
    ([(End(signal=9), True)], "failed", None),
    ([(End(signal=15), True)], "stopped", 1),
    ([(End(signal=15), True)] * 2, "failed", None),
    ([(End(code=0, left=2, left_on_gpu=1), True)], "failed", None),
    ([(End(error="python did not start"), False)], "failed", None),
    ([(End(code=0, stopped=True), False)], "stopped", 1),
    ([(End(code=0, stopped=True, limit_s=60), False)], "failed", None),
    ([(End(signal=15, stopped=True, limit_s=60, lines=MEMORY), True)], "failed", None),
    ([(End(code=1, lines=MEMORY), True)], "out_of_memory", 2),
    ([(End(code=1, lines=MEMORY), False)], "failed", None),
    ([(End(code=1, lines=MEMORY), True)] * 2, "failed", None),
    ([(End(code=1, lines=MEMORY), True), (End(signal=15, stopped=True), True)], "stopped", 2),
    ([(End(**FAULT), True)], "server_fault", 1),
    ([(End(**FAULT, first=True), True)], "server_fault", ALL_SLOTS),
    ([(End(**FAULT), True)] * 2, "server_fault", ALL_SLOTS),
    ([(End(**FAULT), True)] * 2 + [(End(**FAULT), False)], "failed", None),
    ([(End(**FAULT, lines=MEMORY), True)], "server_fault", 1),
]


@pytest.mark.parametrize(("ends", "outcome", "slots"), ENDS)
def test_what_follows_from_an_end(ends, outcome, slots):
    run = Run(0, ["x"])
    for end, shared in ends:
        run.attempts.append(RunAttempt(**PLACE, wanted=run.wanted, shared=shared))
        conclude(run, end, any_size=False)
    newest = run.attempts[-1]
    assert (newest.outcome, newest.retry_slots) == (outcome, slots)
    assert (newest.reason == "") == (outcome == "ended")
    assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run


TORCHRUN = ("RuntimeError: no data", "raise ChildFailedError(", "x.ChildFailedError:", "=====")
REASONS = [
    (End(code=1, lines=TORCHRUN), "exit code 1: RuntimeError: no data"),
    (End(code=1, lines=("KeyError: 1", "Exception: 2", "x")), "exit code 1: Exception: 2"),
    (End(code=1, lines=("x", "no data")), "exit code 1: no data"),
    (End(code=0, left=2), "processes that it left were ended: 2"),
    (
        End(code=0, left=2, left_on_gpu=1),
        "processes that it left were ended: 2, on the GPU: 1",
    ),
]


@pytest.mark.parametrize(("end", "reason"), REASONS)
def test_the_reason_is_the_line_that_tells_it(end, reason):
    run = Run.from_json(ONE_ATTEMPT)
    conclude(run, end, any_size=False)
    assert run.attempts[-1].reason == reason


class MuteDaemon:
    """Answers nothing."""

    def servers(self):
        raise NotInForce("no answer")


def daemon(servers: list[int], status: str = "ACTIVE") -> SimpleNamespace:
    """A daemon that lists these servers, with the client 7."""
    return SimpleNamespace(
        servers=lambda: servers, status=lambda server: status, clients=lambda server: [7]
    )


@pytest.fixture
def watch(tmp_path, monkeypatch) -> MpsWatch:
    """Of server 5."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = MpsWatch("GPU-0", tmp_path)
    made.daemon = daemon([5])
    return made


# The daemon when a run fails, and what the run wrote → whether it counts as a fault, and as first.
ILLEGAL, REFUSED = "CUDA error: an illegal memory access", "the MPS server is not ready to accept"
FULL = "the hardware resources required to create MPS client have been exhausted"
FAULTS = [
    (daemon([5]), "", False, False),
    (daemon([5]), FULL, False, False),
    (daemon([5]), ILLEGAL, True, True),
    (daemon([5]), f"{FULL}\nCUDA error: device-side assert triggered", True, True),
    (daemon([5]), REFUSED, True, False),
    (daemon([5], "FAULT"), "", True, True),
    (daemon([6]), "", True, True),
    (daemon([]), "", True, True),
    (MuteDaemon(), "", True, True),
]


@pytest.mark.parametrize(("later", "output", "is_fault", "is_first"), FAULTS)
def test_a_fault_of_the_server_is_seen_from_outside(watch, later, output, is_fault, is_first):
    attempt = Run.from_json(ONE_ATTEMPT).attempts[0]
    watch.prove({70: attempt}, {70: {70, 7}}, [7], now_s=0.0)
    assert attempt.mps is True and watch.server == 5
    watch.daemon, began_s = later, time.monotonic()
    assert watch.failed(began_s, output) == (is_fault, is_first)
    assert watch.failed(began_s, "") == (is_fault, False)  # with it, or by itself
    assert watch.failed(time.monotonic(), "") == (False, False)  # began after it
    assert watch.failed(time.monotonic(), REFUSED) == (True, False)


# The daemon after a fault; whether older runs live; seconds since → whether runs may start.
READY = [
    (daemon([6]), True, 0, False),
    (daemon([6]), False, 0, True),
    (daemon([6]), True, FAULT_S, True),
    (daemon([]), False, 0, True),
    (daemon([5], "FAULT"), False, 0, False),
    (daemon([5], "FAULT"), True, FAULT_S, False),
    (MuteDaemon(), False, 0, False),
]


@pytest.mark.parametrize(("later", "has_older", "ago_s", "is_ready"), READY)
def test_after_a_fault_nothing_starts_until_the_server_takes_it(
    watch, later, has_older, ago_s, is_ready
):
    assert watch.is_ready(has_older=True)
    watch.failed(time.monotonic(), ILLEGAL)
    watch.daemon, watch.fault_s = later, watch.fault_s - ago_s
    assert watch.is_ready(has_older) is is_ready


def test_a_run_on_the_gpu_that_the_daemon_does_not_list_is_not_under_mps(watch):
    attempt = Run.from_json(ONE_ATTEMPT).attempts[0]
    readings = [(0.0, [], None), (500.0, [8], None), (501.0 + PROOF_S, [8], False)]
    for now_s, on_gpu, proven in readings:
        watch.prove({70: attempt}, {70: {70, 8}}, on_gpu, now_s)
        assert attempt.mps is proven


# Each step: who acts, and what comes of it.
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2), st.sampled_from(["start", "end", "fail", "memory", "fault", "kill"])
    )
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 99))
def test_each_run_ends_well_once_whatever_comes_in_between(tmp_path_factory, steps, seed):
    """Three supervisors on one queue, with two slots each, that fail and are killed and return."""
    folder, chance = sweep_of(tmp_path_factory.mktemp("sweep")), random.Random(seed)
    watcher = Sweep(folder)  # so that the session lasts
    crew = [Sweep(folder) for _ in range(3)]
    claims: list[list[RunClaim]] = [[], [], []]
    ended: list[int] = []
    ends = {"fail": End(code=1), "memory": End(code=1, lines=MEMORY), "fault": End(**FAULT)}

    def act(who: int, what: str) -> None:
        mine = claims[who]
        if what == "start":
            free = 2 - sum(min(claim.run.attempts[-1].wanted, 2) for claim in mine)
            if free and (claim := crew[who].claim_next(free, 2, "g")):
                assert claim.run.run not in ended
                begin(claim, crew[who], shared=bool(mine), host="elsewhere")
                mine.append(claim)
        elif what == "kill":
            for claim in mine:
                claim.release()
            crew[who].close()
            mine.clear()
            crew[who] = Sweep(folder)
        elif mine:
            claim = mine.pop(chance.randrange(len(mine)))
            if what == "end":
                ended.append(claim.run.run)
            finish(claim, ends.get(what, End(code=0)))

    for who, what in steps:
        act(who, what)
    for _ in range(20):  # whatever was: from here on all goes well
        for who in range(3):
            act(who, "end")
            act(who, "start")
    failed = [run.run for run in watcher.runs() if run.state(watcher.session) is State.failed]
    assert sorted(ended + failed) == [0, 1, 2, 3]
    assert watcher.session == 1 and not any(claims)
    for sweep in (watcher, *crew):
        sweep.close()
    with_failures = Sweep(folder)
    assert with_failures.session == 2
    states = [run.state(2) for run in with_failures.runs()]
    assert states == [State.waiting if n in failed else State.ended for n in range(4)]
    with_failures.close()


# -- who is admitted -------------------------------------------------------------------------------


def admission(
    activity, used_mb=10_000.0, of_runs=None, gain=lambda *_: 2.0, **seconds
) -> Admission:
    """One run, since `since_s`, that has shown this for `still_s`."""
    made = Admission("mps", gain)
    made.started(0, 0.0)
    made.see(seconds.get("grown_s", 2.0), used_mb, of_runs or {}, activity)
    return made


# What one run shows; memory of it and of the card; when memory last grew; gain → is one admitted?
ADMISSIONS = [
    ((0.5, 0.3), 10_000, {0: 9_500.0}, 2.0, 1.5, True),
    ((0.5, 0.3), 10_000, {0: 9_500.0}, 25.0, 1.5, False),  # memory has just grown
    ((0.5, 0.3), 50_000, {0: 49_000.0}, 2.0, 1.5, False),  # the next one would not fit
    ((0.5, 0.3), 50_000, {}, 2.0, 1.5, False),  # NVML lists no process, as in a container
    ((0.5, 0.3), 30_000, {}, 2.0, 1.5, True),
    ((0.9, 0.81), 10_000, {0: 9_500.0}, 2.0, 1.5, False),
    ((0.5, 0.3), 10_000, {0: 9_500.0}, 2.0, 1.02, False),
    (None, 10_000, {0: 9_500.0}, 2.0, 1.0, True),  # no counters: memory alone
    (None, 0, {}, 2.0, 1.0, False),  # nothing is known
]


@pytest.mark.parametrize(("activity", "used", "of_runs", "grown_s", "gain", "admitted"), ADMISSIONS)
def test_one_more_is_admitted_if_there_is_room(activity, used, of_runs, grown_s, gain, admitted):
    made = admission(activity, used, of_runs, lambda *_: gain, grown_s=grown_s)
    assert not made.admits(SETTLE_S - 1, total_mb=80_000)
    assert made.admits(SETTLE_S + 10, total_mb=80_000) is admitted
    assert Admission("mps", lambda *_: gain).admits(0.0, total_mb=None)


BUSY, IDLE = (0.5, 0.3), (0.0, 0.0)
# What is seen until a run computes, and what then: memory in use, memory by run, activity.
ARRIVALS = [
    ((500, {}, IDLE), (10_000, {0: 9_500.0}, BUSY)),
    ((500, {}, None), (10_000, {0: 9_500.0}, None)),
    ((500, {}, IDLE), (10_000, {}, BUSY)),  # NVML lists no process, as in a container
    ((500, {}, IDLE), (10_000, {0: 0.0}, IDLE)),  # listed without its memory
]


@pytest.mark.parametrize(("absent", "present"), ARRIVALS)
def test_a_run_settles_only_once_it_is_on_the_gpu(absent, present):
    made = Admission("mps", lambda *_: 2.0)
    made.see(-2.0, 500, {}, None)
    made.started(0, 0.0)
    for now_s in (2.0, 60.0, 300.0):
        made.see(now_s, *absent)
        assert not made.admits(now_s, 80_000)
    made.see(302.0, *present)
    made.readings.clear()
    made.see(304.0, *present)
    assert not made.admits(302.0 + SETTLE_S - 1, 80_000)
    assert made.admits(302.0 + SETTLE_S, 80_000)


def test_a_run_that_is_not_yet_on_the_gpu_has_no_share_of_what_the_others_do():
    asked = []
    made = Admission("mps", lambda method, jobs: asked.append(jobs) or 2.0)
    made.started(0, 0.0)
    made.see(2.0, 10_000, {0: 9_500.0}, (0.4, 0.2))
    assert made.admits(30.0, 80_000)
    made.started(1, 30.0)
    made.see(32.0, 10_000, {0: 9_500.0}, (0.4, 0.2))
    assert made.admits(60.0, 80_000) and made.unsettled == {1}
    made.see(62.0, 20_000, {0: 9_500.0, 1: 9_500.0}, (0.6, 0.5))
    made.readings.clear()
    made.see(64.0, 20_000, {0: 9_500.0, 1: 9_500.0}, (0.6, 0.5))
    assert made.admits(90.0, 80_000)
    assert np.allclose(asked[-1], [(0.4, 0.2), (0.2, 0.3)])


def test_each_run_has_its_share_of_the_activity():
    asked = []
    made = admission((0.4, 0.2), gain=lambda method, jobs: asked.append(jobs) or 2.0)
    assert made.admits(30.0, 80_000)
    made.started(1, 30.0)
    made.see(32.0, 20_000, {0: 9_500.0, 1: 9_500.0}, (0.6, 0.5))
    assert made.admits(60.0, 80_000)
    assert np.allclose(asked[-1], [(0.4, 0.2), (0.2, 0.3)])
    made.ended(0, is_well=True)
    assert not made.admits(60.0, 80_000)  # until there are new readings
    made.see(62.0, 10_000, {1: 9_500.0}, (0.3, 0.3))
    made.admits(62.0, 80_000)
    assert np.allclose(asked[-1], [(0.2, 0.3)])


@pytest.mark.parametrize("is_seen", [True, False])
def test_runs_that_end_before_they_settle_show_what_the_next_ones_are_like(is_seen):
    """Two more may be on their way at once for each that has shown itself."""
    made = Admission("mps", lambda method, jobs: 1.5 if len(jobs) < 5 else 1.0)
    now_s, together = 0.0, []
    for _ in range(4):
        running = []
        while made.admits(now_s, 80_000):
            now_s += 1.1
            running.append(len(running))
            made.started(running[-1], now_s)
        together.append(len(running))
        made.see(now_s + 2, 4_000, dict.fromkeys(running if is_seen else [], 1_000.0), (0.3, 0.1))
        now_s += 12
        for run in running:
            made.ended(run, is_well=True)
        made.see(now_s, 0, {}, (0.0, 0.0))
    assert together == [1, 2, 5, 5]


def test_a_run_that_failed_shows_nothing():
    made = admission((0.4, 0.2))
    made.started(0, 0.0)
    made.see(2.0, 400.0, {0: 400.0}, (0.0, 0.0))
    made.ended(0, is_well=False)
    made.started(1, 10.0)
    made.see(12.0, 400.0, {1: 400.0}, (0.4, 0.2))
    assert not made.admits(13.0, 80_000)


def test_where_no_process_is_listed_a_run_has_its_part_of_the_memory_in_use():
    made = Admission("mps", lambda *_: 2.0)
    made.started(0, 0.0)
    made.see(5.0, 32_000, {}, (0.3, 0.1))
    made.see(7.0, 32_000, {}, (0.3, 0.1))
    assert made.admits(60.0, 80_000)
    made.started(1, 60.0)
    assert not made.admits(62.0, 80_000)


def test_fresh_runs_count_as_large_and_as_busy_as_those_that_were_seen():
    made = Admission("mps", lambda *_: 2.0)
    for _ in range(4):
        made.started(0, 0.0)
        made.see(2.0, 20_000, {0: 20_000.0}, (0.9, 0.3))
        made.ended(0, is_well=True)
    made.used_mb = 0.0
    made.started(0, 10.0)
    assert made.admits(11.0, 80_000)
    assert not made.admits(11.0, 40_000)
    made.started(1, 11.0)
    assert made.admits(12.0, 80_000)
    made.started(2, 12.0)
    assert not made.admits(13.0, 800_000)  # three of them would have SMs at work for 90 %


@pytest.mark.parametrize("method", ["mps", "separate"])
def test_the_gain_that_is_predicted_falls_with_the_number_of_runs(method):
    gains = [predicted_gain(method, [(0.5, 0.3)] * count) for count in (1, 2, 4, 8)]
    assert gains == sorted(gains, reverse=True) and gains[0] > 1.3
    assert predicted_gain(method, [(0.99, 0.99)] * 4) < 1.03
    assert predicted_gain(method, []) > 1.03


# -- what is shown ---------------------------------------------------------------------------------


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def attempt_of(slot: int, began_s: float, ended_s: float | None = None) -> RunAttempt:
    """One in a slot; seconds since noon."""
    place = {**PLACE, "slots": [slot], "start": (NOON + timedelta(seconds=began_s)).isoformat()}
    if ended_s is None:
        return RunAttempt(**place)
    return RunAttempt(**place, end=(NOON + timedelta(seconds=ended_s)).isoformat(), outcome="ended")


# Attempts, each of a run; how many runs wait; seconds since noon → seconds left.
ESTIMATES = [
    ([attempt_of(0, 0), attempt_of(1, 0)], 2, 50, None),
    ([attempt_of(0, 0, 100)], 2, 100, None),
    ([attempt_of(0, 0, 100), attempt_of(0, 100)], 2, 100, 300),
    ([attempt_of(0, 0, 100), attempt_of(0, 100)], 2, 140, 260),  # it counts down
    ([attempt_of(0, 0, 100), attempt_of(0, 100)], 0, 230, 0),
    # After the first wave, in which the second slot is still free.
    ([attempt_of(0, 0, 100), attempt_of(1, 0, 100), attempt_of(0, 100)], 3, 100, 200),
    ([attempt_of(0, 0, 100), attempt_of(1, 0, 100), attempt_of(0, 100)], 4, 100, 300),
]


@pytest.mark.parametrize(("attempts", "waiting", "now_s", "left_s"), ESTIMATES)
def test_seconds_left_follow_from_runs_that_ended(attempts, waiting, now_s, left_s):
    runs = [Run(number, ["x"], [attempt]) for number, attempt in enumerate(attempts)]
    runs += [Run(len(attempts) + number, ["x"]) for number in range(waiting)]
    assert table.seconds_left(runs, 1, NOON + timedelta(seconds=now_s)) == left_s
    assert table.seconds_left(runs, 2, NOON + timedelta(seconds=now_s)) is None


def test_the_table_has_a_row_for_each_run(tmp_path):
    runs = [Run(0, ["x"], [attempt_of(0, 0, 9)]), Run(1, ["x"], [attempt_of(0, 9)]), Run(2, ["x"])]
    path = table.write_table(tmp_path, runs, 1)
    states = [line.split(",")[1] for line in path.read_text().splitlines()]
    assert states == ["state", "ended", "running", "waiting"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "name"), (30, "about 30 s"), (1200, "about 20 min"), (40_000, "about 11 h")],
)
def test_the_live_line_says_how_long_it_takes(monkeypatch, capsys, seconds, words):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    progress = Progress(seconds)
    progress.at_terminal = True
    progress("name", "")
    assert words in capsys.readouterr().err


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "runs.csv"
    write_private(path, "old", durable=True)
    with pytest.raises(UnicodeEncodeError):
        write_private(path, "new \ud800", durable=True)
    assert [each.name for each in tmp_path.iterdir()] == ["runs.csv"]
    assert path.read_text() == "old" and path.stat().st_mode & 0o077 == 0
