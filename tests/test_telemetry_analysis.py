"""What analysis makes of telemetry: columns of runs.parquet, energy, telemetry.parquet, tables."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import flags, metrics
from analysis.cells import load, read_runs, summarise
from analysis.records import schema
from analysis.records import telemetry as merging
from analysis.records.merge import merge, write
from analysis.tables import activity, checks, evidence
from analysis.tables import summary as tables
from bench import merging as benchmark
from tests.records import merged, record, telemetry
from workflow.collocation.record import Telemetry, Window
from workflow.collocation.telemetry import files
from workflow.collocation.telemetry.lines import Lines
from workflow.collocation.telemetry.vocabulary import METRICS

# Columns of runs.parquet


def test_the_test_records_are_as_the_runner_writes_them():
    Telemetry.model_validate(telemetry(members=2, whole_card={"sm_count": 120, "gract": 0.3}))


def test_headline_values_are_columns_and_missing_ones_are_missing():
    card = {"ctxsw_active": 0.02, "ctxsw_requests": 300.0, "sm_clock": 1980.0, "drama": 0.1}
    seen = telemetry(members=2, card=card)
    del seen["windows"]["window"]["members"]["1"]
    frame = merged(record("2x_a", rates=[1, 1], telemetry=seen))
    first, second = frame.to_dict("records")
    expected = {"gract": 0.5, "smact": 0.25, "drama": 0.1, "ctxsw_active": 0.02, "power": 200}
    expected |= {"ctxsw_requests": 300, "sm_clock": 1980, "gpu_memory_used": 2e9, "idle_power": 80}
    expected |= {"energy_j": 2000, "energy_above_idle_j": 1200, "temperature": 50}
    expected |= {"telemetry": "complete", "telemetry_source": "gpm"}
    assert {key: first[key] for key in expected} == expected
    assert {key: second[key] for key in expected} == expected
    assert pd.isna([first[key] for key in ("tenso", "fp64", "pss", "activity_sm_count")]).all()
    assert (first["cpu_cores"], first["read"], first["gpu_memory"]) == (1.5, 0, 2**29)
    assert pd.isna([second[key] for key in ("cpu_cores", "rss", "gpu_memory")]).all()
    assert pd.isna(first["telemetry_note"])


def test_under_mig_the_whole_card_is_what_the_instances_add_up_to():
    whole = {"sm_count": 132, "gract": 0.8, "smact": None}
    seen = telemetry(whole_card=whole, card={"gract": None, "smact": None})
    [row] = merged(record("1x_a", "mig_7g", telemetry=seen)).to_dict("records")
    assert (row["gract"], row["activity_sm_count"], row["power"]) == (0.8, 132, 200)
    assert pd.isna(row["smact"]) and pd.isna(row["gract_instance"]) and row["entity"] == "gpu"


def test_under_mig_a_member_has_the_values_of_its_own_instance():
    seen = telemetry(members=3)
    window = seen["windows"]["window"]
    window["entities"] |= {"gi:1": {"gract": 0.9, "smact": None}, "gi:2": {"gract": 0.4}}
    for member, entity in enumerate(("gi:2", "gi:1", "gi:3")):
        window["members"][str(member)] = {"cpu": 1.0, "entity": entity}
    frame = merged(record("3x_a", "mig", rates=[1, 1, 1], telemetry=seen))
    assert frame["entity"].tolist() == ["gi:2", "gi:1", "gi:3"]
    assert frame["gract_instance"].tolist()[:2] == [0.4, 0.9]
    assert frame["gract_instance"].isna().tolist() == [False, False, True]
    assert frame["smact_instance"].isna().all() and (frame["gract"] == 0.5).all()


def test_records_from_before_and_machines_without_a_gpu_have_empty_columns():
    cpu = telemetry(source=None, idle={})
    cpu["windows"]["window"] |= {"entities": {}, "series": {}, "energy": None}
    off = {"status": "off", "reason": "telemetry.source: off"}
    frame = merged(
        record("1x_a"),
        record("2x_a", rates=[1, 1], telemetry=None),
        record("3x_a", rates=[1] * 3, gpu=None, telemetry=cpu),
        record("4x_a", rates=[1] * 4, telemetry=off),
        record("5x_a", status="unsupported", telemetry=None),
    )
    empty = ["gract", "power", "energy_j", "energy_per_sample", "idle_power"]
    assert frame[empty].isna().all(axis=None)
    states = frame.drop_duplicates("n")["telemetry"].fillna("none")
    assert states.tolist() == ["none", "none", "complete", "off", "none"]
    assert frame.loc[frame["n"] == 3, "cpu_cores"].tolist()[0] == 1.5


def test_a_note_says_what_was_wrong_in_one_line():
    seen = telemetry(
        status="incomplete",
        reason="nothing of the GPU\nfor 3 s",
        throttled={"hw_slowdown": 0.25},
        strangers=["PID 7"],
        disagree=["window, gpu: gract is 0.5000 or 0.6"],
    )
    row = merged(record("1x_a", telemetry=seen)).iloc[0]
    assert row["telemetry_note"] == (
        "nothing of the GPU for 3 s; window, gpu: gract is 0.5000 or 0.6; "
        "hw slowdown 25 % of the time; stranger on the card: PID 7"
    )


def test_the_cards_memory_is_a_column():
    frame = merged(record("1x_a", gpu_memory=42 * 10**9), record("2x_a", gpu=None, rates=[1, 1]))
    assert frame["gpu_memory_total"].fillna(0).tolist() == [42e9, 0, 0]


# Energy


def idling(at, **options):
    return telemetry(idle={} if at is None else {"power": at, "seconds": 0.3}, **options)


def test_idle_power_is_the_least_that_the_sitting_saw_of_the_device():
    frame = merged(
        record("1x_a", sitting="s1", telemetry=idling(120.0)),
        record("2x_a", rates=[1, 1], sitting="s1", telemetry=idling(76.0, watts=100.0)),
        record("3x_a", rates=[1] * 3, sitting="s1", telemetry=idling(None)),
        record("4x_a", rates=[1] * 4, sitting="s1", telemetry={"status": "off"}),
        record("5x_a", rates=[1] * 5, sitting="s2", telemetry=idling(90.0)),
        record("6x_a", rates=[1] * 6, sitting="s1", gpu="GPU-2", telemetry=idling(50.0)),
        record("7x_a", rates=[1] * 7, telemetry=idling(110.0)),  # of which sitting is not known
        record("8x_a", rates=[1] * 8, telemetry=idling(111.0)),
    )
    cells = frame.groupby("n").first()
    assert cells["idle_power"].fillna(0).tolist() == [76, 76, 76, 0, 90, 50, 110, 111]
    above = [1240, 240, 1240, 0, 1100, 1500, 900, 890]
    assert cells["energy_above_idle_j"].fillna(0).tolist() == pytest.approx(above)


def test_energy_is_per_sample_of_the_set_and_against_the_same_samples_alone():
    frame = merged(
        record("1x_a", rates=[1000], telemetry=telemetry(100.0)),
        record("1x_b", rates=[100], telemetry=telemetry(400.0)),
        record("2x_a", "mps", rates=[900, 700], telemetry=telemetry(120.0, members=2)),
        record("1x_a+1x_b", "mps", rates=[500, 90], telemetry=telemetry(413.0, members=2)),
    )
    cells = frame.groupby("scenario").first()
    # Two a: 1,600 samples/s at 120 W, against 0.1 J a sample alone.
    assert cells["energy_per_sample"]["2x_a"] == pytest.approx(0.075)
    assert cells["serial_energy_per_sample"]["2x_a"] == pytest.approx(0.1)
    assert cells["energy_saving"]["2x_a"] == pytest.approx(0.25)
    # The mix trains 500 of 0.1 J and 90 of 4 J each second.
    assert cells["serial_energy_per_sample"]["1x_a+1x_b"] == pytest.approx(410 / 590)
    assert cells["energy_saving"]["1x_a+1x_b"] == pytest.approx(1 - 413 / 410)
    assert cells["energy_saving"]["1x_a"] == 0
    table = summarise(load(frame).cells).set_index("scenario")
    assert table["energy_saving"]["2x_a"] == pytest.approx(0.25)
    assert table["power"]["2x_a"] == 120 and table["gract"]["2x_a"] == 0.5


def test_serial_energy_of_equal_members_is_n_times_alone():
    alone, n, samples = 0.3, 7, 1000.0  # J a sample; each member's samples
    per_sample = metrics.serial_energy_per_sample([samples] * n, [alone] * n)
    assert per_sample * n * samples == pytest.approx(n * (alone * samples))


def test_there_is_no_saving_where_a_part_of_the_comparison_is_missing():
    whole = telemetry(members=2)
    frame = merged(
        record("1x_a", rates=[1000], telemetry=telemetry()),
        record("1x_a", replicate=2, rates=[1000]),
        record("1x_a", gpu="GPU-2", replicate=3, telemetry=telemetry()),
        record("2x_a", "mps", 2, rates=[1, 1], telemetry=whole),  # block 2 was not watched alone
        record("2x_a", "mps", 3, rates=[1, 1], telemetry=whole),  # another device
        record("2x_a", "mps", rates=[1, 1], arm="tuned", telemetry=whole),
        record("3x_a", "mps", rates=[1, None, 1], status="out_of_memory", telemetry=whole),
        record("1x_a--epochs", rates=[1], telemetry=telemetry(windows=["epochs"])),
    )
    others = frame[frame["scenario"] != "1x_a"]
    assert others["energy_saving"].isna().all() and (others["energy_j"].dropna() == 2000).all()
    pairs = frame[frame["scenario"] == "2x_a"]
    assert pairs["energy_per_sample"].notna().all()
    assert frame[frame["n"] == 3]["energy_per_sample"].isna().all()
    assert frame[frame["window"] == "epochs"]["energy_per_sample"].isna().all()


def test_a_departure_saves_in_each_of_its_windows():
    windows = [{"before": 600}, {"before": 400, "after": 500}]
    seen = telemetry(100.0, windows=("before", "after"))
    frame = merged(
        record("1x_a", rates=[1000], telemetry=telemetry(200.0)),
        record("2x_a--departure", "mps", windows=windows, telemetry=seen),
    )
    found = frame[frame["n"] == 2].groupby("window")["energy_saving"].first()
    assert found.to_dict() == pytest.approx({"before": 0.5, "after": 0.0})


# telemetry.parquet


def series(entities=("gpu",), rows=3, **metrics):
    """Lines of a sampler that read so many rows of each entity, every 0.1 s from -0.1 s on."""
    gpu = [
        {"t": 10**12 + (i - 1) * 10**8, "e": entity, "v": {n: v[i] for n, v in metrics.items()}}
        for i in range(rows)
        for entity in entities
    ]
    phases = (("warm", -(10**9)), ("window", 0))
    return Lines(gpu=gpu, marks=[{"t": 10**12 + t, "name": f"phase:{n}"} for n, t in phases])


def cell(folder, number, lines, **options):
    """A cell on disk, its files written as a run writes them; its run.json."""
    content = record("1x_a", replicate=number, **options)
    place = folder / content["cell"]["id"] / f"a{content['cell']['attempt']}"
    place.mkdir(parents=True)
    window = Window(name="window", start_ns=10**12, end_ns=10**12 + 10**9, seconds=1.0)
    written = files.write(place, lines, [window]) if lines else {}
    content["files"] = {name: file.model_dump() for name, file in written.items()}
    (place / "run.json").write_text(json.dumps(content))
    return place / "run.json"


def merged_series(folder, paths):
    """telemetry.parquet of these run.json files, as a frame."""
    output = folder / "out" / "telemetry.parquet"
    (folder / "list").write_text("".join(f"{path}\n" for path in paths))
    arguments = ["--study", "records", "--output", str(output), "--list", str(folder / "list")]
    assert merging.main(arguments) == 0
    written = pq.read_schema(output).with_metadata(None)  # what each column's says is looked at
    assert written.equals(schema.TELEMETRY, check_metadata=True)
    return pq.read_table(output).to_pandas()


def test_series_of_all_current_cells_are_one_table(tmp_path, capsys):
    values = {"gract": [0.1, 0.2, 0.3], "memory_used": [5 * 10**10, None, 7], "energy": [1, 2, 3.5]}
    paths = [
        cell(tmp_path, 1, series(**values), attempt=1),
        cell(tmp_path, 1, series(gract=[0.7] * 3), attempt=2),
        cell(tmp_path, 2, series(("gpu", "gi:1"), **values)),
        cell(tmp_path, 3, None),  # on a CPU
    ]
    frame = merged_series(tmp_path, paths)
    assert capsys.readouterr().err == ""
    first, second = (f"1x_a/faithful/naive/r{i}" for i in (1, 2))
    assert frame["cell"].tolist() == [first] * 3 + [second] * 6
    assert frame["attempt"].tolist() == [2] * 3 + [1] * 6
    assert frame["t"].tolist()[:3] == pytest.approx([-0.1, 0, 0.1])
    assert frame["phase"].tolist()[:3] == ["warm", "window", "window"]
    assert frame["entity"].tolist()[3:] == ["gpu", "gi:1"] * 3
    assert frame["gract"].tolist()[:4] == pytest.approx([0.7, 0.7, 0.7, 0.1])
    assert frame["memory_used"].iloc[3] == 5 * 10**10 and pd.isna(frame["memory_used"].iloc[5])
    assert frame["energy"].tolist()[-1] == 3.5 and frame["smact"].isna().all()


def test_merging_again_reads_the_files_that_changed_and_gives_what_merging_anew_gives(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(merging, "ROWS", 4)
    read, true = [], merging.readings
    monkeypatch.setattr(merging, "readings", lambda record: read.append(record) or true(record))

    def numbers():
        found = [record["cell"]["replicate"] for record in read]
        read.clear()
        return found

    def anew():
        (tmp_path / "out" / "telemetry.parquet").unlink()
        return merged_series(tmp_path, paths)

    values = {"power": np.arange(9.0).tolist()}
    paths = [cell(tmp_path, i, series(rows=n, **values)) for i, n in enumerate((3, 9, 2, 6), 1)]
    first = merged_series(tmp_path, paths)
    assert numbers() == [1, 2, 3, 4]
    pd.testing.assert_frame_equal(merged_series(tmp_path, paths), first)
    assert numbers() == []
    paths[2] = cell(tmp_path, 3, series(rows=5, **values), attempt=2)
    del paths[0]
    changed = merged_series(tmp_path, paths)
    assert numbers() == [3]
    pd.testing.assert_frame_equal(changed, anew())
    numbers()
    # An output that was damaged, or is another, is made anew.
    output = tmp_path / "out" / "telemetry.parquet"
    whole = output.read_bytes()
    output.write_bytes(whole[:4] + bytes(len(whole) // 3) + whole[4 + len(whole) // 3 :])
    pd.testing.assert_frame_equal(merged_series(tmp_path, paths), changed)
    assert numbers()
    for other in (pa.table({"a": [1]}), pa.table({"a": [1]}).replace_schema_metadata({"b": "c"})):
        pq.write_table(other, output)
        pd.testing.assert_frame_equal(merged_series(tmp_path, paths), changed)
        assert numbers() == [2, 3, 4]
    # A record that says otherwise, a file cut short, an output of other code.
    content = json.loads(paths[0].read_text())
    content["files"]["gpu.parquet"]["sha256"] = "0" * 64
    paths[0].write_text(json.dumps(content))
    merged_series(tmp_path, paths)
    assert numbers() == [2]
    file = paths[1].with_name("gpu.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    assert set(merged_series(tmp_path, paths)["cell"].str[-1]) == {"2", "4"}
    assert numbers() == [3]
    monkeypatch.setattr(merging.code, "digest", lambda: "other")
    merged_series(tmp_path, paths)
    assert numbers() == [2, 3, 4]


def test_files_that_cannot_be_read_are_left_out_with_a_line_each(tmp_path, capsys):
    paths = [cell(tmp_path, i, series(power=[1.0, 2.0, 3.0])) for i in range(1, 6)]
    cut, gone, other = (paths[i].with_name("gpu.parquet") for i in (1, 2, 3))
    cut.write_bytes(cut.read_bytes()[:-20])
    gone.unlink()
    pq.write_table(pa.table({"power": [1.0]}), other)
    paths[4].write_text("{")
    foreign = cell(tmp_path / "elsewhere", 1, series(), study="elsewhere")
    frame = merged_series(tmp_path, [*paths, foreign])
    assert frame["cell"].unique().tolist() == ["1x_a/faithful/naive/r1"]
    note = (tmp_path / "out" / "telemetry.unreadable.txt").read_text()
    assert len(note.splitlines()) == 5
    for part in (str(cut), str(gone), f"{other}: ", '"t_ns"', str(paths[4]), "'elsewhere'"):
        assert part in note
    assert "left out of" in capsys.readouterr().err
    merged_series(tmp_path, paths[:1])
    assert not (tmp_path / "out" / "telemetry.unreadable.txt").exists()


def test_a_study_without_any_series_gives_an_empty_table(tmp_path):
    assert merged_series(tmp_path, [cell(tmp_path, 1, None)]).empty
    assert merged_series(tmp_path, []).empty


def test_row_groups_hold_several_cells_and_no_more_than_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "ROWS", 4)
    values = {"power": np.arange(9.0).tolist()}
    paths = [cell(tmp_path, i, series(rows=n, **values)) for i, n in enumerate((3, 3, 9), 1)]
    frame = merged_series(tmp_path, paths)
    assert frame["power"].tolist() == [*range(3), *range(3), *range(9)]
    metadata = pq.read_metadata(tmp_path / "out" / "telemetry.parquet")
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert sizes == [4, 2, 4, 4, 1]


def test_the_tables_columns_are_the_samplers():
    columns = {field.name: field for field in schema.TELEMETRY}
    units = {metric.name: metric.unit for metric in METRICS}
    assert list(columns)[5:] == list(units)
    assert {n: columns[n].metadata[b"unit"].decode() for n in units} == units
    known = {field.name: field.metadata[b"unit"].decode() for field in schema.SCHEMA}
    assert {n: unit for n, unit in known.items() if n in units} == {
        n: unit for n, unit in units.items() if n in known
    }


def test_merging_series_needs_no_pandas():
    code = "import sys, analysis.records.telemetry;"
    code += "assert not {'pandas', 'torch', 'workflow', 'models'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_benchmark_of_merging_merges_what_a_sampler_would_write(capsys):
    assert benchmark.main(["--cells", "3", "--seconds", "2"]) == 0
    printed = capsys.readouterr().out
    assert f"3 cells of 2 s at 10 Hz, {len(METRICS)} metrics" in printed
    assert "MB RSS: 60 rows" in printed


# Flags, evidence and tables


def test_what_befell_the_gpu_is_marked_and_counted(tmp_path, capsys):
    found = {
        "throttled": ("↓ GPU throttled by heat or hardware", True),
        "shared_gpu": ("# somebody else's process on the GPU", True),
        "power_capped": ("^ GPU held at its power limit", False),
        "telemetry_incomplete": ("+ telemetry incomplete", False),
        "telemetry_disagrees": ("+ telemetry contradicts itself", False),
        "energy_disagrees": ("+ energy contradicts power", False),
    }
    assert {flag: flags.legend([flag]) for flag in found} == {f: [w] for f, (w, _) in found.items()}
    for i, flag in enumerate(found):
        content = json.dumps(record("1x_a", replicate=i + 1, flags=[flag]))
        (tmp_path / f"{i}.json").write_text(content)
    output = tmp_path / "checks.json"
    paths = [str(tmp_path / f"{i}.json") for i in range(len(found))]
    checks.main(["--study", "records", "--output", str(output), *paths])
    listed = json.loads(output.read_text())["flags"]
    assert {flag: len(listed[flag]) for flag in found} == dict.fromkeys(found, 1)
    said = capsys.readouterr().err
    assert f"; {sum(bad for _, bad in found.values())} cells unsteady" in said
    assert "; 3 cells with incomplete or contradictory telemetry" in said


def test_context_switches_stand_beside_the_methods_proof(tmp_path):
    counted = {"ctxsw_active": 0.0123, "ctxsw_requests": 340.4}
    records = [
        record("1x_a"),
        record("2x_a", rates=[1, 1], telemetry=telemetry(card=counted)),
        record("2x_a", "mps", rates=[1, 1], telemetry=telemetry(card={"ctxsw_active": 0.0})),
    ]
    table = evidence.table(records)
    assert table["ctxsw_requests"].tolist()[1] == 340.4 and table["ctxsw_active"].tolist()[2] == 0
    assert table[["ctxsw_active", "ctxsw_requests"]].iloc[0].isna().all()
    evidence.write(table, tmp_path / "evidence")
    page = (tmp_path / "evidence.md").read_text()
    assert "| 1.2 % of the time, 340/s" in page and "| 0 % of the time " in page


@pytest.mark.parametrize("seen", [{}, {"ctxsw_active": 0.0, "ctxsw_requests": 0.0}])
def test_context_switches_that_count_nothing_are_not_shown(tmp_path, seen):
    records = [record("1x_a"), record("2x_a", rates=[1, 1], telemetry=telemetry(card=seen))]
    table = evidence.table(records)
    assert list(table) == ["cell", "status", "method", "verified", "in_force", "proof"]
    evidence.write(table, tmp_path / "evidence")
    assert "context switches" not in (tmp_path / "evidence.md").read_text()
    write(merge(records)[0], tmp_path / "runs.parquet")
    activity.write(activity.table(read_runs(tmp_path / "runs.parquet")), tmp_path / "telemetry")
    page = (tmp_path / "telemetry.md").read_text()
    assert "switch" not in page and "| GRACT %" in page


@pytest.fixture
def study(tmp_path):
    """runs.parquet of a study with long names, several replicates and every column known."""
    name = "efficientnetv2_s_imagenet64_b128"
    card = {"ctxsw_active": 0.0123, "ctxsw_requests": 340.0, "smocc": 0.3, "tenso": 0.1}
    records = []
    for block in (1, 2, 3):
        for n, method in ((1, "naive"), (2, "naive"), (2, "mps_overlap"), (7, "mps")):
            rates = [1000.0 / n**0.5 + 7 * block] * n
            seen = telemetry(99.5 * n + block, members=n, card=card)
            records.append(record(f"{n}x_{name}", method, block, rates, telemetry=seen, drift=0.3))
        windows = [{"before": 600}, {"before": 600 + block, "after": 900}]
        seen = telemetry(windows=("before", "after"), members=2, card=card)
        more = {"windows": windows, "telemetry": seen, "flags": ["throttled", "power_capped"]}
        records.append(record(f"2x_{name}--departure", "mps_overlap", block, **more))
    write(merge(records)[0], tmp_path / "runs.parquet")
    return tmp_path / "runs.parquet"


def test_the_summary_shows_what_the_gpu_did(study):
    stem = study.parent / "summary"
    assert tables.main(["--runs", str(study), "--output", str(stem)]) == 0
    lines = stem.with_suffix(".txt").read_text().splitlines()
    assert max(map(len, lines)) <= tables.WIDTH
    header = next(line for line in lines if "GR/SM %" in line)
    rows = lines[lines.index("7x_efficientnetv2_s_imagenet64_b128") + 1 :]
    cells = dict(zip(header.split()[-3:], rows[0].split()[-3:], strict=True))
    assert cells == {"%": "50/25", "W": "698", "mJ": "255"}
    assert any(line.startswith("GR/SM: ") for line in lines)
    page = stem.with_suffix(".md").read_text()
    assert "| GRACT %   | SMACT %   | power (W)   | J/sample   | energy saved %   |" in page
    table = pd.read_csv(stem.with_suffix(".csv"))
    assert {"gract", "smact", "power", "energy_per_sample", "energy_saving"} <= set(table)


def test_the_telemetry_table_has_a_row_a_cell_and_window(study):
    stem = study.parent / "tables" / "telemetry"
    assert tables.main(["--runs", str(study), "--telemetry", str(stem)]) == 0
    table = pd.read_csv(stem.with_suffix(".csv"))
    assert len(table) == 3 * 4 + 3 * 2 and list(table) == activity.COLUMNS
    seven = table[table["n"] == 7].iloc[0]
    assert seven["cpu_cores"] == 7 * 1.5 and seven["rss"] == 7 * 2**30 and pd.isna(seven["pss"])
    departures = table[table["scenario"].str.endswith("departure")]
    assert departures["window"].tolist() == ["before", "after"] * 3
    page = stem.with_suffix(".md").read_text()
    for title in ("GRACT %", "SMOCC %", "J/sample serial", "energy saved %", "switches/s"):
        assert f"| {title} " in page
    assert "DRAMA %" not in page and "nan" not in page and "throttled" in page


def test_without_telemetry_the_table_says_so(tmp_path):
    write(merge([])[0], tmp_path / "runs.parquet")
    activity.write(activity.table(read_runs(tmp_path / "runs.parquet")), tmp_path / "none")
    assert "No window yet." in (tmp_path / "none.md").read_text()
    write(merge([record("1x_a")])[0], tmp_path / "runs.parquet")
    activity.write(activity.table(read_runs(tmp_path / "runs.parquet")), tmp_path / "old")
    assert "| 1x_a/faithful/naive/r1 " in (tmp_path / "old.md").read_text()
    tables.main(["--runs", str(tmp_path / "runs.parquet"), "--output", str(tmp_path / "summary")])
    assert "GRACT" not in (tmp_path / "summary.md").read_text()
