"""A cell's telemetry: from the sampler's lines to record and files, and through real cells.

The cells are run by their own command, with torch-free members, on the CPU or on the card of
tests/fakes; what the sampler itself does is tested elsewhere.
"""

import math
import signal
import subprocess
import time
import uuid
from dataclasses import replace
from functools import partial

import pyarrow.parquet as pq
import pytest

from tests.fakes import machine
from tests.studio import SHORT, STUDY, Studio, study, until, workload
from workflow.collocation.gpu.cores import Cpu, spare
from workflow.collocation.plan import jobs
from workflow.collocation.plan.session import open_session
from workflow.collocation.record.run_json import Record
from workflow.collocation.record.values import File, Window
from workflow.collocation.run import observation
from workflow.collocation.run.progress import Display
from workflow.collocation.run.task import Task
from workflow.collocation.spec.grid import expand
from workflow.collocation.spec.study import Sampling, Study
from workflow.collocation.spec.workloads import VisionWorkload
from workflow.collocation.telemetry import files
from workflow.collocation.telemetry.lines import Lines
from workflow.collocation.telemetry.series import Series
from workflow.collocation.telemetry.summary import Facts, Summary
from workflow.collocation.telemetry.vocabulary import METRICS

S = 1_000_000_000
OPEN, CLOSE = 2 * S, 12 * S
WINDOW = Window(name="window", start_ns=OPEN, end_ns=CLOSE, seconds=10.0)
GPU = Facts(gpu=True, sm_count=132, own=frozenset({7}), seats={0: "gpu"})
RATES = {"gract": 0.9, "smact": 0.5, "tenso": 0.25}
IDLE, BUSY = {"power": 80.0, "temperature": 30}, {"power": 300.0, "temperature": 60}
SAMPLER = "workflow.collocation.telemetry.sampler"


def mark(t: float, name: str, joules: float | None = None) -> dict:
    t = int(t * S)
    return {"t": t, "name": name, "energy": None if joules is None else [t, joules], "card": None}


