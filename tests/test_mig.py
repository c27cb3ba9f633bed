"""MIG on the cards of tests/cards: layouts applied and taken away again, whatever comes between.

The card is tests/fakes/driver.py below the real nvidia-ml-py, so that every call goes through it.
"""

import json
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
from workflow.collocation.process_lifetime import ENDING
from workflow.collocation.sharing import evidence, mig_card, mig_nvml
from workflow.collocation.sharing.defer_signals import defer_signals
from workflow.collocation.sharing.evidence import GpuBusy, NotInForce, Report, Unsupported
from workflow.collocation.sharing.mig_layout import plan
from workflow.collocation.spec.cell import CellSpec

# What an administrator left: (profile id, start, size, [slices of its compute instances]).
IDLE = [(9, 4, 4, [3]), (19, 0, 1, [1])]
MARK = "; MIG is experimental: it has divided a simulated card only"  # ends what people are told
FULL = {"at": 2, "error": driver.FULL}  # how a call fails: the second time
NEVER = {"error": driver.UNSUPPORTED, "on": True}
PAIR, SHARED = alike("mig", 2), mix("3c.7g", "3c.7g", method="mig_shared")


def make(device: gpu.Device, profile: int, start: int, size: int, compute=()) -> None:
    """Instances, as an administrator would make them."""
    place, card = pynvml.c_nvmlGpuInstancePlacement_t(start, size), mig_nvml.handle(device)
    made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, profile, byref(place))
    for slices in compute:
        pynvml.nvmlGpuInstanceCreateComputeInstance(made, driver.SLICES.index(slices))


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

    @contextmanager
    def applied(self, spec: CellSpec, switch: bool = True):
        layout = plan(spec, mig_card.read(self.device))
        with mig_card.divided(self.device, layout, switch) as seats:
            yield layout, seats

    def refuses(self, spec: CellSpec, error: type, words: str, switch: bool = True) -> None:
        """A layout is refused with this sentence, which leaves everything as it was."""
        found = self.state
        with pytest.raises(error, match=words), self.applied(spec, switch):
            raise AssertionError
        assert self.state == found and not self.notes

    def untouched(self) -> bool:
        return machine.changes(self.folder) == 0 and not self.notes

    def empty(self, mode: bool = True) -> bool:
        """No instances, and nothing to put back."""
        return self.state == ((mode, mode), []) and not self.notes

    def leave(self, pid: int) -> None:
        """Nobody of this PID computes any more."""
        (self.folder / "processes" / str(pid)).unlink()

    def fill(self, instances: list[tuple]) -> None:
        for its in instances:
            make(self.device, *its)
        machine.configure(self.folder)

    def empty_out(self) -> None:
        """Remove all instances, as an administrator would."""
        for one in mig_nvml.state(self.device).instances:
            mig_nvml.destroy(self.device, one)


@contextmanager
def benches(key: str = "a100_40", mig: bool = True, **options) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        there, locks = Path(folder, "machine"), Path(folder, "locks")
        locks.mkdir()
        patch.setenv("COLLOCATION_LOCK_DIR", str(locks))
        machine.create(there, key, mig=mig, uuid=f"GPU-{uuid.uuid4()}", **options)
        with machine.installed(there):
            yield Bench(there, gpu.find(0)[0])


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr(mig_card, "PAUSES_S", (0, 0, 0))
    monkeypatch.setattr(evidence, "GRACE_S", 0.0)


@pytest.fixture
def bench():
    with benches() as made:
        yield made


@pytest.fixture
def hopper():
    with benches("h200_141") as made:
        yield made


@pytest.fixture
def off():
    """In which MIG mode is off."""
    with benches("h200_141", mig=False) as made:
        yield made


# -- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [False, True])
@pytest.mark.parametrize("key", TABLES)
def test_the_table_of_a_card_is_read_whether_mig_is_on_or_off(key, mode):
    with benches(key, mig=mode) as made:
        read = {profile.name: profile for profile in mig_card.read(made.device).profiles}
        assert machine.changes(made.folder) == 0
    for profile in TABLES[key].profiles:
        known = {name: value for name, value in vars(profile).items() if value is not None}
        assert vars(read.pop(profile.name)).items() >= known.items()
    assert not read


