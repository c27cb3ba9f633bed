"""SM-scaling and prediction, decomposition of the gain, timeline: on hand-made runs."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.cells import load
from analysis.figures import decomposition as decomposition_figure
from analysis.figures import decomposition_data as decomposition
from analysis.figures import scaling, timeline
from analysis.records import schema
from analysis.records.merge import write
from analysis.tables import prediction
from tests.records import merged, record, telemetry

A, B = "resnet26_a", "resnet152_b"
ARM = "faithful"
LIMITS = {"mps_1g": (12.2, 16), "mps_2g": (24.3, 32), "mps_3g": (45.5, 60)}


def card(gract, smact, **more):
    return telemetry(card={"gract": gract, "smact": smact} | more)


def amdahl(fixed, share):
    """Progress of a job of whose time alone a part `fixed` does not depend on the SMs."""
    return 1 / (fixed + (1 - fixed) / share)


def alone(name, rate, fixed, gract, smact, replicate=1):
    """A job alone: naive, MPS, and MPS at three limits."""
    seen = card(gract, smact)
    common = {"replicate": replicate, "telemetry": seen}
    found = [
        record(f"1x_{name}", method, rates=[rate], sm_count=132, **common)
        for method in ("naive", "mps")
    ]
    for method, (percent, count) in LIMITS.items():
        own = {"limits": {"sm_percent": percent}, "sm_count": count}
        found.append(
            record(f"1x_{name}", method, rates=[rate * amdahl(fixed, count / 132)], **own, **common)
        )
    return found


def company(scenario, progress, rates, method="mps", **options):
    pairs = zip(progress, rates, strict=True)
    options = {"sm_count": 132} | options
    return record(scenario, method, rates=[p * r for p, r in pairs], **options)


@pytest.fixture(scope="module")
def study():
    """A scales as Amdahl's law has it, B in proportion to its SMs, and both share as predicted."""
    records = []
    for block, noise in ((1, 1.0), (2, 1.02)):
        records += alone(A, 100.0, 0.9, gract=0.25, smact=0.125, replicate=block)
        records += alone(B, 10.0, 0.0, gract=0.8, smact=0.9, replicate=block)
        for n in (2, 7):
            each = [amdahl(0.9, 1 / n) * noise] * n
            records.append(company(f"{n}x_{A}", each, [100.0] * n, replicate=block))
            records.append(
                company(f"{n}x_{A}", [3.0 / 7] * n, [100.0] * n, "naive", replicate=block)
            )
        records.append(company(f"2x_{B}", [0.5 * noise] * 2, [10.0] * 2, replicate=block))
        records.append(
            record(f"7x_{B}", "mps", block, status="out_of_memory", rates=[1.0] * 6 + [None])
        )
    limited = {"sm_count": 33, "limits": {"sm_percent": 25}}
    records.append(
        company(f"2x_{A}", [amdahl(0.9, 0.25)] * 2, [100.0] * 2, "mps_quarter", **limited)
    )
    records.append(company(f"1x_{A}+1x_{B}", [0.95, 0.6], [100.0, 10.0]))
    return load(
        merged(*records),
        [{"scenario": f"3x_{A}", "arm": ARM, "method": "mps", "replicate": 1, "n": 3}],
    )


# Curves and shares


def test_a_curve_is_exact_for_amdahls_law_between_its_points():
    curve = prediction.Curve((0.125, 0.5, 1.0), tuple(amdahl(0.6, s) for s in (0.125, 0.5, 1.0)))
    for share in (0.125, 0.2, 0.5, 0.7, 1.0):
        assert curve.at(share) == pytest.approx(amdahl(0.6, share))
    assert curve.at(0.1) is None
    # 0.6 + 0.4 / s = 1 / 0.95
    assert curve.demand() == pytest.approx(0.4 / (1 / 0.95 - 0.6))
    assert prediction.Curve((0.1, 1.0), (0.97, 1.0)).demand() == 0.1