def watched(
    hz: float = 10, source: str | None = "gpm", entities: tuple[str, ...] = ("gpu",)
) -> Lines:
    """13 s of a card that idles for 1 s and then is busy; a window from 2 s to 12 s."""
    lines = Lines(head={"source": source, "why": "a test", "hz": hz, "slow_hz": 2.0})
    took = {"p50": 1, "p95": 2, "max": 3}
    lines.end = {"ticks": 130, "skipped": 1, "cpu_s": 0.4, "tick_ms": took}
    for index in range(int(13 * hz)):
        t = int(index * S / hz)
        gauges = (IDLE if t < S else BUSY) | {"power_violation": t / S / 10, "throttle": 0}
        rates = RATES if source == "gpm" and index else {}
        for entity in entities:
            own = gauges if entity == "gpu" else {}
            lines.gpu.append({"t": t, "e": entity, "v": own | rates})
    for index in range(26):
        t = index * S // 2
        rate = None if index == 0 else 1.5
        lines.host.append({"t": t, "v": {"cpu_busy": rate, "memory_used": 100, "load1": None}})
        values = {"cpu": rate, "rss": 5, "read": None, "gpu_memory": 9}
        lines.members.append({"t": t, "m": 0, "v": values})
    lines.phases = [(0, "idle"), (S, "build"), (3 * S // 2, "window")]
    lines.marks = [mark(2.02, "window:open", 1000.0), mark(12.06, "window:close", 4012.0)]
    for entity in entities if source == "gpm" else ():
        span = {"name": "window", "e": entity, "start_ns": OPEN, "end_ns": CLOSE, "v": dict(RATES)}
        lines.spans.append(span)
    lines.seen = [{"t": 0, "compute": [], "mps": []}, {"t": S, "compute": [7], "mps": []}]
    return lines


def told(lines: Lines, facts: Facts = GPU, windows=(WINDOW,)):
    """Telemetry and flags; what they give is a valid record's."""
    telemetry, flags = Summary(lines, list(windows), facts).telemetry()
    type(telemetry).model_validate(telemetry.model_dump())
    return telemetry, flags


# -- rows ------------------------------------------------------------------------------------------


def rows(*values, every: int = S) -> list[dict]:
    return [{"t": index * every, "v": {"x": value}} for index, value in enumerate(values)]


def test_a_rate_counts_for_as_long_as_it_is_a_mean_over():
    series = Series(rows(None, 1.0, 2.0, None, 3.0), ["x"])  # the last one covers two seconds
    assert series.rate("x", 0, 4 * S) == pytest.approx((1 + 2 + 3 * 2) / 4)
    assert series.rate("x", S // 2, 3 * S // 2) == pytest.approx(1.5)
    assert series.rate("x", 0, 8 * S) == pytest.approx(9 / 4)
    assert series.rate("x", 0, 8 * S, known=0.9) is None


def test_a_reading_is_integrated_between_its_neighbours():
    series = Series(rows(0.0, 10.0, 10.0, None, 30.0))
    assert series.integral("x", 0, 4 * S) == pytest.approx(5 + 10 + 40)
    assert series.integral("x", S // 2, S) == pytest.approx((5 + 10) / 2 / 2)
    assert series.growth("x", 0, 3 * S) == pytest.approx(20)


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        ([0, 1, 2, 3, 4, 5], 1.0),
        ([0, 5], 5.0),  # none inside: the two around it
        ([2], 2.0),  # to the window's ends
        ([], math.inf),
        ([4], math.inf),
        ([-9, 1, 2, 3, 9], 1.0),
    ],
)
def test_the_longest_time_without_a_row(times, gap):
    series = Series({"t": t * S, "v": {}} for t in times)
    assert series.longest_gap(S // 2, 4 * S) == pytest.approx(gap)


# -- values of a window ----------------------------------------------------------------------------


def test_headlines_come_from_the_pair_and_the_series_stands_beside():
    lines = watched()
    lines.spans[0]["v"] |= {"gract": 0.905, "drama": None, "smocc": None}
    telemetry, flags = told(lines)
    window = telemetry.windows["window"]
    headline, series = window.entities["gpu"], window.series["gpu"]
    assert (telemetry.status, telemetry.reason, flags) == ("complete", None, [])
    assert (telemetry.source, telemetry.hz, window.seconds) == ("gpm", 10, 10.0)
    assert (headline["gract"], headline["smact"]) == (0.905, 0.5)
    assert series["gract"] == pytest.approx(0.9)
    assert headline["drama"] is headline["smocc"] is headline["fp64"] is None
    assert headline["power"] == series["power"] == pytest.approx(300)
    assert headline["power_violation"] == pytest.approx(1.0)
    assert "energy" not in headline and "throttle" not in headline  # they stand elsewhere
    assert telemetry.idle == {"seconds": 1.0} | dict.fromkeys(("sm_clock", "memory_used")) | IDLE
    account = {"ticks": 130, "skipped": 1, "longest_gap_s": pytest.approx(0.1), "cpu_s": 0.4}
    account |= {"tick_ms_p50": 1, "tick_ms_p95": 2, "tick_ms_max": 3}
    assert telemetry.sampler.model_dump() == account


@pytest.mark.parametrize(("source", "smact"), [("dcgm", 0.4), ("nvml", None)])
def test_without_a_pair_the_mean_of_the_series_is_the_headline(source, smact):
    lines = watched(source=source)
    for row in lines.gpu:
        row["v"] |= {"smact": smact}
    telemetry, flags = told(lines)
    values = telemetry.windows["window"].entities["gpu"]
    assert (telemetry.source, telemetry.status, flags) == (source, "complete", [])
    assert values["smact"] == (smact and pytest.approx(smact)) and values["temperature"] == 60


def test_of_slices_only_rows_count_that_lie_in_them():
    """Two sides in turns of a second, of which the first 0.1 s does not count."""
    lines = watched()
    for row in lines.gpu:
        busy = (row["t"] - S // 10) // S % 2  # what a rate is a mean over, since the row before
        row["v"] |= {"gract": 0.25 + busy / 2, "power": 100.0 + 200 * (row["t"] // S % 2)}
    spans = [(t * S + S // 10, (t + 1) * S) for t in range(2, 12)]
    windows = [
        Window(name=n, start_ns=s[0][0], end_ns=s[-1][1], seconds=4.5, members=[m], spans=s)
        for m, (n, s) in enumerate({"alone": spans[::2], "naive": spans[1::2]}.items())
    ]
    telemetry, flags = told(lines, windows=windows)
    assert (telemetry.reason, flags) == (None, [])
    alone, naive = telemetry.windows["alone"], telemetry.windows["naive"]
    assert [w.entities["gpu"]["gract"] for w in (alone, naive)] == [0.25, 0.75]
    assert [w.entities["gpu"]["power"] for w in (alone, naive)] == [100, 300]
    assert alone.energy is naive.energy is None  # the counter is of both
    assert list(alone.members) == ["0"] and naive.members == {}


def test_a_member_that_has_left_is_not_in_the_window_after():
    lines = watched()
    lines.members = [row for row in lines.members if row["t"] <= 6 * S]
    before = Window(name="before", start_ns=OPEN, end_ns=6 * S, seconds=4.0)
    after = Window(name="after", start_ns=7 * S, end_ns=CLOSE, seconds=5.0)
    found = told(lines, windows=(before, after))[0].windows
    used = {"cpu": 1.5, "read": None, "write": None, "rss": 5, "gpu_memory": 9, "entity": "gpu"}
    assert (found["before"].members, found["after"].members) == ({"0": used}, {})
    host = found["after"].host
    assert (host["cpu_busy"], host["memory_used"], host["load1"]) == (1.5, 100, None)


# -- checks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "pair", "apart"),  # smact is 0.5 by the series, of the last two it knows nothing
    [("smact", 0.509, 0), ("smact", 0.511, 1), ("tenso", 0.24, 1)]
    + [("drama", 0.3, 0), ("fp16", 0.3, 0)],
)
def test_the_series_has_to_agree_with_the_pair(metric, pair, apart):
    lines = watched()
    lines.spans[0]["v"][metric] = pair
    telemetry, flags = told(lines)
    assert flags == ["telemetry_disagrees"] * apart
    assert [metric in said for said in telemetry.disagree] == [True] * apart


def test_small_ratios_and_short_windows_are_not_held_against_each_other():
    lines = watched()
    for row in lines.gpu:
        row["v"] |= {"drama": 0.001}
    lines.spans[0]["v"]["drama"] = 0.0025
    assert told(lines)[1] == []
    lines.spans[0]["v"] |= {"gract": 0.5}
    lines.spans[0]["end_ns"] = 3 * S
    short = Window(name="window", start_ns=OPEN, end_ns=3 * S, seconds=1.0)
    assert told(lines, windows=[short])[1] == []


def test_energy_is_the_counters_mean_power_for_the_windows_length():
    energy = told(watched())[0].windows["window"].energy
    assert energy.seconds == pytest.approx(10.04)
    assert energy.mean_power == pytest.approx(3012 / 10.04)
    assert energy.joules == pytest.approx(3000)
    assert energy.idle_joules == pytest.approx(800)
    assert energy.above_idle_joules == pytest.approx(2200)
    assert energy.integrated_joules == pytest.approx(3000)


@pytest.mark.parametrize(
    ("joules", "scatter", "apart"),
    [(3900.0, 0, True), (4130.0, 0, True), (3900.0, 60, False), (3300.0, 60, True)],
)
def test_energy_that_power_readings_contradict_is_flagged(joules, scatter, apart):
    """Of power readings that scatter 3 standard errors of the mean are allowed: 18 W, or 6 %."""
    lines = watched()
    for index, row in enumerate(lines.gpu):
        row["v"]["power"] += scatter * (-1) ** index
    lines.marks[-1] = mark(12.06, "window:close", joules)
    telemetry, flags = told(lines)
    energy = telemetry.windows["window"].energy
    assert energy.integrated_joules == pytest.approx(3000, rel=0.01)
    assert abs(energy.joules / energy.integrated_joules - 1) > 0.03
    assert flags == (["energy_disagrees"] if apart else [])
    assert apart == any("J by the GPU's counter" in said for said in telemetry.disagree)
    assert telemetry.status == "complete"


LATE, NONE = mark(12.7, "window:close", 4200.0), mark(12.01, "window:close")
FELL = mark(12.01, "window:close", 3.0)


@pytest.mark.parametrize("close", [LATE, NONE, FELL], ids=["late", "none", "fell"])
def test_energy_without_two_edges_is_missing(close):
    lines = watched()
    lines.marks[-1] = close
    telemetry, flags = told(lines)
    assert telemetry.windows["window"].energy is None and flags == []


def test_energy_without_an_idle_phase_has_no_idle_part():
    lines = watched()
    lines.gpu = [row for row in lines.gpu if row["t"] >= S]
    telemetry, _ = told(lines)
    energy = telemetry.windows["window"].energy
    assert telemetry.idle == {} and energy.joules == pytest.approx(3000)
    assert (energy.idle_joules, energy.above_idle_joules) == (None, None)


MIG = replace(GPU, instances={"gi:1": 60, "gi:2": 32})


@pytest.mark.parametrize(("card", "denominator"), [(132, 132), (None, 92)])
def test_under_mig_the_whole_card_is_weighted_by_sms(card, denominator):
    lines = watched(entities=("gpu", "gi:1", "gi:2"))
    lines.spans[1]["v"]["smact"], lines.spans[2]["v"]["smact"] = 0.8, 0.4
    for row in lines.gpu:  # of the second one the series says otherwise
        row["v"] |= {"smact": 0.8} if row["e"] == "gi:1" else {}
    lines.spans[2]["v"]["tenso"] = None
    telemetry, flags = told(lines, replace(MIG, sm_count=card))
    window = telemetry.windows["window"]
    assert window.whole_card["sm_count"] == denominator
    assert window.whole_card["smact"] == pytest.approx((0.8 * 60 + 0.4 * 32) / denominator)
    assert window.whole_card["tenso"] is None  # of one instance it is not known
    assert window.entities["gi:1"]["smact"] == 0.8 and "power" not in window.entities["gi:1"]
    assert flags == ["telemetry_disagrees"] and len(telemetry.disagree) == 1


def test_instances_of_unknown_size_weigh_nothing():
    lines = watched(entities=("gpu", "gi:1"))
    assert told(lines, replace(GPU, instances={"gi:1": None}))[0].windows["window"].whole_card == {}
    assert told(watched())[0].windows["window"].whole_card == {}  # no MIG


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x4, ["power_capped"]),
        (0x20, ["throttled"]),
        (0x8 | 0x80, ["throttled"]),
        (0x1 | 0x2, []),  # idle, and clocks that somebody set
    ],
)
def test_what_held_the_clocks_down(bits, expected):
    lines = watched()
    for row in lines.gpu:
        if 6 * S <= row["t"] < 7 * S or row["t"] > CLOSE:
            row["v"]["throttle"] = bits
    telemetry, flags = told(lines)
    assert flags == expected
    assert all(share == pytest.approx(0.1) for share in telemetry.throttled.values())
    assert len(telemetry.throttled) == {0x4: 1, 0x20: 1, 0x88: 2, 0x3: 1}[bits]


@pytest.mark.parametrize(
    ("t", "compute", "mps", "strangers"),
    [
        (5.0, [7, 99], [], ["PID 99"]),
        (5.0, [7], [98], ["PID 98"]),
        (5.0, None, None, []),
        (12.5, [7, 99], [], []),  # after the window
        (1.2, [7, 99], [], ["PID 99"]),  # before the barrier, and still there
    ],
)
@pytest.mark.parametrize("gone", [None, 0.5, 1.0])
def test_strangers_between_barrier_and_end(t, compute, mps, strangers, gone):
    """`gone`: seconds until the list has them no more. Processes that start on another GPU of the
    machine stood for one look at a time in the list of this one (two H200s, two studies at once).
    """
    lines = watched()
    lines.seen.append({"t": int(t * S), "compute": compute, "mps": mps})
    if gone:
        lines.seen.append({"t": int((t + gone) * S), "compute": [7], "mps": []})
    strangers = strangers if gone != 0.5 else []
    telemetry, flags = told(lines)
    assert telemetry.strangers == strangers
    assert flags == (["shared_gpu"] if strangers else [])


def test_where_none_of_ours_is_recognised_nobody_is_a_stranger():
    lines = watched()
    lines.seen = [{"t": S, "compute": [100007, 100099], "mps": []}]
    telemetry, flags = told(lines)
    assert telemetry.strangers is None and flags == []


# -- what is missing -------------------------------------------------------------------------------


def hole(lines: Lines, name: str, start: float, end: float) -> None:
    rows = getattr(lines, name)
    rows[:] = [row for row in rows if not start * S <= row["t"] < end * S]


IN = "window 'window': "


def source_gone(lines: Lines) -> None:
    for row in lines.gpu:
        if row["t"] > 8 * S:
            row["v"] = row["v"] | dict.fromkeys(RATES)
    lines.errors.append({"t": 8 * S, "where": "gpm", "message": "GPU is lost"})


def late_pair(lines: Lines) -> None:
    lines.spans[0]["start_ns"] += S


KILLED = {"problem": "the sampler ended too early: killed by SIGKILL", "end": None}
NO_CARD = {"source": None, "why": "NVMLError_GpuIsLost: GPU is lost"}
MISSING = [  # what happens to the lines, and what is said of that
    (partial(hole, name="gpu", start=5, end=6.5), f"{IN}nothing of the GPU for 1.6 s"),
    (partial(hole, name="host", start=5, end=7), f"{IN}nothing of the host for 2.5 s"),
    (source_gone, f"{IN}no gpm values of gpu for 4.0 s; gpm: GPU is lost"),
    (lambda lines: lines.spans.clear(), f"{IN}no pair of samples of gpu spans it"),
    (late_pair, f"{IN}no pair of samples of gpu spans it"),
    (lambda lines: vars(lines).update(KILLED), KILLED["problem"]),
    (
        lambda lines: (lines.head.update(NO_CARD), lines.gpu.clear()),
        "the GPU could not be read: NVMLError_GpuIsLost: GPU is lost",
    ),
]


@pytest.mark.parametrize(("spoil", "said"), MISSING)
def test_what_is_missing_is_said(spoil, said):
    lines = watched()
    spoil(lines)
    telemetry, flags = told(lines)
    assert (telemetry.status, telemetry.reason) == ("incomplete", said)
    assert flags == ["telemetry_incomplete"]


def test_nothing_at_all_is_incomplete_and_no_error():
    telemetry, flags = told(Lines(problem="the sampler did not begin"))
    assert telemetry.reason == f"the sampler did not begin; {IN}nothing of the host at all"
    assert flags == ["telemetry_incomplete"]
    assert telemetry.windows["window"].entities["gpu"]["power"] is None
    assert told(Lines(), windows=[])[0].windows == {}


def test_slow_rows_around_a_short_window_are_enough():
    lines = watched(hz=0.5)
    short = Window(name="window", start_ns=int(6.1 * S), end_ns=int(6.4 * S), seconds=0.3)
    lines.spans[0] |= {"start_ns": short.start_ns, "end_ns": short.end_ns}
    assert told(lines, windows=[short])[0].status == "complete"


# -- files -----------------------------------------------------------------------------------------


def test_files_hold_every_row_and_every_column(tmp_path):
    lines = watched(entities=("gpu", "gi:1"))
    lines.gpu[0]["v"] |= {"memory_used": 2**40 + 1, "energy": 12.5}
    written = files.write(tmp_path, lines, [WINDOW])
    assert written == {name: File.of(tmp_path / name) for name in written}
    assert sorted(written) == ["gpu.parquet", "host.parquet", "member.parquet"]
    table = pq.read_table(tmp_path / "gpu.parquet")
    assert table.column_names == ["t_ns", "phase", "entity", *(metric.name for metric in METRICS)]
    assert len(table) == len(lines.gpu)
    assert table.schema.metadata[b"origin_ns"] == str(OPEN).encode()
    first, last = table.slice(0, 1).to_pylist()[0], table.to_pylist()[-1]
    assert (first["t_ns"], first["phase"], first["entity"]) == (-OPEN, "idle", "gpu")
    assert (first["memory_used"], first["energy"], first["smact"]) == (2**40 + 1, 12.5, None)
    assert (last["phase"], last["entity"], last["power"]) == ("window", "gi:1", None)
    assert table["fp64"].null_count == len(table)
    types = {name: str(table.schema.field(name).type) for name in ("smact", "energy", "throttle")}
    assert types == {"smact": "float", "energy": "double", "throttle": "int64"}
    about = table.schema.field("smact").metadata
    assert (about[b"unit"], about[b"source"], about[b"kind"]) == (b"1", b"gpm", b"rate")
    assert table.schema.field("power").metadata[b"source"] == b"nvml"
    members = pq.read_table(tmp_path / "member.parquet").to_pylist()
    assert {(row["member"], row["rss"]) for row in members} == {(0, 5)}


def test_no_rows_no_file(tmp_path):
    lines = watched()
    lines.gpu, lines.members = [], []
    assert list(files.write(tmp_path, lines, [])) == ["host.parquet"]
    table = pq.read_table(tmp_path / "host.parquet")
    assert table["t_ns"][0].as_py() == 0  # without a window, since the first row


# -- what goes wrong with telemetry ----------------------------------------------------------------


def test_telemetry_that_is_off_starts_nothing_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", pytest.fail)
    settings = {"source": "off", "hz": 10}
    made = observation.Observation(settings, None, None, [[0]], tmp_path, tmp_path, None)
    with made.watch:
        telemetry, flags, written = made.account([WINDOW], {7})
    assert (telemetry.status, telemetry.windows) == ("off", {})
    assert (flags, written, list(tmp_path.iterdir())) == ([], {}, [])


def test_an_error_in_telemetry_costs_the_cell_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "log").mkdir()
    display = Display("cell", tmp_path / "log" / "conductor.log")
    settings, lines = {"source": "off", "hz": 10}, watched(source=None)
    gone = tmp_path / "gone"
    made = observation.Observation(settings, None, None, [[0]], gone, tmp_path, display)
    made.watch.off = False
    monkeypatch.setattr(made.watch, "end", lambda: lines, raising=False)
    with pytest.raises(OSError):  # a full disk is no fault of telemetry
        made.account([WINDOW], {7})
    lines.host[3] = {"t": "never"}
    telemetry, *rest = made.account([WINDOW], {7})
    assert telemetry.status == "incomplete"
    assert rest == [["telemetry_incomplete"], {}]
    assert "Traceback" in (tmp_path / "log" / "conductor.log").read_text()
    assert not list(tmp_path.glob("*.parquet"))


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ([[0, 4], [1, 5]], [2]),
        ([[0, 4], [1, 5], [2]], [3]),  # a core of its own before a sibling of somebody's
        ([[0, 4], [1, 5], [2], [3]], [6]),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], None),
    ],
)
def test_the_sampler_gets_a_core_that_no_member_has(taken, expected):
    cpus = [Cpu(0, index % 4, index) for index in range(8)]
    assert spare(taken, cpus) == expected