def test_a_card_without_mig_has_no_table():
    with benches("none", mig=False) as made:
        assert mig_card.read(made.device) is None
        assert sharing.refusal(PAIR, made.device) == f"NVIDIA X has no MIG{MARK}"
        assert sharing.refusal(alike("naive", 2), made.device) is None


def test_all_instances_are_listed_whatever_number_the_driver_says_there_can_be():
    for there in ([(14, n, 1, [1]) for n in range(4)], [(0, 0, 4, [1] * 4)]):
        with benches("a30") as made:
            made.fill(there)
            machine.configure(made.folder, count=1)
            found = mig_nvml.state(made.device).instances
            assert len(found) == len(there) and sum(len(one.compute) for one in found) == 4


def test_profiles_that_are_listed_in_mig_mode_only_are_told(tmp_path):
    """As by drivers up to R535."""
    unknown = "mig: which profiles NVIDIA H200 offers is not known until MIG mode is on"
    with benches("h200_141", mig=False, secret=True) as made:
        assert sharing.refusal(PAIR, made.device, switch=True) == unknown + MARK
        assert made.untouched()
    with benches("h200_141", secret=True) as made, sharing.enter(PAIR, made.device, tmp_path):
        assert len(machine.layout(made.folder)) == 2


# -- apply and take away --------------------------------------------------------------------------

METHODS = ("mig", "mig_shared", "mig_1g2x", "mig_3g", "mig_2g")
mixes = st.lists(st.sampled_from("1234").map("{}g".format), min_size=1).map(lambda z: mix(*z))
copies = st.builds(alike, st.sampled_from(METHODS), st.integers(1, 8))


@settings(max_examples=40)
@given(st.sampled_from(list(TABLES)), mixes | copies)
def test_apply_then_take_away_changes_nothing(key, spec):
    with benches(key) as made:
        with suppress(Unsupported), made.applied(spec) as (layout, seats):
            there = {e[:3]: sorted(z for *_, z in e[3]) for e in machine.layout(made.folder)}
            assert there == {part.place: sorted(part.compute) for part in layout.parts}
            uuids = sorted(seat.compute.uuid for seat in seats.values())
            assert uuids == sorted(machine.mig_uuids(made.folder))
            assert set(layout.seats) == seats.keys()
            for (index, _), seat in seats.items():
                profile, whole = layout.parts[index].profile, layout.parts[index].whole
                assert not whole or seat.compute.sm_count == profile.sm_count
                assert seat.compute.memory_mib == profile.memory_mib
        assert made.empty()


def test_a_slice_that_is_alone_in_its_instance_has_all_sms_of_it(hopper):
    for wanted, sms in {"1g": 16, "1g2x": 26, "2g": 32, "3g": 60}.items():
        with hopper.applied(mix(wanted)) as (_, seats):
            assert [seat.compute.sm_count for seat in seats.values()] == [sms]
    with hopper.applied(mix("1c.2g", "1c.2g")) as (_, seats):  # and leaves the other its place
        assert [seat.compute.sm_count for seat in seats.values()] == [16, 16]


@pytest.mark.parametrize("switch", [False, True])
def test_a_layout_that_is_there_already_is_left_alone_wherever_it_lies(bench, switch):
    spec = mix("1g", "2g", "3g")
    bench.fill([(19, 2, 1, [1]), (9, 4, 4, [3]), (14, 0, 2, [2])])
    assert sharing.refusal(spec, bench.device, switch) is None
    with bench.applied(spec, switch) as (layout, seats):
        assert [seats[at].instance.start for at in layout.seats] == [2, 0, 4]
    assert bench.untouched()


DOUBLE_1G = (15, 0, 2)


@pytest.mark.parametrize("there", [IDLE, [(*DOUBLE_1G, [1])]])  # that has 16 of its 26 SMs
def test_what_others_made_is_never_taken_down(hopper, tmp_path, there):
    hopper.fill(there)
    said = r"MIG instances that are there on NVIDIA H200 would have to go: [13]g.*-dgi'"
    for spec in (PAIR, alike("mig_1g2x", 1)):
        assert re.match(said, sharing.refusal(spec, hopper.device, switch=True))
        hopper.refuses(spec, Unsupported, said)
    with pytest.raises(Unsupported, match=said):
        with sharing.enter(alike("naive", 2), hopper.device, tmp_path, switch=True):
            raise AssertionError
    assert hopper.untouched()


