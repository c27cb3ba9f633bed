"""Figures of mixes, slowdowns, arms and reported values, and the table of the pair (T1)."""

import dataclasses
import json
import math

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from analysis import reported, style
from analysis.cells import load, read_runs, summarise
from analysis.claims import rules as claim_rules
from analysis.figures import (
    arms,
    epoch_time,
    mixes,
    reported_against_measured,
    slowdown_map,
    throughput_gain,
)
from analysis.records import merge
from analysis.names import AFTER, TWIN
from analysis.pooling import pooled
from analysis.tables import pair, pair_table
from tests.records import TRAIN_SIZE, merged, record, telemetry
from tests.studies import furnish
from tests.studio import REPOSITORY

S, L = "resnet26_cifar10_b32", "resnet152_imagenet_b32"
DLRM = "dlrm_criteo_b2048"
PAIR = f"1x_{DLRM}+1x_{L}"
FIGURES = (mixes, slowdown_map, arms, reported_against_measured, throughput_gain, epoch_time)
# Of the logs of two replicates: they add up to 0, so that geometric means are exact.
UP, DOWN = math.exp(0.01), math.exp(-0.01)


@pytest.fixture(scope="module")
def values():
    return reported.read(REPOSITORY / "config" / "reported.csv")


def study_of(records, values=None, expected=()):
    return dataclasses.replace(load(merged(*records), expected), reported=values)


def look(module, study, arm="faithful", render=False):
    """The drawn table, and everything that the figure says."""
    figure, table = module.draw(study, None if module is arms else arm)
    if render:  # some mistakes show only then
        figure.canvas.draw()
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    said += [text.get_text() for text in figure.texts]
    plt.close(figure)
    return table, " ".join(" ".join(said).split())


def both(scenario, method="naive", progress=(), alone=(), **options):
    """Two replicates of a cell; progress of each member over alone rates, up and down."""
    return [
        record(
            scenario,
            method,
            block,
            [p * rate * factor for p, rate in zip(progress, alone, strict=True)],
            **options,
        )
        for block, factor in ((1, UP), (2, DOWN))
    ]


def jobs_alone(arm="faithful", **rates):
    return [
        record(f"1x_{name}", replicate=block, rates=[rate], arm=arm)
        for name, rate in rates.items()
        for block in (1, 2)
    ]


@pytest.fixture(scope="module")
def mixed():
    """Mixes of a (1000 samples/s alone) and b (500), and a departure."""
    rates = (1000.0, 500.0, 500.0)
    records = jobs_alone(a=1000.0, b=500.0)
    records += both("1x_a+2x_b", "naive", (0.5, 0.4, 0.8), rates)
    records += both("1x_a+2x_b", "mps", (0.9, 0.8, 0.8), rates, drift=0.2)
    records += both("1x_a+2x_b", TWIN, (0.5, 0.5, 0.5), rates)
    records += [record("1x_a+2x_b", "mig", block, status="unsupported") for block in (1, 2)]
    records.append(record("1x_a+3x_b", "mps", 1, [800.0, 300.0, 300.0, 300.0]))
    records.append(record("1x_a+3x_b", "mps", 2, [800.0, None, 1.0, 1.0], status="out_of_memory"))
    for block, factor in ((1, UP), (2, DOWN)):
        windows = [{"before": 500.0}, {"before": 200.0, "after": 200.0 * 1.5 * factor}]
        records.append(record("1x_a+1x_b--departure", "naive", block, windows=windows))
        windows = [{"before": 600.0}, {"before": 300.0, "after": 300.0 * factor}]
        records.append(record("1x_a+1x_b--departure", "mig", block, windows=windows))
    records.append(record("1x_a+1x_b--departure", "mps", status="failed", reason="why"))
    expected = [
        {"scenario": "2x_a+1x_b", "arm": "faithful", "method": "mps", "replicate": 1, "n": 3}
    ]
    return study_of(records, expected=expected)