# -- real cells ------------------------------------------------------------------------------------


def prepared(
    studio: Studio, method: str = "naive", members: int = 2, others: int = 0, **measure
) -> str:
    """Plan one cell of that many members, or one of them and slower others; its attempt's name."""
    workloads = {"plain": workload(), "slow": workload(step_s=0.012)}
    ladders = [{"workloads": ["plain"], "counts": {members: [method]}}]
    mixes = [{"members": {"plain": 1, "slow": others}, "methods": [method]}]
    grid = {"mixes": mixes} if others else {"ladders": ladders}
    content = study(measure=SHORT | measure, **grid)
    planned = {name: VisionWorkload(**entry) for name, entry in workloads.items()}
    cells = expand(Study.model_validate(content), planned)
    cell = next(cell for cell in cells if cell.n == (1 + others if others else members))
    studio.write(workloads, **{STUDY: content})
    studio.write_job(f"{cell.id}/a1", cell.spec, studio.data)
    studio.data.mkdir(parents=True)
    (studio.data / "manifest.json").touch()
    return f"{cell.id}/a1"


@pytest.fixture
def place(tmp_path_factory):
    """A studio whose data need no preparing; it must leave no process behind."""
    folder = tmp_path_factory.mktemp("place")  # short, for the sockets of an MPS daemon
    made = Studio(folder / "work", folder / "data", folder / "locks")
    yield made
    left = [process.cmdline() for process in made.alive()]
    made.kill_all()
    assert not left


