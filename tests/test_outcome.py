"""Every way a member can end, and what follows for its cell."""

import signal

import pytest

from workflow.collocation.record.run_json import Member
from workflow.collocation.run.outcome import Tracked, cell_status
from workflow.collocation.sharing.evidence import Report

BUILT = {"event": "built", "member": 0, "t": 1, "parameters": 12, "threads": 2, "cores": [0, 1]}
WARM = {"event": "warm", "member": 0, "t": 2, "steps": 20, "step_s": 0.1, "input_share": 0.02}
STARTED = {"event": "started", "member": 0, "t": 3}
STOPPED = {"event": "stopped", "member": 0, "t": 9, "steps": 50, "memory_peak_allocated": 77}
REACHED = {
    "build": [],
    "warm": [BUILT],
    "window": [BUILT, WARM],
    "window, started": [BUILT, WARM, STARTED],
}


UNKNOWN = "ended, and nobody can say how: the fork server died or is silent"


def error(message="no such thing", phase="build", out_of_memory=False, name="ValueError") -> dict:
    told = {"class": name, "message": message, "phase": phase, "out_of_memory": out_of_memory}
    return {"event": "error"} | told


def exited(code: int | None = 0, number: int | None = None) -> dict:
    return {"event": "exited", "code": code, "signal": number}


def member(*events: dict, stopping=False, index=0) -> Tracked:
    """A member that has sent `events`; `stopping`: it was told to stop before the last of them."""
    tracked = Tracked(index, "mine", 32)
    for event in events[:-1]:
        tracked.see(event)
    tracked.stopping = stopping
    for event in events[-1:]:
        tracked.see(event)
    return tracked


def ending(tracked: Tracked) -> tuple:
    return tracked.status, tracked.phase, tracked.error


@pytest.mark.parametrize("reached", REACHED)
@pytest.mark.parametrize(
    ("ends", "status", "reason"),
    [
        ([exited(None, 9)], "killed", "ended by signal 9 (SIGKILL)"),
        ([exited(None, signal.SIGSEGV)], "killed", "ended by signal 11 (SIGSEGV)"),
        ([exited(None, 99)], "killed", "ended by signal 99 (unknown)"),
        ([exited(1)], "failed", "exited with code 1 without an error message"),
        ([exited(None, None)], "failed", UNKNOWN),
        ([exited(0)], "failed", "ended before it was told to"),
        ([STOPPED, exited(0)], "failed", "ended before it was told to"),
    ],
)
def test_a_member_that_ends_by_itself(reached, ends, status, reason):
    phase, before = reached.split(",")[0], REACHED[reached]
    ended = member(*before, *ends)
    assert ending(ended) == (status, phase, reason) and ended.gone and not ended.alive
    while_stopping = member(*before, *ends, stopping=True)
    if ends[-1] == exited(0):  # as it was told to
        trained = STARTED in before and STOPPED in ends
        assert ending(while_stopping) == ("completed" if trained else "stopped", None, None)
    else:
        assert ending(while_stopping) == (status, "stop", reason)


@pytest.mark.parametrize("phase", ["build", "warm", "window", "stop"])
@pytest.mark.parametrize("out_of_memory", [True, False])
def test_an_error_is_told_by_the_member(phase, out_of_memory):
    tracked = member(BUILT, error(phase=phase, out_of_memory=out_of_memory))
    assert not tracked.alive and not tracked.gone
    tracked.see(exited(3 if out_of_memory else 1))
    status = "out_of_memory" if out_of_memory else "failed"
    assert ending(tracked) == (status, phase, "ValueError: no such thing")
    assert tracked.gone and tracked.exit_code in (1, 3)


@pytest.mark.parametrize("stopping", [True, False])
def test_a_member_that_outlives_sigkill_did_not_end_well(stopping):
    said = "process 7 outlives SIGKILL and was left behind"
    stuck = exited(None, None) | {"stuck": 7}
    done = member(BUILT, WARM, STARTED, STOPPED, stuck, stopping=stopping)
    assert ending(done) == ("killed", "stop" if stopping else "window", said) and done.gone
    out_of_memory = member(BUILT, error(out_of_memory=True), stuck)
    assert ending(out_of_memory)[::2] == ("out_of_memory", f"ValueError: no such thing; {said}")


def test_the_first_cause_stays():
    tracked = member(BUILT, WARM)
    tracked.end("timed_out", "no end of phase 'window' within its time-out", "window")
    tracked.see(error("killed while it hung"))
    tracked.see(exited(None, 6))
    said = "no end of phase 'window' within its time-out"
    assert ending(tracked) == ("timed_out", "window", said)
    assert tracked.signal == 6


def test_a_reason_is_one_line_of_bounded_length():
    tracked = member(error("CUDA error:\n  device-side assert\n\ttriggered " + "x" * 1000))
    assert tracked.error.startswith("ValueError: CUDA error: device-side assert triggered x")
    assert "\n" not in tracked.error and len(tracked.error) == 500


