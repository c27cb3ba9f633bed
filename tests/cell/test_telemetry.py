"""A cell's telemetry: from the sampler's lines to record and files, and through real cells.

The cells are run by their own command, with torch-free members, on the CPU or on the card of
tests/fakes; what the sampler itself does is tested elsewhere.
"""

import math
import signal
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import machine
from tests.studio import SHORT, STUDY, Studio, flags_of, study, until, workload
from workflow.collocation.record.run_json import Record
from workflow.collocation.record.series import LAG_NS, Series
from workflow.collocation.record.values import FileDigest, Window
from workflow.collocation.study.definition import Study
from workflow.collocation.study.grid import expand
from workflow.collocation.study.workloads import VisionWorkload
from workflow.collocation.telemetry.files import write_tables
from workflow.collocation.telemetry.lines import SamplerOutput
from workflow.collocation.telemetry.sources import GPU_METRICS
from workflow.collocation.telemetry.summary import TelemetrySummary
from workflow.collocation.telemetry.watch import Watch

S = 1_000_000_000
OFF = {"source": "off", "hz": 10, "gpu": None}
OPEN, CLOSE = 2 * S, 12 * S
WINDOW = Window(name="window", start_ns=OPEN, end_ns=CLOSE, seconds=10.0)
MIG = {"instances": {"gi:1": 60, "gi:2": 32}}
ENTITIES = ("gpu", *MIG["instances"])
RATES = {"gract": 0.9, "smact": 0.5, "tenso": 0.25}
IDLE, BUSY = {"power": 80.0, "temperature": 30}, {"power": 300.0, "temperature": 60}


def mark(t: float, name: str, joules: float | None = None) -> dict:
    t = int(t * S)
    return {"t": t, "name": f"window:{name}", "energy": None if joules is None else [t, joules]}