@pytest.mark.parametrize(
    ("call", "how", "spec", "said"),
    [
        ("DeviceCreateGpuInstanceWithPlacement", FULL, PAIR, r"finds no place for 2x 3g\.71gb on "),
        ("GpuInstanceCreateComputeInstance", FULL, PAIR, r"finds no place for 2x 3g\.71gb on "),
        ("GpuInstanceGetComputeInstanceProfileInfo", NEVER, SHARED, "offers no 3c in 7g"),
    ],
)
def test_what_the_driver_does_not_offer_is_unsupported(hopper, call, how, spec, said):
    machine.fail(hopper.folder, f"nvml{call}", **how)
    hopper.refuses(spec, Unsupported, said)


def test_a_failing_cell_passes_its_exception_on_and_leaves_nothing(bench):
    with pytest.raises(KeyboardInterrupt), bench.applied(alike("mig", 3)):
        raise KeyboardInterrupt
    assert bench.empty()


def test_every_single_failure_in_the_middle_leaves_the_state_found(off):
    at, survived = 0, []
    while True:
        at += 1
        machine.fail(off.folder, "change", at=at)
        try:
            with off.applied(SHARED):
                survived.append(at)
        except NotInForce as error:
            said = r"^MIG: (switching MIG mode on|creating 2x 3c in 7g.141gb) failed on NVIDIA H200"
            assert re.match(said, str(error))
        assert off.empty(False)
        if machine.changes(off.folder) < at:
            break
    changes = at - 1
    assert changes == 2 * (1 + 3)  # the mode, a GPU instance and two parts of it, and back
    assert survived == list(range(5, changes + 2))  # failures at the end are made good


def test_a_card_that_fails_for_good_is_told_and_put_back_once_it_works(off):
    for at in range(2, 9, 2):
        machine.fail(off.folder, "change", at=at, on=True)
        with pytest.raises(NotInForce) as caught:
            with off.applied(SHARED):
                pass
        [note] = off.notes
        said = "could not be put back as it was found, with MIG mode off and no instance of ours"
        shows = "'nvidia-smi mig -i 0 -lgi' shows what is there, and the next run tries again"
        assert all(words in str(caught.value) for words in (said, shows, str(note)))
        machine.configure(off.folder, failures=[])
        mig_card.recover(off.device)
        assert off.empty(False)


# -- in use, no rights, a lost card ---------------------------------------------------------------


def test_a_card_that_somebody_computes_on_stays_as_it_is(off, sleepers):
    pid = sleepers()
    machine.occupy(off.folder, pid)
    stay = "so its MIG mode and its instances stay$"
    off.refuses(PAIR, GpuBusy, rf"others compute on it: PID {pid} \(python.*\); {stay}")
    off.leave(pid)
    machine.fail(off.folder, "nvmlDeviceGetComputeRunningProcesses", **NEVER)
    off.refuses(PAIR, NotInForce, "does not tell who computes on .*, so its MIG mode and")
    assert off.untouched()


def test_members_that_are_about_to_end_are_waited_for(bench, monkeypatch, sleepers):
    pid = sleepers()

    def pause(seconds: float) -> None:
        if seconds:
            os.kill(pid, signal.SIGKILL)
            while driver.birth(pid):
                pass

    monkeypatch.setattr(mig_card, "PAUSES_S", (0, 0, 0.2))
    monkeypatch.setattr(mig_card.time, "sleep", pause)
    with bench.applied(PAIR) as (_, seats):
        machine.occupy(bench.folder, pid, seats[0, 0].compute.uuid)
    assert bench.empty()


def test_without_permission_a_cell_is_unsupported_and_says_what_it_takes(bench):
    layout = plan(PAIR, mig_card.read(bench.device))
    machine.configure(bench.folder, permission=False)
    sentence = r"^MIG: no permission on NVIDIA A100-SXM4-40GB for reading its (\w+); it takes root,"
    with pytest.raises(Unsupported, match=sentence):
        mig_card.divided(bench.device, layout).__enter__()
    assert re.match(sentence, sharing.refusal(PAIR, bench.device))
    assert bench.untouched()