def table_of(studio: Studio, cell: str, name: str):
    path = (studio.folder / studio.path(cell)).with_name(name)
    assert studio.record(cell)["files"][name] == File.of(path).model_dump()
    return pq.read_table(path)


def assert_members_went_on(studio: Studio, cell: str) -> None:
    """In each window those who ran in it, for a moment after its end: for its last readings."""
    table, record = table_of(studio, cell, "steps.parquet"), studio.record(cell)
    origin = int(table.schema.metadata[b"origin_ns"])
    steps = table.to_pylist()
    for window in record["windows"]:
        for member in record["telemetry"]["windows"][window["name"]]["members"]:
            last = max(row["tick"] for row in steps if row["member"] == int(member))
            assert origin + last * 10_000 >= window["end_ns"] + 0.1 * S


def test_a_cell_without_a_gpu_has_all_of_its_host(place):
    cell = prepared(place, kind="departure", window_s=0.6, settle_s=0.3)
    record = place.measured(cell)
    telemetry = record["telemetry"]
    assert (record["status"], record["flags"]) == ("completed", [])
    assert (telemetry["status"], telemetry["source"]) == ("complete", None)
    assert (telemetry["idle"], telemetry["throttled"], telemetry["strangers"]) == ({}, {}, None)
    assert sorted(record["files"]) == ["host.parquet", "member.parquet", "steps.parquet"]
    assert {name: list(found["members"]) for name, found in telemetry["windows"].items()} == {
        "before": ["0", "1"],
        "after": ["0"],  # the last one leaves
    }
    for window in telemetry["windows"].values():
        assert window["entities"] == window["series"] == {} and window["energy"] is None
        assert window["host"]["cpu_busy"] > 0 and window["host"]["memory_used"] > 0
        for values in window["members"].values():
            assert values["cpu"] is not None and values["rss"] > 0
            assert values["gpu_memory"] is values["entity"] is None
    assert_members_went_on(place, cell)
    members, host = (table_of(place, cell, f"{name}.parquet") for name in ("member", "host"))
    assert host["phase"][0].as_py() == "idle" and None not in host["memory_used"].to_pylist()
    assert members["gpu_memory"].null_count == len(members)


