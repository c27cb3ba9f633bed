"""How a cell is measured once its members are warm: MEASURES has a function for each kind."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from workflow.collocation.record.values import Window
from workflow.collocation.run.outcome import TrackedMember

if TYPE_CHECKING:
    from workflow.collocation.run.conductor import Conductor


def measure_window(conductor: "Conductor") -> None:
    """Measure one window in which all members train."""
    _window(conductor, _start(conductor) + _settle_ns(conductor), "window")


def measure_completion(conductor: "Conductor") -> None:
    """Measure until every member has done its work; the window ends with the last one's.

    It begins when all have started; members that start early wait for the others.
    """
    start_ns = _start(conductor)
    conductor.watch.open("completion")
    while late := [member for member in conductor.alive if "done" not in member.events]:
        stalest = min(late, key=lambda member: member.last_event_ns)
        conductor.deadline = stalest.last_event_ns / 1e9 + conductor.timeouts["window"]
        conductor.process_events([stalest])
    conductor.watch.close("completion")
    closed = time.monotonic()
    ends_ns = [member.events["done"]["t"] for member in conductor.alive]
    _close_window(conductor, "completion", start_ns, max(ends_ns) + 1, closed)


def measure_departure(conductor: "Conductor") -> None:
    """Measure a window with all members, have some leave, and measure one with the others.

    All members of the leaving member's workload leave; if there are no others, it leaves alone.
    """
    _window(conductor, _start(conductor) + _settle_ns(conductor), "before")
    leaver = conductor.members[conductor.measure.leaving_member]
    leaving = [member for member in conductor.members if member.workload == leaver.workload]
    if len(leaving) == len(conductor.members):
        leaving = [leaver]
    conductor.send(leaving, "stop")
    conductor.deadline = time.monotonic() + conductor.timeouts["stop"]
    while late := [member for member in leaving if not member.gone]:
        conductor.process_events(late)
    for member in leaving:
        if member.status == "completed":
            member.status = "departed"
    conductor.raise_if_over()
    _window(conductor, time.monotonic_ns() + _settle_ns(conductor), "after")


def measure_interleaved(conductor: "Conductor") -> None:
    """Measure conditions in turns: each has one slice in each round, in random order.

    Members of the other conditions block with no work under way, so that a condition has the GPU
    and its cores as if the others did not exist.
    """
    _start(conductor, "hold")
    conditions, measure = conductor.sharing.conditions, conductor.measure
    conductor.await_held()
    conductor.log_count("held")
    take_turns(
        conductor,
        {name: [conductor.members[m] for m in members] for name, members in conditions.items()},
        measure.slice_s,
        measure.drop_s,
        goes_on=lambda rounds: rounds < measure.slices,
        label=lambda name, number: f"{name}, round {number} of {measure.slices}",
    )


MEASURES = {
    "window": measure_window,
    "completion": measure_completion,
    "departure": measure_departure,
    "interleaved": measure_interleaved,
}


def _start(conductor: "Conductor", *commands: str) -> int:
    """Let all members train; returns when the last one had started (ns)."""
    conductor.send(conductor.alive, "go", *commands)
    conductor.reach("started")
    return max(member.events["started"]["t"] for member in conductor.alive)


def _settle_ns(conductor: "Conductor") -> int:
    return int(conductor.measure.settle_s * 1e9)


def _window(conductor: "Conductor", start_ns: int, name: str) -> None:
    """Measure a window that begins at start_ns and lasts window_s, or longer for two reasons.

    It lasts until every member has made min_steps. And it is prolonged while a member without
    arrivals makes no step for half of it, by window_s or the longest pause in warm-up at most.
    """
    measure = conductor.measure
    end_ns = start_ns + int(measure.window_s * 1e9)
    pauses_s = [member.events["warm"].get("pause_s", 0.0) for member in conductor.alive]
    last_end_ns = end_ns + int(max(measure.window_s, *pauses_s) * 1e9)
    steady = [m for m in conductor.alive if conductor.specs[m.member].arrival_seed is None]
    planned_s = measure.settle_s + measure.window_s
    conductor.deadline = time.monotonic() + planned_s + conductor.timeouts["window"]
    first_steps: dict[int, int] = {}  # number of steps of each member when the window opened
    conductor.process_events_until(start_ns)
    conductor.watch.open(name)
    while True:
        now_ns = time.monotonic_ns()
        slow = []
        for member in conductor.alive:
            progress = member.events.get("progress")
            if progress and progress["t"] >= start_ns:
                first_steps.setdefault(member.member, progress["steps"])
            if member.steps - first_steps.get(member.member, member.steps) < measure.min_steps:
                slow.append(member)
        half_ns = (start_ns + now_ns) // 2
        pausing = any(member.alive and member.last_step_ns < half_ns for member in steady)
        if now_ns >= end_ns and not slow and not (pausing and now_ns < last_end_ns):
            break
        conductor.process_events(slow)
    conductor.watch.close(name)
    _close_window(conductor, name, start_ns, now_ns, time.monotonic())


def _close_window(
    conductor: "Conductor", name: str, start_ns: int, end_ns: int, closed: float
) -> None:
    """Note a window; members train on for a moment, for its last readings and answers."""
    seconds = round((end_ns - start_ns) / 1e9, 6)
    conductor.windows.append(Window(name=name, start_ns=start_ns, end_ns=end_ns, seconds=seconds))
    linger(conductor, closed)


def linger(conductor: "Conductor", closed: float) -> None:
    """Have members train on when a window has closed (monotonic s), for readings and answers."""
    linger_s = max(conductor.watch.linger_s, *(spec.linger_s for spec in conductor.specs))
    conductor.process_events_until(int((closed + linger_s) * 1e9))


def take_turns(
    conductor: "Conductor",
    conditions: Mapping[str, Sequence[TrackedMember]],
    slice_s: float,
    drop_s: float,
    goes_on: Callable[[int], bool],
    label: Callable[[str, int], str],
) -> None:
    """Measure rounds of one slice for each condition, in random order, and note their windows.

    conditions: members by name of a window; all are held, and are held again at the end. goes_on:
    whether another round follows so many. label: what the person who watches sees of a condition
    in a round, numbered from 1.
    """
    generator, rounds = random.Random(conductor.specs[0].seed), 0
    spans: dict[str, list[tuple[int, int]]] = {name: [] for name in conditions}
    while goes_on(rounds):
        rounds += 1
        for name in generator.sample(list(conditions), len(conditions)):
            conductor.slice_name = label(name, rounds)
            running = [member for member in conditions[name] if member.alive]
            spans[name].append(_run_slice(conductor, running, slice_s, drop_s))
    for name, slices in spans.items():
        window = Window(
            name=name,
            start_ns=slices[0][0],
            end_ns=slices[-1][1],
            seconds=round(sum(end_ns - start_ns for start_ns, end_ns in slices) / 1e9, 6),
            members=[member.member for member in conditions[name]],
            spans=slices,
        )
        conductor.windows.append(window)


def _run_slice(
    conductor: "Conductor", members: Sequence[TrackedMember], slice_s: float, drop_s: float
) -> tuple[int, int]:
    """Let these members train for slice_s, and wait until none of their work is under way.

    Returns start and end (ns) of the part that counts: from drop_s after `resume` was sent, until
    `hold` is sent.
    """
    resumed_ns = time.monotonic_ns()
    conductor.resume(members)
    conductor.process_events_until(resumed_ns + round(slice_s * 1e9))
    held_ns = time.monotonic_ns()
    conductor.send(members, "hold")
    conductor.await_held()
    return resumed_ns + round(drop_s * 1e9), held_ns
