"""One fit over cells: its intervals hold the next cell and a new host, where the truth is known."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.estimates.coverage import interval_coverage
from analysis.estimates.intervals import (
    CONFIDENCE_TEXT,
    add_over_hosts,
    estimates_by_host,
    set_kinds,
)
from analysis.estimates.table import PLACE
from tests.studio import REPOSITORY

# Kind → implementation, method, jobs, GRACT and SMACT alone, sd of cells, sd of hosts (logs).
KINDS = {
    "alone_waits": ("paper_step", "naive", 1, 0.3, 0.2, 0.12, 0.2),
    "alone_busy": ("bf16", "naive", 1, 0.97, 0.8, 0.002, 0.004),
    "set_waits": ("eager", "mps", 3, 0.3, 0.2, 0.08, 0.15),
    "set_full": ("bf16", "mps", 7, 0.3, 0.25, 0.004, 0.01),
    "set_graph": ("graph", "mps", 7, 1.0, 0.3, 0.01, 0.01),
}
SETS = 12


def cell(quantity, scenario, implementation, method, host, value, number=1, **more):
    """A row of `replicates_of_runs`, as `build` completes it."""
    place = {"scenario": scenario, "implementation": implementation, "method": method}
    row = {"quantity": quantity, **place, "window": "", "job": "", "name": "", "host": host}
    row |= {"value": value, "numerator": None, "denominator": None, "over": "", "batches": ()}
    row |= {"cell": f"{scenario}/{implementation}/{method}/{host}/r{number}", "interleaved": False}
    return row | {"flags": "", "code": frozenset(), "data": frozenset()} | more


def alone(jobs, implementation, gract, smact):
    """What jobs show alone, on a host that measured nothing else."""
    for job in jobs:
        for name, share in (("gract", gract), ("smact", smact)):
            yield cell(name, f"1x_{job}", implementation, "naive", "h0", share)


def study(seed, counts, hosts=4, more=0):
    """Rows of every kind: on each host so many cells of a set as `counts` says of its number, and
    `more` besides, numbered 100 and up; hosts lie apart in all sets alike, and in each set anew.
    """
    random, rows = np.random.default_rng(seed), []
    for kind, (implementation, method, jobs, gract, smact, sd, apart) in KINDS.items():
        rows += alone([f"{kind}{k}" for k in range(SETS)], implementation, gract, smact)
        common = random.normal(0, apart * math.sqrt(0.3), hosts)
        for k in range(SETS):
            middle = random.uniform(5, 10)
            own = random.normal(middle + common, apart * math.sqrt(0.7))
            for h, host in enumerate(own, 1):
                for number in [*range(counts(k)), *range(100, 100 + more)]:
                    value = math.exp(random.normal(host, sd))
                    of = (f"{jobs}x_{kind}{k}", implementation, method, f"h{h}", value, number)
                    rows.append(cell("rate", *of))
    return pd.DataFrame(rows)


def of_rates(found):
    return found[found["quantity"] == "rate"].set_index(["scenario", "host"])


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_interval_of_a_host_holds_its_next_cell(n):
    """Of sets with n cells on each host, beside a few with three, as of those with one alone no
    variance is known.
    """
    hits = {kind: [] for kind in KINDS}
    for seed in range(6):
        cells = study(seed, lambda k: 3 if k < 3 else n, more=1)
        new = cells["cell"].str.endswith("r100")
        fits, values = of_rates(estimates_by_host(cells[~new])), of_rates(cells[new])["value"]
        fits = fits[fits["n"] == n]
        assert (fits["spread"] == "interval").all()
        value = values.loc[fits.index]
        inside = (fits["low"] <= value) & (value <= fits["high"])
        for kind, of_kind in inside.groupby(fits["kind"]):
            hits[kind] += of_kind.tolist()
    for kind, inside in hits.items():
        assert len(inside) >= 6 * 4 * (SETS - 3), kind
        assert 0.88 <= np.mean(inside) <= 0.99, kind


@pytest.mark.parametrize("hosts", [3, 5])
@pytest.mark.parametrize("n", [1, 2])
def test_the_prediction_holds_a_host_that_was_held_out(hosts, n):
    hits = {kind: [] for kind in KINDS}
    for seed in range(10):
        found = study(seed, lambda k: 3 if k < 3 else n, hosts + 1)
        new = found["host"] == f"h{hosts + 1}"
        held = of_rates(estimates_by_host(found)).xs(f"h{hosts + 1}", level="host")["value"]
        told = of_rates(add_over_hosts(estimates_by_host(found[~new]))).xs("", level="host")
        assert (told["spread"] == "prediction").all()
        inside = (told["low"] <= held.loc[told.index]) & (held.loc[told.index] <= told["high"])
        for kind, own in inside.groupby(told["kind"]):
            hits[kind] += own.tolist()
    assert all(np.mean(hit) >= 0.85 for hit in hits.values())


def test_a_host_with_more_cells_counts_no_more_than_another():
    values = {"h1": [4.0], "h2": [4.2], "h3": [6.0, 6.2, 6.4, 6.6, 6.8]}
    rows = [
        cell("rate", "7x_a", "eager", "mps", h, v, n)
        for h in values
        for n, v in enumerate(values[h])
    ]
    found = of_rates(
        add_over_hosts(estimates_by_host(pd.DataFrame([*rows, *alone("a", "eager", 0.3, 0.2)])))
    )
    middles = [math.exp(np.log(each).mean()) for each in values.values()]
    assert found.loc[("7x_a", ""), "value"] == pytest.approx(math.exp(np.log(middles).mean()))
    assert found.loc[("7x_a", ""), "n"] == 7


def test_no_prediction_is_narrower_than_an_interval_of_its_hosts():
    found = add_over_hosts(estimates_by_host(study(1, lambda k: 1 + k % 3)))
    rates = of_rates(found)
    for scenario, over in rates.xs("", level="host").iterrows():
        own = rates.loc[scenario].drop("")
        widest = (own["high"] / own["low"]).max()
        assert over["high"] / over["low"] >= widest * (1 - 1e-9)


def test_each_cell_and_each_host_is_left_out_of_what_it_is_held_against():
    """As by leaving it out and fitting anew."""
    found = study(3, lambda k: 1 + k % 3, hosts=3)
    rates = found[found["quantity"] == "rate"]
    told = {each["name"]: each for each in interval_coverage(estimates_by_host(found))}

    def inside(without, rows):
        fit = of_rates(without).loc[[(r.scenario, r.host) for r in rows.itertuples()]]
        triples = fit["low"], rows["value"], fit["high"]
        return [low <= v <= high for low, v, high in zip(*triples, strict=True)]

    hits = []
    for at, row in rates[rates["scenario"].str.contains("set_waits")].iterrows():
        if (rates["scenario"].eq(row["scenario"]) & rates["host"].eq(row["host"])).sum() > 1:
            hits += inside(estimates_by_host(found.drop(index=at)), rates.loc[[at]])
    own = told["cells/set_waits/rate"]
    assert (own["n"], own["value"]) == (len(hits), pytest.approx(np.mean(hits)))
    hits, single = [], estimates_by_host(found)
    for host in ("h1", "h2", "h3"):
        held = single[(single["host"] == host) & (single["kind"] == "set_waits")]
        others = add_over_hosts(single[single["host"] != host])
        hits += inside(others, held.assign(host=""))
    own = told["hosts/set_waits/rate"]
    assert (own["n"], own["value"]) == (len(hits), pytest.approx(np.mean(hits)))
    assert told["cells"]["n"] == sum(e["n"] for name, e in told.items() if name[:6] == "cells/")


def sharing(seed, jobs, hosts, cells, spread=0.1):
    """STP of a small, a middle and a large set of each job in the same interleaved cells: all err
    with the job alone of the cell. `next` is one cell more of each.
    """
    random, rows = np.random.default_rng(seed), []
    for k in range(jobs):
        for h in range(1, hosts + 1):
            for number in [*range(cells), "next"]:
                alone, at = random.normal(0, spread), f"job{k}--interleaved/eager/mps/r{h}{number}"
                of = {"cell": at, "over": at, "interleaved": True}
                for n in (2, 4, 8):
                    value = n * math.exp(random.normal(0, 0.01) - alone)
                    of_set = (f"{n}x_job{k}", "eager", "mps", f"h{h}", value)
                    rows.append(cell("stp", *of_set, **of))
    return pd.DataFrame(rows)


def test_sets_that_share_their_job_alone_are_not_independent():
    hits = []
    for seed in range(80):
        found = sharing(seed, jobs=3, hosts=1, cells=2)
        new = found["cell"].str.endswith("next")
        told = estimates_by_host(found[~new]).set_index("scenario")
        value = found[new].set_index("scenario")["value"].loc[told.index]
        assert (told["spread"] == "interval").all()
        hits += ((told["low"] <= value) & (value <= told["high"])).tolist()
    assert 0.92 <= np.mean(hits) <= 0.98
    few = estimates_by_host(sharing(1, jobs=1, hosts=2, cells=1))  # two cells of three sets each
    assert (few["spread"] == "none").all()


def test_a_whole_cell_is_left_out():
    """With all numbers that are held against the same job alone; as by fitting anew without it."""
    found, hits = sharing(2, jobs=3, hosts=2, cells=2), []
    told = {each["name"]: each for each in interval_coverage(estimates_by_host(found))}
    for at, own in found.groupby("cell"):
        fit = estimates_by_host(found[found["cell"] != at]).set_index(["scenario", "host"])
        fit = fit.loc[list(zip(own["scenario"], own["host"], strict=True))]
        hits += (
            (fit["low"].values <= own["value"]) & (own["value"] <= fit["high"].values)
        ).tolist()
    own = told["cells/set_waits/stp"]
    assert (own["n"], own["value"]) == (len(hits), pytest.approx(np.mean(hits)))
    assert own["note"] == "18 measurements on 2 hosts"


def test_a_workload_of_many_cells_has_a_variance_of_its_own():
    """Six degrees of freedom or more; others of its kind share that of the kind."""
    random, rows = np.random.default_rng(1), []
    for job, cells, sd in (("loud", 8, 0.2), ("quiet", 8, 0.01), ("rare", 2, 0.01)):
        for number in range(cells):
            value = math.exp(random.normal(5, sd))
            rows.append(cell("rate", f"3x_{job}", "eager", "mps", "h1", value, number))
    told = estimates_by_host(pd.DataFrame(rows)).set_index("scenario")
    half = np.log(told["high"] / told["value"])
    assert half["3x_quiet"] < 0.05 < half["3x_rare"] < half["3x_loud"]


def test_hosts_of_one_workload_are_as_many_as_they_are():
    """However many sets of it they measured: a host that is fast is fast in all of them."""
    rows = [
        cell("rate", f"{n}x_a", "eager", "mps", host, value * n)
        for host, value in (("h1", 90.0), ("h2", 110.0), ("h3", 100.0))
        for n in (2, 3, 4, 5)
    ]
    over = add_over_hosts(estimates_by_host(pd.DataFrame(rows)))
    assert set(over.loc[over["host"] == "", "spread"]) == {"range"}


BATCHES = tuple(100 + k for k in range(10))


@pytest.mark.parametrize(
    ("cells", "spread"),
    [
        ([{"h1": 1}], "none"),
        ([{"h1": 2}], "none"),  # one degree of freedom
        ([{"h1": 4}], "interval"),
        ([{"h1": 2}, {"h1": 2}, {"h2": 2}, {"h1": 1}], "interval"),  # three, of other sets, too
        ([{"h1": 1, "interleaved": True}], "cell"),
        ([{"h1": 2, "interleaved": True}], "none"),
        ([{"h1": 4}, {"h1": 1, "interleaved": True}], "cell"),  # designs are pooled apart
    ],
)
def test_what_few_cells_tell(cells, spread):
    """Of the last set."""
    rows = []
    for k, own in enumerate(cells):
        turned = own.pop("interleaved", False)
        of = {"interleaved": turned, "batches": BATCHES if turned else ()}
        for host, n in own.items():
            rows += [
                cell("rate", f"7x_job{k}", "eager", "mps", host, 100.0 + number, number, **of)
                for number in range(n)
            ]
    last = estimates_by_host(pd.DataFrame(rows)).iloc[-1]
    assert last["spread"] == spread
    assert (spread == "none") == math.isnan(last["low"]) == math.isnan(last["high"])


def test_the_interval_of_a_share_is_one():
    rows = [cell("gract", "7x_a", "eager", "mps", "h1", share, n)
            for n, share in enumerate((0.99, 0.98, 1.0, 0.9))]  # fmt: skip
    told = estimates_by_host(pd.DataFrame(rows)).iloc[0]
    assert 0.7 < told["low"] < told["value"] < told["high"] == 1


@pytest.mark.parametrize(
    ("scenario", "implementation", "method", "window", "kind"),
    [
        ("1x_thin", "paper_step", "naive", "", "alone_waits"),
        ("1x_thin", "paper_step", "mps", "", "set_waits"),
        ("3x_thin", "paper_step", "naive", "", "set_waits"),  # they ask for 0.9 GPUs in turn,
        ("4x_thin", "paper_step", "naive", "", "set_near"),  # for 1.2,
        ("5x_thin", "paper_step", "naive", "", "set_full"),  # for 1.5,
        ("4x_thin", "paper_step", "mps", "", "set_waits"),  # and for 0.4 side by side
        ("10x_thin", "paper_step", "mps_equal", "", "set_near"),
        ("15x_thin", "paper_step", "mps_equal", "", "set_full"),
        ("2x_wide", "paper_step", "mps", "", "set_busy"),
        ("2x_wide+1x_thin", "paper_step", "naive", "before", "set_full"),
        ("2x_wide+1x_thin--departure", "paper_step", "naive", "after", "set_waits"),
        ("2x_wide", "graph", "mps", "", "set_graph"),
        ("1x_wide", "graph", "naive", "", "alone_graph"),
        ("7x_wide", "eager", "naive", "", "set_waits"),  # not known alone in that way
        ("4x_thin--files", "paper_step", "naive", "", "set_waits"),  # nor from files
    ],
)
def test_kinds_of_sets(scenario, implementation, method, window, kind):
    rows = [*alone(["thin"], "paper_step", 0.3, 0.1), *alone(["wide"], "paper_step", 0.95, 0.6)]
    rows.append(cell("rate", scenario, implementation, method, "h1", 1.0, window=window))
    assert set_kinds(pd.DataFrame(rows)).iloc[-1] == kind
    assert set(PLACE) < set(rows[-1])


def test_a_kind_counts_hosts_alike_however_many_cells_each_has():
    one = {"quantity": "smact", "scenario": "1x_thin", "implementation": "bf16", "method": "naive"}
    rows = [cell(**one, host=host, value=share, number=number)
            for host, share, cells in (("h1", 0.30, 1), ("h2", 0.21, 9))
            for number in range(cells)]  # fmt: skip
    rows.append(cell("rate", "4x_thin", "bf16", "mps", "h1", 1.0))  # asks for 4 x 0.255
    assert set_kinds(pd.DataFrame(rows)).iloc[-1] == "set_near"


def test_sets_that_just_fill_the_gpu_have_the_range_of_their_hosts():
    """How far a host slows them down differs from set to set; the next cell has an interval."""
    jobs, random = [f"near{k}" for k in range(6)], np.random.default_rng(1)
    rows = [row for job in jobs for row in alone([job], "eager", 0.3, 0.3)]
    rows += [cell("rate", f"4x_{job}", "eager", "mps", host, random.uniform(5, 6), number)
             for job in jobs for host in ("h1", "h2", "h3") for number in range(2)]  # fmt: skip
    rates = of_rates(add_over_hosts(estimates_by_host(pd.DataFrame(rows))))
    for scenario, over in rates.xs("", level="host").iterrows():
        hosts = rates.loc[scenario].drop("")
        assert (hosts["kind"] == "set_near").all() and (hosts["spread"] == "interval").all()
        ends = (hosts["value"].min(), hosts["value"].max())
        assert (over["spread"], over["low"], over["high"]) == ("range", *ends)


def test_the_methods_page_tells_the_level_of_intervals():
    methods = (REPOSITORY / "docs" / "methods.md").read_text("utf-8")
    assert f"**Intervals** hold {CONFIDENCE_TEXT}," in methods