def busy(studio: Studio, **activity: float) -> None:
    machine.does(studio.card, gract=0.9, smact=0.5, power=300.0, **activity)


def started(studio: Studio, cell: str, running) -> None:
    until(lambda: "started:" in studio.log(cell), lambda: running.output)


def test_a_cell_on_a_gpu_and_a_stranger_who_came_and_went(place, sleepers):
    place.with_card()
    cell = prepared(place, "mps", window_s=4.0)  # on a busy machine, too, he comes within it
    running = place.conduct(cell)
    started(place, cell, running)
    busy(place)
    pid = sleepers()
    machine.occupy(place.card, pid)
    [telling] = place.folder.rglob("telemetry.jsonl")
    until(lambda: str(pid) in telling.read_text(), lambda: "the lists are read twice a second")
    time.sleep(1)  # or he is one who starts on another GPU
    (place.card / "processes" / str(pid)).unlink()
    assert running.end().code == 0, running.output
    record = place.record(cell)
    telemetry = record["telemetry"]
    assert record["flags"] == ["shared_gpu"], telemetry["reason"]
    found = record["status"], telemetry["status"], telemetry["source"]
    assert found == ("completed", "complete", "gpm")
    assert [said.split()[:2] for said in telemetry["strangers"]] == [["PID", str(pid)]]
    window = telemetry["windows"]["window"]
    assert 0.2 < window["entities"]["gpu"]["smact"] <= 0.5001
    assert {values["entity"] for values in window["members"].values()} == {"gpu"}
    assert telemetry["idle"]["power"] == 80
    energy = window["energy"]
    assert 80 < energy["mean_power"] < 301 and energy["above_idle_joules"] > 0
    assert energy["joules"] == pytest.approx(energy["mean_power"] * window["seconds"])
    memory = {m: v["gpu_memory"] for m, v in window["members"].items()}
    assert memory == dict.fromkeys(("0", "1"), 500 * 2**20)
    table = table_of(place, cell, "gpu.parquet")
    assert set(table["phase"].to_pylist()) >= {"idle", "window"}
    assert table["smact"].null_count < len(table) / 2
    assert {"power_violation", "thermal_violation"} <= window["entities"]["gpu"].keys()
    Record.model_validate(record)