def test_mixes_show_progress_stp_and_antt(mixed):
    table, said = look(mixes, mixed)
    assert TWIN not in set(table["method"])
    own = table[(table["scenario"] == "1x_a+2x_b") & (table["method"] == "naive")]
    bars = own[own["quantity"] == "progress"].groupby("member")
    assert bars["mean"].first().tolist() == pytest.approx([0.5, 0.4, 0.8])
    assert bars["workload"].first().tolist() == ["a", "b", "b"]
    first = own[(own["quantity"] == "progress") & (own["block"] == 1)]
    assert first["value"].tolist() == pytest.approx([0.5 * UP, 0.4 * UP, 0.8 * UP])
    stp = own[own["quantity"] == "stp"]
    assert stp["mean"].iloc[0] == pytest.approx(1.7) and len(stp) == 2
    assert stp["low"].iloc[0] < 1.7 < stp["high"].iloc[0]
    antt = own[own["quantity"] == "antt"]["mean"].iloc[0]
    assert antt == pytest.approx((1 / 0.5 + 1 / 0.4 + 1 / 0.8) / 3)
    ended = table[table["value"].isna()].groupby(["scenario", "method"])["status"].agg(list)
    assert ended["1x_a+2x_b", "mig"] == ["unsupported"] * 2
    assert ended["2x_a+1x_b", "mps"] == ["not_run"]
    # An unsteady number, and one of which not every replicate completed, are marked.
    assert "2.50 ~" in said and "2.60 *" in said and "* fewer replicates than planned" in said
    assert "1 to 2 replicates" in said


def test_what_survivors_reclaim_is_their_rate_after_over_before(mixed):
    table, _ = look(mixes, mixed)
    own = table[table["part"] == "departure"]
    reclaimed = own[own["quantity"] == "reclaimed"].set_index(["method", "block"])
    assert reclaimed.loc["naive", "mean"].iloc[0] == pytest.approx(1.5)
    assert reclaimed.loc["mig", "value"].tolist() == pytest.approx([UP, DOWN])
    assert set(reclaimed["workload"]) == {"b"}  # a has left
    # The variance is that of one method's cells: here the same in both.
    widths = reclaimed["high"] / reclaimed["low"]
    assert widths.tolist() == pytest.approx([widths.iloc[0]] * 4)
    progress = own[(own["quantity"] == "progress") & (own["method"] == "naive")]
    means = progress.groupby(["workload", "window"])["mean"].first()
    assert means.to_dict() == pytest.approx(
        {("a", "before"): 0.5, ("b", "before"): 0.4, ("b", "after"): 0.6}
    )
    failed = own[own["method"] == "mps"]
    assert failed["status"].tolist() == ["failed"] and failed["value"].isna().all()


def test_pooled_estimates_of_a_column_are_those_of_the_summary(mixed):
    cells = mixed.cells.assign(after=mixed.cells["window"] == AFTER)
    keys, pool = ["arm", "scenario", "method", "window"], ["arm", "family", "after"]
    found = pooled(cells, "stp", keys, pool)
    rows = summarise(mixed.cells).dropna(subset=["low"])
    assert len(rows) > 3
    for row in rows.to_dict("records"):
        estimate = found[row["arm"], row["scenario"], row["method"], row["window"]]
        assert (estimate.low, estimate.high) == pytest.approx((row["low"], row["high"]))


def test_the_map_tells_the_slowest_member_and_the_mean(mixed):
    table = look(slowdown_map, mixed)[0].set_index(["row", "method"])
    cell = table.loc["1× a + 2× b", "naive"]
    assert cell["worst"] == pytest.approx(1 / 0.4)
    assert cell["antt"] == pytest.approx((1 / 0.5 + 1 / 0.4 + 1 / 0.8) / 3)
    assert table.loc[("1× a + 2× b", "mig"), "status"] == "unsupported"
    assert table.loc[("2× a + 1× b", "mps"), "status"] == "not_run"
    assert table.loc[("1× a + 3× b", "mps"), "replicates"] == 1
    assert not table["scenario"].str.contains("departure").any()


def test_the_map_of_ladders_leaves_out_the_job_alone_as_plain_process():
    records = jobs_alone(a=1000.0, b=500.0) + both("1x_a", "mps", (0.8,), (1000.0,))
    records += both("2x_a", "naive", (0.5, 0.25), (1000.0, 1000.0))
    records += [record("2x_b", "mps", status="out_of_memory", rates=[None, None])]
    records += [record("2x_b", "naive", rates=[0.0, 400.0])]
    table, said = look(slowdown_map, study_of(records))
    assert set(zip(table["scenario"], table["method"], strict=True)) == {
        ("1x_a", "mps"),
        ("2x_a", "naive"),
        ("2x_b", "mps"),
        ("2x_b", "naive"),
    }
    worst = table.set_index(["scenario", "method"])["worst"]
    assert worst["1x_a", "mps"] == pytest.approx(1.25)
    assert worst["2x_a", "naive"] == pytest.approx(4) and math.isinf(worst["2x_b", "naive"])
    assert "OOM" in said and "∞" in said


