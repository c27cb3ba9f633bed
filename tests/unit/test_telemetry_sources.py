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

from tests.cell.test_processes import assert_gone
from tests.fakes import activity, driver, machine
from workflow.collocation.telemetry import dcgm, gpm, nvml, sources
from workflow.collocation.telemetry.base import Unavailable

BY_NAME = {metric.name: metric for metric in sources.GPU_METRICS}
NVML_NAMES = [metric.name for metric in nvml.METRICS]
UNKNOWN, UNSUPPORTED = 999, 3  # as NVML_ERROR_… in nvidia-ml-py
BUSY = {"gract": 0.9, "smact": 0.5, "smocc": 0.25, "tenso": 0.4, "drama": 0.3, "pcie_tx": 1e9}
BUSY |= {"nvlink_rx": 2e9}
ENGINE, NO_VALUE = {"dcgm": {}}, {"gpm_nan": sorted(driver.GPM)}


def never(call: str, error: int = UNSUPPORTED) -> dict:
    """Settings of a card of which a call always fails."""
    return {"failures": [{"call": call, "at": 1, "error": error, "on": True}]}


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr(gpm, "LEAST_NS", 0)
    monkeypatch.setattr(dcgm, "FIRST_S", 10.0)  # the stand-in is a Python to be started


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes the machine that this process sees, `make("a30", mig=True, ...)`; gives its folder."""
    with ExitStack() as stack:

        def make(card: str = "h200_141", **options) -> Path:
            folder = tmp_path / "machine"
            for name, value in machine.create(folder, card, **options).items():
                monkeypatch.setenv(name, value)
            stack.enter_context(machine.installed(folder))
            pynvml.nvmlInit()
            return folder

        yield make


@pytest.fixture
def h200(make) -> Path:
    return make()


def opened(source_type, entities=("gpu",)):
    return closing(source_type(machine.UUID, list(entities)))


def await_rows(source, entities: int = 1) -> dict:
    """The first rows of so many entities."""
    rows = {}
    for _ in range(100):
        rows |= source.read_rates()
        if len(rows) == entities:
            return rows
        time.sleep(0.05)
    raise AssertionError("no rows")


# -- GPM ------------------------------------------------------------------------------------------

GPM_IDS = {"gract": "GRAPHICS_UTIL", "smact": "SM_UTIL", "smocc": "SM_OCCUPANCY"}
GPM_IDS |= {"tenso": "ANY_TENSOR_UTIL", "drama": "DRAM_BW_UTIL", "integer": "INTEGER_UTIL"}
GPM_IDS |= {f"fp{bits}": f"FP{bits}_UTIL" for bits in (16, 32, 64)}
for way in ("tx", "rx"):
    GPM_IDS[f"pcie_{way}"] = f"PCIE_{way.upper()}_PER_SEC"
    GPM_IDS[f"nvlink_{way}"] = f"NVLINK_TOTAL_{way.upper()}_PER_SEC"


def test_gpm_ids_are_those_of_nvidia_ml_py():
    ids = {name: getattr(pynvml, f"NVML_GPM_METRIC_{word}") for name, word in GPM_IDS.items()}
    assert ids == gpm.METRIC_IDS


def sampled() -> list[int]:
    """When the samples that there are were taken."""
    return sorted(taken for taken, _ in filter(None, pynvml.nvmlLib.samples.values()))


@pytest.fixture
def exact(monkeypatch):
    """Samples bear the time at which the card took them, not that at which the call came back."""
    clock = SimpleNamespace(monotonic_ns=lambda: sampled()[-1], sleep=time.sleep)
    monkeypatch.setattr(gpm, "time", clock)


def test_gpm_rates_and_spans_are_what_the_card_did_and_no_buffer_is_left(h200, exact):
    machine.does(h200, **BUSY)
    with opened(gpm.Gpm) as source:
        assert source.read_rates() == {}
        time.sleep(0.01)
        rates = source.read_rates()["gpu"]
        assert set(rates) == set(gpm.METRIC_IDS)
        assert rates == pytest.approx({n: (activity.QUIET | BUSY)[n] for n in rates})
        begin = source.sample()
        for gract in (1.0, 0.0, 0.5):
            machine.does(h200, gract=gract)
            source.read_rates()
            time.sleep(0.02)
        span = source.rates_between(begin, source.sample())["gpu"]
        times = span["start_ns"], span["end_ns"]
        did = activity.mean(driver.Card(h200).peek()["activity"], "gract", *times)
        assert span["v"]["gract"] == pytest.approx(did) and times[1] - times[0] > 50_000_000
        del begin
        assert len(pynvml.nvmlLib.samples) == 1  # the last tick's
    assert not pynvml.nvmlLib.samples


def test_a_metric_that_does_not_answer_is_null(h200):
    machine.does(h200, **BUSY)
    ids = {name: gpm.METRIC_IDS[name] for name in ("tenso", "pcie_tx")}
    refused = {str(ids["pcie_tx"]): UNSUPPORTED}
    machine.configure(h200, gpm_nan=[ids["tenso"]], gpm_refused=refused)
    with opened(gpm.Gpm) as source:
        source.read_rates()
        rates = await_rows(source)["gpu"]
        assert rates["tenso"] is rates["pcie_tx"] is None
        assert rates["gract"] == pytest.approx(0.9)


@pytest.mark.parametrize("reads", ["zero", "nan"])
def test_a_pair_within_one_refresh_of_the_counters_gives_no_row(h200, monkeypatch, reads):
    monkeypatch.setattr(gpm, "DOUBT_S", 10.0)
    machine.does(h200, **BUSY)
    with opened(gpm.Gpm) as source:
        machine.configure(h200, gpm_refresh_ms=3_600_000, gpm_stale=reads)
        assert source.read_rates() == {}
        kept = [*pynvml.nvmlLib.samples]
        assert (
            source.read_rates() == source.read_rates() == {} and [*pynvml.nvmlLib.samples] == kept
        )
        assert source.rates_between(source.sample(), source.sample()) == {}
        machine.configure(h200, gpm_refresh_ms=0)
        assert source.read_rates()["gpu"]["gract"] > 0
        monkeypatch.setattr(gpm, "DOUBT_S", 0.01)  # of one that was long enough, zeros are a row
        machine.does(h200, **dict.fromkeys(BUSY, 0.0), pcie_rx=0.0)
        source.read_rates()
        time.sleep(0.02)
        assert set(source.read_rates()["gpu"].values()) == {0.0}


def test_a_tick_that_is_too_early_gives_no_row_and_the_next_covers_both(h200, monkeypatch):
    with opened(gpm.Gpm) as source:
        source.read_rates()
        machine.does(h200, gract=1.0)
        monkeypatch.setattr(gpm, "LEAST_NS", 60 * 10**9)
        before = sampled()
        assert source.read_rates() == {} and sampled() == before
        machine.does(h200, gract=0.0)
        monkeypatch.setattr(gpm, "LEAST_NS", 0)
        rates, [end] = source.read_rates()["gpu"], sampled()
        did = activity.mean(driver.Card(h200).peek()["activity"], "gract", *before, end)
        assert rates["gract"] == pytest.approx(did) and did > 0


# -- plain NVML -----------------------------------------------------------------------------------

TOLD = {"gpu_util": 0.75, "memory_util": 0.5, "power": 412.5, "temperature": 61}
TOLD |= {"sm_clock": 1980, "memory_clock": 3201, "throttle": 0x4}
OLD = {"fields_refused": [83, 186]} | never("nvmlDeviceGetUtilizationRates")
REFUSED = [  # the settings of a card, and what is then missing
    ({}, set()),
    ({"fields_refused": [186]}, set()),
    (never("nvmlDeviceGetFieldValues"), {"energy"}),
    (OLD, {"gpu_util", "memory_util", "energy"}),
    ({"lost": True}, {*NVML_NAMES}),
]


@pytest.mark.parametrize(("settings", "missing"), REFUSED)
def test_a_card_is_read_in_our_units_and_what_it_refuses_is_null(h200, settings, missing):
    machine.does(h200, **TOLD)
    machine.occupy(h200, os.getpid())
    card = nvml.NvmlCard(machine.UUID)
    machine.configure(h200, **settings)
    read = card.read_values()
    assert [*read] == NVML_NAMES and {*read} | {*GPM_IDS} == {*BY_NAME}
    assert {name for name, value in read.items() if value is None} == missing
    assert (card.energy() is None) == ("energy" in missing)
    if not missing:  # of a counter, what it grows by
        began = time.monotonic()
        time.sleep(0.05)
        grown, seconds = card.read_values(), time.monotonic() - began
        assert 0 < grown["energy"] - read["energy"] < 2 * 412.5 * (seconds + 0.1)
    expected = TOLD | {"memory_used": 500 * 2**20}
    assert {n: read[n] for n in expected if n not in missing} == {
        n: value for n, value in expected.items() if n not in missing
    }


def test_a_reading_asks_the_driver_nothing_twice(h200, monkeypatch):
    """Each call goes to the driver, ten times a second."""
    card, asked = nvml.NvmlCard(machine.UUID), []

    def recorded(name: str, call):
        return lambda *arguments: asked.append((name, *map(str, arguments))) or call(*arguments)

    for name in [name for name in dir(pynvml) if name.startswith("nvmlDeviceGet")]:
        monkeypatch.setattr(pynvml, name, recorded(name, getattr(pynvml, name)))
    card.read_values()
    assert len(asked) == len(set(asked)) == 7


def test_processes_come_with_their_memory(h200, monkeypatch):
    machine.occupy(h200, os.getpid(), kind="mps")
    card = nvml.NvmlCard(machine.UUID)
    entry = {os.getpid(): 500 * 2**20}
    assert card.processes() == {"compute": entry, "mps": entry}
    machine.configure(h200, **never("nvmlDeviceGetMPSComputeRunningProcesses"))
    assert card.processes() == {"compute": entry, "mps": None}
    part = SimpleNamespace(pid=7, usedGpuMemory=1000)  # a process in two parts of a card
    listing = "nvmlDeviceGetComputeRunningProcesses"
    monkeypatch.setattr(pynvml, listing, lambda card: [part, part])
    assert card.processes()["compute"] == {7: 2000}


# -- DCGM -----------------------------------------------------------------------------------------


def test_rows_of_dcgm_have_our_names_and_are_means_since_the_tick_before(make):
    a100 = make("a100_40", **ENGINE)
    machine.does(a100, **BUSY)
    before = set(psutil.Process().children())  # of other tests
    with opened(dcgm.Dcgm) as source:
        rates = await_rows(source)["gpu"]
        assert set(rates) == set(dcgm.FIELD_IDS)
        assert (rates["smact"], rates["nvlink_rx"]) == (0.5, 2e9)
        assert source.rates_between(source.sample(), source.sample()) == {}
        for smact in (1.0, 0.0):
            machine.does(a100, smact=smact)
            time.sleep(0.5)
        assert 0 < source.read_rates()["gpu"]["smact"] < 1
        [dmon] = set(psutil.Process().children()) - before
    assert not dmon.is_running()


def test_instances_are_found_by_nvmls_ids(make):
    a100 = make("a100_40", mig=True, dcgm={"blank": [1011, 1012], "unsupported": [1006]})
    card, entities = pynvml.nvmlDeviceGetHandleByUUID(machine.UUID), []
    for profile, start, size in ((9, 0, 4), (14, 4, 2)):
        place = pynvml.c_nvmlGpuInstancePlacement_t(start=start, size=size)
        made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, profile, place)
        entities.append(f"gi:{pynvml.nvmlGpuInstanceGetInfo(made).id}")
    first, second = entities
    machine.does(a100, first, smact=1.0, pcie_tx=1e6)
    machine.does(a100, second, smact=0.25)
    with opened(dcgm.Dcgm, ["gpu", *entities]) as source:
        rates = await_rows(source, 3)
        smact = {entity: rates[entity]["smact"] for entity in rates}
        assert smact == {"gpu": 0.0, first: 1.0, second: 0.25}
        assert not {"pcie_tx", "nvlink_tx"} & rates[first].keys()  # DCGM has none of instances
        assert "fp64" not in rates[first] and rates[first]["integer"] == 0.0  # nor the card of this


def test_dcgmi_does_not_outlive_a_killed_sampler(make):
    make("a100_40", **ENGINE)
    code = f"""if True:
        import psutil, time
        from workflow.collocation.telemetry.dcgm import Dcgm
        source = Dcgm({machine.UUID!r}, ["gpu"])
        print(psutil.Process().children()[0].pid, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as dying:
        dmon = int(dying.stdout.readline())
        dying.kill()
    assert_gone(dmon)


# -- the choice -----------------------------------------------------------------------------------

NO_FIELDS, HANGS = ({"dcgm": {"unsupported": [*range(1001, 1017)]}}, {"dcgm": {"hangs": "dmon"}})
CHOICES = [  # what of a card is asked for, what is used (None: that cannot be), and why
    ("h200_141", {}, "auto", "gpm", "gpm answers"),
    ("a100_40", ENGINE, "auto", "dcgm", "dcgm answers; not gpm: the card has no GPM counters .*"),
    ("a30", {}, "auto", "nvml", "plain NVML is all .*; not gpm: .*; not dcgm: dcgmi discovery .*"),
    ("h200_141", ENGINE | NO_VALUE, "auto", "dcgm", "dcgm answers; not gpm: GPM gives no metric.*"),
    ("h200_141", ENGINE, "nvml", "nvml", "plain NVML was asked for"),
    ("a30", {}, "gpm", None, "telemetry source gpm: the card has no GPM counters .*"),
    ("h200_141", never("nvmlGpmSampleGet", 4), "gpm", None, ".*Insufficient Permissions.*"),
    ("a100_40", {"dcgm": {"hangs": "discovery"}}, "dcgm", None, ".*did not answer within 1 s"),
    ("a100_40", HANGS, "dcgm", None, ".*dcgmi dmon gives no value .*"),
    ("a100_40", NO_FIELDS, "dcgm", None, ".*lists no profiling fields of the card"),
]


@pytest.mark.parametrize(("card", "settings", "wanted", "chosen", "why"), CHOICES)
def test_the_best_source_that_answers_is_chosen_and_why_is_said_in_one_line(
    make, monkeypatch, card, settings, wanted, chosen, why
):
    make(card, **settings)
    monkeypatch.setattr(dcgm, "ASK_S", 10.0 if chosen else 1.0)
    monkeypatch.setattr(dcgm, "FIRST_S", 10.0 if chosen else 0.1)
    found = None
    try:
        source, said = sources.choose_source(machine.UUID, ["gpu"], wanted)
        found = source.name if source else "nvml"
        if source:
            source.close()
    except Unavailable as error:
        said = str(error)
    assert found == chosen and re.fullmatch(why, said)


def test_a_machine_without_dcgmi_has_no_dcgm(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="there is no dcgmi on PATH"):
        dcgm.Dcgm(machine.UUID, ["gpu"])
