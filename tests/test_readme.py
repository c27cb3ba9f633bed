"""README's measured parts: made from a study's files, and those of the shipped study."""

import json
from pathlib import Path
from statistics import geometric_mean as gmean

import pandas as pd
import pytest

from analysis import pages
from analysis.cells import read_runs
from analysis.tables import variance
from release import cost, findings, readme, reasons
from release.contents import MANIFEST
from release.verify import sealed_studies
from tests.records import merged, record, telemetry
from tests.studies import furnish
from tests.studio import REPOSITORY

PLAIN = {"faithful": 1000.0, "tuned": 4000.0}


def records(gain: float) -> list[dict]:
    """Two blocks of a ladder in two arms; at seven under MPS so much is gained."""
    found = []
    for block in (1, 2):
        for arm, rate in PLAIN.items():
            up = rate * (1 + block / 1000)
            own = {"arm": arm, "replicate": block}
            found.append(record("1x_small", rates=(up,), **own))
            found.append(record("7x_small", "naive", rates=(up / 7,) * 7, **own))
            found.append(record("7x_small", "mps", rates=(gain * up / 7,) * 7, **own))
    return found


def study(folder: Path, gain: float = 3.0) -> Path:
    furnish(folder, records(gain))
    paths = sorted(str(path) for path in folder.glob("records/*/run.json"))
    (folder / "runs.txt").write_text("\n".join(paths) + "\n")
    arguments = ["--study", "records", "--folder", str(folder)]
    assert pages.main([*arguments, "--list", str(folder / "runs.txt")]) == 0
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return study(tmp_path_factory.mktemp("studies") / "mine")


def test_readme_holds_what_a_shipped_study_gives():
    """That of the one it names; it names one as soon as any ships."""
    text = (REPOSITORY / "README.md").read_text()
    link = readme.named(text)
    ship = [f"results/{study.name}" for study in sealed_studies(REPOSITORY / "results")]
    assert link in ship or not ship and not link, "run `make readme`"
    there = REPOSITORY / link if link else None
    assert readme.fill(text, there, link) == text, "run `make readme`"


def test_the_summary_that_is_typed_holds_the_shipped_study_s_numbers():
    """README's lines "In short", against its tables: rates over the fastest way alone, and S."""
    text = " ".join((REPOSITORY / "README.md").read_text().split("\n## ")[1].split())
    assert text.startswith("In short ")
    runs = read_runs(REPOSITORY / "results" / "h200" / "runs.parquet")
    alone, sets = (reasons.plain(of(runs)) for of in (reasons.jobs_alone, reasons.in_windows))
    rate, job = "samples_per_s", "resnet26_cifar10_b128"
    lone = reasons.together(alone, ["workload", "arm"], rate)[job]
    seven = reasons.together(sets[sets["n"] == 7], ["workload", "arm", "method"], rate)[job]
    graph = lone["tuned_graph"]
    assert f"{graph:,.0f} samples/s, where the paper's job does {lone['faithful']:,.0f}" in text
    own = alone[alone["workload"] == job].pivot_table(rate, ["block", "device"], "arm").dropna()
    ratios = own["tuned_graph"] / own["faithful"]
    spread = f"{gmean(ratios):.1f} times the work of the paper's job ({len(ratios)} replicates"
    assert f"{spread}, {ratios.min():.1f} to {ratios.max():.1f})" in text
    assert f"a factor of {seven['tuned_graph', 'mps'] / graph:.1f}" in text
    ours = [seven["faithful", method] / graph for method in ("mps_overlap", "mps")]
    assert f"{ours[0]:.2f} times the work of one graph job" in text
    assert f"; {ours[1]:.2f} under plain MPS)" in text
    table = pd.read_csv(REPOSITORY / "results" / "h200" / "tables" / "summary.csv")
    found = table.set_index(["arm", "scenario", "method"]).loc["faithful", f"7x_{job}", "mps"]
    assert f"{found['stp']:.1f} times the work" in text
    ends = f"{found['low']:.1f} to {found['high']:.1f})"
    assert f"({found['completed']:.0f} replicates, 95 % interval {ends}" in text
    generated = findings.text(REPOSITORY / "results" / "h200", "x")
    assert "up to 1.84 times as fast" in text and f"to 1.84 ({job} (files), faithful:" in generated
    assert "Windows lasted 3 to 15 s" in text and "Windows of 3 to 15 s;" in generated
    busy = alone[(alone["workload"] == job) & (alone["arm"] == "faithful")]["gract"].mean()
    assert f"for {busy:.2f} of the time" in text
    for n, name in ((7, "resnet26_cifar10_b32"), (2, "resnet152_imagenet_b32")):
        mps, naive = (device_limited(sets, alone, n, name, way) for way in ("mps", "naive"))
        assert f"{mps:.2f} under MPS and {naive:.2f} as plain processes" in text