def test_a_lost_card_is_no_card_without_mig(bench, tmp_path):
    machine.configure(bench.folder, lost=True)
    assert sharing.refusal(PAIR, bench.device) is None  # nothing that a later run would find
    with pytest.raises(NotInForce, match="GPU is lost"):
        with sharing.enter(PAIR, bench.device, tmp_path):
            pass
    assert not bench.notes


# -- MIG mode -------------------------------------------------------------------------------------

SWITCHES = "and, where it stays pending, 'nvidia-smi -i 0 --gpu-reset', or allow it with mig_mode="
OFF = "MIG mode is off on NVIDIA H200; an administrator switches it on with 'nvidia-smi -i 0 -mig 1"
ON = "MIG mode is on on NVIDIA H200, and this method needs the whole card; an administrator switch"


@pytest.mark.parametrize(
    ("mode", "spec", "begins"),
    [(False, PAIR, OFF), *((True, alike(m, 2), ON) for m in ("naive", "naive_again"))],
)
def test_the_mode_is_kept_or_switched_and_put_back_as_the_configuration_says(
    mode, spec, begins, tmp_path
):
    with benches("h200_141", mig=mode) as made:
        said = sharing.refusal(spec, made.device)
        assert said.startswith(begins) and SWITCHES in said
        assert said.endswith(MARK) == (not mode)
        assert sharing.refusal(spec, made.device, switch=True) is None
        with pytest.raises(Unsupported, match=f"^{re.escape(said)}$"):
            with sharing.enter(spec, made.device, tmp_path):
                raise AssertionError
        assert made.untouched()
        with sharing.enter(spec, made.device, tmp_path, switch=True) as it:
            there, layout = made.state
            assert there == (not mode, not mode) and len(layout) == (0 if mode else 2)
            visible = it.environment(0)["CUDA_VISIBLE_DEVICES"]
            assert visible.startswith(made.device.uuid if mode else "MIG-")
            assert len(made.notes) == 1
        assert made.empty(mode)


def test_on_ampere_the_mode_is_an_administrators():
    never = "; mig_mode=switch does not, for that may reset such a card"
    with benches("a100_40", mig=False) as made:
        for switch in (False, True):
            said = sharing.refusal(PAIR, made.device, switch)
            assert said.startswith("MIG mode is off on NVIDIA A100") and said.endswith(never + MARK)
            made.refuses(PAIR, Unsupported, f"^{re.escape(said.removesuffix(MARK))}$", switch)
        assert made.untouched()


def test_a_mode_that_waits_for_a_reset_is_an_administrators_and_stays(off):
    with driver.Card(off.folder).open() as state:
        state["pending"] = 1
    said = "MIG mode is off on NVIDIA H200, and a change of it waits for a GPU reset; an admin"
    assert sharing.refusal(PAIR, off.device, switch=True).startswith(said)
    off.refuses(PAIR, Unsupported, f"^{said}")
    assert off.untouched() and off.state == ((False, True), [])


@pytest.mark.parametrize(
    ("setting", "failing", "error", "said"),
    [
        ({"busy": True}, {}, NotInForce, "cannot be switched on: In use by another client; "),
        (
            {},
            {"error": driver.FORBIDDEN, "on": True},
            Unsupported,
            "^MIG: no permission on NVIDIA H200 for switching MIG mode on; it takes root",
        ),
    ],
)
def test_a_mode_that_cannot_be_switched_is_told_and_stays(setting, failing, error, said):
    with benches("h200_141", mig=False, **setting) as made:
        if failing:
            machine.fail(made.folder, "nvmlDeviceSetMigMode", **failing)
        made.refuses(PAIR, error, said)


def test_a_mode_that_cannot_be_put_back_is_told_and_put_back_later(off):
    said = "could not be put back as it was found, with MIG mode off .*: the MIG mode of .*"
    with pytest.raises(NotInForce, match=f"{said}or 'nvidia-smi -i 0 --gpu-reset' be needed; "):
        with off.applied(PAIR):
            machine.configure(off.folder, needs_reset=True)
    assert machine.mode(off.folder) == (True, False)  # the next reset brings it
    machine.configure(off.folder, needs_reset=False)
    mig_card.recover(off.device)
    assert off.empty(False)


