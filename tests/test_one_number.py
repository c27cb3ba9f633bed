"""A gain has one interval, wherever it stands: read from the studies that ship."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.cells import read_study
from analysis.compare import side_by_side
from release.verify import sealed_studies

REPOSITORY = Path(__file__).resolve().parents[1]
PLACE = ["arm", "scenario", "method"]


def summary(study: Path) -> pd.DataFrame:
    table = pd.read_csv(study / "tables" / "summary.csv")
    table = table[table["low"].notna() & (table["window"] != "after")]
    return table.set_index(PLACE)[["stp", "low", "high"]].add_suffix("_told")


def drawn(study: Path, name: str) -> pd.DataFrame:
    """mean, low and high of the gains in a figure's data, of all arms."""
    found = []
    for path in (study / "figures").glob(f"{name}*.csv"):
        table = pd.read_csv(path)
        if "arm" not in table:
            table["arm"] = path.stem.removeprefix(f"{name}_")
        found.append(table)
    table = pd.concat(found)
    if "scenario" not in table:
        table["scenario"] = table["n"].map("{}x_".format) + table["workload"]
    if "quantity" in table:
        table = table[table["quantity"].isin(["stp", "gain"])]
    if "window" in table:
        table = table[table["window"] != "after"]
    return table[table["low"].notna()].drop_duplicates(PLACE).set_index(PLACE)


@pytest.mark.parametrize("study", sealed_studies(REPOSITORY / "results"), ids=lambda s: s.name)
@pytest.mark.parametrize("name", ["throughput_gain", "mixes", "arms"])
def test_figures_have_the_intervals_of_the_summary(study, name):
    both = drawn(study, name)[["mean", "low", "high"]].join(summary(study), how="inner")
    assert len(both) > 3
    for ours, theirs in (("mean", "stp_told"), ("low", "low_told"), ("high", "high_told")):
        assert both[ours].to_numpy() == pytest.approx(both[theirs].to_numpy(), rel=1e-4)


@pytest.mark.parametrize("study", sealed_studies(REPOSITORY / "results"), ids=lambda s: s.name)
def test_a_comparison_has_the_intervals_of_the_summary(study):
    """Of every window, also of what is left after a departure."""
    own = read_study(study / "runs.parquet")
    found = side_by_side.rows(own, own)
    found = found[(found["quantity"] == "gain") & found["a_low"].notna()]
    place = [*PLACE, "window"]
    told = pd.read_csv(study / "tables" / "summary.csv").set_index(place)[["stp", "low", "high"]]
    both = found.set_index(place)[["a", "a_low", "a_high"]].join(told, how="left")
    assert len(both) > 3
    for ours, theirs in (("a", "stp"), ("a_low", "low"), ("a_high", "high")):
        assert both[ours].to_numpy() == pytest.approx(both[theirs].to_numpy(), rel=1e-4)