def device_limited(sets, alone, n: int, job: str, method: str) -> float:
    """S, each replicate over the run alone that it is normalised by."""
    rows = sets[(sets["arm"] == "faithful") & (sets["n"] == n) & (sets["method"] == method)]
    rows = rows[rows["workload"] == job]
    by = {"baseline_cell": "cell", "baseline_samples_per_s": "samples_per_s"}
    base = alone[[*by.values(), "gract"]].rename(columns={v: k for k, v in by.items()})
    joined = rows.drop(columns="gract").merge(base, on=[*by], validate="many_to_one")
    assert len(joined) == len(rows)
    return gmean((joined["progress"] * joined["gract"]).groupby(joined["cell"]).sum())


def test_gains_stand_apart_by_arm_with_intervals(made):
    text = findings.text(made, "results/mine")
    rows = [line for line in text.splitlines() if line.startswith("| small") and " [" in line]
    assert len(rows) == 2
    assert "as the paper wrote it" in rows[0] and "tuned" in rows[1]
    assert all("3.00 [" in row and "(7×, mps)" in row for row in rows)
    assert "A gain is of 2 replicates. Windows of " in text
    assert "[claims](results/mine/claims.md)" in text


def test_how_rates_repeat_is_told_of_all_and_by_load():
    kinds = [(variance.WITHIN, "N < 7", 0.05), (variance.WITHIN, "N ≥ 7", 0.01)]
    kinds += [
        (variance.BY_LOAD, variance.WORKING, 0.004),
        (variance.BY_LOAD, variance.WAITING, 0.08),
    ]
    rows = [{"kind": kind, "members": members, "cv": cv} for kind, members, cv in kinds]
    table = pd.DataFrame(rows).assign(bound=[0.02, 0.03, None, None], workloads="a", arm="b")
    text = findings._repeats(table, "x")
    assert "to 3.0 % (median" in text and "1 of 2 are above" in text
    assert "(GRACT ≥ 0.95) repeat to 0.4 %, the others to 8.0 %" in text
    assert "GRACT" not in findings._repeats(table[:3], "x")


def test_twins_are_told_where_there_are_any(made, tmp_path):
    assert "as if they were two methods" not in findings.text(made, "x")
    twin = {"scenario": "2x_small", "arm": "faithful", "differs": False}
    twin |= {"ratio": 1.01, "low": 0.98, "high": 1.04}
    (tmp_path / "checks.json").write_text(json.dumps({"aa": [twin]}))
    assert "two methods: A/A: 1.01" in findings._twins(tmp_path)


def test_what_differs_between_sittings_is_told_with_its_cause():
    columns = {"arm": "faithful", "method": "naive", "n": 1}
    rows = [
        {"scenario": "1x_small", "sitting": "one", "samples_per_s": 3000.0, "gract": 0.3},
        {"scenario": "1x_small", "sitting": "two", "samples_per_s": 2000.0, "gract": 0.2},
        {"scenario": "1x_large", "sitting": "one", "samples_per_s": 500.0, "gract": 0.9},
        {"scenario": "1x_large", "sitting": "two", "samples_per_s": 505.0, "gract": 0.9},
        {"scenario": "2x_small", "sitting": "one", "samples_per_s": 1.0, "gract": 0.9},
    ]
    table = pd.DataFrame(rows).assign(**columns, spread=[1.1, 1.2, 1.3, None, None])
    said = findings._sittings(table, "x")
    assert said.startswith(
        "Between sittings the rate of a job alone differs by a factor of 1.01 (large, faithful) to "
        "1.50 (small, faithful: 3,000 and 2,000 samples/s, at a GRACT of 0.30 and 0.20: the GPU "
        "worked as long for a sample, and idled longer between; within one sitting by up to 1.20; "
    )
    slower = table.assign(gract=[0.3, 0.3, 0.9, 0.9, 0.9])
    assert "0.30 and 0.30; within" in findings._sittings(slower, "x")
    assert "2,000 samples/s; within" in findings._sittings(table.assign(gract=None), "x")
    assert findings._sittings(table[table["sitting"] == "one"], "x") == ""
    names = {"1x_large": "1x_small--files"}  # the same workload, and another job
    files = findings._sittings(table.replace({"scenario": names}), "x")
    assert "1.01 (small (files), faithful) to 1.50 (small, faithful:" in files