# -- signals in the teardown ----------------------------------------------------------------------


class Interrupted(BaseException):
    """As the conductor's: of the first signal, and of no other."""


@pytest.fixture
def interruptible():
    """A handler that raises, for the signals that end a cell."""
    before = {number: signal.getsignal(number) for number in ENDING}

    def interrupt(number, frame):
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted

    for number in before:
        signal.signal(number, interrupt)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("call", ["nvmlComputeInstanceDestroy", "nvmlDeviceSetMigMode"])
def test_a_signal_while_a_method_is_taken_down_waits(
    off, call, interruptible, monkeypatch, tmp_path
):
    real, now = getattr(pynvml, call), off.folder / "now"

    def interrupted(*arguments):
        if now.exists():
            now.unlink()
            pid = os.getppid() if nvml_subprocess.CHILD.inside else os.getpid()
            subprocess.run(["sh", "-c", f"kill -{int(signal.SIGTERM)} {pid}"], check=True)
        return real(*arguments)

    monkeypatch.setattr(pynvml, call, interrupted)
    nvml_subprocess.CHILD.end()  # the next is as this process is now
    with pytest.raises(Interrupted):
        with sharing.enter(PAIR, off.device, tmp_path, switch=True):
            now.touch()
    assert not now.exists() and off.empty(False)


def test_signals_mean_afterwards_what_they_meant_before(interruptible):
    handlers = [signal.getsignal(number) for number in ENDING]
    with pytest.raises(ValueError), defer_signals():
        raise ValueError
    assert [signal.getsignal(number) for number in ENDING] == handlers
    done = []
    with pytest.raises(Interrupted), defer_signals():
        for number in ENDING:
            signal.raise_signal(number)
        done.append("all")
    assert done == ["all"]


# -- after a killed run ---------------------------------------------------------------------------


def in_a_killed_process(bench: Bench, at: int, after: bool, enter) -> int:
    """How a process ends that is killed at its `at`-th change, before or after it; at 0: inside."""
    machine.configure(bench.folder, kill={"at": at, "after": after})
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException), enter():
            code = 0
            if not at:
                os.kill(os.getpid(), signal.SIGKILL)
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    machine.configure(bench.folder, kill=None)
    return status


def killed_in_the_cell(bench: Bench, spec: CellSpec = PAIR) -> Path:
    """Leave what a run leaves that is killed while its members run; gives its note."""
    status = in_a_killed_process(bench, 0, False, lambda: bench.applied(spec))
    assert status == -signal.SIGKILL
    [note] = bench.notes
    return note


KILLED = {  # the card, whether MIG mode is on; what two cells ask for; changes of the first
    "instances": ("a100_40", True, SHARED, PAIR, 6),
    "mode on": ("h200_141", False, PAIR, alike("naive", 1), 10),
    "mode off": ("h200_141", True, alike("naive", 2), alike("mig_7g", 1), 2),
}


@pytest.mark.parametrize("case", KILLED)
def test_a_run_killed_between_any_two_changes_is_put_back_by_the_next(case, tmp_path):
    """Without leave to switch; and nobody is told that the mode is wrong."""
    key, mode, spec, after, changes = KILLED[case]
    with benches(key, mig=mode) as made:

        def enter():
            return sharing.enter(spec, made.device, tmp_path, switch=True)

        assert in_a_killed_process(made, changes + 1, False, enter) == 0
        assert made.empty(mode)
        for at, late in [*((at, False) for at in range(1, changes + 1)), (changes, True)]:
            assert in_a_killed_process(made, at, late, enter) == -signal.SIGKILL
            [note] = made.notes  # there before the first change
            assert note.stat().st_mode & 0o777 == 0o600
            assert sharing.refusal(after, made.device) is None
            with suppress(Unsupported), sharing.enter(after, made.device, tmp_path):
                pass
            assert made.empty(mode)


