"""What tells what a GPU does: GPM, DCGM and plain NVML, on the stand-ins of tests/fakes."""

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import psutil
import pynvml
import pytest

from tests.fakes import activity, driver, machine
from tests.test_processes import assert_gone
from workflow.collocation.telemetry import dcgm, gpm, nvml, sampler
from workflow.collocation.telemetry.metrics import METRICS, Unavailable

BY_NAME = {metric.name: metric for metric in METRICS}
ROOT = machine.REPOSITORY
LOST, UNKNOWN, UNSUPPORTED = 15, 999, 3  # as NVML_ERROR_… in nvidia-ml-py
HOUR_MS = 3_600_000
BUSY = {"gract": 0.9, "smact": 0.5, "smocc": 0.25, "tenso": 0.4, "drama": 0.3, "pcie_tx": 1e9}
BUSY |= {"nvlink_rx": 2e9, "ctxsw_active": 0.02, "ctxsw_requests": 500.0}


def never(call: str, error: int = UNSUPPORTED) -> dict:
    """Settings of a card of which a call always fails."""
    return {"failures": [{"call": call, "at": 1, "error": error, "on": True}]}


class Machine:
    """The stand-in's machine as this process sees it."""

    def __init__(self, folder: Path, uuid: str):
        self.folder, self.uuid = folder, uuid

    def set(self, **settings) -> None:
        machine.configure(self.folder, **settings)

    def does(self, entity: str = "gpu", **values) -> None:
        machine.does(self.folder, entity, **values)

    def fail(self, call: str, **how) -> None:
        machine.fail(self.folder, call, **how)

    @property
    def state(self) -> dict:
        return driver.Card(self.folder).peek()

    @property
    def buffers(self) -> int:
        """GPM samples that are allocated."""
        return len(pynvml.nvmlLib.samples)

    def split(self, *places: tuple[int, int, int]) -> list[str]:
        """Make GPU instances of (profile, start, size), each with all its SMs; gives entities."""
        card = pynvml.nvmlDeviceGetHandleByUUID(self.uuid)
        entities = []
        for profile, start, size in places:
            place = pynvml.c_nvmlGpuInstancePlacement_t(start=start, size=size)
            made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, profile, place)
            entities.append(f"gi:{pynvml.nvmlGpuInstanceGetInfo(made).id}")
        return entities


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr(gpm, "FIRST_S", 0.16)
    monkeypatch.setattr(gpm, "LEAST_NS", 0)
    monkeypatch.setattr(dcgm, "FIRST_S", 10.0)  # the stand-in is a Python to be started
    monkeypatch.setattr(dcgm, "ASK_S", 10.0)


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes the machine that this process sees: `make("a30", mig=True, ...)`."""
    with ExitStack() as stack:

        def make(card: str = "h200_141", **options) -> Machine:
            folder = tmp_path / "machine"
            environment = machine.create(folder, card, **options)
            monkeypatch.setenv("COLLOCATION_FAKE_NVML", environment["COLLOCATION_FAKE_NVML"])
            monkeypatch.setenv("PATH", environment["PATH"])
            stack.enter_context(machine.installed(folder))
            pynvml.nvmlInit()
            return Machine(folder, machine.UUID)

        yield make


@pytest.fixture
def h200(make) -> Machine:
    return make()


@pytest.fixture
def a100(make) -> Machine:
    """Without GPM; its DCGM host engine runs."""
    return make("a100_40", dcgm={})


def opened(source_type, uuid: str, entities: list[str]):
    return closing(source_type(uuid, entities))


def await_rows(source, entities: int = 1) -> dict:
    """The first rows of so many entities."""
    rows = {}
    for _ in range(100):
        rows |= source.tick()
        if len(rows) == entities:
            return rows
        time.sleep(0.05)
    raise AssertionError("no rows")


GPM_IDS = {"gract": "GRAPHICS_UTIL", "smact": "SM_UTIL", "smocc": "SM_OCCUPANCY"}
GPM_IDS |= {"tenso": "ANY_TENSOR_UTIL", "drama": "DRAM_BW_UTIL", "integer": "INTEGER_UTIL"}
GPM_IDS |= {f"fp{bits}": f"FP{bits}_UTIL" for bits in (16, 32, 64)}
for way in ("tx", "rx"):
    GPM_IDS[f"pcie_{way}"] = f"PCIE_{way.upper()}_PER_SEC"
    GPM_IDS[f"nvlink_{way}"] = f"NVLINK_TOTAL_{way.upper()}_PER_SEC"
GPM_IDS |= {"ctxsw_active": "GR0_CTXSW_ACTIVE_PCT", "ctxsw_requests": "GR0_CTXSW_REQUESTS"}


def test_gpm_ids_are_those_of_nvidia_ml_py():
    ids = {name: getattr(pynvml, f"NVML_GPM_METRIC_{word}") for name, word in GPM_IDS.items()}
    assert {metric.name: metric.gpm for metric in METRICS if metric.gpm} == ids


# -- GPM ------------------------------------------------------------------------------------------


@pytest.fixture
def exact(monkeypatch):
    """Samples bear the time at which the card took them, not that at which the call came back."""
    clock = SimpleNamespace(monotonic_ns=lambda: sampled()[-1], sleep=time.sleep)
    monkeypatch.setattr(gpm, "time", clock)


def test_gpm_rates_are_what_the_card_did_since_the_tick_before(h200, exact):
    h200.does(**BUSY)
    with opened(gpm.Gpm, h200.uuid, ["gpu"]) as source:
        assert source.tick() == {}
        time.sleep(0.01)
        rates = source.tick()["gpu"]
        assert set(rates) == {metric.name for metric in METRICS if metric.gpm}
        assert rates == pytest.approx({n: (activity.QUIET | BUSY)[n] for n in rates})


def test_one_pair_spans_a_window_of_changing_activity(h200, exact):
    with opened(gpm.Gpm, h200.uuid, ["gpu"]) as source:
        begin = source.open()
        for gract in (1.0, 0.0, 0.5):
            h200.does(gract=gract)
            source.tick()
            time.sleep(0.02)
        span = source.span(begin, source.open())["gpu"]
        times = span["start_ns"], span["end_ns"]
        assert span["end_ns"] - span["start_ns"] > 50_000_000
        did = activity.mean(h200.state["activity"], "gract", *times)
        assert span["metrics"]["gract"] == pytest.approx(did)


def test_a_metric_that_does_not_answer_is_null_and_one_that_is_not_known_is_left_out(h200):
    h200.does(**BUSY)
    ids = {name: BY_NAME[name].gpm for name in ("tenso", "pcie_tx")}
    refused = {str(ids["pcie_tx"]): UNSUPPORTED}
    h200.set(gpm_nan=[ids["tenso"]], gpm_refused=refused, gpm_unknown=[172, 174, 60])
    with opened(gpm.Gpm, h200.uuid, ["gpu"]) as source:
        source.tick()
        rates = await_rows(source)["gpu"]
        assert rates["tenso"] is rates["pcie_tx"] is None
        assert rates["gract"] == pytest.approx(0.9)
        assert not {"ctxsw_active", "ctxsw_requests", "nvlink_rx"} & rates.keys()


@pytest.mark.parametrize("reads", ["zero", "nan"])
def test_a_pair_within_one_refresh_of_the_counters_gives_no_row(h200, monkeypatch, reads):
    monkeypatch.setattr(gpm, "DOUBT_S", 10.0)
    h200.does(**BUSY)
    with opened(gpm.Gpm, h200.uuid, ["gpu"]) as source:
        h200.set(gpm_refresh_ms=HOUR_MS, gpm_stale=reads)
        assert source.tick() == source.tick() == source.tick() == {}
        held = source.open()
        assert source.span(held, source.open()) == {}
        h200.set(gpm_refresh_ms=0)
        assert source.tick()["gpu"]["gract"] > 0
        monkeypatch.setattr(gpm, "DOUBT_S", 0.01)  # of one that was long enough, zeros are a row
        h200.does(**dict.fromkeys(BUSY, 0.0), pcie_rx=0.0)
        source.tick()
        time.sleep(0.02)
        assert set(source.tick()["gpu"].values()) == {0.0}


def sampled() -> list[int]:
    """When the samples that there are were taken."""
    return sorted(taken for taken, _ in filter(None, pynvml.nvmlLib.samples.values()))


def test_a_tick_that_is_too_early_gives_no_row_and_the_next_covers_both(h200, monkeypatch):
    with opened(gpm.Gpm, h200.uuid, ["gpu"]) as source:
        source.tick()
        h200.does(gract=1.0)
        monkeypatch.setattr(gpm, "LEAST_NS", 60 * 10**9)
        before = sampled()
        assert source.tick() == {} and sampled() == before  # it does not wait for that long
        h200.does(gract=0.0)
        monkeypatch.setattr(gpm, "LEAST_NS", 0)
        rates, [end] = source.tick()["gpu"], sampled()
        did = activity.mean(h200.state["activity"], "gract", *before, end)
        assert rates["gract"] == pytest.approx(did) and did > 0


def test_every_buffer_goes_back(h200):
    with opened(gpm.Gpm, h200.uuid, ["gpu"]) as source:
        for _ in range(5):
            source.tick()
        assert h200.buffers == 1
        held = source.open()
        assert h200.buffers == 2 and held
        del held
        assert h200.buffers == 1
    assert h200.buffers == 0


SILENT = {"gpm_nan": sorted(driver.GPM)}
NO_GPM = [
    ("a100_40", {}, "has no GPM counters"),
    ("h200_141", never("nvmlGpmQueryDeviceSupport", 13), "GPM fails"),
    ("h200_141", never("nvmlGpmSampleGet", 4), "Insufficient Permissions"),
    ("h200_141", SILENT, "gives no metric of two samples"),
]


@pytest.mark.parametrize(("card", "settings", "words"), NO_GPM)
def test_gpm_is_unavailable_with_one_line_and_nothing_left(make, card, settings, words):
    here = make(card, **settings)
    with pytest.raises(Unavailable) as raised:
        gpm.Gpm(here.uuid, ["gpu"])
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


# -- plain NVML -----------------------------------------------------------------------------------


def test_the_card_is_read_in_the_vocabularys_units(h200):
    told = {"gpu_util": 0.75, "memory_util": 0.5, "power": 412.5, "temperature": 61}
    told |= {"memory_temperature": 70, "sm_clock": 1980, "memory_clock": 3201, "throttle": 0x4}
    h200.does(**told, power_violation=0.5)
    machine.occupy(h200.folder, os.getpid())
    read = nvml.Card(h200.uuid).read()
    assert list(read) == nvml.COLUMNS
    assert set(nvml.COLUMNS) | {m.name for m in METRICS if m.gpm} == set(BY_NAME)
    grown = {name: read.pop(name) for name in ("energy", "power_violation")}
    assert all(value >= 0 for value in grown.values())
    assert read == told | {"memory_used": 500 * 2**20, "thermal_violation": 0.0}


COUNTERS = {"energy", "power_violation", "thermal_violation"}
UTILISATION = {"gpu_util", "memory_util"}
REFUSED = [
    ({}, set()),
    ({"fields_refused": [82, 186]}, {"memory_temperature"}),
    (never("nvmlDeviceGetFieldValues"), {"memory_temperature"} | COUNTERS),
    (
        {"fields_refused": [74, 75, 82, 83, 186]} | never("nvmlDeviceGetUtilizationRates"),
        {"memory_temperature"} | UTILISATION | COUNTERS,
    ),
]


@pytest.mark.parametrize(("settings", "missing"), REFUSED)
def test_what_a_card_refuses_is_null_and_power_is_told_still(h200, settings, missing):
    h200.does(power=300.0)
    h200.set(**settings)
    card = nvml.Card(h200.uuid)
    for _ in range(2):
        read = card.read()
        assert {name for name, value in read.items() if value is None} == missing
        assert read["power"] == 300.0
    assert list(read) == nvml.COLUMNS
    assert (card.energy() is None) == ("energy" in missing)


def test_what_does_not_answer_is_null_and_raises_nothing(make):
    here = make(mig=True)
    card = nvml.Card(here.uuid)
    here.fail("nvmlDeviceGetTemperature", error=UNKNOWN)
    assert [card.read()["temperature"] for _ in range(2)] == [None, 40]
    read = card.read()
    assert (read["gpu_util"], read["power"]) == (None, 80.0)  # no utilisation under MIG
    here.set(lost=True)
    assert set(card.read().values()) == {None}
    assert card.processes() == {"compute": None, "mps": None}
    assert card.energy() is None
    with pytest.raises(pynvml.NVMLError):
        nvml.Card("GPU-00000000-0000-4000-8000-000000000000")


def test_processes_come_with_their_memory(h200, monkeypatch):
    machine.occupy(h200.folder, os.getpid(), kind="mps")
    card = nvml.Card(h200.uuid)
    entry = {os.getpid(): 500 * 2**20}
    assert card.processes() == {"compute": entry, "mps": entry}
    h200.fail("nvmlDeviceGetMPSComputeRunningProcesses", error=UNSUPPORTED, on=True)
    assert card.processes() == {"compute": entry, "mps": None}
    part = SimpleNamespace(pid=7, usedGpuMemory=1000)  # a process in two parts of a card
    monkeypatch.setitem(nvml.LISTS, "compute", lambda card: [part, part])
    assert card.processes()["compute"] == {7: 2000}


# -- DCGM's engine --------------------------------------------------------------------------------


def test_rows_of_dcgm_have_the_vocabularys_names_and_units(a100):
    a100.does(**{name: value for name, value in BUSY.items() if BY_NAME[name].dcgm})
    with opened(dcgm.Dcgm, a100.uuid, ["gpu"]) as source:
        rates = await_rows(source)["gpu"]
        assert set(rates) == {metric.name for metric in METRICS if metric.dcgm}
        assert rates["smact"] == 0.5
        assert rates["nvlink_rx"] == 2e9
        assert source.span(source.open(), source.open()) == {}
        dmon = source._child.pid
    assert not psutil.pid_exists(dmon)


def test_instances_are_found_by_nvmls_ids(make):
    a100 = make("a100_40", mig=True, dcgm={"blank": [1011, 1012], "unsupported": [1006]})
    first, second = a100.split((9, 0, 4), (14, 4, 2))
    a100.does(first, smact=1.0, pcie_tx=1e6)
    a100.does(second, smact=0.25)
    with opened(dcgm.Dcgm, a100.uuid, ["gpu", first, second]) as source:
        rates = await_rows(source, 3)
        smact = {entity: rates[entity]["smact"] for entity in rates}
        assert smact == {"gpu": 0.0, first: 1.0, second: 0.25}
        assert not {"pcie_tx", "nvlink_tx"} & rates[first].keys()  # DCGM has none of instances
        assert "fp64" not in rates[first] and rates[first]["integer"] == 0.0  # nor the card of this
    with pytest.raises(Unavailable, match="the host engine does not list .* with gpu, gi:99"):
        dcgm.Dcgm(a100.uuid, ["gpu", "gi:99"])


def test_rows_since_the_tick_before_are_averaged(a100):
    with opened(dcgm.Dcgm, a100.uuid, ["gpu"]) as source:
        for smact in (1.0, 0.0):
            a100.does(smact=smact)
            time.sleep(0.5)
        assert 0 < source.tick()["gpu"]["smact"] < 1


NO_DCGM = [
    (None, machine.UUID, "Unable to connect to host engine"),
    ({"hangs": "discovery"}, machine.UUID, "did not answer within 0.3 s"),
    ({}, "GPU-other", "does not list GPU-other"),
    ({"unsupported": [*range(1001, 1017)]}, machine.UUID, "lists no profiling fields"),
    ("no dcgmi", machine.UUID, "there is no dcgmi on PATH"),
]


@pytest.mark.parametrize(("engine", "uuid", "words"), NO_DCGM)
def test_dcgm_is_unavailable_with_one_line(make, monkeypatch, engine, uuid, words):
    if engine == "no dcgmi":
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        make("a100_40", dcgm=engine)
    if engine and "hangs" in engine:
        monkeypatch.setattr(dcgm, "ASK_S", 0.3)
    with pytest.raises(Unavailable) as raised:
        dcgm.Dcgm(uuid, ["gpu"])
    assert words in str(raised.value) and "\n" not in str(raised.value)


ORPHANED = """
import sys, time
from workflow.collocation.telemetry.dcgm import Dcgm
print(Dcgm(sys.argv[1], ["gpu"])._child.pid, flush=True)
time.sleep(60)
"""


def test_dcgmi_does_not_outlive_a_killed_sampler(a100):
    command = [sys.executable, "-c", ORPHANED, a100.uuid]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as sampler:
        dmon = int(sampler.stdout.readline())
        sampler.kill()
    assert_gone(dmon)


# -- the choice -----------------------------------------------------------------------------------

ENGINE, ALL_THERE_IS = {"dcgm": {}}, "plain NVML is all there is"
CHOICES = [
    ("h200_141", {}, "auto", "gpm", "gpm answers"),
    ("a100_40", ENGINE, "auto", "dcgm", "dcgm answers; not gpm: the card has no GPM counters .*"),
    (
        "a30",
        {},
        "auto",
        "nvml",
        f"{ALL_THERE_IS}; not gpm: .*; not dcgm: dcgmi discovery failed: .*",
    ),
    ("h200_141", ENGINE | SILENT, "auto", "dcgm", "dcgm answers; not gpm: GPM gives no metric .*"),
    ("h200_141", ENGINE, "dcgm", "dcgm", "dcgm answers"),
    ("h200_141", ENGINE, "nvml", "nvml", "plain NVML was asked for"),
    ("a30", {}, "gpm", None, "telemetry source gpm: the card has no GPM counters .*"),
    ("a30", {}, "dcgm", None, "telemetry source dcgm: dcgmi discovery failed: Error: Unable .*"),
]


@pytest.mark.parametrize(("card", "settings", "wanted", "chosen", "why"), CHOICES)
def test_the_best_source_that_answers_is_chosen_and_why_is_said_in_one_line(
    make, card, settings, wanted, chosen, why
):
    """chosen: None where what was asked for cannot be."""
    here, found = make(card, **settings), None
    try:
        source, said = sampler.open_source(here.uuid, ["gpu"], wanted)
        found = source.name if source else "nvml"
        if source:
            source.close()
    except Unavailable as error:
        said = str(error)
    assert found == chosen and re.fullmatch(why, said)