def test_a_gain_of_one_replicate_is_hollow():
    records = jobs_alone(a=1000.0) + both("2x_a", "mps", (0.9, 0.9), (1000.0, 1000.0))
    figure, _ = throughput_gain.draw(study_of(records), "faithful")
    assert not _hollow(figure)
    figure, _ = throughput_gain.draw(study_of(records[:-1]), "faithful")
    assert _hollow(figure) == {style.LOOKS["mps"].colour}
    assert "hollow: one replicate" in [t.get_text() for box in figure.legends for t in box.texts]
    plt.close("all")


def _hollow(figure):
    """Edges of the large marks without a colour of their own."""
    lines = [line for ax in figure.axes for line in ax.lines if line.get_markersize() == 4.2]
    return {line.get_markeredgecolor() for line in lines if line.get_mfc() == "white"}


@pytest.fixture(scope="module")
def written():
    """A workload in three arms, and one in a single arm."""
    records = jobs_alone(a=1000.0, b=500.0)
    records += jobs_alone("tuned", a=2000.0) + jobs_alone("tuned_graph", a=5000.0)
    records += both("2x_a", "mps", (0.9, 0.9), (1000.0, 1000.0))
    records += both("2x_a", "mps", (0.6, 0.6), (2000.0, 2000.0), arm="tuned")
    records += both("2x_a", "mig", (0.8, 0.8), (1000.0, 1000.0))
    records += [record("2x_a", "mps", 1, [None] * 2, arm="tuned_graph", status="out_of_memory")]
    records += both("2x_b", "mps", (0.9, 0.9), (500.0, 500.0))
    return study_of(records)


def test_the_number_of_a_bar_without_a_line_for_its_interval_stands_within(tmp_path):
    """An interval so wide that it is not drawn lifts nothing out of the picture."""
    found = [record("1x_a", arm=arm) for arm in ("faithful", "tuned")]
    found += [record("1x_a", "naive", 2, arm=arm) for arm in ("faithful", "tuned")]
    for arm, rates in (("faithful", (900.0, 910.0)), ("tuned", (500.0, 900.0))):
        for block, rate in enumerate(rates, 1):
            found.append(record("2x_a", "mps", block, [rate] * 2, arm=arm))
    figure, drawn = arms.draw(load(merged(*found)), None)
    assert drawn["high"].max() > 10
    figure.draw_without_rendering()
    for ax in figure.axes:
        frame = ax.get_window_extent()
        for text in ax.texts:
            assert text.get_window_extent().y1 <= frame.y1 + 20, text.get_text()
    plt.close(figure)


def test_arms_stand_side_by_side_with_what_is_left_of_the_gain(written):
    table, said = look(arms, written)
    assert set(table["workload"]) == {"a"} and set(table["method"]) == {"naive", "mps"}
    first = table.drop_duplicates(["arm", "quantity", "n"]).set_index(["quantity", "arm"])
    assert first.loc[("alone", "tuned_graph"), "mean"] == pytest.approx(5000)
    assert first.loc[("alone_ratio", "tuned"), "mean"] == pytest.approx(2)
    assert ("alone_ratio", "faithful") not in first.index
    assert first.loc[("gain", "tuned"), "mean"] == pytest.approx(1.2)
    assert first.loc[("gain", "tuned"), "kept"] == pytest.approx(0.2 / 0.8)
    assert pd.isna(first.loc[("gain", "faithful"), "kept"])
    assert first.loc[("gain", "tuned_graph"), "status"] == "out_of_memory"
    assert "25 %" in said


def arms_by_block(gains, **more):
    """Workload a alone in every block of its arm, and twice under MPS with these gains by block."""
    found = []
    for arm, own in gains.items():
        for block, gain in own.items():
            found.append(record("1x_a", replicate=block, arm=arm))
            rates = [500.0 * gain] * 2
            found.append(record("2x_a", "mps", block, rates, arm=arm, **more))
    return found