def test_points_that_fall_are_averaged():
    points = pd.DataFrame({"workload": "a", "share": [0.2, 0.5, 1.0], "progress": [0.5, 1.21, 1.0]})
    [curve] = prediction.curves(points).values()
    assert curve.progress == pytest.approx((0.5, 1.1, 1.1))


shares = st.floats(0.01, 1.0)


@given(st.lists(st.tuples(shares, shares), min_size=1, max_size=8))
def test_shares_fill_the_sms_and_keep_to_the_limits(members):
    demands, limits = zip(*members, strict=True)
    found = prediction.fill(demands, limits)
    assert all(0 <= got <= limit + 1e-12 for got, limit in zip(found, limits, strict=True))
    assert math.fsum(found) == pytest.approx(min(1.0, math.fsum(limits)))


def test_who_needs_little_leaves_the_rest():
    assert prediction.fill([0.1, 1.0], [1, 1]) == pytest.approx([0.1, 0.9])
    assert prediction.fill([1.0] * 4, [1] * 4) == pytest.approx([0.25] * 4)
    assert prediction.fill([0.1, 0.2], [1, 1]) == pytest.approx([0.45, 0.55])
    assert prediction.fill([0.9, 0.9], [0.25, 0.25]) == pytest.approx([0.25, 0.25])


@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=8))
def test_smact_predicts_no_more_than_n_and_no_more_than_full_sms(smact):
    gain = prediction.gain_by_smact(smact)
    assert gain <= len(smact)
    assert gain / len(smact) * math.fsum(smact) <= 1 + 1e-9


# Predicted against measured


def test_predictions_of_a_study_that_behaves_as_predicted(study):
    sets = prediction.table(study, ARM).set_index(["jobs", "method"])
    for n in (2, 7):
        row = sets.loc[f"{n}× {A}", "mps"]
        assert row["curves"] == pytest.approx(n * amdahl(0.9, 1 / n), rel=1e-3)
        assert row["measured"] == pytest.approx(row["curves"] * math.sqrt(1.02), rel=1e-3)
        assert row["low"] < row["measured"] < row["high"]
        assert row["smact"] == n
    assert sets.loc[f"2× {B}", "mps"]["curves"] == pytest.approx(1.0)
    assert sets.loc[f"2× {B}", "mps"]["smact"] == pytest.approx(1 / 0.9)
    quarter = sets.loc[f"2× {A}", "mps_quarter"]
    assert quarter["limited"] is True and pd.isna(quarter["smact"])
    assert quarter["curves"] == pytest.approx(quarter["measured"], rel=1e-3)
    mixed = sets.loc[f"1× {B} + 1× {A}", "mps"]
    # Both need more than half of the SMs for 95 % of their speed.
    assert mixed["curves"] == pytest.approx(amdahl(0.9, 0.5) + 0.5, rel=1e-3)
    assert sets.loc[f"7× {B}", "mps"][["status", "rule"]].tolist() == ["out_of_memory", False]
    assert sets.loc[f"3× {A}", "mps"]["status"] == "not_run"
    assert pd.isna(sets.loc[f"3× {A}", "mps"]["measured"])
    assert sets["rule"].dropna().groupby(level=0).first().to_dict() == {
        f"1× {B} + 1× {A}": False,
        f"2× {A}": True,
        f"2× {B}": False,
        f"3× {A}": True,
        f"7× {A}": True,
        f"7× {B}": False,
    }


def test_memory_that_does_not_fit_is_a_no_of_every_predictor(study):
    runs = study.runs.assign(gpu_memory_total=3e9)  # 2 GB a job
    sets = prediction.table(replace(study, runs=runs), ARM)
    judged = sets[sets["limited"].eq(False)]
    assert judged["fits"].eq(False).all() and judged["rule"].eq(False).all()
    for predictor in prediction.PREDICTORS:
        assert not prediction.pays(judged, predictor).any()
    roomy = prediction.table(replace(study, runs=runs.assign(gpu_memory_total=1e12)), ARM)
    assert roomy["fits"].dropna().all()