def test_another_study_gives_another_text(made, tmp_path):
    other = study(tmp_path / "other", gain=2.0)
    assert "2.00 [" in findings.text(other, "x") != findings.text(made, "x")


def test_claims_are_counted_and_those_that_differ_are_told_with_their_reason(made):
    claims = json.loads((made / "claims.json").read_text())
    assert f"The paper's {len(claims['claims'])} claims" in findings.text(made, "x")
    claims["claims"][0] |= {"verdict": "contradicted", "why": "the interval lies below 1"}
    claims["claims"][1] |= {"verdict": "inconclusive", "why": "one replicate has no interval"}
    runs = read_runs(made / "runs.parquet")
    differ, left_open, *_ = findings._reasons(claims, runs).split("What stays open:")
    assert claims["claims"][0]["id"] in differ and "*The interval lies below 1.*" in differ
    assert claims["claims"][1]["id"] in left_open and "One replicate" in left_open


def claim(cells: list[str], verdict: str = "contradicted") -> dict:
    """A claim as claims.json has it, with one number of these cells, after one without any."""
    number = {"mean": 1.904, "low": 1.8, "high": 2.0}
    told = [{"source": "SUIT25", "value": 2.5, "status": "completed", "verdict": "holds"}]
    empty = {"what": "gain", "unit": "", "verdict": "not testable here", "estimate": None}
    empty |= {"reported": [], "cells": []}
    own = empty | {"verdict": verdict, "estimate": number, "reported": told, "cells": cells}
    return {"id": "C1", "verdict": verdict, "findings": [empty, own]}


def measured(gract: float | None, **options) -> list[dict]:
    """A pair and its job alone, on a card of 8 GB."""
    card = {"gract": gract, "smact": gract and gract / 2}
    own = {"gpu_memory": 8 * 10**9} | options
    alone = telemetry(card=card | {"memory_used": 2e9}, whole_card={"sm_count": 132})
    both = telemetry(card={"gract": 0.99, "memory_used": 3.5e9}, members=2)
    return [
        record("1x_small", telemetry=alone, **own),
        record("2x_small", "mps", rates=(900.0, 900.0), telemetry=both, **own),
    ]


def test_a_verdict_stands_beside_what_was_measured():
    cells = ["2x_small/faithful/mps/r1"]
    text = reasons.facts(claim(cells), merged(*measured(0.55)))
    assert text == (
        "Measured: gain 1.90 [1.80, 2.00]; reported 2.50 (SUIT25). Alone, the job has a GRACT of "
        "0.55: if 2 only used the time that one leaves idle, they would gain 1.82. The 2 together: "
        "3.5 of the card's 8.0 GB."
    )
    little = reasons.facts(claim(cells), merged(*measured(0.2)))
    assert (
        "if 2 only used the time that one leaves idle, they would gain 2.00." in little
    )  # two jobs cannot gain more
    assert "Alone" not in reasons.facts(claim(cells), merged(*measured(None)))
    assert reasons.facts(claim([]), merged(*measured(0.55))) == ""


def test_a_gain_is_told_by_sitting_beside_the_rate_that_it_comes_from():
    again = [
        record("1x_small", replicate=2, rates=(800.0,), sitting="later"),
        record("2x_small", "mps", replicate=2, rates=(900.0, 900.0), sitting="later"),
    ]
    cells = [f"2x_small/faithful/mps/r{block}" for block in (1, 2)]
    text = reasons.facts(claim(cells), merged(*measured(0.55, sitting="first"), *again))
    assert (
        "By sitting: 1.80 and 2.25, at 1,800 and 1,800 samples/s together and 1,000 and 800 alone."
        in text
    )


def test_the_gpu_of_a_job_alone_is_that_of_the_block_that_it_is_held_against():
    """Of two runs alone in a block, each on a GPU of its own, a set's is the one on its GPU."""
    alone, pair = measured(0.5, gpu="GPU-1")
    other = measured(0.9, gpu="GPU-2", attempt=2)[0]
    text = reasons.facts(claim(["2x_small/faithful/mps/r1"]), merged(alone, pair, other))
    assert "a GRACT of 0.50: if 2" in text
    [row] = jobs(alone, pair, other)
    assert row[3] == "0.70 (0.50 to 0.90)"


