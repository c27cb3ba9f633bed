"""MIG on the cards of tests/cards: layouts applied and taken away again, whatever comes between.

The cards are those of tests/fakes/driver.py, in the place of nvidia-ml-py's functions.
"""

import os
import re
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ctypes import byref
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import driver, machine
from tests.specs import TABLES, alike, mix
from workflow.collocation import gpu, sharing
from workflow.collocation.gpu import nvml_subprocess
from workflow.collocation.process_lifetime import END_SIGNALS
from workflow.collocation.sharing import evidence, mig, mig_nvml
from workflow.collocation.sharing.evidence import GpuBusy, NotInForce, Report, Unsupported
from workflow.collocation.study.cell import CellSpec

IDLE = [(9, 4, 4, 2), (19, 0, 1, 0)]  # what an administrator left: 3g and 1g
MARK = "; MIG is experimental: it has divided a simulated card only"  # ends what people are told
PAIR, SHARED = alike("mig", 2), mix("3c.7g", "3c.7g", method="mig_shared")


@dataclass
class Bench:
    """A machine with one card, and this process's view of it."""

    folder: Path
    device: gpu.Device

    @property
    def state(self) -> tuple:
        return machine.mode(self.folder), machine.layout(self.folder)

    @property
    def notes(self) -> list[Path]:
        return sorted(Path(os.environ["COLLOCATION_LOCK_DIR"]).iterdir())

    def enter(self, spec: CellSpec):
        return sharing.enter(spec, self.device, self.folder)

    def untouched(self) -> bool:
        return machine.changes(self.folder) == 0 and not self.notes

    def empty(self) -> bool:
        """No instances, and nothing to put back."""
        return self.state == (True, []) and not self.notes

    def occupy(self, pid: int, *place: str) -> Path:
        machine.occupy(self.folder, pid, *place)
        return self.folder / "processes" / str(pid)

    def make(self, *instances: tuple) -> None:
        """As an administrator would: (profile id, start, size, compute profile)."""
        for profile, start, size, compute in instances:
            place, card = pynvml.c_nvmlGpuInstancePlacement_t(start, size), driver.Handle(0)
            made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, profile, byref(place))
            pynvml.nvmlGpuInstanceCreateComputeInstance(made, compute)
        machine.configure(self.folder)

    def clear(self) -> None:
        """Remove all instances, as an administrator would."""
        for one in mig_nvml.read_state(self.device).instances:
            mig_nvml.destroy_instance(self.device, one)


@contextmanager
def benches(key: str = "h200_141", mig: bool = True, **options) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        there, locks = Path(folder, "machine"), Path(folder, "locks")
        locks.mkdir()
        patch.setenv("COLLOCATION_LOCK_DIR", str(locks))
        machine.create(there, key, mig=mig, uuid=f"GPU-{uuid.uuid4()}", **options)
        with machine.installed(there):
            yield Bench(there, gpu.find(0)[0])


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr(mig, "PAUSES_S", (0, 0, 0))
    monkeypatch.setattr(evidence, "GRACE_S", 0.0)


@pytest.fixture
def bench():
    with benches() as made:
        yield made


# -- apply and take away --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [False, True])
@pytest.mark.parametrize("key", TABLES)
def test_the_table_of_a_card_is_read_whether_mig_is_on_or_off(key, mode):
    with benches(key, mig=mode) as made:
        read = {profile.name: profile for profile in mig_nvml.read_card(made.device).profiles}
        assert made.untouched()
    for profile in TABLES[key].profiles:
        known = {name: value for name, value in vars(profile).items() if value is not None}
        assert vars(read.pop(profile.name)).items() >= known.items()
    assert not read


METHODS = ("mig", "mig_shared", "mig_1g2x", "mig_3g", "mig_2g")
mixes = st.lists(st.sampled_from("1234").map("{}g".format), min_size=1).map(lambda z: mix(*z))
copies = st.builds(alike, st.sampled_from(METHODS), st.integers(1, 8))


