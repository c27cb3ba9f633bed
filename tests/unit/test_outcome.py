"""Every way a member can end, and what follows for its cell."""

import signal

import pytest

from workflow.collocation.record.run_json import MemberRecord
from workflow.collocation.run.outcome import TrackedMember, cell_status, verified
from workflow.collocation.sharing.evidence import Report

BUILT = {"event": "built", "member": 0, "t": 1, "parameters": 12, "threads": 2, "cores": [0, 1]}
WARM = {"event": "warm", "member": 0, "t": 2, "steps": 20, "step_s": 0.1}
STARTED = {"event": "started", "member": 0, "t": 3}
STOPPED = {"event": "stopped", "member": 0, "t": 9, "steps": 50, "memory_peak_allocated": 77}
REACHED = {
    "build": [],
    "warm": [BUILT],
    "window": [BUILT, WARM],
    "window, started": [BUILT, WARM, STARTED],
}


def error(message="no such thing", phase="build", out_of_memory=False, **more) -> dict:
    told = {"class": "ValueError", "message": message, "phase": phase, "t": 5}
    return {"event": "error", "out_of_memory": out_of_memory} | told | more


def exited(code: int | None = 0, number: int | None = None, t: int = 5) -> dict:
    return {"event": "exited", "code": code, "signal": number, "t": t}


def member(*events: dict, stopping=False, index=0) -> TrackedMember:
    """A member that has sent `events`; `stopping`: it was told to stop before the last of them."""
    tracked = TrackedMember(index, "mine", 32)
    for event in events[:-1]:
        tracked.see(event)
    tracked.stopping = stopping
    for event in events[-1:]:
        tracked.see(event)
    return tracked


def ending(tracked: TrackedMember) -> tuple:
    return tracked.status, tracked.phase, tracked.error


@pytest.mark.parametrize("reached", REACHED)
@pytest.mark.parametrize(
    ("ends", "status", "reason"),
    [
        ([exited(None, 9)], "killed", "ended by signal 9 (SIGKILL)"),
        ([exited(None, signal.SIGSEGV)], "killed", "ended by signal 11 (SIGSEGV)"),
        ([exited(1)], "failed", "ended by itself with exit code 1"),
        ([exited(None)], "failed", "ended, and nobody can say how: the fork server died"),
        ([exited(0)], "failed", "ended by itself with exit code 0"),
        ([STOPPED, exited(0)], "failed", "ended by itself with exit code 0"),
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


@pytest.mark.parametrize("out_of_memory", [True, False])
def test_an_error_is_told_by_the_member_and_the_first_cause_stays(out_of_memory):
    tracked = member(BUILT, error("no\n such thing", "warm", out_of_memory))
    assert not tracked.alive and not tracked.gone
    tracked.end("timed_out", "late")
    tracked.see(error("killed while it hung"))
    tracked.see(exited(3))
    status = "out_of_memory" if out_of_memory else "failed"
    assert ending(tracked) == (status, "warm", "ValueError: no such thing")
    assert tracked.gone and tracked.exit_code == 3


PRODUCTS = {"bf16": {"sizes": 8, "wrong": []}}
FACTS = {"device_uuid": "GPU-a", "sm_count": 14, "sm_source": "affinity", "memory_free": 2**30}


def test_what_stands_in_the_record():
    tracked = TrackedMember(1, "mine", 32)
    for event in (
        {"event": "forked", "pid": 4711, "t": 0},
        {**BUILT, "seconds": {"model": 0.5}, **FACTS, "products": PRODUCTS, "pid": 1, "member": 7},
        {"event": "autotuned", "t": 2, "seconds": 0.25},
        WARM,
        STARTED,
        {"event": "progress", "steps": 9, "samples": 288, "loss": None, "t": 2_000_000_003},
        {**STOPPED, "data_wait_share": 0.25},
    ):
        tracked.see(event)
    assert tracked.alive and (tracked.steps, tracked.rate) == (9, 144)
    assert tracked.report() == Report(4711, "GPU-a", 14, 2**30, "affinity", None, PRODUCTS)
    tracked.stopping = True
    tracked.see(exited(0))
    known = {"member": 1, "workload": "mine", "pid": 4711, "status": "completed", "exit_code": 0}
    known |= {"cores": [0, 1], "threads": 2, "parameters": 12} | FACTS
    known |= {"build_s": {"model": 0.5, "autotune": 0.25}}
    known |= {"memory_peak_allocated": 77, "data_wait_share": 0.25}
    assert tracked.record() == MemberRecord(**known)
    record = member(exited(None, 9)).record()  # of one that never said anything
    assert (record.status, record.phase, record.signal) == ("killed", "build", 9)


# -- cells ----------------------------------------------------------------------------------------


BAD = {  # how a member ends: with these events, as a cell of this status, in this phase, for that
    "failed": ([error()], "failed", "build", "ValueError: no such thing"),
    "killed": ([BUILT, exited(None, 9)], "failed", "warm", "ended by signal 9 (SIGKILL)"),
    "unsupported": ([BUILT, error("no", "warm", unsupported=True)], *("unsupported", "warm"), "no"),
    "out_of_memory": ([BUILT, error("2 GiB", "warm", True)], *("out_of_memory", "warm"), "2 GiB"),
    "timed_out": ([BUILT, WARM], "timed_out", "window", "late"),
}


def ended(how: str, index: int, at: int) -> TrackedMember:
    """A member that ended so at this time."""
    if how == "completed":
        return member(BUILT, WARM, STARTED, STOPPED, exited(0), stopping=True, index=index)
    *before, last = BAD[how][0]
    tracked = member(*before, last | {"t": at}, index=index)
    if how == "timed_out":
        tracked.end("timed_out", "late", "window", at)
    return tracked


@pytest.mark.parametrize("first", BAD)
@pytest.mark.parametrize("later", BAD)
@pytest.mark.parametrize("order", [1, -1])
def test_the_member_that_ended_badly_first_decides(first, later, order):
    ends = [("completed", 0), (later, 9), (first, 8), (later, 10)][::order]
    members = [ended(how, index, at) for index, (how, at) in enumerate(ends)]
    status, reason, phase = cell_status(members, "MPS: the server is gone")
    _, expected, where, what = BAD[first]
    assert (status, phase) == (expected, where)
    assert reason.startswith(f"member {ends.index((first, 8))} (mine), {where}: ")
    assert f"{what}; MPS: the server is gone; the other 3: " in reason and "1 completed" in reason
    departed = ended("completed", 1, 0)
    departed.status = "departed"
    assert cell_status([ended("completed", 0, 0), departed]) == ("completed", None, None)


@pytest.mark.parametrize(
    ("answers", "both"),
    [([], None), ([True, True], True), ([True, None], None), ([None, False], False)],
)
def test_a_method_is_verified_if_every_witness_was(answers, both):
    assert verified({str(i): {"verified": answer} for i, answer in enumerate(answers)}) is both