def test_sets_are_held_against_the_fastest_way_to_run_a_job_alone():
    found = [record("1x_small", rates=(1000.0,)), record("1x_small", rates=(4000.0,), arm="tuned")]
    found.append(record("2x_small", "mps", rates=(900.0,) * 2))
    found.append(record("1x_large", rates=(100.0,)))
    assert reasons.against_the_fastest(merged(*found[:1], *found[2:]), findings.ARMS) == ""
    found.append(record("2x_small", rates=(3500.0,) * 2, arm="tuned"))
    found.append(record("2x_small", replicate=2, rates=(3500.0,) * 2, arm="tuned"))
    found.append(record("2x_small--files", rates=(9000.0,) * 2, arm="tuned"))
    text = reasons.against_the_fastest(merged(*found), findings.ARMS)
    assert text.splitlines()[1:] == [
        "  - small: 4,000 samples/s alone (tuned); 0.45 times that (2×, mps, as the paper wrote "
        "it, one replicate) and at most 1.75 times that (2×, naive, tuned)."
    ]


def test_a_job_that_runs_otherwise_under_mps_is_told():
    rows = [("small", 0.9, 0.8, 0.95), ("large", 1.0, 0.9, 1.1), ("other", 1.2, None, None)]
    table = pd.DataFrame(rows, columns=["family", "stp", "low", "high"])
    table = table.assign(scenario="1x_" + table["family"], n=1, method="mps", flags=None)
    text = findings._alone_under_mps(table.assign(arm="faithful"))
    assert text.endswith("than without: small, 0.90 [0.80, 0.95].")
    assert findings._alone_under_mps(table.assign(arm="tuned")) == ""


def jobs(*records: dict) -> list[list[str]]:
    """The rows of the table of jobs alone."""
    text = reasons.jobs(merged(*records), findings.ARMS)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[part.strip() for part in row.strip("|").split("|")] for row in rows[1:]]


def test_jobs_alone_stand_in_a_table_with_how_they_vary():
    alone = [measured(0.55)[0], measured(0.65, replicate=2, arm="faithful")[0]]
    alone += [measured(0.95, arm="tuned")[0]]
    paper, tuned = jobs(*alone, *measured(0.55)[1:])
    assert paper[:2] == ["small", "as the paper wrote it"] and tuned[1] == "tuned"
    assert paper[3:] == ["0.60 (0.55 to 0.65)", "0.30 (0.28 to 0.33)", "2.0 GB", "yes"]
    assert tuned[3:] == ["0.95", "0.47", "2.0 GB", "no"]
    [row] = jobs(*[measured(share, replicate=i)[0] for i, share in enumerate((0.7, 0.9), 1)])
    assert row[-1] == "in 1 of 2"


def test_nothing_is_said_of_what_was_not_measured():
    [row] = jobs(*measured(None))
    assert row[3:5] == ["–", "–"] and row[-1] == "–"
    assert reasons.jobs(merged(*measured(0.5)[1:]), findings.ARMS) == ""


def test_jobs_that_read_files_are_not_called_launch_bound():
    alone = record("1x_small--files", telemetry=measured(0.3)[0]["telemetry"])
    [row] = jobs(alone)
    assert row[0] == "small (files)" and row[3] == "0.30" and row[-1] == "–"


def sevens(*sittings: str) -> pd.DataFrame:
    """Seven under MPS, at 300 samples/s each, in each of these sittings."""
    return merged(
        *(
            record("7x_small", "mps", replicate=i, rates=(300.0,) * 7, sitting=name)
            for i, name in enumerate(sittings, 1)
        )
    )


def test_numbers_of_suspect_cells_are_marked_and_pooled_sittings_told():
    summary = pd.DataFrame(
        {"scenario": ["7x_small"], "method": ["mps"], "family": ["small"], "arm": ["faithful"]}
        | {"n": [7], "stp": [3.0], "low": [2.0], "high": [4.0], "flags": ["suspect_baseline"]}
    )
    text = findings._gains(summary, sevens("one", "two"), "x")
    assert "3.00 [2.00, 4.00] !" in text and "; " not in text.split("has them: ")[1].split(". ")[0]
    assert "one replicate" not in text and "ran slow" not in text
    odd = findings._gains(summary.assign(stp=7.5, low=None), sevens("one"), "x")
    assert "Without an interval: one replicate. More than the number of jobs" in odd
    assert "blocks of 2 sittings" in text and "(x/tables/sittings.md)" in text
    assert "(7×, mps) | 2,100 " in " ".join(text.split())
    plain = findings._gains(summary.assign(flags=None), sevens("one"), "x")
    assert "Marks" not in plain and "sittings" not in plain