@settings(max_examples=40)
@given(st.sampled_from(list(TABLES)), mixes | copies)
def test_apply_then_take_away_changes_nothing(key, spec):
    with benches(key) as made:
        with suppress(Unsupported), made.enter(spec) as it:
            parts = it.layout.partitions
            there = {e[:3]: sorted(e[3]) for e in machine.layout(made.folder)}
            full = {part.key: [part.profile.slices] for part in parts if part.whole}
            assert there == {part.key: sorted(part.compute) for part in parts} | full
            seats = [it.seat(member) for member in range(len(spec.members))]
            uuids = sorted(compute.uuid for _, compute in seats)
            assert uuids == sorted(machine.mig_uuids(made.folder))
            for (index, _), (instance, compute) in zip(it.layout.seats, seats, strict=True):
                assert instance.partition == parts[index]
                assert not parts[index].whole or compute.sm_count == parts[index].profile.sm_count
        assert made.empty()


def test_a_layout_that_is_there_already_is_left_alone_wherever_it_lies(bench):
    bench.make((19, 2, 1, 0), (9, 4, 4, 2), (14, 0, 2, 1))
    with bench.enter(mix("1g", "2g", "3g")) as it:
        assert [it.seat(member)[0].partition.start for member in range(3)] == [2, 0, 4]
    assert bench.untouched()


@pytest.mark.parametrize("there", [IDLE, [(15, 0, 2, 0)]])  # a 1g2x that has 16 of its 26 SMs
def test_what_others_made_is_never_taken_down(bench, there):
    bench.make(*there)
    said = r"MIG instances that are there on NVIDIA H200 would have to go: [13]g.*-dgi'"
    for spec in (PAIR, alike("mig_1g2x", 1)):
        bench.make()
        found = bench.state
        with pytest.raises(Unsupported, match=said), bench.enter(spec):
            raise AssertionError
        assert bench.state == found and bench.untouched()


@pytest.mark.parametrize(
    ("call", "how", "error", "said"),
    [
        ("DeviceCreateGpuInstanceWithPlacement", driver.FULL, Unsupported, "finds no place for 2x"),
        ("GpuInstanceCreateComputeInstance", driver.FULL, Unsupported, "finds no place for 2x 3g"),
        ("GpuInstanceGetComputeInstanceProfileInfo", 3, Unsupported, "offers no 3c in 3g.71gb"),
        ("DeviceGetGpuInstancePossiblePlacements", 4, Unsupported, "no permission .*takes root"),
        ("DeviceGetMigMode", driver.LOST, NotInForce, "GPU is lost"),
    ],
)
def test_what_the_driver_refuses_is_told_and_leaves_nothing(bench, call, how, error, said):
    machine.fail(bench.folder, f"nvml{call}", error=how, on=True)
    with pytest.raises(error, match=said), bench.enter(PAIR):
        raise AssertionError
    machine.configure(bench.folder, failures=[])
    mig.Mig.recover(bench.device)
    assert bench.empty()


def test_every_single_failure_in_the_middle_leaves_the_state_found(bench):
    at, survived = 0, []
    while True:
        at += 1
        machine.fail(bench.folder, "change", at=at)
        try:
            with bench.enter(SHARED):
                survived.append(at)
        except NotInForce as error:
            said = "MIG: creating 2x 3c in 7g.141gb on NVIDIA H200 failed"
            assert str(error).startswith(said)
        assert bench.empty()
        if machine.changes(bench.folder) < at:
            break
    changes = at - 1
    assert changes == 2 * 3  # a GPU instance and two parts of it, and back
    assert survived == list(range(4, changes + 2))  # failures at the end are made good


def test_a_card_that_fails_for_good_is_told_and_put_back_once_it_works(bench):
    for at in range(2, 7, 2):
        machine.fail(bench.folder, "change", at=at, on=True)
        with pytest.raises(NotInForce) as caught, bench.enter(SHARED):
            pass
        [note] = bench.notes
        said = "instances that were made on NVIDIA H200 could not be removed"
        shows = "'nvidia-smi mig -i 0 -lgi' shows what is there, and the next run tries again"
        assert all(words in str(caught.value) for words in (said, shows, str(note)))
        machine.configure(bench.folder, failures=[])
        mig.Mig.recover(bench.device)
        assert bench.empty()