def test_under_mig_the_instances_are_read_and_summed_up(place):
    place.with_card(mig=True, gpm_refresh_ms=100)
    cell = prepared(place, "mig", window_s=0.8)
    busy(place)
    record = place.measured(cell)
    telemetry = record["telemetry"]
    assert (record["status"], telemetry["status"]) == ("completed", "complete"), telemetry["reason"]
    assert telemetry["strangers"] == [] and record["flags"] == []
    assert_members_went_on(place, cell)
    window = telemetry["windows"]["window"]
    instances = sorted(set(window["entities"]) - {"gpu"})
    facts = record["method"]["evidence"]["end"]["members"].values()
    found = [of["gpu_instance"] for of in facts]
    assert instances == sorted(f"gi:{number}" for number in found) and len(instances) == 2
    seats = [values["entity"] for _, values in sorted(window["members"].items())]
    assert seats == [f"gi:{number}" for number in found]
    assert window["whole_card"]["sm_count"] == 132
    sms = sum(of["sm_planned"] for of in facts)
    assert window["whole_card"]["smact"] == pytest.approx(0.5 * sms / 132)
    table = table_of(place, cell, "gpu.parquet")
    assert set(table["entity"].to_pylist()) == {"gpu", *instances}
    read = table["smact"].drop_null().to_pylist()
    assert set(read) == {0.5} and len(read) > len(table) / 2  # none of too close a pair


