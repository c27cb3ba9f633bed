"""MIG on the cards of tests/cards: layouts applied and taken away again, whatever comes between.

The card is tests/fakes/driver.py below the real nvidia-ml-py, so that every call goes through it.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ctypes import byref
from dataclasses import dataclass
from pathlib import Path

import psutil
import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import driver, machine
from workflow.collocation import gpu
from workflow.collocation import sharing as methods
from workflow.collocation.gpu import nvml_subprocess
from workflow.collocation.sharing import base, defer_signals, evidence, mps_daemon
from workflow.collocation.sharing.evidence import GpuBusy, NotInForce, Report, Unsupported
from workflow.collocation.sharing.mig import card as mig_card
from workflow.collocation.sharing.mig import layout as mig_layout
from workflow.collocation.sharing.mig import nvml as mig_nvml
from workflow.collocation.sharing.mig import restore as mig_restore
from workflow.collocation.sharing.mig.layout import Card
from workflow.collocation.spec.load import check, read_yaml

TABLES = {
    path.stem: check(Card, read_yaml(path), str(path))
    for path in sorted(machine.CARDS.glob("*.json"))
}
ROOT = Path(__file__).resolve().parents[1]
# What an administrator left: (profile id, start, size, [slices of its compute instances]).
IDLE = [(9, 4, 4, [3]), (19, 0, 1, [1]), (19, 2, 1, [])]
MARK = "; MIG is experimental: it has divided a simulated card only"  # ends what people are told
FULL = {"at": 2, "error": driver.FULL}  # how a call fails: the second time
NEVER = {"error": driver.UNSUPPORTED, "on": True}
PAIR = {"method": "mig", "members": [{"workload": "a"}, {"workload": "b"}]}


def alike(count: int, method: str = "mig") -> dict:
    return {"method": method, "members": [{"workload": "a"}] * count}


def mix(*slices: str, method: str = "mig") -> dict:
    members = [{"workload": f"w{text}", "slice": text} for text in slices]
    return {"method": method, "members": members}


def make(device: gpu.Device, profile: int, start: int, size: int):
    """A GPU instance, as an administrator would make it."""
    place, card = pynvml.c_nvmlGpuInstancePlacement_t(start, size), mig_nvml.handle(device)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, profile, byref(place))


def make_compute(gpu_instance, slices: int) -> None:
    """A compute instance: of those with so many slices the first that is offered."""
    number = driver.SLICES.index(slices)
    pynvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, number)


@dataclass
class Bench:
    """A machine with one card, and this process's view of it."""

    folder: Path
    device: gpu.Device

    @property
    def state(self) -> tuple:
        return machine.mode(self.folder), machine.layout(self.folder)

    @property
    def card(self) -> Card:
        return mig_card.read(self.device)

    @property
    def journals(self) -> list[Path]:
        return sorted(Path(os.environ["COLLOCATION_LOCK_DIR"]).iterdir())

    @contextmanager
    def applied(self, spec: dict, switch: bool = True):
        layout = mig_layout.plan(spec, self.card)
        with mig_card.divided(self.device, layout, switch) as seats:
            yield layout, seats

    def refuses(
        self, spec: dict, error: type, words: str | None = None, switch: bool = True
    ) -> str:
        """The sentence that a layout is refused with, which leaves everything as it was."""
        found, uuids = self.state, machine.mig_uuids(self.folder)
        with pytest.raises(error, match=words) as caught, self.applied(spec, switch):
            raise AssertionError
        assert (self.state, machine.mig_uuids(self.folder)) == (found, uuids)
        assert not self.journals
        return str(caught.value)

    def untouched(self) -> bool:
        return machine.changes(self.folder) == 0 and not self.journals

    def empty(self, mode: bool = True) -> bool:
        """No instances, and nothing to put back."""
        return self.state == ((mode, mode), []) and not self.journals

    def leave(self, pid: int) -> None:
        """Nobody of this PID computes any more."""
        (self.folder / "processes" / str(pid)).unlink()

    def fill(self, instances: list[tuple]) -> None:
        """Make instances as an administrator would."""
        for profile, start, size, compute in instances:
            handle = make(self.device, profile, start, size)
            for slices in compute:
                make_compute(handle, slices)
        machine.configure(self.folder)


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
    monkeypatch.setattr(mig_restore, "PAUSES_S", (0, 0, 0))
    monkeypatch.setattr(evidence, "GRACE_S", 0.0)