# -- MIG mode -------------------------------------------------------------------------------------

ADMIN = "; an administrator switches it"
OFF = f"MIG mode is off on NVIDIA H200{ADMIN} on with 'nvidia-smi -i 0 -mig 1'"
ON = f"MIG mode is on on NVIDIA H200, and this method needs the whole card{ADMIN} off with"


@pytest.mark.parametrize(
    ("mode", "spec", "begins"), [(False, PAIR, OFF), (True, alike("naive", 2), ON)]
)
def test_the_mode_is_an_administrators(mode, spec, begins):
    with benches(mig=mode) as made:
        said = sharing.refusal(spec, made.device)
        assert said.startswith(begins) and said.endswith(MARK) == (not mode)
        with pytest.raises(Unsupported, match=f"^{re.escape(said)}$"), made.enter(spec):
            raise AssertionError
        assert made.untouched()


def test_not_every_card_has_mig():
    with benches("none", mig=False) as made:
        assert sharing.refusal(PAIR, made.device) == f"NVIDIA X has no MIG{MARK}"


# -- signals in the teardown ----------------------------------------------------------------------


class Interrupted(BaseException):
    """As the conductor's: of the first signal, and of no other."""


@pytest.fixture
def interruptible():
    """A handler that raises, for the signals that end a cell."""
    before = {number: signal.getsignal(number) for number in END_SIGNALS}

    def interrupt(number, frame):
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted

    for number in before:
        signal.signal(number, interrupt)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_while_a_method_is_taken_down_waits(bench, interruptible, monkeypatch):
    real, now = pynvml.nvmlComputeInstanceDestroy, bench.folder / "now"

    def interrupted(*arguments):
        if now.exists():
            now.unlink()
            subprocess.run(["sh", "-c", f"kill -TERM {os.getppid()}"], check=True)
        return real(*arguments)

    monkeypatch.setattr(pynvml, "nvmlComputeInstanceDestroy", interrupted)
    nvml_subprocess.CHILD.end()  # the next is as this process is now
    with pytest.raises(Interrupted), bench.enter(PAIR):
        now.touch()
    assert not now.exists() and bench.empty()


# -- after a killed run ---------------------------------------------------------------------------


def in_a_killed_process(bench: Bench, at: int, spec: CellSpec) -> int:
    """How a cell's process ends that is killed at its `at`-th change; at 0: while members run."""
    machine.configure(bench.folder, kill=at)
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException), bench.enter(spec):
            code = 0
            if not at:
                os.kill(os.getpid(), signal.SIGKILL)
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    machine.configure(bench.folder, kill=None)
    return status


@pytest.mark.parametrize("key", ["a100_40", "h200_141"])
def test_a_run_killed_between_any_two_changes_is_put_back_by_the_next(key):
    """And nobody is told that instances are in the way."""
    changes = 6
    with benches(key) as made:
        assert in_a_killed_process(made, changes + 1, SHARED) == 0
        assert made.empty()
        for at in range(changes + 1):
            assert in_a_killed_process(made, at, SHARED) == -signal.SIGKILL
            assert len(made.notes) == 1  # there before the first change
            assert sharing.refusal(PAIR, made.device) is None
            with made.enter(PAIR):
                pass
            assert made.empty()


def test_what_others_made_since_or_beside_a_cell_is_theirs(bench):
    """Whoever may make instances needs no lock of ours."""
    in_a_killed_process(bench, 0, PAIR)
    somebody = bench.occupy(os.getpid())
    with pytest.raises(GpuBusy):
        mig.Mig.recover(bench.device)
    assert bench.notes and machine.changes(bench.folder) == 0
    somebody.unlink()
    bench.clear()
    bench.make((14, 0, 2, 1))
    theirs = bench.state
    mig.Mig.recover(bench.device)
    assert bench.state == theirs and not bench.notes
    bench.clear()
    with bench.enter(mix("1g", "1g")) as it:
        start = min({*range(4)} - {part.start for part in it.layout.partitions})
        bench.make((19, start, 1, 0))
    assert [entry[:3] for entry in machine.layout(bench.folder)] == [(19, start, 1)]
    assert not bench.notes