def sets_of(*rows):
    """Sets (family, measured, predicted, rule) as prediction.table gives them."""
    frame = pd.DataFrame(rows, columns=["workloads", "measured", "smact", "rule"])
    extra = {"limited": False, "status": "completed", "curves": math.nan, "fits": None}
    return frame.assign(**extra).astype({"limited": object, "rule": object, "fits": object})


def test_errors_leave_out_the_whole_family():
    sets = sets_of(("a", 1.0, 2.0, True), ("a", 2.0, 4.0, True), ("b", 3.0, 3.0, True))
    errors = prediction.errors(sets).set_index("predictor")
    smact, rule = errors.loc["smact"], errors.loc["rule"]
    assert smact["error"] == pytest.approx(2 ** (2 / 3) - 1)
    # a corrected by b (factor 1): off by 2 twice; b by a's factor of 1/2.
    assert smact["left_out_error"] == pytest.approx(1.0)
    # b is told the mean gain of a's sets, sqrt(2); a's are told 3.
    off = [math.log(3), math.log(1.5), math.log(3 / math.sqrt(2))]
    assert rule["left_out_error"] == pytest.approx(math.expm1(sum(off) / 3))
    assert pd.isna(rule["error"])
    assert (smact["called"], smact["right"], rule["right"]) == (3, 2, 2)
    alone = prediction.errors(sets_of(("a", 1.0, 2.0, True))).set_index("predictor")
    assert alone["left_out_error"].isna().all()


def test_out_of_memory_does_not_pay():
    sets = sets_of(("a", math.nan, 2.0, True), ("b", 3.0, 3.0, True))
    sets["status"] = ["out_of_memory", "completed"]
    errors = prediction.errors(sets).set_index("predictor")
    assert (errors["called"] == 2).all() and (errors["right"] == 1).all()
    assert (errors["sets"] == 1).all()


def test_the_page_and_its_command(study, tmp_path):
    text, sets = prediction.markdown(study)
    assert "SM-scaling curves, limited shares" in text and "out of memory" in text
    assert len(sets) == len(prediction.table(study, ARM))
    write(pa.Table.from_pandas(study.runs, schema=schema.SCHEMA), tmp_path / "runs.parquet")
    stem = tmp_path / "out" / "prediction"
    assert prediction.main(["--runs", str(tmp_path / "runs.parquet"), "--output", str(stem)]) == 0
    assert stem.with_suffix(".md").read_text().startswith("# Predicted gain")
    assert "curves" in pd.read_csv(stem.with_suffix(".csv"))


# Figures of it


def test_what_the_scaling_figure_draws(study):
    _, drawn = scaling.draw(study, ARM)
    own = drawn[(drawn["part"] == "curve") & (drawn["workload"] == A)]
    assert own["share"].tolist() == pytest.approx([16 / 132, 32 / 132, 60 / 132, 1], abs=1e-4)
    assert own["progress"].tolist() == pytest.approx(
        [amdahl(0.9, s) for s in own["share"]], rel=1e-3
    )
    points = drawn[(drawn["part"] == "alone") & (drawn["workload"] == A)]
    assert len(points) == 8 and points["sm_count"].tolist() == [16, 16, 32, 32, 60, 60, 132, 132]
    members = drawn[(drawn["part"] == "member") & (drawn["n"] == 7)]
    assert members["share"].tolist() == pytest.approx([1 / 7] * 2)
    gains = drawn[drawn["part"] == "gain"]
    assert set(gains["predictor"]) == set(prediction.PREDICTORS)
    assert "out_of_memory" in set(gains["status"])
    assert len(drawn[(drawn["part"] == "replicate") & (drawn["jobs"] == f"7× {A}")]) == 2


