"""Every way a member can end, and what follows for its cell."""

import itertools
import signal

import pytest

from workflow.collocation.outcome import Tracked, cell_status
from workflow.collocation.record import Member

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


def error(message="no such thing", phase="build", out_of_memory=False, name="ValueError") -> dict:
    return {
        "event": "error",
        "class": name,
        "message": message,
        "phase": phase,
        "out_of_memory": out_of_memory,
    }


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


def test_a_member_that_was_told_to_stop_and_did():
    tracked = member(BUILT, WARM, STARTED, STOPPED, exited(0), stopping=True)
    assert ending(tracked) == ("completed", None, None)
    assert (tracked.exit_code, tracked.signal, tracked.gone) == (0, None, True)


def test_a_member_that_was_told_to_stop_before_it_had_begun():
    assert ending(member(BUILT, exited(0), stopping=True)) == ("stopped", None, None)


@pytest.mark.parametrize("reached", REACHED)
@pytest.mark.parametrize("stopped", [[], [STOPPED]])
def test_a_member_that_ends_by_itself_did_not_complete(reached, stopped):
    tracked = member(*REACHED[reached], *stopped, exited(0))
    assert ending(tracked) == ("failed", reached[:6].strip(","), "ended before it was told to")


@pytest.mark.parametrize("reached", REACHED)
@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        (exited(None, 9), "killed", "ended by signal 9 (SIGKILL)"),
        (exited(None, signal.SIGSEGV), "killed", "ended by signal 11 (SIGSEGV)"),
        (exited(None, 99), "killed", "ended by signal 99 (unknown)"),
        (exited(1), "failed", "exited with code 1 without an error message"),
        (exited(None, None), "failed", "the fork server died, and its members with it"),
    ],
)
def test_a_member_that_ends_without_a_word(reached, end, status, reason):
    phase = reached.split(",")[0]
    assert ending(member(*REACHED[reached], end)) == (status, phase, reason)
    while_stopping = member(*REACHED[reached], end, stopping=True)
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


def test_an_error_of_an_unknown_phase_gets_the_phase_it_was_in():
    assert member(BUILT, error(phase="lunch")).phase == "warm"
    assert member(BUILT, {"event": "error"}).status == "failed"


def test_the_first_cause_stays():
    tracked = member(BUILT, WARM)
    tracked.end("timed_out", "no end of phase 'window' within its time-out", "window")
    tracked.see(error("killed while it hung"))
    tracked.see(exited(None, 6))
    assert ending(tracked) == (
        "timed_out",
        "window",
        "no end of phase 'window' within its time-out",
    )
    assert tracked.signal == 6


def test_a_reason_is_one_line_of_bounded_length():
    tracked = member(error("CUDA error:\n  device-side assert\n\ttriggered " + "x" * 1000))
    assert tracked.error.startswith("ValueError: CUDA error: device-side assert triggered x")
    assert "\n" not in tracked.error and len(tracked.error) == 500


def test_alive_is_neither_ended_nor_gone():
    tracked = member(BUILT)
    assert tracked.alive
    tracked.end("failed", "why")
    assert not tracked.alive
    assert not member(BUILT, exited(0), stopping=True).alive


def test_progress():
    tracked = member(BUILT, WARM, STARTED)
    assert tracked.steps == 0
    for steps in (5, 9):
        tracked.see({"event": "progress", "steps": steps, "samples": 32 * steps, "loss": None})
    assert tracked.steps == 9


def test_what_stands_in_the_record():
    tracked = Tracked(1, "mine", 32)
    epoch = {"epoch": 0, "train_s": 1.5, "samples": 64, "accuracy": 0.5}
    for event in (
        {"event": "forked", "pid": 4711},
        {**BUILT, "seconds": {"model": 0.5}, "device_uuid": "GPU-a", "sm_count": 14},
        WARM,
        STARTED,
        {"event": "epoch", "member": 1, "t": 5, **epoch},
        {**STOPPED, "data_wait_share": 0.25},
    ):
        tracked.see(event)
    tracked.stopping = True
    tracked.see(exited(0))
    assert tracked.record() == Member(
        member=1,
        workload="mine",
        pid=4711,
        status="completed",
        exit_code=0,
        cores=[0, 1],
        threads=2,
        parameters=12,
        device_uuid="GPU-a",
        sm_count=14,
        build_s={"model": 0.5},
        memory_peak_allocated=77,
        input_share=0.02,
        data_wait_share=0.25,
        epochs=[epoch],
    )


def test_a_member_that_never_said_anything_has_a_record():
    record = member(exited(None, 9)).record()
    assert (record.status, record.phase, record.signal) == ("killed", "build", 9)
    assert record.cores == [] and record.parameters is None


# -- cells ----------------------------------------------------------------------------------------

GOOD = [BUILT, WARM, STARTED, STOPPED, exited(0)]


def completed(index=0):
    return member(*GOOD, stopping=True, index=index)


def out_of_memory(index=0):
    found = error("tried to allocate 2 GiB", "warm", True, "OutOfMemoryError")
    return member(BUILT, found, exited(3), index=index)


def failed(index=0):
    return member(error(), exited(1), index=index)


def killed(index=0):
    return member(BUILT, exited(None, 9), index=index)


def timed_out(index=0):
    tracked = member(BUILT, WARM, index=index)
    tracked.end("timed_out", "late", "window")
    return tracked


def test_a_cell_is_completed_when_all_are():
    departed = completed(1)
    departed.status = "departed"
    assert cell_status([completed(), departed]) == ("completed", None, None)


OTHERS = list(itertools.permutations([failed, killed, timed_out, completed]))


@pytest.mark.parametrize("others", OTHERS)
def test_out_of_memory_decides(others):
    members = [make(index) for index, make in enumerate((*others, out_of_memory))]
    status, reason, phase = cell_status(members)
    assert (status, phase) == ("out_of_memory", "warm")
    assert reason == "member 4 (mine), warm: OutOfMemoryError: tried to allocate 2 GiB"


@pytest.mark.parametrize(
    ("makers", "status", "phase"),
    [
        ([completed, failed], "failed", "build"),
        ([completed, killed], "failed", "warm"),
        ([timed_out, killed], "failed", "warm"),
        ([killed, failed], "failed", "warm"),  # the first of them
        ([completed, timed_out], "timed_out", "window"),
    ],
)
def test_other_faults(makers, status, phase):
    members = [make(index) for index, make in enumerate(makers)]
    found, reason, where = cell_status(members)
    assert (found, where) == (status, phase)
    assert reason.startswith("member ") and f", {phase}: " in reason