def test_a_sampler_that_dies_costs_the_cell_its_telemetry_only(place):
    place.with_card(host_pids=100_000)
    cell = prepared(place, window_s=1.5)
    running = place.conduct(cell)
    started(place, cell, running)
    time.sleep(0.3)
    running.find(SAMPLER).send_signal(signal.SIGKILL)
    assert running.end().code == 0, running.output
    record = place.record(cell)
    telemetry = record["telemetry"]
    assert record["status"] == "completed", record["reason"]
    assert all(m["windows"]["window"]["samples_per_s"] > 0 for m in record["members"])
    assert telemetry["status"] == "incomplete"
    assert telemetry["reason"].startswith("the sampler ended too early: ")
    assert record["flags"] == ["telemetry_incomplete"]
    assert telemetry["strangers"] is None  # NVML names the host's PIDs
    window = telemetry["windows"]["window"]
    assert window["entities"]["gpu"]["smact"] is None and window["energy"] is None
    assert len(table_of(place, cell, "gpu.parquet"))


def test_a_driver_that_never_answers_the_conductor_ends_in_a_record_or_a_line(place):
    """Nothing here but the driver is waited for, so all runs wait at once."""
    place.with_card()
    cell = prepared(place)
    listing = "nvmlDeviceGetMPSComputeRunningProcesses"
    blocks = {
        "init": {"blocks": ["nvmlInitWithFlags"]},
        "method": {"blocks": ["nvmlDeviceGetMigMode"]},
        "end": {},
        "signal": {"blocks": [listing], "blocks_in_use": True},
    }
    hold, runs, names = place.folder / "hold", {}, {}
    hold.touch()
    for number, (when, settings) in enumerate(blocks.items(), 1):
        place.settings["telemetry"] = {"source": "off" if when == "signal" else "nvml"}
        card = place.folder / f"card-{when}"
        own = machine.create(card, uuid=f"GPU-{uuid.uuid4()}", **settings)
        told = {"COLLOCATION_HOLD": str(hold)} if when == "end" else {}
        told["COLLOCATION_FAKE_NVML"] = own["COLLOCATION_FAKE_NVML"]
        names[when] = cell.replace("/a1", f"/a{number}")
        runs[when] = place.conduct(names[when], **told)

    until(lambda: (place.folder / "card-signal" / "stuck").exists(), lambda: runs["signal"].output)
    runs["signal"].signal_group(signal.SIGINT)
    started(place, names["end"], runs["end"])
    machine.configure(place.folder / "card-end", blocks=[listing])
    hold.unlink()

    for when, running in runs.items():
        code, output = running.end().code, running.output
        if when == "signal":
            assert code == 128 + signal.SIGINT, output
            assert output == f"{names[when][:-3]}: interrupted, will run again\n"
            assert not place.log(names[when]).count("does not answer")
        elif when == "init":  # nothing is known of the cell's machine
            assert code == 1 and len(output.splitlines()) == 1, output
            assert "the NVIDIA driver does not answer" in output
        else:
            record = place.record(names[when])
            assert (code, record["status"]) == (0, "failed"), output
            assert "the NVIDIA driver does not answer" in record["reason"]
            assert record["phase"] == {"end": "window"}.get(when, "setup")
    place.assert_no_orphans()