def test_what_the_decomposition_draws(study):
    _, drawn = decomposition_figure.draw(study, ARM)
    row = drawn[(drawn["n"] == 7) & (drawn["workload"] == A) & drawn["block"].isna()].iloc[0]
    gain = 7 * amdahl(0.9, 1 / 7) * math.sqrt(1.02)
    expected = {"naive": 3.0, "mps": gain, "filled": 4.0, "saturated": 7.0, "gaps": 3.0}
    expected |= {"switches": 4 / 3, "overlap": gain / 4, "other": 7 / gain, "saturation": 1.0}
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert len(drawn[(drawn["n"] == 7) & drawn["block"].notna()]) == 2
    holes = drawn[drawn["workload"].eq(B)].set_index("n")
    assert holes.loc[7, ["status", "of"]].tolist() == ["out_of_memory", "mps"]
    assert holes.loc[2, ["status", "of"]].tolist() == ["not_run", "naive"]


gains = st.floats(0.05, 50)
active = st.floats(0.005, 1.0)


@given(st.integers(2, 48), gains, gains, active, active)
def test_parts_multiply_to_what_was_measured_and_to_n(n, naive, mps, gract, smact):
    found = decomposition.parts(n, naive, mps, gract, smact)
    product = math.prod(found[part] for part in decomposition.GAINS)
    assert product == pytest.approx(mps)
    assert product * math.prod(found[part] for part in decomposition.LOSSES) == pytest.approx(n)
    assert found["gaps"] == naive and found["overlap"] >= 1 - 1e-12
    assert found["saturation"] >= 1 - 1e-12


def test_without_telemetry_there_are_no_parts():
    records = [
        record(f"1x_{A}"),
        *(record(f"2x_{A}", m, rates=[800.0] * 2) for m in ("naive", "mps")),
    ]
    rows, blocks = decomposition.table(load(merged(*records)), ARM)
    assert rows[["status", "of", "blocks"]].values.tolist() == [["no_telemetry", "alone", 0]]
    assert blocks.empty and rows[list(decomposition.PARTS)].isna().all(axis=None)


# Studies with little in them

EMPTY = ()
SINGLE = (record(f"1x_{A}"),)
OUT = tuple(
    record(f"{n}x_{A}", method, status="out_of_memory", rates=[None] * n, **more)
    for n, method, more in (
        (1, "naive", {}),
        (1, "mps_1g", {"limits": {"sm_percent": 12.2}}),
        (2, "naive", {}),
        (2, "mps", {}),
    )
)
DARK = tuple(
    record(f"{n}x_{A}", m, rates=[900.0] * n, telemetry=card(None, None))
    for n, m in ((1, "naive"), (2, "naive"), (2, "mps"))
)


@pytest.mark.parametrize("records", [EMPTY, SINGLE, OUT, DARK], ids=["empty", "one", "oom", "dark"])
@pytest.mark.parametrize("figure", [scaling, decomposition_figure, timeline])
def test_studies_with_little_in_them_are_drawn(records, figure):
    runs = merged(*records) if records else pd.DataFrame(columns=schema.SCHEMA.names)
    made = load(runs.astype({"current": bool}))
    fig, drawn = figure.draw(made, ARM)
    fig.canvas.draw()
    assert set(drawn.columns) and figure.TITLE and figure.CAPTION
    if records is OUT and figure is scaling:
        assert drawn.loc[drawn["part"] == "alone", "status"].tolist() == ["out_of_memory"]
    if records is OUT and figure is decomposition_figure:
        assert drawn["status"].tolist() == ["out_of_memory"]


# Timeline