@pytest.fixture
def short_tmp(monkeypatch):
    """A folder for sockets, and the stand-in for NVIDIA's MPS control program on PATH."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        bins = [str(machine.FAKES), str(Path(sys.executable).parent), os.environ["PATH"]]
        monkeypatch.setenv("PATH", os.pathsep.join(bins))
        yield folder
        assert not list(Path(folder).iterdir())


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


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that is no descendant of this one."""
    command = ["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"]
    pid = int(subprocess.run(command, capture_output=True, check=True).stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


# -- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [False, True])
@pytest.mark.parametrize("key", TABLES)
def test_the_table_of_a_card_is_read_whether_mig_is_on_or_off(key, mode):
    with benches(key, mig=mode) as made:
        read = {profile.name: profile for profile in made.card.profiles}
        assert machine.changes(made.folder) == 0
    assert len(read) == len(TABLES[key].profiles)
    for profile in TABLES[key].profiles:
        known = {name: value for name, value in profile if value is not None and name != "source"}
        assert dict(read[profile.name]).items() >= known.items()


def test_a_card_without_mig_has_no_table():
    with benches("none", mig=False) as made:
        assert mig_card.read(made.device) is None
        assert methods.refusal(alike(2), made.device) == f"NVIDIA X has no MIG{MARK}"
        assert methods.refusal(alike(2, "naive"), made.device) is None
        with mig_card.divided(made.device, None, switch=False):
            pass


def test_all_instances_are_listed_whatever_number_the_driver_says_there_can_be():
    for there in ([(14, n, 1, [1]) for n in range(4)], [(0, 0, 4, [1] * 4)]):
        with benches("a30") as made:
            made.fill(there)
            machine.configure(made.folder, count=1)
            assert len(mig_nvml.instances(made.device)) == len(there)
            assert sum(len(one.compute) for one in mig_nvml.instances(made.device)) == 4


def test_profiles_that_are_listed_in_mig_mode_only_are_planned_then(tmp_path):
    """As by drivers up to R535."""
    with benches("h200_141", mig=False, secret=True) as made:
        assert methods.refusal(PAIR, made.device).startswith(OFF)
        unknown = "mig: which profiles NVIDIA H200 offers is not known until MIG mode is on"
        assert methods.refusal(PAIR, made.device, switch=True) == unknown + MARK
        assert machine.changes(made.folder) == 0
    with benches("h200_141", secret=True) as made, methods.enter(PAIR, made.device, tmp_path):
        assert len(machine.layout(made.folder)) == 2


# -- apply, verify, take away ---------------------------------------------------------------------


def as_planned(made: Bench, layout, seats) -> None:
    """What is on the card is this layout, and these are its MIG devices."""
    there = {entry[:3]: sorted(z for _, _, z in entry[3]) for entry in machine.layout(made.folder)}
    assert there == {part.place: sorted(part.compute) for part in layout.parts}
    uuids = sorted(seat.compute.uuid for seat in seats.values())
    assert uuids == sorted(machine.mig_uuids(made.folder))
    assert set(layout.seats) == seats.keys()
    for (index, _), seat in seats.items():
        part, has = layout.parts[index], seat.compute
        sms = part.profile.sm_count if part.whole else has.sm_count
        assert (has.sm_count, has.memory_mib) == (sms, part.profile.memory_mib)


DOUBLE_1G = (15, 0, 2)  # profile id, start, size


def small_slice(made: Bench) -> None:
    """A 1g with double memory, and in it the compute instance of 16 of its 26 SMs."""
    handle = make(made.device, *DOUBLE_1G)
    make_compute(handle, 1)


def test_a_slice_that_is_alone_in_its_instance_has_all_sms_of_it(hopper):
    sizes = {"1g": 16, "1g2x": 26, "2g": 32, "3g": 60}
    for wanted, sms in sizes.items():
        with hopper.applied(mix(wanted)) as (_, seats):
            assert [seat.compute.sm_count for seat in seats.values()] == [sms]
    with hopper.applied(mix("1c.2g", "1c.2g")) as (_, seats):  # and leaves the other its place
        assert [seat.compute.sm_count for seat in seats.values()] == [16, 16]


def test_an_instance_with_a_small_slice_is_not_the_layout_that_was_planned(hopper):
    small_slice(hopper)
    found, said = hopper.state, "that are there on NVIDIA H200 would have to go: 1g.35gb"
    hopper.refuses(alike(1, "mig_1g2x"), Unsupported, said, switch=False)
    with hopper.applied(alike(1, "mig_1g2x")) as (_, seats):
        assert [seat.compute.sm_count for seat in seats.values()] == [26]
    assert hopper.state == found  # as the administrator had it


def test_a_driver_that_makes_less_than_was_planned_fails_the_cell(hopper, monkeypatch):
    monkeypatch.setattr(mig_nvml.Instance, "divided", True)  # so it takes the small one
    nvml_subprocess.CHILD.end()  # the next is as this process is now
    assert hopper.refuses(alike(1, "mig_1g2x"), NotInForce) == (
        "MIG: 1g.35gb was created on NVIDIA H200, but there is MIG mode on and 1g.35gb at 0:2, "
        "with compute instances of 16 SMs"
    )
    assert hopper.empty()


@pytest.mark.parametrize("switch", [False, True])
def test_a_layout_that_is_there_already_is_left_alone_wherever_it_lies(bench, switch):
    spec = mix("1g", "2g", "3g")
    bench.fill([(19, 2, 1, [1]), (9, 4, 4, [3]), (14, 0, 2, [2])])
    assert methods.refusal(spec, bench.device, switch) is None
    planned = mig_layout.plan(spec, bench.card).parts
    assert [part.start for part in planned] == [0, 4, 6]
    with bench.applied(spec, switch) as (layout, seats):
        assert [seats[at].instance.start for at in layout.seats] == [2, 0, 4]
    assert bench.untouched()


def test_what_compute_instances_divide_is_not_taken_down(bench, tmp_path, short_tmp):
    bench.fill([(9, 4, 4, [2, 1]), (19, 0, 1, [1]), (14, 2, 2, [1])])
    said = r"take down what compute instances .*, 3g.20gb at 4:4, 2g.10gb at 2:2: an administrator"
    assert re.search(said, methods.refusal(PAIR, bench.device, switch=True))
    bench.refuses(PAIR, Unsupported, said)
    with benches("h200_141") as made, pytest.raises(Unsupported, match=said[:30]):
        made.fill([(9, 4, 4, [2, 1])])
        with methods.enter(alike(2, "naive"), made.device, tmp_path, switch=True):
            raise AssertionError
    assert bench.untouched()


FOUR_OF_SEVEN = mix("4c.7g", "3c.7g", method="mig_shared")


@pytest.mark.parametrize(
    ("call", "how", "spec", "said"),
    [
        ("DeviceCreateGpuInstanceWithPlacement", FULL, PAIR, r"finds no place for 2x 3g\.71gb on "),
        ("GpuInstanceCreateComputeInstance", FULL, PAIR, r"finds no place for 2x 3g\.71gb on "),
        ("GpuInstanceGetComputeInstanceProfileInfo", NEVER, FOUR_OF_SEVEN, "offers no 4c in 7g"),
    ],
)
def test_what_the_driver_does_not_offer_is_unsupported(hopper, call, how, spec, said):
    hopper.fill([(9, 4, 4, [3])] if how is FULL else [])
    machine.fail(hopper.folder, f"nvml{call}", **how)
    hopper.refuses(spec, Unsupported, said)


def test_a_failing_cell_passes_its_exception_on_and_leaves_nothing(bench):
    with pytest.raises(KeyboardInterrupt), bench.applied(alike(3)):
        raise KeyboardInterrupt
    assert bench.empty()


# -- failures in the middle -----------------------------------------------------------------------

CLUMSY = mix("3c.7g", "3c.7g", method="mig_shared")


def test_every_single_failure_in_the_middle_leaves_the_state_found():
    with benches() as made:
        made.fill(IDLE)
        found, at, survived = made.state, 0, []
        while True:
            at += 1
            machine.fail(made.folder, "change", at=at)
            try:
                with made.applied(CLUMSY):
                    survived.append(at)
            except NotInForce as error:
                assert str(error) == (
                    "MIG: creating 2x 3c in 7g.40gb failed on NVIDIA A100-SXM4-40GB: Unknown Error"
                )
            assert made.state == found and not made.journals
            if machine.changes(made.folder) < at:
                break
    changes = at - 1
    assert changes == 5 + 3 + 3 + 5  # IDLE away, CLUMSY there and away, IDLE there
    assert survived == list(range(9, changes + 2))  # failures at the end are made good


def test_a_card_that_fails_for_good_is_told_and_put_back_once_it_works(bench):
    bench.fill(IDLE)
    found = bench.state
    for at in range(2, 17, 3):
        machine.fail(bench.folder, "change", at=at, on=True)
        with pytest.raises(NotInForce) as caught:
            with bench.applied(CLUMSY):
                pass
        [journal] = bench.journals
        said = "could not be put back as it was found, with MIG mode on and ", "3g.20gb at 4:4"
        shows = "'nvidia-smi mig -i 0 -lgi' shows what is there, and the next run tries again"
        assert all(words in str(caught.value) for words in (*said, shows, str(journal)))
        machine.configure(bench.folder, failures=[])
        mig_restore.recover(bench.device)
        assert bench.state == found and not bench.journals


def in_a_killed_process(bench: Bench, at: int, after: bool, enter) -> int:
    """How a process ends that is killed at its `at`-th change, before or after it."""
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


def killed_in_the_cell(bench: Bench, enter) -> None:
    """Leave what a run leaves that is killed while its members run."""
    assert in_a_killed_process(bench, 0, False, enter) == -signal.SIGKILL


found_layouts = st.lists(st.integers(0, 10**6), max_size=6)


def any_layout(bench: Bench, seeds: list[int]) -> list[tuple]:
    """Instances that fit together, chosen by the numbers: each from the places that are free."""
    chosen: list[tuple] = []
    for seed in seeds:
        free = [
            (profile, start, size)
            for profile in bench.card.profiles
            for start, size in profile.placements
            if sum(one[0] == profile.id for one in chosen) < profile.most
            if all(start + size <= s or s + z <= start for _, s, z, _ in chosen)
        ]
        if not free:
            break
        profile, start, size = free[seed % len(free)]
        options = [[], [profile.slices], [1] * (seed % profile.slices + 1)]
        chosen.append((profile.id, start, size, options[seed // len(free) % 3]))
    return chosen


METHODS = ("mig", "mig_shared", "mig_1g2x", "mig_mps", "mig_3g", "mig_2g")
mixes = st.lists(st.sampled_from("1234").map("{}g".format), min_size=1).map(lambda z: mix(*z))


@settings(max_examples=50)
@given(
    st.sampled_from(list(TABLES)),
    st.just([]) | found_layouts,
    mixes | st.builds(alike, st.integers(1, 8), st.sampled_from(METHODS)),
)
def test_apply_then_take_away_changes_nothing(key, seeds, spec):
    with benches(key) as made:
        made.fill(any_layout(made, seeds))
        found = made.state
        try:
            with made.applied(spec) as (layout, seats):
                as_planned(made, layout, seats)
        except Unsupported as refused:
            whole = {profile.id: [profile.slices] for profile in made.card.profiles}
            divided = any(c and [z for *_, z in c] != whole[i] for i, *_, c in found[1])
            unfit = re.search("fit|has no", str(refused))
            assert divided == ("compute instances divide" in str(refused)) or unfit
        assert made.state == found and not made.journals


# -- in use, no rights, a lost card ---------------------------------------------------------------


@pytest.mark.parametrize("mode", [False, True])
def test_a_card_that_somebody_computes_on_stays_as_it_is(mode, sleepers):
    with benches("h200_141", mig=mode) as made:
        made.fill(IDLE if mode else [])
        pid = sleepers()
        machine.occupy(made.folder, pid, *machine.mig_uuids(made.folder)[:1])
        stay = "so its MIG mode and its instances stay$"
        made.refuses(PAIR, GpuBusy, rf"others compute on it: PID {pid} \(python.*\); {stay}")
        made.leave(pid)
        machine.fail(made.folder, "nvmlDeviceGetComputeRunningProcesses", **NEVER)
        made.refuses(PAIR, NotInForce, "does not tell who computes on .*, so its MIG mode and")
        assert made.untouched()


@pytest.mark.parametrize("which", [0, 1])
def test_an_instance_in_use_is_named_and_those_that_went_before_come_back(bench, sleepers, which):
    bench.fill([(9, 4, 4, [3]), (9, 0, 4, [3])])
    found, uuids = bench.state, machine.mig_uuids(bench.folder)
    machine.occupy(bench.folder, sleepers(), uuids[which], "unlisted")
    said = rf"the instance of 3g\.20gb at {4 - 4 * which}:4 on NVIDIA A100\S+ is in use; "
    with pytest.raises(NotInForce, match=said), bench.applied(alike(3)):
        raise AssertionError
    assert bench.state == found and not bench.journals
    assert uuids[which] in machine.mig_uuids(bench.folder)


def test_members_that_are_about_to_end_are_waited_for(bench, monkeypatch, sleepers):
    pid = sleepers()

    def pause(seconds: float) -> None:
        if seconds:
            os.kill(pid, signal.SIGKILL)
            while driver.birth(pid):
                pass

    monkeypatch.setattr(mig_restore, "PAUSES_S", (0, 0, 0.2))
    monkeypatch.setattr(mig_restore.time, "sleep", pause)
    with bench.applied(PAIR) as (_, seats):
        machine.occupy(bench.folder, pid, seats[0, 0].compute.uuid)
    assert bench.empty()


def test_without_permission_a_cell_is_unsupported_and_says_what_it_takes(bench):
    bench.fill(IDLE)
    found, layout = bench.state, mig_layout.plan(PAIR, bench.card)
    machine.configure(bench.folder, permission=False)
    sentence = r"^MIG: no permission on NVIDIA A100-SXM4-40GB for reading its (\w+); it takes root,"
    for ask in (
        lambda: mig_card.divided(bench.device, layout).__enter__(),
        lambda: mig_card.read(bench.device),
    ):
        with pytest.raises(Unsupported, match=sentence):
            ask()
    assert re.match(sentence, methods.refusal(PAIR, bench.device))
    assert bench.state == found and not bench.journals


def test_a_lost_card_is_no_card_without_mig(bench, tmp_path):
    machine.configure(bench.folder, lost=True)
    assert methods.refusal(PAIR, bench.device) is None  # nothing that a later run would find
    with pytest.raises(NotInForce, match="GPU is lost"):
        with methods.enter(PAIR, bench.device, tmp_path):
            pass
    assert not bench.journals


# -- MIG mode -------------------------------------------------------------------------------------

# What is there, what a cell asks for, and what it is told unless it may switch.
SWITCHES = "and, where it stays pending, 'nvidia-smi -i 0 --gpu-reset', or allow it with mig_mode="
OFF = "MIG mode is off on NVIDIA H200; an administrator switches it on with 'nvidia-smi -i 0 -mig 1"
ON = "MIG mode is on on NVIDIA H200, and this method needs the whole card; an administrator switch"
KEPT = "MIG instances that are there on NVIDIA H200 would have to go: 3g.71gb at 4:4"
KEEP = {
    "mig": (False, [], PAIR, OFF, SWITCHES),
    **{m: (True, IDLE, alike(2, m), ON, SWITCHES) for m in ("naive", "naive_again", "mps_equal")},
    "instances": (True, IDLE, PAIR, KEPT, "mig_mode=switch allows the workflow to take them down"),
    "more": (
        True,
        [(9, 4, 4, [3]), (9, 0, 4, [3])],
        alike(3),
        KEPT.rpartition(" at")[0],
        "3g.71gb at 0:4",
    ),
}


@pytest.mark.parametrize("case", KEEP)
def test_mode_and_instances_are_kept_or_switched_and_put_back_as_the_configuration_says(
    case, tmp_path, short_tmp
):
    mode, there, spec, begins, told = KEEP[case]
    with benches("h200_141", mig=mode) as made:
        made.fill(there)
        found, said = made.state, methods.refusal(spec, made.device)
        assert said.startswith(begins) and told in said
        assert said.endswith(MARK) == spec["method"].startswith("mig")
        assert methods.refusal(spec, made.device, switch=True) is None
        with pytest.raises(Unsupported, match=f"^{re.escape(said)}$"):
            with methods.enter(spec, made.device, tmp_path):
                raise AssertionError
        assert made.untouched()
        with methods.enter(spec, made.device, tmp_path, switch=True) as sharing:
            divided = spec["method"] == "mig"
            there, layout = made.state
            assert there == (divided, divided) and len(layout) == divided * len(spec["members"])
            visible = sharing.environment(0)["CUDA_VISIBLE_DEVICES"]
            assert visible.startswith("MIG-" if divided else made.device.uuid)
            assert len(made.journals) == 1
        assert made.state == found and not made.journals


def test_on_ampere_the_mode_is_an_administrators(tmp_path, short_tmp):
    never = "; mig_mode=switch does not, for that may reset such a card"
    with benches("a100_40", mig=False) as made:
        for switch in (False, True):
            said = methods.refusal(PAIR, made.device, switch)
            assert said.startswith("MIG mode is off on NVIDIA A100") and said.endswith(never + MARK)
            made.refuses(PAIR, Unsupported, f"^{re.escape(said.removesuffix(MARK))}$", switch)
        assert made.untouched()
    with benches("a30", mig=True) as made:
        made.fill([(14, 0, 1, [1]), (5, 2, 2, [2])])
        found, spec = made.state, alike(2, "naive")
        said = methods.refusal(spec, made.device, switch=True)
        assert "and this method needs the whole card" in said
        with pytest.raises(Unsupported, match=re.escape(said)):
            with methods.enter(spec, made.device, tmp_path, switch=True):
                raise AssertionError
        assert made.untouched()
        with made.applied(PAIR):  # a layout takes no reset
            pass
        assert made.state == found


def test_a_mode_that_waits_for_a_reset_is_an_administrators_and_stays(off):
    with driver.Card(off.folder).open() as state:
        state["pending"] = 1
    said = "MIG mode is off on NVIDIA H200, and a change of it waits for a GPU reset; an admin"
    assert methods.refusal(PAIR, off.device, switch=True).startswith(said)
    off.refuses(PAIR, Unsupported, f"^{said}")
    assert off.untouched() and off.state == ((False, True), [])


@pytest.mark.parametrize(
    ("setting", "failing", "error", "said"),
    [
        ({"busy": True}, None, NotInForce, "cannot be switched on: In use by another client; "),
        (
            {},
            ("nvmlDeviceSetMigMode", {"error": driver.FORBIDDEN, "on": True}),
            Unsupported,
            "^MIG: no permission on NVIDIA H200 for switching MIG mode on; it takes root",
        ),
    ],
)
def test_a_mode_that_cannot_be_switched_is_told_and_stays(setting, failing, error, said):
    with benches("h200_141", mig=False, **setting) as made:
        if failing:
            machine.fail(made.folder, failing[0], **failing[1])
        made.refuses(PAIR, error, said)


def test_a_mode_that_cannot_be_put_back_is_told_and_put_back_later(off):
    said = "could not be put back as it was found, with MIG mode off: the MIG mode of .*"
    with pytest.raises(NotInForce, match=f"{said}or 'nvidia-smi -i 0 --gpu-reset' be needed; "):
        with off.applied(PAIR):
            machine.configure(off.folder, needs_reset=True)
    assert machine.mode(off.folder) == (True, False)  # the next reset brings it
    machine.configure(off.folder, needs_reset=False)
    mig_restore.recover(off.device)
    assert off.empty(False)


# -- signals in the teardown ----------------------------------------------------------------------


class Interrupted(BaseException):
    """As the conductor's: of the first signal, and of no other."""


@pytest.fixture
def interruptible():
    """A handler that raises, for the signals that end a cell."""
    before = {number: signal.getsignal(number) for number in defer_signals.ENDING}

    def interrupt(number, frame):
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted

    for number in before:
        signal.signal(number, interrupt)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def another_thread():
    """A thread with its own signal mask, as a numerical library has them."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.parametrize(
    ("place", "call", "number"),
    [
        (pynvml, "nvmlComputeInstanceDestroy", signal.SIGINT),
        (pynvml, "nvmlDeviceSetMigMode", signal.SIGTERM),
        (mps_daemon.Daemon, "ask", signal.SIGHUP),
    ],
)
def test_a_signal_while_a_method_is_taken_down_waits(
    off, place, call, number, interruptible, another_thread, short_tmp, monkeypatch, tmp_path
):
    real, now = getattr(place, call), off.folder / "now"

    def interrupted(*arguments):
        if now.exists():
            now.unlink()
            pid = os.getppid() if nvml_subprocess.CHILD.inside else os.getpid()
            subprocess.run(["sh", "-c", f"kill -{int(number)} {pid}"], check=True)  # from elsewhere
        return real(*arguments)

    monkeypatch.setattr(place, call, interrupted)
    nvml_subprocess.CHILD.end()
    with pytest.raises(Interrupted):
        with methods.enter(alike(3, "mig_mps"), off.device, tmp_path, switch=True):
            now.touch()
    assert not now.exists() and off.empty(False)
    assert not [p for p in psutil.Process().children() if p.name() == mps_daemon.CONTROL]


def test_signals_mean_afterwards_what_they_meant_before(interruptible):
    handlers = [signal.getsignal(number) for number in defer_signals.ENDING]
    with pytest.raises(ValueError):
        with defer_signals.defer_signals():
            raise ValueError
    assert [signal.getsignal(number) for number in defer_signals.ENDING] == handlers
    done = []
    with pytest.raises(Interrupted):
        with defer_signals.defer_signals():
            for number in defer_signals.ENDING:
                signal.raise_signal(number)
            done.append("all")
    assert done == ["all"]
    ignored = [signal.getsignal(number) for number in defer_signals.ENDING]
    assert ignored == [signal.SIG_IGN] * 3  # as the handler left it
    with defer_signals.defer_signals():
        signal.raise_signal(signal.SIGTERM)


# -- after a killed run ---------------------------------------------------------------------------


KILLED = {  # the card, whether MIG mode is on, what is there; what two cells ask for; changes
    "instances": ("a100_40", True, IDLE, CLUMSY, PAIR, 16),
    "mode on": ("h200_141", False, [], PAIR, alike(1, "naive"), 10),
    "mode off": ("h200_141", True, [(0, 0, 8, [7])], alike(2, "naive"), alike(1, "mig_7g"), 6),
}


@pytest.mark.parametrize("case", KILLED)
def test_a_run_killed_between_any_two_changes_is_put_back_by_the_next(case, tmp_path, short_tmp):
    """Without leave to switch; and nobody is told that the mode or the instances are wrong."""
    key, mode, there, spec, after, changes = KILLED[case]
    with benches(key, mig=mode) as made:
        made.fill(there)
        found = made.state

        def enter():
            return methods.enter(spec, made.device, tmp_path, switch=True)

        assert in_a_killed_process(made, changes + 1, False, enter) == 0
        assert made.state == found and not made.journals
        for at, late in [*((at, False) for at in range(1, changes + 1)), (changes, True)]:
            assert in_a_killed_process(made, at, late, enter) == -signal.SIGKILL
            assert made.journals and methods.refusal(after, made.device) is None
            with suppress(Unsupported), methods.enter(after, made.device, tmp_path):
                pass
            assert made.state == found and not made.journals


def test_what_somebody_made_since_is_not_destroyed(bench):
    bench.fill(IDLE)
    status = in_a_killed_process(bench, 12, False, lambda: bench.applied(CLUMSY))
    assert status == -signal.SIGKILL
    said = stays(bench, replace_all(bench, [(14, 0, 2, [2])]))
    there = "3g.20gb at 4:4, 1g.5gb at 0:1, 1g.5gb at 2:1: somebody has changed that since: there "
    assert f"{there}is MIG mode on and 2g.10gb at 0:2; 'nvidia-smi mig -i 0 -lgi' shows" in said
    assert str(bench.journals[0]) in said


def test_who_has_changed_the_mode_since_has_the_last_word(hopper):
    hopper.fill(IDLE)
    status = in_a_killed_process(hopper, 12, False, lambda: hopper.applied(CLUMSY))
    assert status == -signal.SIGKILL
    machine.restart(hopper.folder)
    mig_restore.recover(hopper.device)
    assert hopper.empty(False)


def stays(bench: Bench, theirs: tuple, words: str = "somebody has changed that since") -> str:
    """What is there is not ours, so it is left alone, and the journal with it; the sentence."""
    with pytest.raises(NotInForce, match=words) as caught:
        mig_restore.recover(bench.device)
    assert bench.state == theirs and bench.journals
    return str(caught.value)


def replace_all(bench: Bench, instances: list[tuple]) -> tuple:
    """What an administrator does; gives what is there then."""
    mig_restore.clear(bench.device, mig_nvml.instances(bench.device))
    bench.fill(instances)
    return bench.state


def test_what_somebody_made_where_the_found_one_was_is_not_changed_by_the_teardown(bench):
    bench.fill([(9, 4, 4, [3])])
    with pytest.raises(NotInForce, match="could not be put back as it was found"):
        with bench.applied(alike(1)):
            theirs = replace_all(bench, [(9, 4, 4, [2, 1])])
    assert bench.state == theirs and bench.journals


def test_another_compute_instance_where_the_found_one_was_is_not_ours(hopper):
    small_slice(hopper)
    killed_in_the_cell(hopper, lambda: hopper.applied(PAIR))
    mig_restore.clear(hopper.device, mig_nvml.instances(hopper.device))
    full = make(hopper.device, *DOUBLE_1G)
    pynvml.nvmlGpuInstanceCreateComputeInstance(full, driver.FULL_SLICE)
    stays(hopper, hopper.state)


def test_where_another_users_run_was_killed_too_nobody_knows_whose_the_instances_are(bench):
    killed_in_the_cell(bench, lambda: bench.applied(PAIR))
    [journal] = bench.journals
    there, theirs = bench.state, journal.with_name(re.sub(r"\d+(?=\.json$)", "1234", journal.name))
    theirs.touch()
    stays(bench, there, f"another user's run noted the card, too, in {theirs}; ")
    assert machine.changes(bench.folder) == 0
    theirs.unlink()
    mig_restore.recover(bench.device)
    assert bench.empty()


@pytest.mark.parametrize("place", ["BOOT", "MODULE"])
def test_after_a_restart_of_machine_or_driver_nothing_there_is_ours(
    hopper, monkeypatch, tmp_path, place
):
    for name in ("BOOT", "MODULE"):
        (tmp_path / name).write_text("an id\n")
        monkeypatch.setattr(mig_restore, name, tmp_path / name)
    killed_in_the_cell(hopper, lambda: hopper.applied(alike(1)))
    machine.restart(hopper.folder)
    (tmp_path / "new").write_text("another\n")
    (tmp_path / "new").replace(tmp_path / place)
    mig_nvml.set_mode(hopper.device, True)
    theirs = replace_all(hopper, [(0, 0, 8, [7])])  # as ours was
    mig_restore.recover(hopper.device)
    assert hopper.state == theirs and not hopper.journals


def test_a_killed_run_is_not_made_good_while_others_compute(off, sleepers):
    killed_in_the_cell(off, lambda: off.applied(PAIR))
    off.fill([])
    pid = sleepers()
    machine.occupy(off.folder, pid)
    sentence = rf"PID {pid} \(.*\); so what a killed run changed is not put back yet$"
    with pytest.raises(GpuBusy, match=sentence):
        mig_restore.recover(off.device)
    assert machine.changes(off.folder) == 0 and off.journals
    off.leave(pid)
    mig_restore.recover(off.device)
    assert off.empty(False)


def test_what_others_make_beside_a_cell_is_theirs(bench):
    """Whoever may make instances needs no lock of ours."""
    bench.fill([(9, 4, 4, [3])])
    with bench.applied(mix("1g", "1g")) as (layout, _):
        start = min({*range(4)} - {part.start for part in layout.parts})
        make(bench.device, 19, start, 1)
    places = [entry[:3] for entry in machine.layout(bench.folder)]
    assert places == [(9, 4, 4), (19, start, 1)]
    assert not bench.journals


def test_a_mode_is_not_put_back_over_what_others_made(off):
    with pytest.raises(NotInForce, match="somebody has made 1g.18gb at 3:1 meanwhile"):
        with off.applied(alike(1, "mig_1g")):
            make(off.device, 19, 3, 1)
    assert off.state == ((True, True), [(19, 3, 1, ())])
    assert off.journals


@pytest.mark.parametrize("content", ["", '{"found": {"mode": true}}', "another user's"])
def test_a_journal_that_cannot_be_read_is_a_persons_business(bench, content):
    killed_in_the_cell(bench, lambda: bench.applied(PAIR))
    [journal] = bench.journals
    if content == "another user's":
        os.chown(journal, 1234, -1)
    else:
        journal.write_text(content)
    stays(bench, bench.state, r"^MIG: .*\.json, where a killed run .* remove it$")
    assert machine.changes(bench.folder) == 0 and len(machine.layout(bench.folder)) == 2


def test_a_journal_is_private_and_there_before_the_first_change(bench):
    bench.fill(IDLE)
    found = bench.state
    assert in_a_killed_process(bench, 1, False, lambda: bench.applied(PAIR)) == -signal.SIGKILL
    [journal] = bench.journals
    assert bench.state == found and journal.stat().st_mode & 0o777 == 0o600


def test_a_journal_that_cannot_be_written_changes_nothing(bench, monkeypatch):
    bench.fill(IDLE)
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(bench.folder / "not there"))
    with pytest.raises(OSError):
        with bench.applied(PAIR):
            pass
    assert machine.changes(bench.folder) == 0


# -- evidence -------------------------------------------------------------------------------------


def report(bench: Bench, sharing, member: int, pid: int, **lies) -> Report:
    """What a member says that really runs where it is told to, but for its lies."""
    environment = {"COLLOCATION_FAKE_NVML": str(bench.folder)} | sharing.environment(member)
    seen = machine.attach(environment | lies.pop("environment", {}), pid)
    fields = ("device_uuid", "sm_count", "memory_free")
    return Report(pid, **{field: seen[field] for field in fields} | lies)


def reports_of(bench: Bench, sharing, pids: list[int]) -> dict[int, Report]:
    return {member: report(bench, sharing, member, pid) for member, pid in enumerate(pids)}


@pytest.fixture
def cell(hopper, tmp_path, short_tmp, sleepers):
    """Enters a cell, and starts a member for each of its seats."""
    with ExitStack() as stack:

        def enter(spec: dict):
            sharing = stack.enter_context(methods.enter(spec, hopper.device, tmp_path))
            pids = [sleepers() for _ in spec["members"]]
            for process in map(psutil.Process, pids):  # members end before their method does
                stack.callback(process.wait)
                stack.callback(process.kill)
            return sharing, pids

        yield enter
    assert hopper.state == ((True, True), [])


def test_members_on_their_instances_are_verified(hopper, cell):
    sharing, pids = cell(PAIR)
    first = sharing.environment(0)
    assert first["CUDA_VISIBLE_DEVICES"] != sharing.environment(1)["CUDA_VISIBLE_DEVICES"]
    assert not Path(first["CUDA_MPS_PIPE_DIRECTORY"]).exists()
    facts = json.loads(json.dumps(sharing.witness(reports_of(hopper, sharing, pids))))
    assert facts["verified"] is facts["nvml_agrees"] is True
    assert facts["layout"] == "2x 3g.71gb"
    assert facts["nvml_compute"] == sorted(pids) and facts["nvml_mps"] == []
    offers = [[0, 1, 3, 20], [1, 2, 1, 40], [2, 3, 1, 60]]  # id, slices, how many, SMs
    assert facts["compute_profiles"] == {"3g.71gb": offers}
    place = {"gpu_instance": sharing.seat(1).instance.id, "compute_instance": 0}
    place |= {"mig_uuid": sharing.environment(1)["CUDA_VISIBLE_DEVICES"], "placement": "4:4"}
    size = {"memory_mib": 71424, "sm_planned": 60, "sm_reported": 60, "profile": "3g.71gb"}
    assert facts["members"]["1"] == {"pid": pids[1]} | place | size
    sharing.release(pids[0])  # a plain process: nothing to do
    assert sharing.witness({})["verified"] is None  # nobody is left


def test_members_in_the_parts_of_one_instance_are_told_apart(hopper, cell):
    sharing, pids = cell(alike(2, "mig_shared"))
    reports = reports_of(hopper, sharing, pids)
    facts = sharing.witness(reports)
    assert facts["layout"] == "2x 3c in 7g.141gb"
    assert [facts["members"][m]["compute_instance"] for m in (0, 1)] == [0, 1]
    assert facts["nvml_agrees"] is True
    there = driver.Card(hopper.folder).processes()
    machine.occupy(hopper.folder, pids[1], there[pids[0]]["place"])
    with pytest.raises(NotInForce, match=r"member 1 .* another instance than 1/1 .*: 1/0$"):
        sharing.witness(reports)


def test_lies_about_the_instance_are_caught(hopper, cell):
    sharing, pids = cell(PAIR)
    mine, other = (sharing.environment(member)["CUDA_VISIBLE_DEVICES"] for member in (0, 1))
    honest = report(hopper, sharing, 0, pids[0])
    who, card = rf"^mig: member 1 \(PID {pids[1]}\) ", hopper.device.uuid
    elsewhere = report(hopper, sharing, 1, pids[1], environment={"CUDA_VISIBLE_DEVICES": mine})
    with pytest.raises(NotInForce, match=rf"{who}runs on {mine}, not on {other}$"):
        sharing.witness({0: honest, 1: elsewhere})
    swapped = Report(pids[1], other, 60, None)  # says it is on its own, and is not
    with pytest.raises(NotInForce, match=r"NVML lists member 1 .* on another instance than 2/0 "):
        sharing.witness({0: honest, 1: swapped})
    for lie, sentence in (
        ({"device_uuid": card}, f"runs on {card}, not on {other}"),
        ({"device_uuid": None}, f"did not say which device it runs on; {other} was planned"),
        ({"sm_count": 132}, rf"can use 132 SMs; its instance 3g\.71gb \({other}\) has 60"),
    ):
        lying = report(hopper, sharing, 1, pids[1], **lie)
        with pytest.raises(NotInForce, match=f"{who}{sentence}$"):
            sharing.witness({0: honest, 1: lying})
    silent = report(hopper, sharing, 1, pids[1], sm_count=None)
    assert sharing.witness({0: honest, 1: silent})["verified"] is None


def test_a_member_that_nvml_does_not_list_and_a_stranger_are_named(hopper, cell, stranger):
    sharing, pids = cell(PAIR)
    reports = reports_of(hopper, sharing, pids)
    place = hopper.folder / "processes" / str(pids[1])
    content = place.read_text()
    place.unlink()
    with pytest.raises(NotInForce, match=r"^mig: member 1 .* is not among NVML's processes"):
        sharing.witness(reports)
    machine.configure(hopper.folder, host_pids=2**22)  # as in a container: it cannot be told
    facts = sharing.witness(reports)
    assert (facts["verified"], facts["nvml_agrees"]) == (True, None)
    machine.configure(hopper.folder, host_pids=0)
    place.write_text(content)
    machine.occupy(hopper.folder, stranger, sharing.seat(0).compute.uuid)
    with pytest.raises(GpuBusy, match=rf"others compute on it: PID {stranger} "):
        sharing.witness(reports)
    (hopper.folder / "processes" / str(stranger)).unlink()
    machine.occupy(hopper.folder, pids[0], sharing.seat(0).compute.uuid, "mps")
    with pytest.raises(NotInForce, match=r"^mig: NVML lists MPS clients on the card: member 0 "):
        sharing.witness(reports)


def test_a_layout_that_somebody_changed_in_the_cell_is_no_evidence(hopper, cell):
    sharing, pids = cell(alike(3))
    reports = reports_of(hopper, sharing, pids)
    make(hopper.device, 19, 6, 1)
    said = "3x 2g.35gb was applied on NVIDIA H200, and somebody has changed that: there is MIG mode"
    with pytest.raises(NotInForce, match=said):
        sharing.witness(reports)
    for found in mig_nvml.instances(hopper.device):
        if found.profile == 19:
            mig_nvml.destroy(hopper.device, found)
    assert sharing.witness(reports)["verified"] is True


def test_mps_inside_mig_has_a_daemon_for_each_instance(hopper, cell, tmp_path):
    sharing, pids = cell(alike(5, "mig_mps"))
    environments = [sharing.environment(member) for member in range(5)]
    pipes = [environment["CUDA_MPS_PIPE_DIRECTORY"] for environment in environments]
    devices = [environment["CUDA_VISIBLE_DEVICES"] for environment in environments]
    assert len(set(pipes)) == len(set(devices)) == 2
    assert pipes[0] == pipes[2] == pipes[4] and devices[1] == devices[3] != devices[0]
    # One daemon never had a client, which says nothing of the other's.
    first = {member: report(hopper, sharing, member, pids[member]) for member in (0, 2)}
    facts = sharing.witness(first)
    assert facts["verified"] is True and list(facts["mps"]) == [devices[0]]
    nowhere = {"CUDA_MPS_PIPE_DIRECTORY": str(hopper.folder)}
    outside = report(hopper, sharing, 4, pids[4], environment=nowhere)
    with pytest.raises(NotInForce, match=r"^MPS: member 4 .* is not among server \d+'s clients"):
        sharing.witness(first | {4: outside})
    reports = reports_of(hopper, sharing, pids)
    facts = json.loads(json.dumps(sharing.witness(reports)))
    assert facts["verified"] is facts["nvml_agrees"] is True
    assert facts["layout"] == "2x 3g.71gb"
    assert sorted(facts["nvml_mps"]) == sorted(pids)
    clients = {uuid: served["clients"] for uuid, served in facts["mps"].items()}
    assert clients == {devices[0]: sorted(pids[0::2]), devices[1]: sorted(pids[1::2])}
    assert len({served["server"] for served in facts["mps"].values()}) == 2
    assert sorted(path.name for path in (tmp_path / "mps").iterdir()) == ["0", "1"]
    sharing.release(pids[1])
    left = [len(list(Path(pipes[member], "clients").iterdir())) for member in (0, 1)]
    assert left == [3, 1]
    limited = report(hopper, sharing, 2, pids[2], sm_count=12)
    with pytest.raises(NotInForce, match=r"^mig_mps: member 2 .* can use 12 SMs; its instance"):
        sharing.witness({2: limited})


# -- what is refused beforehand -------------------------------------------------------------------


def test_refusals_come_in_order(hopper, short_tmp, monkeypatch):
    assert "does not fit" in methods.refusal(alike(8), hopper.device)
    monkeypatch.setenv("PATH", "")
    assert methods.refusal(alike(3, "mig_mps"), hopper.device).endswith(f"not on PATH{MARK}")
    with benches("h200_141", mig=False) as off:
        assert "does not fit" in methods.refusal(alike(8), off.device, switch=True)
        with pytest.raises(Unsupported, match="does not fit"):
            with base.METHODS["mig"].enter(alike(8), off.device, Path(short_tmp), switch=True):
                pass
    assert machine.changes(hopper.folder) == 0