# -- config ----------------------------------------------------------------------------------------


def test_a_cells_command_takes_config_and_its_spec_does_not(place):
    cell = prepared(place)
    values = dict(pair.split("=", 1) for pair in place.config())
    values |= {key: str(place.folder / values[key]) for key in ("workloads", "studies")}
    values |= {"telemetry": {"source": False, "hz": 20}}  # YAML reads `off` as a boolean
    session = open_session(values | {"results": str(place.folder / "results")})
    jobs.write(session, None)
    assert Task.read(session.folder / "jobs" / f"{cell}.json").telemetry == Sampling(
        source="off", hz=20
    )
    assert "telemetry" not in session.jobs[0].cell.spec.to_json()


@pytest.mark.parametrize("found", [[], rows(None, None), rows(math.nan, None, math.inf)])
def test_what_is_missing_is_none(found):
    series = Series(found, ["x"])
    for value in (series.mean, series.rate, series.growth, series.integral):
        assert value("x", 0, 10 * S) is None
    assert series.longest_gap(0, 10 * S, any_of=["x"]) == math.inf
    one = Series(rows(4.0), ["x"])  # a reading, but no rate
    assert (one.mean("x", 0, S), one.mean("x", S, 2 * S), one.rate("x", 0, S)) == (4.0, None, None)
    assert one.growth("x", S, 2 * S) is None  # one reading before, none after