@pytest.mark.parametrize(("blocks", "told"), [((1,), True), ((1, 2), False)])
def test_a_factor_of_one_block_is_told_of_bars_of_one_block_alone(blocks, told):
    gains = {"faithful": dict.fromkeys(blocks, 1.8), "tuned": {1: 1.4}}
    assert ("1.00×" in look(arms, study_of(arms_by_block(gains)))[1]) == told


def kept(table):
    row = table[(table["arm"] == "tuned") & (table["quantity"] == "gain")].iloc[0]
    return row["kept"], row["kept_blocks"]


def test_what_is_left_of_a_gain_is_of_the_blocks_that_both_arms_have():
    shared = {"faithful": {1: 1.8, 2: 1.8, 3: 1.7}, "tuned": {1: 1.4, 2: 1.4, 4: 1.9}}
    table, said = look(arms, study_of(arms_by_block(shared)))
    assert kept(table) == (pytest.approx(0.5), 2) and " 50 %" in said
    assert "factors and per cent within blocks that both arms have" in said
    assert "( ):" not in said
    apart = {"faithful": {1: 1.8, 2: 1.8}, "tuned": {3: 1.4, 4: 1.4}}
    table, said = look(arms, study_of(arms_by_block(apart)))
    assert kept(table) == (pytest.approx(0.5), 0) and "(50 %)" in said
    assert "( ): arms not measured in one block" in said and "factors" not in said
    once = {"faithful": {1: 1.8, 2: 1.8}, "tuned": {3: 1.4}}
    assert pd.isna(kept(look(arms, study_of(arms_by_block(once)))[0])[0])
    slight = {arm: {1: gain, 2: gain} for arm, gain in (("faithful", 1.2), ("tuned", 1.4))}
    assert pd.isna(kept(look(arms, study_of(arms_by_block(slight)))[0])[0])
    alike = {"faithful": {1: 1.8, 2: 1.8}, "tuned": {1: 1.4, 2: 1.4}}
    said = look(arms, study_of(arms_by_block(alike)))[1]
    assert "factors" not in said and "( ):" not in said


def test_flags_and_replicates_of_cells_that_are_not_drawn_are_not_counted():
    gains = {"faithful": {1: 1.8, 2: 1.8}, "tuned": {1: 1.4, 2: 1.4}}
    others = [record("3x_a", "mps", arm="tuned", rates=[500.0] * 3, flags=["cores_shared"])]
    said = look(arms, study_of(arms_by_block(gains) + others))[1]
    assert "share CPUs" not in said and "; 2 replicates;" in said
    said = look(arms, study_of(arms_by_block(gains, flags=["cores_shared"])))[1]
    assert "÷ members share CPUs: 4 of 8 cells" in said.replace("\u00a0", " ")


def test_one_arm_alone_gives_a_sentence(mixed):
    assert "in another one" in look(arms, mixed)[1]


@pytest.fixture(scope="module")
def beside(values):
    """Cells that the paper has numbers of."""
    records = jobs_alone(**{S: 1000.0, L: 300.0, DLRM: 9000.0})
    records += both(f"2x_{S}", "mps", (0.9, 0.9), (1000.0, 1000.0))
    records += both(f"2x_{S}", "naive", (0.4, 0.4), (1000.0, 1000.0))
    records += [record(f"2x_{S}", "mig", status="unsupported")]
    records += [record(f"7x_{L}", "mps", status="out_of_memory", rates=[None] * 7)]
    records += both(PAIR, "mps", (0.8, 0.95), (9000.0, 300.0))
    return study_of(records, values)