# -- time ------------------------------------------------------------------------------------------

SMALL = {"panel": "small", "n": 7, "variant": None, "method": "mps"}


@pytest.mark.parametrize(
    ("rows", "cells"),
    [
        ([{"cell": "7x_small/faithful/mps/r2"}, {"cell": None}], {"7x_small/faithful/mps/r2"}),
        ([{"scenario": "7x_small", "method": "mps", "block": 1}], {"7x_small/faithful/mps/r1"}),
        ([SMALL | {"block": 2.0}], {"7x_small/faithful/mps/r2"}),
        ([SMALL | {"block": None}], {f"7x_small/faithful/mps/r{r}" for r in (1, 2)}),
        ([SMALL | {"variant": "files"}], set()),
        ([SMALL | {"method": "serial"}], set()),
        ([{"jobs": "7× small", "method": "mps", "n": 7, "block": 1}], {"7x_small/faithful/mps/r1"}),
        (
            [{"workload": "small", "n": 7, "block": 1, "naive": 1.2, "mps": 3.0}],
            {f"7x_small/faithful/{m}/r1" for m in ("naive", "mps")},
        ),
        ([{"part": "error", "workload": None, "n": None, "method": None}], set()),
        ([{"group": "b + a", "n": 2, "method": "mps"}], {"1x_a+1x_b/faithful/mps/r1"}),
        ([{"layout": "7g", "profile": "7g"}], None),
    ],
)
def test_the_cells_that_a_figure_is_drawn_from(rows, cells):
    pair = record("1x_a+1x_b", "mps", rates=(1.0, 1.0))
    own = [one for one in records(3.0) if one["cell"]["arm"] == "faithful"]
    assert cost.cells_drawn(pd.DataFrame(rows), merged(*own, pair)) == cells


def test_a_figure_takes_its_cells_and_those_that_they_are_normalised_by(made, tmp_path):
    runs = read_runs(made / "runs.parquet")
    (tmp_path / "figures").mkdir()
    rows = pd.DataFrame([{"scenario": "7x_small", "method": "mps", "block": 1}])
    rows.to_csv(tmp_path / "figures" / "slowdown_map_faithful.csv", index=False)
    took = cost.of_figure(tmp_path, "slowdown_map", "faithful", runs)
    assert took == cost.Cost(40 / 60, True)
    whole = cost.of_figure(tmp_path, "memory", "faithful", runs)  # its data are not there
    assert whole == cost.Cost(6 * 20 / 60, False)
    assert "2 (all of its arm)" in readme.times(made, "x")


def test_instruments_are_told_where_they_were_measured(made, tmp_path):
    assert readme.instruments(made, "x") == readme.UNKNOWN
    folder = tmp_path / "bench"
    folder.mkdir()
    reading = {"busy_sms": 66, "sm_count": 132, "smact": 0.5004}
    calibrated = {"device": {"name": "NVIDIA H200"}, "readings": [reading]}
    (folder / "smact.json").write_text(json.dumps(calibrated))
    cost = {"loss_percent": 0.123, "low": -0.05, "high": 0.3}
    sampler = {"workloads": {"cait": {"costs": {"ours": cost}}}}
    (folder / "sampler.json").write_text(json.dumps(sampler))
    text = readme.instruments(tmp_path, "x")
    assert "66 of 132 SMs busy (0.5000), SMACT 0.5004" in text
    assert "our sampler at 10 Hz 0.12 % [-0.05, 0.30]" in text


def test_a_readme_without_its_marks_is_refused(made):
    with pytest.raises(readme.ReadmeError, match="findings: begin"):
        readme.fill("# A readme\n", made, "x")


def test_the_command_writes_and_checks(made, tmp_path):
    target = tmp_path / "README.md"
    target.write_text((REPOSITORY / "README.md").read_text())
    command = [str(made), "--readme", str(target)]
    assert readme.main([*command, "--check"]) == 1
    with pytest.raises(SystemExit, match="is no study that ships"):
        readme.main(command)
    (made / MANIFEST).touch()
    assert readme.main(command) == 0
    assert "Throughput gain (STP" in target.read_text()
    assert readme.main([*command, "--check"]) == 0