FACTS = {"device_uuid": "GPU-a", "sm_count": 14, "sm_source": "affinity", "memory_free": 2**30}


def test_what_stands_in_the_record():
    tracked = Tracked(1, "mine", 32)
    epoch = {"epoch": 0, "train_s": 1.5, "samples": 64, "accuracy": 0.5}
    for event in (
        {"event": "forked", "pid": 4711},
        {**BUILT, "seconds": {"model": 0.5}, **FACTS, "pid": 1},
        WARM,
        STARTED,
        {"event": "progress", "steps": 9, "samples": 288, "loss": None},
        {"event": "epoch", "member": 1, "t": 5, **epoch},
        {**STOPPED, "data_wait_share": 0.25},
    ):
        tracked.see(event)
    assert tracked.alive and tracked.steps == 9
    assert tracked.report() == Report(4711, "GPU-a", 14, 2**30, "affinity")
    tracked.stopping = True
    tracked.see(exited(0))
    known = {"member": 1, "workload": "mine", "pid": 4711, "status": "completed", "exit_code": 0}
    known |= {"cores": [0, 1], "threads": 2, "parameters": 12, "build_s": {"model": 0.5}} | FACTS
    known |= {"memory_peak_allocated": 77, "input_share": 0.02, "data_wait_share": 0.25}
    assert tracked.record() == Member(**known, epochs=[epoch])
    record = member(exited(None, 9)).record()  # of one that never said anything
    assert (record.status, record.phase, record.signal) == ("killed", "build", 9)
    assert record.cores == [] and record.parameters is None


# -- cells ----------------------------------------------------------------------------------------

GOOD = [BUILT, WARM, STARTED, STOPPED, exited(0)]


def completed(index=0):
    return member(*GOOD, stopping=True, index=index)


def stopped(index=0):
    return member(BUILT, exited(0), stopping=True, index=index)


def out_of_memory(index=0, at=5):
    found = error("tried to allocate 2 GiB", "warm", True, "OutOfMemoryError")
    return member(BUILT, {**found, "t": at}, exited(3), index=index)


def failed(index=0, at=5, message="no such thing"):
    return member({**error(message), "t": at}, exited(1), index=index)


def killed(index=0, at=5):
    return member(BUILT, {**exited(None, 9), "t": at}, index=index)


def unsupported(index=0, at=5):
    found = error("no graph of this step", "warm", name="NotCapturable")
    return member(BUILT, {**found, "unsupported": True, "t": at}, exited(1), index=index)


def timed_out(index=0, at=5):
    tracked = member(BUILT, WARM, index=index)
    tracked.end("timed_out", "late", "window", at)
    return tracked


def test_a_cell_is_completed_when_all_are():
    departed = completed(1)
    departed.status = "departed"
    assert cell_status([completed(), departed]) == ("completed", None, None)


BAD = {
    failed: ("failed", "build", "ValueError: no such thing"),
    killed: ("failed", "warm", "ended by signal 9 (SIGKILL)"),
    timed_out: ("timed_out", "window", "late"),
    unsupported: ("unsupported", "warm", "NotCapturable: no graph of this step"),
    out_of_memory: ("out_of_memory", "warm", "OutOfMemoryError: tried to allocate 2 GiB"),
}


@pytest.mark.parametrize("first", BAD)
@pytest.mark.parametrize("later", BAD)
@pytest.mark.parametrize("order", [1, -1])
def test_the_member_that_ended_badly_first_decides(first, later, order):
    makers = [(completed, 0), (later, 9), (first, 8), (later, 10)][::order]
    members = [make(index, *([at] if at else [])) for index, (make, at) in enumerate(makers)]
    status, reason, phase = cell_status(members)
    expected, where, what = BAD[first]
    assert (status, phase) == (expected, where)
    index = makers.index((first, 8))
    assert reason.startswith(f"member {index} (mine), {where}: {what}; the other 3: ")
    assert "1 stopped cleanly" in reason and "2 " in reason.split("the other 3")[1]
    assert "\n" not in reason


def test_a_cells_reason_tells_what_became_of_the_others():
    members = [killed(), *(failed(i, 5 + i, "CUDA error: " + "x" * 200) for i in (1, 2))]
    members += [stopped(3), completed(4)]
    _, reason, _ = cell_status(members, "MPS: the server is gone")
    assert reason == (
        "member 0 (mine), warm: ended by signal 9 (SIGKILL); MPS: the server is gone; "
        f"the other 4: 2 failed: ValueError: CUDA error: {'x' * 76}…, 2 stopped cleanly"
    )
    assert cell_status([killed()])[1] == "member 0 (mine), warm: ended by signal 9 (SIGKILL)"