def test_what_others_made_since_or_beside_a_cell_is_theirs(bench):
    """Whoever may make instances needs no lock of ours."""
    killed_in_the_cell(bench)
    bench.empty_out()
    bench.fill([(14, 0, 2, [2])])
    theirs = bench.state
    mig_card.recover(bench.device)
    assert bench.state == theirs and not bench.notes
    bench.empty_out()
    with bench.applied(mix("1g", "1g")) as (layout, _):
        start = min({*range(4)} - {part.start for part in layout.parts})
        make(bench.device, 19, start, 1)
    assert [entry[:3] for entry in machine.layout(bench.folder)] == [(19, start, 1)]
    assert not bench.notes


def test_a_mode_is_not_put_back_over_what_others_made(off):
    with pytest.raises(NotInForce, match="somebody has made 1g.18gb at 3:1 meanwhile"):
        with off.applied(alike("mig_1g", 1)):
            make(off.device, 19, 3, 1)
    assert off.state == ((True, True), [(19, 3, 1, ())]) and off.notes


def test_after_a_restart_nothing_that_is_there_is_ours(hopper, monkeypatch, tmp_path):
    monkeypatch.setattr(mig_card, "BOOT", tmp_path / "boot")
    mig_card.BOOT.write_text("one\n")
    killed_in_the_cell(hopper, alike("mig_7g", 1))
    machine.restart(hopper.folder)
    mig_card.BOOT.write_text("another\n")
    mig_nvml.set_mode(hopper.device, True)
    hopper.fill([(0, 0, 8, [7])])  # as ours was
    theirs = hopper.state
    mig_card.recover(hopper.device)
    assert hopper.state == theirs and not hopper.notes


def test_a_killed_run_is_not_made_good_while_others_compute(off, sleepers):
    killed_in_the_cell(off)
    pid = sleepers()
    machine.occupy(off.folder, pid)
    with pytest.raises(GpuBusy, match=rf"PID {pid} \(.*\); so its MIG mode and its instances stay"):
        mig_card.recover(off.device)
    assert machine.changes(off.folder) == 0 and off.notes
    off.leave(pid)
    mig_card.recover(off.device)
    assert off.empty(False)


@pytest.mark.parametrize("content", ["", '{"found": true}', "another user's"])
def test_a_note_that_cannot_be_read_is_a_persons_business(bench, content):
    note = killed_in_the_cell(bench)
    if content == "another user's":
        os.chown(note, 1234, -1)
    else:
        note.write_text(content)
    found = bench.state
    with pytest.raises(NotInForce, match=r"^MIG: .*\.json, where a killed run .* remove it$"):
        mig_card.recover(bench.device)
    assert bench.state == found and machine.changes(bench.folder) == 0


def test_a_note_that_cannot_be_written_changes_nothing(bench, monkeypatch):
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(bench.folder / "not there"))
    with pytest.raises(OSError), bench.applied(PAIR):
        pass
    assert machine.changes(bench.folder) == 0


# -- evidence -------------------------------------------------------------------------------------


@pytest.fixture
def entered(hopper, tmp_path, sleepers):
    """Enters a cell, and starts a member for each of its seats; gives both and what they report."""
    with ExitStack() as stack:

        def enter(spec: CellSpec):
            it = stack.enter_context(sharing.enter(spec, hopper.device, tmp_path))
            pids = [sleepers() for _ in spec.members]
            for process in map(psutil.Process, pids):  # members end before their method does
                stack.callback(process.wait)
                stack.callback(process.kill)
            return it, pids, {m: report(hopper, it, m, pid) for m, pid in enumerate(pids)}

        yield enter
    assert hopper.empty()


def report(bench: Bench, it, member: int, pid: int) -> Report:
    """What a member says that really runs where it is told to."""
    environment = {"COLLOCATION_FAKE_NVML": str(bench.folder)} | it.environment(member)
    seen = machine.attach(environment, pid)
    return Report(pid, *(seen[field] for field in ("device_uuid", "sm_count", "memory_free")))