def watched(source: str | None = "gpm", entities: tuple[str, ...] = ("gpu",)) -> SamplerOutput:
    """13 s of a card that idles for 1 s and then is busy; a window from 2 s to 12 s."""
    lines = SamplerOutput(head={"source": source, "why": "a test", "hz": 10, "slow_hz": 2.0})
    lines.end = {"t": 13 * S, "ticks": 130, "cpu_s": 0.4}
    for index in range(130):
        t = index * S // 10
        gauges = (IDLE if t < S else BUSY) | {"throttle": 0}
        known = RATES if source in ("gpm", "dcgm") and index else {}
        rates = {name: value + (-1) ** index / 1000 for name, value in known.items()}
        for entity in entities:
            own = gauges if entity == "gpu" else {}
            lines.gpu.append({"t": t, "e": entity, "v": own | rates})
    for index in range(26):
        t = index * S // 2
        rate = None if index == 0 else 1.5
        lines.host.append({"t": t, "v": {"cpu_busy": rate, "memory_used": 100}})
        values = {"cpu": rate, "rss": 5, "read": None, "gpu_memory": 9}
        lines.members.append({"t": t, "m": 0, "v": values})
    lines.phases = [(0, "idle"), (S, "build"), (3 * S // 2, "window")]
    lines.marks = [mark(2.02, "open", 1000.0), mark(12.06, "close", 4012.0)]
    for entity in entities if source == "gpm" else ():
        span = {"name": "window", "e": entity, "start_ns": OPEN, "end_ns": CLOSE, "v": dict(RATES)}
        lines.spans.append(span)
    lines.seen = [{"t": 0, "compute": [], "mps": []}, {"t": S, "compute": [7], "mps": []}]
    return lines


def told(lines: SamplerOutput, windows=(WINDOW,), **facts):
    """Telemetry and flags; what they give is a valid record's."""
    facts = {"sm_count": 132, "own": frozenset({7}), "seats": {0: "gpu"}} | facts
    telemetry, flags = TelemetrySummary(lines, list(windows), True, **facts).telemetry()
    type(telemetry).model_validate(telemetry.model_dump())
    return telemetry, flags


# -- series ----------------------------------------------------------------------------------------

VALUES = st.lists(st.one_of(st.none(), st.floats(0, 1e3)), min_size=2, max_size=20)


def series(values, rates=("x",), every: int = S) -> Series:
    rows = [{"t": index * every, "v": {"x": value}} for index, value in enumerate(values)]
    return Series.of_rows(rows, ["x"], rates)


@given(VALUES, st.integers(0, 19 * S), st.integers(0, 19 * S))
def test_a_rate_counts_for_as_long_as_it_is_a_mean_over(values, one, other):
    """The mean over a time is what a clock would give that ran through it."""
    start, end = min(one, other), max(one, other)
    seconds = total = 0.0
    known = [index for index, value in enumerate(values) if value is not None]
    spans = zip([max(known[0] - 1, 0), *known[:-1]] if known else [], known, strict=True)
    for since, until_ in spans:
        inside = max(0, min(until_ * S, end) - max(since * S, start)) / S
        seconds, total = seconds + inside, total + inside * values[until_]
    found = series(values).over("x", (start, end))
    assert found == (pytest.approx(total / seconds, abs=1e-6) if seconds else None)


def test_what_is_missing_is_none_and_the_longest_time_without_a_row():
    for values in ([], [None, None], [math.nan, None, math.inf], [4.0]):
        of = series(values)
        assert of.over("x", (S, 9 * S)) is of.integral("x", (S, 9 * S)) is None
    gaps = {(0, 1, 2, 3, 4, 5): 1.0, (2,): 2.0, (): math.inf, (4,): math.inf, (0, 5): 5.0}
    for times, gap in gaps.items():
        of = Series(np.array(times, np.int64) * S, {}, ())
        assert of.longest_gap((S // 2, 4 * S)) == pytest.approx(gap)


def test_of_slices_only_readings_count_that_lie_in_them():
    """Two conditions in turns of a second; what is a mean over some of both counts for neither."""
    lines = watched()
    for row in lines.gpu:
        busy = (row["t"] - S // 10) // S % 2  # what a rate is a mean over, since the row before
        row["v"] |= {"gract": 0.25 + busy / 2, "power": 100.0 + 200 * (row["t"] // S % 2)}
    spans = [(t * S + S // 10, (t + 1) * S) for t in range(2, 12)]
    windows = [
        Window(name=n, start_ns=s[0][0], end_ns=s[-1][1], seconds=4.5, members=[m], spans=s)
        for m, (n, s) in enumerate({"alone": spans[::2], "naive": spans[1::2]}.items())
    ]
    telemetry, flags = told(lines, windows)
    assert (telemetry.reason, flags) == (None, [])
    alone, naive = telemetry.windows["alone"], telemetry.windows["naive"]
    assert [w.entities["gpu"]["gract"] for w in (alone, naive)] == [0.25, 0.75]
    assert [w.entities["gpu"]["power"] for w in (alone, naive)] == [100, 300]
    assert alone.energy is naive.energy is None  # the counter is of both
    assert list(alone.members) == ["0"] and naive.members == {}
    late = series([None, 9.0, 1.0, 1.0], every=LAG_NS)  # 9.0 may be of the slice before
    assert late.over("x", (0, S), [(0, S)]) == 1.0


# -- values of a window ----------------------------------------------------------------------------


def test_headlines_come_from_the_pair_and_the_series_stands_beside():
    lines = watched()
    lines.spans[0]["v"] |= {"gract": 0.905, "drama": None}
    telemetry, flags = told(lines)
    window = telemetry.windows["window"]
    headline, means = window.entities["gpu"], window.series["gpu"]
    assert (telemetry.status, telemetry.reason, flags) == ("complete", None, [])
    assert (telemetry.source, telemetry.hz, window.seconds) == ("gpm", 10, 10.0)
    assert (headline["gract"], headline["smact"]) == (0.905, 0.5)
    assert means["gract"] == pytest.approx(0.9)
    assert headline["drama"] is headline["fp64"] is None
    assert headline["power"] == means["power"] == pytest.approx(300)
    assert "energy" not in headline and "throttle" not in headline  # they stand elsewhere
    assert telemetry.idle == {"seconds": 1.0} | dict.fromkeys(("sm_clock", "memory_used")) | IDLE
    account = {"ticks": 130, "cpu_s": 0.4}
    assert telemetry.sampler.model_dump(exclude_none=True) == account
    energy = window.energy
    assert (energy.seconds, energy.mean_power) == pytest.approx((10.04, 3012 / 10.04))
    assert (energy.joules, energy.integrated_joules) == pytest.approx((3000, 3000))


@pytest.mark.parametrize(("source", "smact"), [("dcgm", 0.4), ("nvml", None)])
def test_without_a_pair_the_mean_of_the_series_is_the_headline(source, smact):
    lines = watched(source)
    for row in lines.gpu:
        row["v"] |= {"smact": smact}
    telemetry, flags = told(lines)
    values = telemetry.windows["window"].entities["gpu"]
    assert (telemetry.source, telemetry.status, flags) == (source, "complete", [])
    assert values["smact"] == (smact and pytest.approx(smact)) and values["temperature"] == 60


@pytest.mark.parametrize(("card", "denominator"), [(132, 132), (None, 92)])
def test_under_mig_the_whole_card_is_weighted_by_sms(card, denominator):
    lines = watched(entities=ENTITIES)
    lines.spans[1]["v"]["smact"], lines.spans[2]["v"]["tenso"] = 0.8, None
    window = told(lines, sm_count=card, **MIG)[0].windows["window"]
    assert window.whole_card["sm_count"] == denominator
    assert window.whole_card["smact"] == pytest.approx((0.8 * 60 + 0.5 * 32) / denominator)
    assert window.whole_card["tenso"] is None  # of one instance it is not known
    assert window.entities["gi:1"]["smact"] == 0.8 and "power" not in window.entities["gi:1"]
    assert told(lines, instances={"gi:1": None})[0].windows["window"].whole_card == {}
    lines.spans[1]["v"]["smact"] = 1.006
    window = told(lines, **MIG)[0].windows["window"]
    assert window.entities["gi:1"]["smact"] is window.whole_card["smact"] is None


# -- what is said of it ----------------------------------------------------------------------------


def rows(start: float, end: float, of: str = "gpu", **values):
    """What gives rows between these seconds other values; without any, there are no such rows."""

    def change(lines: SamplerOutput) -> None:
        found = getattr(lines, of)
        inside = [row for row in found if start * S <= row["t"] < end * S]
        for row in inside:
            row["v"] = row["v"] | values
        found[:] = [row for row in found if values or row not in inside]

    return change


def pair(**values):
    return lambda lines: lines.spans[0]["v"].update(values)


def energy(joules: float | None, scatter: float = 0, t: float = 12.06):
    """Power readings that scatter; 3 standard errors of their mean are allowed."""

    def change(lines: SamplerOutput) -> None:
        for index, row in enumerate(lines.gpu):
            row["v"]["power"] += scatter * (-1) ** index
        lines.marks[-1] = mark(t, "close", joules)

    return change


def rising(t: float, joules: float):
    """The energy counter in the readings, to which that is added at one time."""

    def change(lines: SamplerOutput) -> None:
        for row in lines.gpu:
            row["v"]["energy"] = 1000.0 + 30 * row["t"] / S + joules * (row["t"] == t * S)

    return change


def listed(t: float, compute, mps=(), gone: float | None = None):
    """Others on the card from then on, or for a while. Processes that start on another GPU of the
    machine stood for one look at a time in the list of this one (two H200s, two studies at once).
    """

    def change(lines: SamplerOutput) -> None:
        lines.seen.append({"t": int(t * S), "compute": compute, "mps": mps})
        if gone:
            lines.seen.append({"t": int((t + gone) * S), "compute": [7], "mps": []})

    return change


def source_gone(lines: SamplerOutput) -> None:
    rows(8.1, 13, **dict.fromkeys(RATES))(lines)
    lines.errors.append({"t": 8 * S, "where": "gpm", "message": "GPU is lost"})


def slowly(lines: SamplerOutput) -> None:
    """Rows every second are no hole where two a second are asked for."""
    lines.head["hz"] = 2
    lines.gpu[:] = lines.gpu[::10]


def no_card(lines: SamplerOutput) -> None:
    lines.head |= {"source": None, "why": "GPU is lost"}
    lines.gpu.clear()


NONE: list[str] = []
HOLE, APART, ENERGY = ["telemetry_incomplete"], ["telemetry_disagrees"], ["energy_disagrees"]
IN = "window 'window': "
SAID = [  # what happens to the lines, the flags, and a word of what is said
    (rows(5, 6.5), HOLE, f"{IN}no gpm values of gpu for 1.6 s"),
    (rows(5, 7, "host"), HOLE, f"{IN}nothing of the host for 2.5 s"),
    (rows(5, 5.3), NONE, ""),
    (slowly, NONE, ""),
    (source_gone, HOLE, f"{IN}no gpm values of gpu for 4.0 s; gpm: GPU is lost"),
    (lambda lines: lines.spans.clear(), HOLE, f"{IN}no pair of samples of gpu spans it"),
    (lambda lines: setattr(lines, "problem", "it was killed"), HOLE, "it was killed"),
    (no_card, HOLE, "the GPU could not be read: GPU is lost"),
    # smact is 0.5 by the series and tenso 0.25; of drama it knows nothing
    (pair(smact=0.509, drama=0.3), NONE, ""),
    (pair(smact=0.511), APART, "smact is 0.5110 by the pair of samples and 0.5000 by the series"),
    (pair(tenso=0.24), APART, "tenso"),
    (pair(smact=1.006), APART, "window, gpu: smact reads 1.0060"),
    (rows(10, 10.1, smact=1.3), APART, "window, gpu: smact reads 1.3000"),
    (rows(10, 10.1, smact=-0.1), APART, "window, gpu: smact reads -0.1000"),
    (rows(10, 10.5, gpu_util=1.294), APART, "gpu_util reads 1.2940"),
    # 3000 J by power readings, of 300 W; the counter is read for 10.04 s
    (energy(3900), ENERGY, "2888.4 J by the GPU's counter and 3000.0 J by its power readings"),
    (energy(4130), ENERGY, "3117.5 J"),
    (energy(4000), NONE, ""),
    (energy(3900, scatter=60), NONE, ""),
    (energy(3300, scatter=60), ENERGY, "2290.8 J"),
    (energy(4200, t=12.7), NONE, ""),  # too late to be of this window
    (energy(None), NONE, ""),
    (energy(3.0), ENERGY, "the GPU's energy counter fell"),
    (rows(7, 7.1, energy=9.0), NONE, ""),
    (rising(7, -9.0), ENERGY, "the GPU's energy counter fell"),  # and rose again
    (rows(6, 7, throttle=0x4), ["power_capped"], "'sw_power_cap': 0.1}"),
    (rows(6, 8, throttle=0x20), ["throttled"], "'sw_thermal_slowdown': 0.2}"),
    (rows(6, 7, throttle=0x88), ["throttled"], "'hw_power_brake_slowdown': 0.1}"),
    (rows(6, 7, throttle=0x3), NONE, "'applications_clocks_setting': 0.1}"),  # and idle
    (rows(12, 13, throttle=0x4), NONE, ""),
    (listed(5, [7, 99]), ["shared_gpu"], "['PID 99']"),
    (listed(5, [7], [98]), ["shared_gpu"], "['PID 98']"),
    (listed(1.2, [7, 99]), ["shared_gpu"], "['PID 99']"),  # before the barrier, and still there
    (listed(5, [7, 99], gone=2.5), ["shared_gpu"], "['PID 99']"),
    (listed(5, [7, 99], gone=1.5), NONE, "[]"),  # one look, and the next one late
    (listed(12.5, [7, 99]), NONE, "[]"),  # after the window
    (listed(10.6, [7, 99], gone=2.2), NONE, "[]"),  # at its very end
    (listed(5, None, None), NONE, "[]"),
    (listed(1.0, [10007, 10099]), NONE, "None"),  # none of ours is recognised
]


@pytest.mark.parametrize(("change", "expected", "said"), SAID)
def test_what_is_wrong_is_flagged_and_said(change, expected, said):
    lines = watched()
    if said == "None":
        lines.seen.clear()
    change(lines)
    telemetry, flags = told(lines)
    assert flags == expected
    assert telemetry.reason == said if expected == HOLE else telemetry.reason is None
    parts = *telemetry.disagree, str(telemetry.throttled), str(telemetry.strangers)
    assert expected == HOLE or any(said in part for part in parts)
    assert len(telemetry.disagree) == (expected in (APART, ENERGY))


def reading(source: str, entities=("gpu",), **values) -> SamplerOutput:
    """The card at work, read like this all the time: a value, or those of readings in turn."""
    lines = watched(source, entities)
    lines.spans.clear()
    lines.marks.clear()
    for name, value in ({"power": (300.0, 301.0)} | values).items():
        turns = value if isinstance(value, tuple) else (value,)
        for index, row in enumerate(row for row in lines.gpu if row["t"] >= S):
            row["v"][name] = turns[index % len(turns)]
    return lines


ZERO = {"gract": 0.0, "smact": 0.0, "tenso": 0.0}
MOVING = {"gract": (0.8, 0.9, 0.7), "tenso": (0.2, 0.3)}
CONTRADICTED = [  # readings; what is missing of them; what it is missing for
    (ZERO | {"gpu_util": 1.0, "power": 90.0}, ZERO, "reads 0 all the time, and the card's util"),
    (ZERO, ZERO, "reads 0 all the time, and the card draws 300 W, and 80 W when idle"),
    (ZERO | {"power": 130.0, "gpu_util": 0.0}, (), ""),  # a context draws so much at rest
    (ZERO | {"gract": 0.9, "gpu_util": 1.0}, ("smact", "tenso"), "reads 0 all the time"),
    ({"tenso": 0.0, "gpu_util": 1.0}, (), ""),  # no tensor core at work
    (ZERO | {"smact": (0.0, 0.001), "gract": (0.05, 0.051), "gpu_util": 0.2}, (), ""),
    ({"gract": (0.5, 0.6, 1.3)}, ("gract",), "gract reads 1.3000, and a share lies between"),
    ({"smact": (0.5, -1.0)}, ("smact",), "smact reads -1.0000"),
    (MOVING | {"smact": 0.37}, ("smact",), "smact stands still while others move"),
    (MOVING | {"gract": 0.9995, "smact": 0.37, "power": (300.0, 301.0)}, ("smact",), "smact"),
    (RATES | {"power": (200.0, 300.0, 400.0)}, ("gract", "smact", "tenso"), "stands still while"),
    (MOVING | {"smact": (0.3, 0.4), "power": 300.0}, ("power",), "power stands still"),
    ({"gract": 0.999, "smact": (0.4, 0.5), "tenso": (0.2, 0.3), "power": (300.0, 310.0)}, (), ""),
    ({"gract": (0.9, 0.901), "power": (300.0, 310.0)}, (), ""),  # all as good as still
]


@pytest.mark.parametrize("source", ["dcgm", "gpm"])
@pytest.mark.parametrize(("readings", "missing", "said"), CONTRADICTED)
def test_a_value_that_others_contradict_is_missing_and_flagged(source, readings, missing, said):
    lines, spans = reading(source, **readings), watched().spans
    if source == "gpm":  # which has a pair besides
        means = {name: np.mean([r["v"][name] for r in lines.gpu[20:120]]) for name in RATES}
        lines.spans = [spans[0] | {"v": means}]
    telemetry, flags = told(lines)
    values = telemetry.windows["window"].entities["gpu"]
    known = {name for name in (*RATES, "power") if values[name] is not None}
    assert known == {*RATES, "power"} - {*missing}
    assert ("telemetry_disagrees" in flags) == bool(missing) == bool(telemetry.disagree)
    assert all(said in sentence for sentence in telemetry.disagree[:1])


def test_an_instance_may_rest_while_another_works_but_not_all():
    zero = {"gract": 0.0, "smact": 0.0}
    lines = reading("dcgm", ENTITIES, gpu_util=None)
    for row in lines.gpu:
        row["v"] |= zero if row["e"] == "gi:1" else {}
    telemetry, flags = told(lines, **MIG)
    assert telemetry.windows["window"].entities["gi:1"]["gract"] == 0 and flags == []
    for row in lines.gpu:
        row["v"] |= zero if row["e"] != "gpu" else {}
    telemetry, flags = told(lines, **MIG)
    window = telemetry.windows["window"]
    assert flags == ["telemetry_disagrees"] and window.whole_card["gract"] is None
    assert [window.entities[e]["gract"] for e in ENTITIES] == [pytest.approx(0.9), None, None]


def test_nothing_at_all_is_incomplete_and_no_error():
    telemetry, flags = told(SamplerOutput(problem="the sampler did not begin"))
    assert telemetry.reason == f"the sampler did not begin; {IN}nothing of the host at all"
    assert flags == HOLE and telemetry.windows["window"].entities["gpu"]["power"] is None
    assert told(SamplerOutput(), [])[0].windows == {}


# -- files -----------------------------------------------------------------------------------------


def test_files_hold_every_row_and_every_column_and_give_the_same_values(tmp_path):
    lines = watched(entities=("gpu", "gi:1"))
    lines.gpu[0]["v"] |= {"memory_used": 2**40 + 1, "energy": 12.5}
    written = write_tables(tmp_path, lines, [WINDOW])
    assert written == {name: FileDigest.of(tmp_path / name) for name in written}
    assert sorted(written) == ["gpu.parquet", "host.parquet", "member.parquet"]
    table = pq.read_table(tmp_path / "gpu.parquet")
    assert table.column_names == [
        "t_ns",
        "phase",
        "entity",
        *(metric.name for metric in GPU_METRICS),
    ]
    rows = table.to_pylist()
    first, last = rows[0], rows[-1]
    assert len(rows) == len(lines.gpu)
    assert (first["t_ns"], first["phase"], first["entity"]) == (-OPEN, "idle", "gpu")
    assert (first["memory_used"], first["energy"], first["smact"]) == (2**40 + 1, 12.5, None)
    assert (last["phase"], last["entity"], last["power"]) == ("window", "gi:1", None)
    about = table.schema.field("smact").metadata
    assert about == {b"unit": b"1", b"kind": b"rate"}
    members = pq.read_table(tmp_path / "member.parquet").to_pylist()
    assert {(row["member"], row["rss"]) for row in members} == {(0, 5)}
    read = Series.of_table(table.filter(np.array(table["entity"].to_pylist()) == "gpu"))
    for name, value in told(lines)[0].windows["window"].series["gpu"].items():
        again = read.over(name, WINDOW.ends)
        assert again == (None if value is None else pytest.approx(value))
    lines.gpu, lines.members = [], []
    assert list(write_tables(tmp_path, lines, [])) == ["host.parquet"]  # no rows, no file
    table = pq.read_table(tmp_path / "host.parquet")
    assert table["t_ns"][0].as_py() == 0  # without a window, since the first row


def test_an_error_in_telemetry_costs_the_cell_nothing_else(tmp_path, monkeypatch):
    made, lines, said = Watch(tmp_path, tmp_path / "log", OFF), watched(source=None), []
    telemetry, *rest = made.account(tmp_path, [WINDOW], said.append, has_gpu=False)
    assert (telemetry.status, telemetry.windows, rest, said) == ("off", {}, [[], {}], [])
    made.off = False
    monkeypatch.setattr(made, "end", lambda: lines)
    lines.host[3] = {"t": "never"}
    telemetry, *rest = made.account(tmp_path, [WINDOW], said.append, has_gpu=False)
    assert telemetry.status == "incomplete" and "Traceback" in said[0]
    assert rest == [["telemetry_incomplete"], {}]
    assert not list(tmp_path.glob("*.parquet"))


# -- real cells ------------------------------------------------------------------------------------


def prepared(studio: Studio, method: str = "naive", **measure) -> str:
    """Plan one cell of two members; its attempt's name."""
    workloads = {"plain": workload()}
    ladders = [{"workloads": ["plain"], "counts": {2: [method]}}]
    content = study(measure=SHORT | measure, ladders=ladders)
    planned = {name: VisionWorkload(**entry) for name, entry in workloads.items()}
    cell = next(cell for cell in expand(Study.model_validate(content), planned) if cell.n == 2)
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
    assert studio.record(cell)["files"][name] == FileDigest.of(path).model_dump()
    return pq.read_table(path)


def started(studio: Studio, cell: str, running) -> None:
    until(lambda: "started:" in studio.log(cell), lambda: running.output)


def test_a_cell_without_a_gpu_has_all_of_its_host(place):
    cell = prepared(place, kind="departure", window_s=0.6, settle_s=0.3)
    record = place.measured(cell)
    telemetry = record["telemetry"]
    assert (record["status"], record["flags"]) == ("completed", [])
    assert (telemetry["status"], telemetry["source"]) == ("complete", None)
    assert (telemetry["idle"], telemetry["throttled"], telemetry["strangers"]) == ({}, {}, None)
    assert sorted(record["files"]) == ["host.parquet", "member.parquet", "steps.parquet"]
    there = {name: list(found["members"]) for name, found in telemetry["windows"].items()}
    assert there == {"before": ["0", "1"], "after": ["0"]}  # the last one leaves
    steps = table_of(place, cell, "steps.parquet")
    origin = int(steps.schema.metadata[b"origin_ns"])
    of, ends = (steps[name].to_numpy() for name in ("member", "tick"))
    for window in record["windows"]:
        found = telemetry["windows"][window["name"]]
        assert found["entities"] == found["series"] == {} and found["energy"] is None
        assert found["host"]["cpu_busy"] > 0 and found["host"]["memory_used"] > 0
        for member, values in found["members"].items():
            assert values["cpu"] is not None and values["rss"] > 0
            assert values["gpu_memory"] is values["entity"] is None
            last = origin + ends[of == int(member)].max() * 10_000
            assert last >= window["end_ns"] + 0.1 * S  # it went on, for the last readings
    assert table_of(place, cell, "host.parquet")["phase"][0].as_py() == "idle"


def test_a_cell_on_a_gpu_and_a_stranger_who_came_and_went(place, sleepers):
    place.with_card()
    cell = prepared(place, "mps", window_s=5.0)  # on a busy machine, too, he comes within it
    running = place.conduct(cell)
    started(place, cell, running)
    machine.does(place.card, gract=0.9, smact=0.5, power=300.0)
    pid = sleepers()
    machine.occupy(place.card, pid)
    [telling] = place.folder.rglob("telemetry.jsonl")
    until(lambda: str(pid) in telling.read_text(), lambda: "the lists are read twice a second")
    time.sleep(2.3)  # or he is one who starts on another GPU
    (place.card / "processes" / str(pid)).unlink()
    assert running.end().code == 0, running.output
    record = place.record(cell)
    telemetry = record["telemetry"]
    assert flags_of(record) == ["shared_gpu"], telemetry["reason"]
    found = record["status"], telemetry["status"], telemetry["source"]
    assert found == ("completed", "complete", "gpm")
    assert [said.split()[:2] for said in telemetry["strangers"]] == [["PID", str(pid)]]
    window = telemetry["windows"]["window"]
    assert 0.2 < window["entities"]["gpu"]["smact"] <= 0.5001
    assert telemetry["idle"]["power"] == 80
    assert 80 < window["energy"]["mean_power"] < 330
    members = {m: (v["entity"], v["gpu_memory"]) for m, v in window["members"].items()}
    assert members == dict.fromkeys(("0", "1"), ("gpu", 500 * 2**20))
    table = table_of(place, cell, "gpu.parquet")
    assert set(table["phase"].to_pylist()) >= {"idle", "window"}
    assert table["smact"].null_count < len(table) / 2
    Record.model_validate(record)


def test_under_mig_the_instances_are_read_and_summed_up(place):
    place.with_card(mig=True, gpm_refresh_ms=100)
    cell = prepared(place, "mig", window_s=0.8)
    machine.does(place.card, gract=0.9, smact=0.5, power=300.0)
    record = place.measured(cell)
    telemetry = record["telemetry"]
    assert (record["status"], telemetry["status"]) == ("completed", "complete"), telemetry["reason"]
    assert telemetry["strangers"] == [] and flags_of(record) == []
    window = telemetry["windows"]["window"]
    facts = record["method"]["evidence"]["end"]["members"].values()
    instances = [f"gi:{of['gpu_instance']}" for of in facts]
    assert sorted(window["entities"]) == sorted(["gpu", *instances]) and len(instances) == 2
    assert [values["entity"] for _, values in sorted(window["members"].items())] == instances
    sms = sum(of["sm_planned"] for of in facts)
    assert window["whole_card"]["smact"] == pytest.approx(0.5 * sms / 132)
    read = table_of(place, cell, "gpu.parquet")["smact"].drop_null().to_pylist()
    assert set(read) == {0.5}  # none of too close a pair


def test_an_interrupted_cell_ends_though_the_driver_never_answers(place):
    listing = "nvmlDeviceGetMPSComputeRunningProcesses"
    place.with_card(blocks=[listing], blocks_in_use=True)
    cell = prepared(place)
    place.settings["telemetry"] = {"source": "off"}
    running = place.conduct(cell)
    until((place.card / "stuck").exists, lambda: running.output)
    running.signal_group(signal.SIGINT)
    assert running.end().code == 128 + signal.SIGINT
    assert not place.records() and "Traceback" not in running.output
    place.assert_no_orphans()
