"""Figures of what the GPU did: activity, memory, energy, step latency, and the maps of MIG."""

import json
from dataclasses import replace

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from analysis import cells, reported
from analysis.figures import activity, energy, latency, memory, mig_layouts, reported_marks, slots
from tests.records import merged, record, telemetry
from tests.studio import REPOSITORY
from workflow.collocation import mig_plan

S, L, D = "resnet26_cifar10_b32", "resnet152_imagenet_b32", "dlrm_criteo_b2048"
DRAWN = {"activity": activity, "memory": memory, "energy": energy, "latency": latency}
GB = 10**9


@pytest.fixture(autouse=True)
def figures_are_closed():
    yield
    plt.close("all")


def measured(scenario, method="naive", replicate=1, rates=(1000.0,), watts=200.0, **options):
    """A record with memory, step times and telemetry; `busy`: GRACT, the other shares follow."""
    busy, windows = options.pop("busy", 0.5), options.get("windows")
    names = list(windows[0]) if windows else ["window"]
    shares = {"gract": busy, "smact": busy / 2, "smocc": busy / 4, "drama": busy / 5}
    seen = telemetry(watts, names, len(rates), card=shares, whole_card={})
    options |= {"telemetry": seen, "gpu_memory": 80 * GB}
    found = record(scenario, method, replicate, rates, **options)
    for i, member in enumerate(found["members"]):
        member |= {"memory_peak_reserved": (5 + i) * GB, "resident_bytes": GB // 2}
        for window in member["windows"].values():
            window |= {"step_ms_p50": 10.0 + i, "step_ms_p95": 12.0 + i, "step_ms_p99": 20.0 + i}
    return found


def in_instances(found, ids):
    """The same with its members in MIG instances, whose GRACT is 0.1, 0.2, …"""
    for window in found["telemetry"]["windows"].values():
        for i, instance in enumerate(ids):
            window["members"][str(i)] = window["members"][str(i)] | {"entity": f"gi:{instance}"}
            own = {"gract": (i + 1) / 10, "smact": (i + 1) / 20}
            window["entities"] = window["entities"] | {f"gi:{instance}": own}
    return found


@pytest.fixture(scope="module")
def study():
    both = (S, L)
    found = [
        *(measured(f"1x_{name}", "naive", r, watts=100.0 * r) for name in both for r in (1, 2)),
        measured(f"1x_{D}", rates=(10.0,), busy=0.1, watts=50.0),
        *(measured(f"2x_{S}", "naive", r, (800.0, 800.0), 96.0 * r, busy=0.9) for r in (1, 2)),
        *(measured(f"2x_{S}", "mps", r, (1000.0, 1000.0), 80.0 * r**2) for r in (1, 2)),
        measured(f"2x_{S}", "naive_again", 1, (800.0, 800.0)),
        in_instances(measured(f"2x_{S}", "mig", 1, (900.0, 900.0)), (4, 1)),
        in_instances(measured(f"2x_{S}", "mig", 2, (900.0, 900.0)), (2, 3)),
        measured(f"2x_{L}", "naive", 1, (450.0, 450.0), status="out_of_memory"),
        measured(f"2x_{L}", "mps", 1, (500.0, 500.0)),
        measured(f"2x_{L}", "mps", 2, status="failed"),
        measured(f"2x_{L}", "mig", 1, status="unsupported", reason="MIG mode is off"),
        measured(f"1x_{D}+1x_{L}", "naive", 1, (9.0, 800.0), 150.0, busy=0.8),
        measured(
            f"1x_{D}+1x_{L}--departure",
            "mps",
            1,
            (9.0, 800.0),
            windows=[{"before": 9.0, "after": 10.0}, {"before": 800.0}],
        ),
    ]
    rows = reported.read(REPOSITORY / "config" / "reported.csv")
    return replace(cells.load(merged(*found)), reported=rows)


@pytest.fixture(scope="module")
def drawn(study):
    """Name → the data of each figure, drawn without rendering."""
    found = {}
    for name, module in DRAWN.items():
        figure, found[name] = module.draw(study, "faithful")
        figure.draw_without_rendering()
        assert len(figure.axes) in (3, 6)
    return found


def rows(table, scenario, method, **more):
    same = (table["scenario"] == scenario) & (table["method"] == method)
    for name, value in more.items():
        same &= table[name].isna() if value is None else table[name] == value
    return table[same]


# -- what all of them share -----------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_outcomes_are_drawn_and_the_twin_is_not(drawn, name):
    table = drawn[name][drawn[name]["status"] != "reported"]
    assert list(rows(table, f"2x_{L}", "naive")["status"]) == ["out_of_memory"]
    assert list(rows(table, f"2x_{L}", "mig")["status"]) == ["unsupported"]
    assert set(rows(table, f"2x_{L}", "mps")["status"]) == {"completed", "failed"}
    assert "naive_again" not in set(table["method"])
    assert set(table["panel"]) == {S, L, f"{D} + {L}"}


@pytest.mark.parametrize("name", ["activity", "energy", "latency"])
def test_before_and_after_a_departure_are_rows_of_their_own(drawn, name):
    table = rows(drawn[name], f"1x_{D}+1x_{L}--departure", "mps")
    assert set(table["window"]) == {"before", "after"}
    assert set(table["variant"]) == {"departure"}


def test_jobs_alone_stand_in_the_panel_of_their_mix(study):
    found = slots.panels(study, "faithful", ["gract"])[f"{D} + {L}"]
    assert [slot.label for slot in found][:3] == ["1+0", "0+1", "1+1"]
    assert [slot.label for slot in found][3:] == ["1+1\nbefore", "1+1\nafter"]


def test_a_group_stands_at_the_same_place_in_every_panel(study):
    found = slots.panels(study, "faithful", ["gract"])
    placed = slots.layout(found, 0.4)
    (one, two), (other, another) = (placed.ticks[name][:2] for name in (S, L))
    assert one == other and two[1] == another[1] == "2×"
    assert two[0] == pytest.approx(another[0])
    edges = [(p.left, p.left + p.width) for p in placed.places[S]]
    assert all(end < start for (_, end), (start, _) in zip(edges, edges[1:], strict=False))
    assert edges[-1][1] <= placed.width


EDGES = {
    "empty": [],
    "single": [measured(f"1x_{S}")],
    "no_memory": [measured(f"{n}x_{S}", status="out_of_memory", rates=()) for n in (1, 2)],
    "no_telemetry": [record(f"1x_{S}"), record(f"2x_{S}", rates=(500.0, 500.0), source="real")],
}


@pytest.fixture(scope="module")
def edges():
    return {name: cells.load(merged(*records)) for name, records in EDGES.items()}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("name", DRAWN)
def test_a_study_with_little_in_it_is_drawn_or_told(edges, name, edge):
    figure, table = DRAWN[name].draw(edges[edge], "faithful")
    figure.draw_without_rendering()
    said = " ".join(text.get_text() for text in figure.texts)
    if edge == "empty":
        assert "No cells in arm faithful yet." in said and table.empty
    elif edge == "single":
        assert list(table["status"].unique()) == ["completed"] and len(figure.axes) > 0
    elif edge == "no_memory":
        assert list(table["status"]) == ["out_of_memory"] * 2 and len(figure.axes) > 0
    elif name != "latency":
        assert "none of the 2 completed cells" in said or "the 2 completed cells" in said
        assert table.empty and not figure.axes


# -- activity -------------------------------------------------------------------------------------


def test_activity_of_the_card_and_of_instances(drawn):
    table = drawn["activity"]
    card = rows(table, f"2x_{S}", "naive", instance=None, reported_source=None)
    assert list(card["gract"]) == [0.9, 0.9] and list(card["block"]) == [1, 2]
    assert list(card["drama"]) == pytest.approx([0.18, 0.18])
    own = rows(table, f"2x_{S}", "mig")
    # Their ids differ between the replicates: the first member's comes first.
    assert list(own.loc[own["instance"] == 0, "gract"]) == [0.1, 0.1]
    assert list(own.loc[own["instance"] == 1, "smact"]) == [0.1, 0.1]
    assert own.loc[own["instance"].notna(), "smocc"].isna().all()


def test_reported_utilisation_stands_beside_the_same_model(drawn):
    table = drawn["activity"].dropna(subset=["reported_source"])
    assert rows(table, f"2x_{S}", "naive")["reported_low"].item() == 0.95
    alone = rows(table, f"1x_{L}", "naive", panel=L).set_index("reported_source")
    assert alone["reported_low"].to_dict() == {"LEC22": 0.94, "SLIDES": 0.82}
    assert rows(table, f"1x_{D}+1x_{L}", "naive")["reported_low"].item() == 0.81
    # Not beside a departure, which the paper did not measure so.
    assert rows(table, f"1x_{D}+1x_{L}--departure", "mps").empty
    assert set(table["status"]) == {"reported"}


def test_reported_values_stand_only_beside_the_arm_that_they_are_of(study):
    assert reported_marks.values(study, "faithful", "gpu_util")
    assert not reported_marks.values(study, "tuned", "gpu_util")


# -- memory ---------------------------------------------------------------------------------------


def test_memory_of_members_and_of_the_card(drawn):
    own = rows(drawn["memory"], f"2x_{S}", "mps", block=1)
    members = own.dropna(subset=["member"])
    assert list(members["reserved_gb"]) == [5, 6] and list(members["resident_gb"]) == [0.5, 0.5]
    card = own[own["member"].isna()]
    assert card["used_gb"].item() == 2 and card["capacity_gb"].item() == 80
    assert card["reserved_gb"].isna().all()
    assert not drawn["memory"]["variant"].str.contains("departure").any()
    pair = rows(drawn["memory"], f"1x_{D}+1x_{L}", "naive", reported_source="SLIDES")
    assert pair["reported_gb"].item() == 37.75


def test_the_capacity_shows_where_it_was_hit(study):
    figure, _ = memory.draw(study, "faithful")
    levels = {
        axes.get_title(loc="left"): [
            line.get_ydata()[0] for line in axes.lines if set(line.get_ydata()) == {80.0}
        ]
        for axes in figure.axes
    }
    assert levels[S] == [] and levels[L] == [80.0]


# -- energy ---------------------------------------------------------------------------------------


def test_energy_against_serial(drawn):
    table = drawn["energy"]
    alone = rows(table, f"1x_{S}", "naive")
    assert list(alone["energy_per_sample"]) == pytest.approx([0.1, 0.2])
    assert alone["ratio"].tolist() == pytest.approx([1, 1]) and alone["low"].isna().all()
    naive = rows(table, f"2x_{S}", "naive")
    assert list(naive["energy_per_sample"]) == pytest.approx([0.06, 0.12])
    assert list(naive["serial_energy_per_sample"]) == pytest.approx([0.1, 0.2])
    assert list(naive["ratio"]) == pytest.approx([0.6, 0.6])
    # Ratios of MPS are 0.4 and 0.8: a mean of √0.32, and a variance that is pooled with naive's.
    mps = rows(table, f"2x_{S}", "mps").iloc[0]
    assert mps["ratio"] == pytest.approx(0.32**0.5)
    for other in (naive.iloc[0], mps):
        assert other["high"] / other["ratio"] == pytest.approx(mps["high"] / mps["ratio"])
        assert other["low"] < other["ratio"] < other["high"]


def test_the_energy_of_one_replicate_has_no_interval(drawn):
    pair = rows(drawn["energy"], f"1x_{D}+1x_{L}", "naive").iloc[0]
    assert pair["ratio"] == pytest.approx(150 / (9 * 5 + 800 * 0.1)) and pd.isna(pair["low"])
    assert pair["power"] == 150


def test_a_mix_is_drawn_in_units_of_serial(study):
    found = slots.panels(study, "faithful", energy._VALUES)[f"{D} + {L}"]
    pair = next(slot for slot in found if slot.scenario == f"1x_{D}+1x_{L}")
    assert energy._energies(pair, True) == pytest.approx([150 / 125])
    assert energy._serial(pair, True) == 1


# -- latency --------------------------------------------------------------------------------------


def test_latency_of_every_member(drawn):
    own = rows(drawn["latency"], f"2x_{S}", "mps", block=2)
    assert list(own["step_ms_p50"]) == [10, 11] and list(own["step_ms_p99"]) == [20, 21]
    pair = rows(drawn["latency"], f"1x_{D}+1x_{L}", "naive")
    assert list(pair["workload"]) == [D, L]


# -- MIG ------------------------------------------------------------------------------------------


def layouts(folder, card, study="paper"):
    path = folder / f"{card}.json"
    arguments = ["--card", str(REPOSITORY / "tests" / "cards" / f"{card}.json")]
    arguments += ["--json", str(path), "--config", f"study={study}"]
    assert mig_plan.main(arguments) == 0
    return mig_layouts.read(path)


@pytest.fixture(scope="module")
def on_h200(tmp_path_factory):
    return layouts(tmp_path_factory.mktemp("maps"), "h200_141")


def test_layouts_are_the_planners(on_h200, study):
    figure, table = mig_layouts.figure(on_h200, study)
    figure.draw_without_rendering()
    assert on_h200["card"]["name"] == "NVIDIA H200" and on_h200["card"]["read"] is False
    three = table[table["layout"] == "3x 2g.35gb"]
    assert list(three["start"]) == [0, 2, 4] and list(three["sm_count"]) == [32] * 3
    assert set(three["used_by"]) == {"MIG, N equal: 3×"}
    shared = table[table["layout"] == "2x 3c in 7g.141gb"]
    assert list(shared["compute_slices"]) == [3, 3] and shared["compute_sm_count"].isna().all()
    within = table[table["used_by"] == "MPS within MIG: 7×"]
    assert list(within["members"]) == [4, 3] and list(within["start"]) == [0, 4]
    mix = table[table["layout"] == "2g.35gb + 1g.18gb"]
    assert set(mix["used_by"]) == {"MIG: 1× resnet50_imagenet64_b128 + 1× resnet26_cifar10_b128"}
    said = " ".join(" ".join(text.get_text() for text in figure.texts).split())
    assert "NVIDIA H200" in said and "recorded in a file" in said
    assert "measured cells of this study ran on Test GPU" in said


def test_what_does_not_fit_is_told(tmp_path, study):
    figure, table = mig_layouts.figure(layouts(tmp_path, "a30"), study)
    figure.draw_without_rendering()
    reasons = table.dropna(subset=["reason"])
    assert "MIG, N equal: 7×" in set(reasons["used_by"])
    said = " ".join(text.get_text() for text in figure.texts)
    assert "no layout for 5 cells: mig_7g: NVIDIA A30 has no 7g" in said


def test_numbers_that_a_table_lacks_stay_unknown(tmp_path, study):
    _, table = mig_layouts.figure(layouts(tmp_path, "b200_180"), study)
    unknown = table.loc[table["profile"] == "3g.90gb", ["sm_count", "memory_mib"]]
    assert len(unknown) and unknown.isna().all(axis=None)


@pytest.mark.parametrize("content", [{"schema_version": 2}, [], "{"])
def test_a_file_that_is_none_gives_a_sentence(tmp_path, study, content):
    path = tmp_path / "mig_layouts.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(mig_layouts.LayoutsError, match="mig_layouts.json: "):
        mig_layouts.read(path)


def test_a_study_without_layouts_gives_a_sentence(study, on_h200):
    figure, table = mig_layouts.draw(study)
    assert "No MIG layouts" in figure.texts[1].get_text() and table.empty
    figure, table = mig_layouts.figure(on_h200 | {"cells": []}, study)
    assert "no MIG cells" in figure.texts[1].get_text() and table.empty


@pytest.mark.parametrize(
    "more", [["--json", "x", "--table", "y"], ["--card", "none", "--json", "x"]]
)
def test_layouts_that_cannot_be_written(more, capsys):
    try:
        code = mig_plan.main(more)
    except SystemExit as stop:
        code = stop.code
    assert code == 2 and capsys.readouterr().err