@pytest.mark.parametrize("content", ["", '{"found": true}', "another user's"])
def test_a_note_that_cannot_be_read_is_a_persons_business(bench, content, monkeypatch):
    in_a_killed_process(bench, 0, PAIR)
    [note] = bench.notes
    note.write_text(content if content != "another user's" else note.read_text())
    found = bench.state
    if content == "another user's":
        os.chown(note, 1234, -1)
    with pytest.raises(NotInForce, match=r"^MIG: .*\.json, where a killed run .* remove it$"):
        mig.Mig.recover(bench.device)
    assert bench.state == found and machine.changes(bench.folder) == 0


# -- evidence -------------------------------------------------------------------------------------


@pytest.fixture
def entered(bench, sleepers):
    """Enters a cell, and starts a member for each of its seats; gives both and what they report."""
    with ExitStack() as stack:

        def enter(spec: CellSpec):
            it = stack.enter_context(bench.enter(spec))
            pids = [sleepers() for _ in spec.members]
            for process in map(psutil.Process, pids):  # members end before their method does
                stack.callback(process.wait)
                stack.callback(process.kill)
            return it, pids, {m: report(bench, it, m, pid) for m, pid in enumerate(pids)}

        yield enter
    assert bench.empty()


def report(bench: Bench, it, member: int, pid: int) -> Report:
    """What a member says that really runs where it is told to."""
    environment = {"COLLOCATION_FAKE_NVML": str(bench.folder)} | it.environment(member)
    seen = machine.attach(environment, pid)
    return Report(pid, *(seen[field] for field in ("device_uuid", "sm_count", "memory_free")))


def test_lies_about_the_instance_are_caught(bench, entered):
    it, pids, reports = entered(alike("mig_shared", 2))
    other, card = it.environment(1)["CUDA_VISIBLE_DEVICES"], bench.device.uuid
    for lie, sentence in (
        ({"device_uuid": card}, f"runs on {card}, not on {other}"),
        ({"device_uuid": reports[0].device_uuid}, f"runs on MIG-.*, not on {other}"),
        ({"device_uuid": None}, f"was not seen on {other}: .*"),
        ({"sm_count": 132}, rf"can use 132 SMs; its instance 7g\.141gb \({other}\) has 56"),
    ):
        lying = reports | {1: replace(reports[1], **lie)}
        with pytest.raises(
            NotInForce, match=rf"^mig_shared: member 1 \(PID {pids[1]}\) {sentence}$"
        ):
            it.evidence(lying)
    silent = reports | {1: replace(reports[1], sm_count=None)}
    for left, verified in ((reports, True), (silent, None), ({}, None)):
        assert it.evidence(left)["verified"] is verified


def test_a_member_that_nvml_does_not_list_and_a_stranger_are_named(bench, entered):
    it, pids, reports = entered(PAIR)
    place = bench.folder / "processes" / str(pids[1])
    content = place.read_text()
    place.unlink()
    with pytest.raises(NotInForce, match=r"^mig: not among NVML's processes .*: member 1 "):
        it.evidence(reports)
    place.write_text(content)
    stranger = bench.occupy(os.getpid(), it.seat(0)[1].uuid)
    with pytest.raises(GpuBusy, match=rf"others compute on it: PID {os.getpid()} "):
        it.evidence(reports)
    stranger.unlink()
    assert it.evidence(reports)["verified"] is True


def test_a_layout_that_somebody_changed_in_the_cell_is_no_evidence(bench, entered):
    it, _, reports = entered(alike("mig", 3))
    bench.make((19, 6, 1, 0))
    said = "3x 2g.35gb was applied on NVIDIA H200, and somebody has changed that: there is MIG mode"
    with pytest.raises(NotInForce, match=said):
        it.evidence(reports)
    there = mig_nvml.read_state(bench.device).instances
    mig_nvml.destroy_instance(
        bench.device, next(one for one in there if one.partition.profile.id == 19)
    )
    assert it.evidence(reports)["verified"] is True
