"""Which optimizer's steps count: the real counter and hook, with fake optimizers and clock."""

import importlib.util
import json
import math
import mmap
import os
import threading
from itertools import cycle, islice
from types import SimpleNamespace

import pytest

from models import hook, step_counter
from tests.studio import REPOSITORY, until

SECOND_NS = 1_000_000_000


class Optimizer:
    """One that steps when told."""


class Adam(Optimizer):
    """Another."""


@pytest.fixture
def script(monkeypatch):
    """A counter in a script: `step` has an optimizer step, and the rest is what the study sees."""
    memory, (gate, opener) = os.memfd_create("steps"), os.pipe()
    os.truncate(memory, hook.SIZE)
    shared = mmap.mmap(memory, hook.SIZE)
    header, times, losses = hook.views(shared)
    header[hook.LIMIT], header[hook.EVERY] = 1 << 62, 10
    monkeypatch.setenv(hook.VARIABLE, f"{os.getpid()} {memory} {gate}")
    spec = importlib.util.spec_from_file_location("copied", REPOSITORY / "models" / "hook.py")
    recording = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recording)
    now = SimpleNamespace(ns=0)
    clock = SimpleNamespace(monotonic_ns=lambda: now.ns)
    recording.time = clock
    monkeypatch.setattr(step_counter, "time", clock)
    counter = step_counter.StepCounter(recording)

    def step(optimizer, seconds: float = 0.01) -> int:
        now.ns += round(seconds * SECOND_NS)
        counter(optimizer)
        return now.ns

    return SimpleNamespace(
        step=step,
        now=now,
        header=header,
        opener=opener,
        times=lambda: list(times[: header[hook.DONE]]),
        losses=lambda: list(losses[: header[hook.DONE] : 10]),
        optimizer=lambda: json.loads(shared[-hook.FACTS :])["optimizer"],
    )


def one_after_another(*steps: int) -> list[int]:
    """A history in which optimizer 0 makes so many steps, then optimizer 1, and so on."""
    return [number for number, count in enumerate(steps) for _ in range(count)]


def repeated(pattern: list[int], steps: int = 600) -> list[int]:
    return list(islice(cycle(pattern), steps))


def alternating_folds() -> list[int]:
    """Four GANs, each trained for 60 steps of its optimizers in turns."""
    return [2 * fold + number for fold in range(4) for number in repeated([0, 1], 60)]


# Numbers of optimizers as they step → whether a step counts, by its optimizer and its place.
HISTORIES = {
    "one": ([0] * 50, lambda number, place: True),
    "folds of 60": (one_after_another(*[60] * 7), lambda number, place: True),
    # The last fifteen are not yet decided on.
    "folds of 15": (one_after_another(*[15] * 8), lambda number, place: place < 105),
    "folds of GANs": (alternating_folds(), lambda number, place: number % 2 == 0),
    "1:1": (repeated([0, 1]), lambda number, place: number == 0),
    "2:1, the first less often": (repeated([0, 1, 1]), lambda number, place: number == 0),
    "5:1, the first less often": (
        repeated([0, 1, 1, 1, 1, 1]),
        lambda number, place: number == (0 if place < 35 else 1),
    ),
    "25:1, the first less often": (
        repeated([0] + 25 * [1]),
        lambda number, place: number == 1 or place == 0,
    ),
    "5:1, the first more often": (
        repeated([0, 0, 0, 0, 0, 1]),
        lambda number, place: number == 0,
    ),
    "6 optimizers": (repeated([0, 1, 2, 3, 4, 5]), lambda number, place: number == 0),
    "42 optimizers": (repeated(list(range(42)), 4200), lambda number, place: number == 0),
    "pretraining, then 42 optimizers": (
        [0] * 30 + repeated(list(range(1, 43)), 420),
        lambda number, place: number in (0, 1),
    ),
}


@pytest.mark.parametrize("case", HISTORIES)
def test_steps_that_count_are_recorded_when_they_were_made(case, script):
    history, counts = HISTORIES[case]
    optimizers = [Optimizer() for _ in set(history)]
    expected_ns = []
    for place, number in enumerate(history):
        step_ns = script.step(optimizers[number])
        if counts(number, place):
            expected_ns.append(step_ns)
    assert script.times() == expected_ns
    # A step without a loss must not look like one with loss 0.
    assert all(math.isnan(loss) for loss in script.losses())
    assert script.header[hook.OTHERS] >= len(history) - len(expected_ns)


def test_a_new_optimizer_in_place_of_one_that_is_gone_counts_at_once(script):
    optimizer = None
    for step in range(100):
        if step % 10 == 0:
            optimizer = Optimizer()
        script.step(optimizer)
    assert len(script.times()) == 100


def test_slow_steps_after_many_fast_ones_count_after_three(script):
    """The first optimizer is kept, as that of a head which is trained before the rest."""
    head, rest = Optimizer(), Adam()
    times_ns = [script.step(head) for _ in range(30)]
    assert script.optimizer() == "Optimizer"
    times_ns += [script.step(rest, seconds=2) for _ in range(3)]
    assert script.times() == times_ns and script.optimizer() == "Adam"


def test_a_short_pause_is_no_change_of_optimizers(script):
    """Nor is one that is long for a clock, and not for an optimizer of slow steps."""
    for pause_s in (4, 40):
        main, other = Optimizer(), Optimizer()
        before = len(script.times())
        for _ in range(20):
            script.step(main, seconds=pause_s / 4)
        for _ in range(3):
            script.step(other, seconds=pause_s / 3)
        script.step(main)
        assert len(script.times()) - before == 21


@pytest.mark.parametrize("held", [0, 1])
def test_time_at_the_barrier_is_no_silence(held, script):
    """A script is held at a step of any optimizer; afterwards the same one counts as before."""
    optimizers = [Optimizer(), Optimizer()]
    for place, number in enumerate([0, 1, 1, 1]):
        if place != held:
            script.step(optimizers[number])
            continue
        script.header[hook.LIMIT] = 0
        waiting = threading.Thread(target=script.step, args=[optimizers[number]])
        waiting.start()
        until(lambda: script.header[hook.HELD], lambda: "not held")
        script.now.ns += 60 * SECOND_NS
        script.header[hook.LIMIT] = 1 << 62
        os.write(script.opener, b"g")
        waiting.join(60)
    assert not script.header[hook.HELD] and script.header[hook.DONE] == 1