def test_reported_gains_stand_beside_ours(beside):
    table, said = look(reported_against_measured, beside)
    first = table.drop_duplicates(["group", "n", "method", "source"])
    first = first.set_index(["group", "n", "method", "source"])
    mps = first.loc[S, 2, "mps", "SUIT25"]
    bars = 21.57 / 21.73 + 21.57 / 22.1
    assert mps["reported"] == pytest.approx(bars) and mps["mean"] == pytest.approx(1.8)
    assert first.loc[(S, 2, "mps", "LEC22"), "reported"] == pytest.approx(2)
    mig = first.loc[S, 2, "mig", "SUIT25"]
    assert mig["reported"] > 1.9 and pd.isna(mig["mean"]) and mig["status"] == "unsupported"
    oom = first.loc[L, 7, "mps", "SUIT25"]
    assert (oom["reported_status"], oom["status"]) == ("out_of_memory", "out_of_memory")
    mix = first.loc[f"{DLRM} + {L}", 2, "mps", "SLIDES"]
    assert mix["reported"] == pytest.approx(6.41 / 5.57)
    left = 5.36 - 0.8 * 1.05 / 0.95
    assert mix["mean"] == pytest.approx(6.41 / (1.05 / 0.95 + left), rel=1e-4)
    assert "not comparable to the paper's" in " ".join(said.split())
    _, said = look(reported_against_measured, beside, "tuned")
    assert "no other is held against them" in said


def test_reported_gains_are_hollow_marks_of_the_gain_figure(beside, values):
    table, _ = look(throughput_gain, beside)
    told = table[table["status"] == "reported"].set_index(["scenario", "method"])
    bars = 21.57 / 21.73 + 21.57 / 22.1
    assert told.loc[(f"2x_{S}", "mps"), "stp"] == pytest.approx(bars)
    assert told.loc[(f"2x_{S}", "mig"), "source"] == "SUIT25"  # though ours did not run
    assert set(told["panel"]) == {S}
    tuned = jobs_alone("tuned", **{S: 1000.0})
    tuned += both(f"2x_{S}", "mps", (0.6, 0.6), (1000.0, 1000.0), arm="tuned")
    for study, arm in (
        (study_of(tuned, values), "tuned"),
        (dataclasses.replace(beside, reported=None), "faithful"),
    ):
        assert "reported" not in set(look(throughput_gain, study, arm)[0]["status"])


def test_serial_is_n_times_the_job_alone_of_the_same_variant():
    records = jobs_alone(a=1000.0) + both("2x_a", "naive", (0.5, 0.5), (1000.0, 1000.0))
    records += [record("1x_a--files", rates=[800.0]), record("3x_a--files", rates=[300.0] * 3)]
    records += [record("2x_b", rates=[100.0, 100.0]), record("3x_b", status="out_of_memory")]
    table, _ = look(epoch_time, study_of(records))
    serial = table[table["method"] == "serial"].set_index(["panel", "variant", "n"])
    assert serial.loc[("a", "", 2), "epoch_time_s"].tolist() == [2 * TRAIN_SIZE / 1000] * 2
    assert serial.loc[("a", "files", 3), "epoch_time_s"] == 3 * TRAIN_SIZE / 800
    assert serial.loc[("b", "", 2), "status"] == "no_baseline"
    assert ("b", "", 3) not in serial.index


def unread():
    """A window in which every reading is missing, and a member that did nothing."""
    seen = telemetry(members=2, card=dict.fromkeys(("gract", "smact", "memory_used")))
    seen["windows"]["window"]["energy"] = None
    return [*jobs_alone(a=1000.0), record("2x_a", rates=[0.0, 100.0], telemetry=seen)]


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([], id="empty"),
        pytest.param([record(f"1x_{S}")], id="single"),
        pytest.param([record(f"2x_{S}", "mps", rates=[900.0, 900.0])], id="no baseline"),
        pytest.param(
            [
                record(scenario, method, status="out_of_memory", rates=[None] * 2, arm=arm)
                for scenario in (f"2x_{S}", PAIR, f"{PAIR}--departure")
                for method in ("naive", "mps")
                for arm in ("faithful", "tuned")
            ],
            id="all out of memory",
        ),
        pytest.param(unread(), id="nothing read"),
    ],
)
def test_every_study_gives_figures_or_a_sentence(records, values):
    study = study_of(records, values)
    for module in FIGURES:
        table, said = look(module, study, render=len(records) > 2)
        assert said and len(module.TITLE) > 3 and module.CAPTION.endswith(".")
        numbers = [c for c in ("stp", "mean", "worst", "epoch_time_s") if c in table]
        without = ~table["status"].isin(["completed", "reported"])
        assert table.loc[without, numbers].isna().all(axis=None)