def readings(cell, entities, until, gract):
    """Readings at 10 Hz from −1 s (warm) over 0 (window) to the end (stop)."""
    rows = []
    for entity in entities:
        for k in range(-10, int(until * 10) + 5):
            t = k / 10
            phase = "warm" if t < 0 else "window" if t <= until else "stop"
            row = dict.fromkeys(schema.TELEMETRY.names) | {"cell": cell, "attempt": 1, "t": t}
            row |= {"entity": entity, "phase": phase}
            if entity == "gpu":
                row |= {"power": 300.0, "sm_clock": 1980.0}
            if entity == "gpu" and len(entities) == 1 or entity != "gpu":
                row |= {"gract": gract, "smact": gract / 2}
            rows.append(row)
    return rows


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A ladder with telemetry, and the steps of its cell of two under MPS."""
    folder = tmp_path_factory.mktemp("study")
    records = [record(f"1x_{A}", telemetry=telemetry(), rates=[3200.0])]
    records += [
        record(f"2x_{A}", m, rates=[1600.0] * 2, telemetry=telemetry(members=2))
        for m in ("mps", "mig")
    ]
    records.append(
        record(f"3x_{A}", "mps", status="failed", rates=[None] * 3, telemetry=telemetry())
    )
    rows = readings(f"1x_{A}/{ARM}/naive/r1", ["gpu"], 10, 0.4)
    rows += readings(f"2x_{A}/{ARM}/mps/r1", ["gpu"], 10, 0.8)
    rows += readings(f"2x_{A}/{ARM}/mig/r1", ["gpu", "gi:1", "gi:2"], 10, 0.6)
    pq.write_table(
        pa.Table.from_pylist(rows, schema=schema.TELEMETRY), folder / "telemetry.parquet"
    )
    cell = folder / "cells" / f"2x_{A}" / ARM / "mps" / "r1" / "a1"
    cell.mkdir(parents=True)
    ticks = np.arange(0, 1000, 2) * 1000  # a step of 32 samples each 20 ms: half the rate alone
    steps = pa.table({"member": np.repeat(np.int16([0, 1]), len(ticks)), "tick": np.tile(ticks, 2)})
    pq.write_table(steps.replace_schema_metadata({"tick_ns": "10000"}), cell / "steps.parquet")
    windows = [
        {"name": "before", "start_ns": 5_000_000_000, "end_ns": 9_000_000_000},
        {"name": "after", "start_ns": 10_000_000_000, "end_ns": 15_000_000_000},
    ]
    (cell / "run.json").write_text(json.dumps({"windows": windows}))
    return replace(load(merged(*records)), telemetry=folder / "telemetry.parquet")


def test_the_timeline_is_of_the_largest_completed_cell_of_mps(watched):
    fig, drawn = timeline.draw(watched, ARM)
    assert set(drawn["cell"]) == {f"2x_{A}/{ARM}/mps/r1"}
    windows = drawn[drawn["part"] == "window"]
    assert windows[["phase", "t", "end"]].values.tolist() == [["before", 0, 4], ["after", 5, 10]]
    phases = drawn[drawn["part"] == "phase"].set_index("phase")
    assert phases[["t", "end"]].loc["window"].tolist() == [0, 10.1]
    steps = drawn[drawn["part"] == "steps"]
    assert set(steps["unit"]) == {"progress"} and set(steps["member"]) == {0, 1}
    assert steps["rate"].tolist() == pytest.approx([0.5] * len(steps))
    assert drawn.loc[drawn["part"] == "reading", "gract"].tolist() == pytest.approx([0.8] * 115)
    assert len(fig.axes) == 4


def test_a_cell_without_steps_at_hand_or_under_mig(watched):
    fig, drawn = timeline.draw(watched, None, f"2x_{A}/{ARM}/mig/r1")
    assert len(fig.axes) == 3 and "steps" not in set(drawn["part"])
    assert drawn.loc[drawn["part"] == "window", ["t", "end"]].values.tolist() == [[0, 10]]
    assert set(drawn["entity"].dropna()) == {"gpu", "gi:1", "gi:2"}
    assert len(fig.axes[0].lines) == 2 * 2 + 2 + 1  # per instance, ends of the window, its bar


def test_what_cannot_be_drawn_is_said(watched):
    for study, cell in (
        (replace(watched, telemetry=None), None),
        (watched, "9x_none/faithful/mps/r1"),
        (watched, f"3x_{A}/{ARM}/mps/r1"),
    ):
        fig, drawn = timeline.draw(study, ARM, cell)
        assert drawn.empty and not fig.axes