def test_members_on_their_instances_are_verified(entered):
    it, pids, reports = entered(PAIR)
    mine, other = it.environment(0), it.environment(1)
    assert mine["CUDA_VISIBLE_DEVICES"] != other["CUDA_VISIBLE_DEVICES"]
    assert not Path(mine["CUDA_MPS_PIPE_DIRECTORY"]).exists()
    facts = json.loads(json.dumps(it.witness(reports)))
    assert facts["verified"] is facts["nvml_agrees"] is True
    assert facts["layout"] == "2x 3g.71gb"
    assert facts["nvml_compute"] == sorted(pids) and facts["nvml_mps"] == []
    place = {"gpu_instance": it.seat(1).instance.id, "compute_instance": 0}
    place |= {"mig_uuid": other["CUDA_VISIBLE_DEVICES"], "placement": "4:4"}
    size = {"memory_mib": 71424, "sm_planned": 60, "sm_reported": 60, "profile": "3g.71gb"}
    assert facts["members"]["1"] == {"pid": pids[1]} | place | size
    assert it.witness({})["verified"] is None  # nobody is left
    silent = reports | {1: replace(reports[1], sm_count=None)}
    assert it.witness(silent)["verified"] is None


def test_members_in_the_parts_of_one_instance_are_told_apart(hopper, entered):
    it, pids, reports = entered(alike("mig_shared", 2))
    facts = it.witness(reports)
    assert facts["layout"] == "2x 3c in 7g.141gb" and facts["nvml_agrees"] is True
    assert [facts["members"][m]["compute_instance"] for m in (0, 1)] == [0, 1]
    there = driver.Card(hopper.folder).processes()
    machine.occupy(hopper.folder, pids[1], there[pids[0]]["place"])
    with pytest.raises(NotInForce, match=r"member 1 .* instances \[\(1, 0\)\] .*, not on \(1, 1\)"):
        it.witness(reports)


def test_lies_about_the_instance_are_caught(hopper, entered):
    it, pids, reports = entered(PAIR)
    other, card = it.environment(1)["CUDA_VISIBLE_DEVICES"], hopper.device.uuid
    for lie, sentence in (
        ({"device_uuid": card}, f"runs on {card}, not on {other}"),
        ({"device_uuid": None}, f"did not say which device it runs on; {other} was planned"),
        ({"sm_count": 132}, rf"can use 132 SMs; its instance 3g\.71gb \({other}\) has 60"),
    ):
        lying = reports | {1: replace(reports[1], **lie)}
        with pytest.raises(NotInForce, match=rf"^mig: member 1 \(PID {pids[1]}\) {sentence}$"):
            it.witness(lying)


def test_a_member_that_nvml_does_not_list_and_a_stranger_are_named(hopper, entered):
    it, pids, reports = entered(PAIR)
    place = hopper.folder / "processes" / str(pids[1])
    content = place.read_text()
    place.unlink()
    with pytest.raises(NotInForce, match=r"^mig: not among NVML's processes .*: member 1 "):
        it.witness(reports)
    machine.configure(hopper.folder, host_pids=2**22)  # as in a container: it cannot be told
    facts = it.witness(reports)
    assert (facts["verified"], facts["nvml_agrees"]) == (True, None)
    machine.configure(hopper.folder, host_pids=0)
    place.write_text(content)
    machine.occupy(hopper.folder, os.getpid(), it.seat(0).compute.uuid)
    with pytest.raises(GpuBusy, match=rf"others compute on it: PID {os.getpid()} "):
        it.witness(reports)
    hopper.leave(os.getpid())
    machine.occupy(hopper.folder, pids[0], it.seat(0).compute.uuid, "mps")
    with pytest.raises(NotInForce, match=r"^mig: NVML lists MPS clients on the card: member 0 "):
        it.witness(reports)


def test_a_layout_that_somebody_changed_in_the_cell_is_no_evidence(hopper, entered):
    it, _, reports = entered(alike("mig", 3))
    make(hopper.device, 19, 6, 1)
    said = "3x 2g.35gb was applied on NVIDIA H200, and somebody has changed that: there is MIG mode"
    with pytest.raises(NotInForce, match=said):
        it.witness(reports)
    for found in mig_nvml.state(hopper.device).instances:
        if found.profile == 19:
            mig_nvml.destroy(hopper.device, found)
    assert it.witness(reports)["verified"] is True


def test_what_does_not_fit_is_refused_before_anything_else_is_touched(off):
    assert "does not fit" in sharing.refusal(alike("mig", 8), off.device, switch=True)
    assert off.untouched()