def test_a_study_whose_only_cell_failed_is_drawn_as_read_from_its_file(tmp_path):
    furnish(tmp_path, [record(f"1x_{S}", status="failed", rates=[None])])
    study = load(read_runs(tmp_path / "runs.parquet"))
    for module in FIGURES:
        _, said = look(module, study)
        assert said


# The pair (T1)


def pair_records(method="mps", progress=(0.8, 0.95), gract=0.06, memory=29e9, dlrm=DLRM):
    read = telemetry(card={"gract": gract, "memory_used": memory})
    both_read = telemetry(members=2, card={"gract": 0.7, "memory_used": 38e9})
    records = [
        record(f"1x_{dlrm}", replicate=block, rates=[9000.0], telemetry=read) for block in (1, 2)
    ]
    records += jobs_alone(**{L: 300.0})
    return records + both(
        f"1x_{dlrm}+1x_{L}", method, progress, (9000.0, 300.0), telemetry=both_read
    )


def table_of(records, values):
    return pair_table.build(study_of(records), [], values)


def test_the_pair_in_closed_form(values):
    table = table_of(pair_records(), values)
    rows = table.rows.set_index("row")
    epoch = TRAIN_SIZE / 300 / 3600  # h, of ResNet152 alone
    ratio = 5.36 / 1.05
    assert rows.loc["DLRM alone", "long_h"] == pytest.approx(ratio * epoch)
    assert rows.loc["serial (sum)", "total_h"] == pytest.approx((1 + ratio) * epoch)
    mps = rows.loc["MPS"]
    # Both blocks: what DLRM has left when ResNet152 is done runs at its rate alone.
    total = math.prod(
        epoch / (0.95 * f) + ratio * epoch - 0.8 * f * epoch / (0.95 * f) for f in (UP, DOWN)
    )
    assert mps["total_h"] == mps["long_h"] == pytest.approx(math.sqrt(total))
    assert mps["short_h"] == pytest.approx(epoch / 0.95)
    assert mps["saving"] == pytest.approx(1 - math.sqrt(total) / ((1 + ratio) * epoch))
    assert mps["saving_low"] < mps["saving"] < mps["saving_high"] < mps["bound"]
    assert mps["bound"] == pytest.approx(1.05 / 6.41) and mps["stp"] == pytest.approx(1.75)
    assert (mps["gract"], mps["memory_gb"]) == pytest.approx((0.7, 38.0))
    assert table.unlike == ""


def test_in_an_instance_the_survivor_keeps_its_rate(values):
    rows = table_of(pair_records("mig_shared", (0.957, 0.75)), values).rows.set_index("row")
    expected = math.sqrt(1 / (0.957 * UP) / (0.957 * DOWN)) * 5.36 / 6.41
    assert 1 - rows.loc["MIG, shared memory", "saving"] == pytest.approx(expected)


def test_the_reported_pair_stands_beside_whatever_was_measured(values):
    table = table_of([], values)
    rows = table.rows.set_index("row")
    assert rows["status"]["naive"] == "not in the study" and pd.isna(rows["total_h"]["naive"])
    assert rows["total_h_reported"].dropna().tolist() == pytest.approx([6.41, 6.09, 5.57, 5.60])
    assert rows["saving_reported"].dropna().tolist() == pytest.approx([0.05, 0.13, 0.13])
    assert rows["short_h_reported"].dropna().tolist() == pytest.approx([1.05, 1.11, 1.10, 1.40])
    assert rows["memory_gb_reported"]["DLRM alone"] == pytest.approx(29.14)
    assert rows["gract_reported"]["ResNet152 alone"] == pytest.approx(0.82)
    assert "Comparable" not in pair_table.markdown(table)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gract": 0.2}, "GRACT of 1× dlrm_criteo_b2048, naive is 0.2, and must be below 0.15"),
        ({"memory": 20e9}, "is 20 GB, and must be above 27 and below 31 GB"),
        ({"gract": None}, "the telemetry of its window does not hold it"),
        ({"dlrm": "dlrm_criteo_small_b2048"}, "the paper's jobs are dlrm_criteo_b2048 and"),
    ],
)
def test_a_pair_unlike_the_papers_is_not_comparable(values, options, said):
    table = table_of(pair_records(**options), values)
    assert said in table.unlike
    assert "**Not comparable**" in pair_table.markdown(table)
    assert table.rows.set_index("row").loc["MPS", "saving"] > 0  # its numbers are told


def test_the_table_needs_what_the_claims_need():
    claims = claim_rules.load(REPOSITORY / "config" / "claims.yaml")
    needs = [claim.needs for claim in claims if claim.id.startswith("C11")]
    assert len(needs) == 4
    assert all(list(pair.needs(DLRM)) == each for each in needs)


def completed_pair(block: int, seconds: float, gpu="GPU-1") -> dict:
    """The pair under MPS to the end of 90,000 samples of DLRM and 2,000 of ResNet152."""
    windows = [{"completion": 1.0}, {"completion": 1.0}]
    found = record(f"{PAIR}--completion", "mps", block, windows=windows, gpu=gpu)
    found["windows"][0]["seconds"] = seconds
    batches = zip(found["members"], found["spec"]["members"], (90_000, 2_000), strict=True)
    for member, spec, samples in batches:
        member["windows"]["completion"]["steps"] = samples // 10
        spec["batch_size"] = 10
    return found


@pytest.mark.parametrize(
    ("off", "said"),
    [
        ((1.0, 1.0), "(agrees within 3 %)"),
        ((0.9, 0.9), "-10.0 % [-10.0, -10.0] (does not agree within 3 %)"),
        ((0.9, 0.95), "(may or may not agree within 3 %)"),
        ((0.9, 1.1), "(may or may not agree within 3 %)"),
        ((1.0,), "MPS +0.0 % (one replicate cannot say whether it agrees within 3 %)"),
    ],
)
def test_a_pair_run_to_completion_tries_the_rule(values, off, said):
    records = pair_records()
    for (block, factor), each in zip(((1, UP), (2, DOWN)), off, strict=False):
        short = 2_000 / (0.95 * 300.0 * factor)  # then DLRM goes on alone
        left = 90_000 - 0.8 * 9000.0 * factor * short
        records.append(completed_pair(block, (short + left / 9000.0) / each))
    table = table_of(records, values)
    mps = table.rows.set_index("row").loc["MPS"]
    assert mps["completion_blocks"] == len(off)
    assert mps["completion"] == pytest.approx(math.prod(off) ** (1 / len(off)))
    assert said in pair_table.markdown(table)


def test_a_rule_that_was_not_tried_says_why(values):
    text = pair_table.markdown(table_of(pair_records(), values))
    assert "The rule was not tried: no cell in which" in text
    elsewhere = [*pair_records(), completed_pair(1, 10.0, gpu="GPU-2")]
    text = pair_table.markdown(table_of(elsewhere, values))
    assert "The rule was not tried: the pair was run" in text and "on another GPU" in text


def test_a_saving_beyond_the_bound_is_explained(values):
    page = pair_table.markdown(table_of(pair_records(progress=(1.02, 1.02)), values))
    assert "MPS: more than can be saved, for a job ran faster than alone." in page


def test_the_command_writes_the_table_three_times(tmp_path):
    records = pair_records()
    records.append(record(PAIR, "mig_shared", status="unsupported", reason="no MIG"))
    merge.write(merge.merge(records)[0], tmp_path / "runs.parquet")
    expected = [{"scenario": PAIR, "arm": "faithful", "method": "naive", "replicate": 1, "n": 2}]
    (tmp_path / "plan.json").write_text(json.dumps(expected))
    arguments = ["--runs", tmp_path / "runs.parquet", "--expected", tmp_path / "plan.json"]
    arguments += ["--reported", REPOSITORY / "config" / "reported.csv"]
    arguments += ["--output", tmp_path / "tables" / "pair"]
    assert pair_table.main([str(argument) for argument in arguments]) == 0
    rows = pd.read_csv(tmp_path / "tables" / "pair.csv").set_index("method")
    assert rows.loc["mig_shared", "status"] == "unsupported"
    assert len(read_runs(tmp_path / "runs.parquet")) > 0
    page = (tmp_path / "tables" / "pair.md").read_text()
    assert "unsupported (5.60)" in page and "not run (6.09)" in page and "38.00 (37.62)" in page
    tex = (tmp_path / "tables" / "pair.tex").read_text()
    assert "\\toprule" in tex and "saved \\%" in tex and "–" not in tex
