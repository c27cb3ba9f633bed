"""Within and between blocks, between sittings: against closed forms and drawn numbers."""

import math
import statistics

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.cells import read_all_runs
from analysis.records.merge import merge
from analysis.tables import two_way, variance
from tests.records import record
from tests.studies import furnish

SMALL = "small"
COUNTS = {1: "naive"} | dict.fromkeys(range(2, 9), "mps")
logs = st.floats(-0.2, 0.2)


def rows(records) -> pd.DataFrame:
    """The table of hand-made records."""
    return variance.table(merge(records)[0].to_pandas())


def fitted(
    noise: dict[tuple[int, int], float], gract: dict[int, float] | None = None
) -> pd.DataFrame:
    """The same of cells by count and block, without the way there; `gract`: by count."""
    cells = [
        {"scenario": f"{n}x_{SMALL}", "method": COUNTS[n], "n": n, "block": b, "device": "GPU"}
        | {"hardware": "Test GPU", "log_rate": 3.0 / n + off, "gract": (gract or {}).get(n)}
        for (n, b), off in noise.items()
    ]
    table = pd.DataFrame(cells).astype({"gract": float})
    return pd.DataFrame(variance.additive(table), columns=variance.COLUMNS)


def one(found: pd.DataFrame, kind: str, members: str | None = None) -> dict:
    chosen = found[found["kind"] == kind]
    chosen = chosen if members is None else chosen[chosen["members"] == members]
    [row] = chosen.to_dict("records")
    return row


def balanced(noise: dict[tuple[int, int], float]) -> list[dict]:
    """(count, block) → log of the rate's departure; a cell of each count in each block."""
    return [
        record(f"{n}x_{SMALL}", COUNTS[n], block, rates=(1000 / n * math.exp(off),) * n)
        for (n, block), off in noise.items()
    ]


@given(st.lists(logs, min_size=9, max_size=9))
def test_a_balanced_study_has_the_two_way_closed_form(offs):
    counts, blocks = (1, 2, 3), (1, 2, 3)
    noise = dict(zip([(n, b) for n in counts for b in blocks], offs, strict=True))
    found = fitted(noise)
    of_cell = {n: statistics.fmean(noise[n, b] for b in blocks) for n in counts}
    of_block = {b: statistics.fmean(noise[n, b] for n in counts) for b in blocks}
    mean = statistics.fmean(offs)
    rest = [noise[n, b] - of_cell[n] - of_block[b] + mean for n in counts for b in blocks]
    within = one(found, variance.WITHIN)
    assert within["df"] == 4 and within["values"] == 9 and within["members"] == variance.FEW
    assert within["cv"] == pytest.approx(math.sqrt(sum(r * r for r in rest) / 4), abs=1e-9)
    between = one(found, variance.BLOCKS)
    # A block's mean over three cells has a third of the rest's variance, whatever the blocks do.
    own = statistics.variance(of_block.values()) - sum(r * r for r in rest) / 4 / 3
    assert between["cv"] ** 2 == pytest.approx(max(own, 0.0), abs=1e-9)
    widest = max(of_block.values()) - min(of_block.values())
    assert between["spread"] == pytest.approx(math.expm1(widest), abs=1e-9)


@given(st.lists(logs, min_size=3, max_size=3))
def test_a_block_that_is_slower_in_all_cells_alike_varies_between_blocks_only(offs):
    noise = {(n, b): off for n in (1, 2, 3, 7) for b, off in enumerate(offs, 1)}
    found = fitted(noise)
    for members in (variance.FEW, variance.CROWD):
        assert one(found, variance.WITHIN, members)["cv"] == pytest.approx(0, abs=1e-9)
    assert one(found, variance.BLOCKS)["cv"] == pytest.approx(statistics.stdev(offs), abs=1e-9)


def test_seven_members_are_counted_apart_and_share_the_degrees_of_freedom():
    noise = {(n, b): (0.05 if (n, b) == (7, 2) else 0.0) for n in (1, 2, 3, 7) for b in (1, 2, 3)}
    found = rows(balanced(noise))
    few, many = (one(found, variance.WITHIN, m) for m in (variance.FEW, variance.CROWD))
    assert (few["values"], many["values"]) == (9, 3)
    assert few["df"] + many["df"] == 6 and few["df"] == 4.5
    assert (few["bound"], many["bound"]) == (0.02, 0.03)
    # What the noisy cell leaves in the rest of the others is not theirs.
    assert few["cv"] == pytest.approx(0, abs=1e-6)
    assert many["cv"] == pytest.approx(statistics.stdev([0, 0.05, 0]))


def test_one_cell_of_each_kind_cannot_be_told_apart():
    """What the one has too much, the other has too little: they share it."""
    random = np.random.default_rng(3)
    found = fitted({(n, b): random.normal(0, 0.02) for n in (1, 7) for b in (1, 2, 3, 4)})
    few, many = (one(found, variance.WITHIN, m) for m in (variance.FEW, variance.CROWD))
    assert few["cv"] == pytest.approx(many["cv"])


def test_a_cell_with_one_replicate_brings_no_degree_of_freedom():
    random = np.random.default_rng(1)
    noise = {(n, b): random.normal(0, 0.02) for n in (1, 2, 3) for b in (1, 2, 3)}
    alone = one(fitted(noise), variance.WITHIN, variance.FEW)
    noise |= {(7, 1): 0.3}
    found = fitted(noise)
    few, many = (one(found, variance.WITHIN, m) for m in (variance.FEW, variance.CROWD))
    assert (few["df"], few["cv"]) == (alone["df"], pytest.approx(alone["cv"]))
    assert (many["df"], many["values"]) == (0, 1) and pd.isna(many["cv"])


def test_what_less_than_one_degree_of_freedom_says_is_no_variation():
    """Two cells in two blocks, of each kind one: half a degree each."""
    found = fitted({(1, 1): 0.0, (1, 2): 0.1, (7, 1): 0.0, (7, 2): 0.0})
    for members in (variance.FEW, variance.CROWD):
        row = one(found, variance.WITHIN, members)
        assert row["df"] == 0.5 and pd.isna(row["cv"])
    assert one(found, variance.BLOCKS)["cv"] == pytest.approx(0, abs=1e-6)


def test_less_than_none_is_told_of_all_together_and_never_as_none():
    """Cells of many members that repeat better than what few do to the block effects allows."""
    off = dict(zip((1, 2, 3, 4, 7, 8), (0.2, -0.2, 0.15, -0.15, 0.0, 0.0), strict=True))
    found = fitted(
        {(n, b): side * value for n, value in off.items() for b, side in ((1, 1), (2, -1))}
    )
    few, many = (one(found, variance.WITHIN, of)["cv"] for of in (variance.FEW, variance.CROWD))
    assert few == many > 0.1


def test_cells_that_keep_the_gpu_busy_are_told_apart_from_those_that_wait_for_their_host():
    """A host that is slow in a block is not seen by the first; fitted together it would be."""
    random = np.random.default_rng(5)
    host = {1: 0.0, 2: 0.2, 3: -0.1}
    busy = {n: 0.99 if n > 4 else 0.4 for n in range(1, 9)}
    noise = {
        (n, b): random.normal(0, 0.002) + (0.0 if busy[n] > 0.9 else slow)
        for n in busy
        for b, slow in host.items()
    }
    found = fitted(noise, busy)
    working, waiting = (
        one(found, variance.BY_LOAD, m) for m in (variance.WORKING, variance.WAITING)
    )
    assert (working["values"], waiting["values"], working["groups"]) == (12, 12, 3)
    assert working["df"] == waiting["df"] == 6
    assert max(working["cv"], waiting["cv"]) < 0.006 < one(found, "within blocks", "N < 7")["cv"]
    assert pd.isna(working["bound"])
    alike = fitted(noise, dict.fromkeys(busy, 0.99))
    assert variance.BY_LOAD not in set(alike["kind"]) | set(fitted(noise)["kind"])


# A ladder of three blocks of which cells are missing, and some that were measured once.
HOLES = [(n, b) for n in (1, 2, 3, 4, 7, 8) for b in (1, 2, 3)]
HOLES = [place for place in HOLES if place not in ((2, 3), (3, 1), (7, 1), (8, 2))]
HOLES += [(5, 1), (6, 3)]


def test_variation_is_as_it_was_drawn():
    """With holes and without a block effect: each with its own, on average."""
    random = np.random.default_rng(2)
    squares = {variance.FEW: [], variance.CROWD: [], variance.ALL: []}
    for _ in range(200):
        drawn = dict(zip(HOLES, random.normal(0, 0.02, len(HOLES)), strict=True))
        for row in fitted(drawn).to_dict("records"):
            squares[row["members"]].append(row["cv"] ** 2)
    for members in (variance.FEW, variance.CROWD):
        # A little more, for what comes out below 0 is given the value of all.
        assert math.sqrt(statistics.fmean(squares[members])) == pytest.approx(0.02, rel=0.15)
    assert statistics.median(squares[variance.ALL]) == pytest.approx(0, abs=0.004**2)


@pytest.mark.parametrize(
    ("few", "many", "between"),
    [(0.02, 0.02, 0.05), (0.01, 0.05, 0.03), (0.03, 0.01, 0.02), (0.02, 0.03, 0.0)],
)
def test_each_part_of_the_variance_is_found_whatever_the_others_are(few, many, between):
    """In a layout with holes, on average over draws: none is the lower for being among louder ones.
    As variances, which may be below 0; a CV of such a one would count as 0.
    """
    random = np.random.default_rng(6)
    n, block = np.array(HOLES).T
    crowd = n >= variance.MANY
    cell = np.unique(n, return_inverse=True)[1]
    true, found = np.where(crowd, many, few), []
    for _ in range(1500):
        effects, rest = random.normal(0, between, 4), random.normal(0, true)
        layout = two_way.fit(3 / n + effects[block] + rest, cell, block - 1)
        within = two_way.variances(layout, [~crowd, crowd])
        found.append([*within, two_way.between(layout, np.where(crowd, *within[::-1]))[1]])
    means, errors = np.mean(found, axis=0), np.std(found, axis=0) / math.sqrt(len(found))
    wanted = np.array([few, many, between]) ** 2
    assert (np.abs(means - wanted) < 3 * errors).all()
    assert means[:2] == pytest.approx(wanted[:2], rel=0.1, abs=0.1 * few**2)


def test_no_number_of_cells_makes_rounding_an_effect():
    """A layout has one direction at least that rates say nothing of: cells up and blocks down."""
    random = np.random.default_rng(5)
    cells = [
        {"scenario": f"{n}x_{SMALL}", "method": f"mps_{m}", "n": n, "block": b, "device": "GPU"}
        | {"hardware": "Test GPU", "log_rate": 9.0 + random.normal(0, 0.02), "gract": math.nan}
        for n in range(1, 7)
        for m in range(10)
        for b in range(12)
    ]
    found = pd.DataFrame(variance.additive(pd.DataFrame(cells)))
    assert one(found, variance.WITHIN)["df"] == 59 * 11
    assert one(found, variance.WITHIN)["cv"] == pytest.approx(0.02, rel=0.05)
    assert one(found, variance.BLOCKS)["spread"] < 0.02


def test_gpu_models_are_not_compared():
    """Two of them, one 3 times as fast, but not equally in all cells: each has cells of its own."""
    records = [
        record(f"{n}x_{SMALL}", "naive", b, rates=(speed**n * b,) * n, attempt=a, **place)
        for a, (speed, place) in enumerate(
            ((1.0, {"gpu": "GPU-1"}), (3.0, {"gpu": "GPU-2", "gpu_name": "Other GPU"})), 1
        )
        for n in (1, 2)
        for b in (2 * a, 2 * a + 1)
    ]
    records += [
        record(f"1x_{SMALL}--anchor", replicate=a, rates=(rate,), sitting=f"s{a}", **place)
        for a, (rate, place) in enumerate(
            [(1000.0, {}), (1010.0, {}), (3000.0, {"gpu": "GPU-2", "gpu_name": "Other GPU"})], 1
        )
    ]
    found = rows(records)
    assert one(found, variance.WITHIN)["cv"] == pytest.approx(0, abs=1e-9)
    assert one(found, variance.WITHIN)["df"] == 2
    between = one(found, variance.BLOCKS)
    assert (between["groups"], between["df"]) == (4, 2)
    assert between["spread"] == pytest.approx(3 / 2 - 1)  # 3 over 2, and 5 over 4
    sittings = one(found, variance.SITTINGS)
    assert (sittings["values"], sittings["df"]) == (3, 1)
    assert sittings["spread"] == pytest.approx(0.01)
    assert sittings["cv"] == pytest.approx(math.log(1.01) / math.sqrt(2))


def test_blocks_without_a_cell_in_common_are_not_compared():
    found = fitted({(1, 1): 0.0, (2, 1): 0.0, (3, 2): 1.0, (4, 2): 1.0})
    between = one(found, variance.BLOCKS)
    assert between["df"] == 0 and pd.isna(between["cv"]) and pd.isna(between["spread"])


def test_variation_between_blocks_is_without_that_within():
    random = np.random.default_rng(4)
    found = []
    for _ in range(200):
        blocks = random.normal(0, 0.03, 4)
        cells = {(n, b): blocks[b] + random.normal(0, 0.03) for n in (1, 2) for b in range(4)}
        found.append(one(fitted(cells), variance.BLOCKS)["cv"] ** 2)
    assert math.sqrt(statistics.fmean(found)) == pytest.approx(0.03, rel=0.1)


def test_one_block_or_one_cell_tells_nothing_of_variation():
    lone = one(rows(balanced({(1, 1): 0.0})), variance.WITHIN)
    assert pd.isna(lone["cv"]) and lone["df"] == 0
    assert pd.isna(
        one(rows(balanced({(n, 1): 0.1 for n in (1, 2, 3, 7)})), variance.WITHIN, variance.FEW)[
            "cv"
        ]
    )
    assert rows([]).empty


def test_what_did_not_complete_or_has_no_window_is_no_value():
    records = balanced({(n, b): 0.0 for n in (1, 2) for b in (1, 2)})
    records += [record(f"3x_{SMALL}", "mps", 1, rates=(None,) * 3, status="out_of_memory")]
    records += [record(f"2x_{SMALL}--epochs", rates=(1.0, 1.0))]
    assert one(rows(records), variance.WITHIN)["values"] == 4


def test_a_mix_is_one_number_whatever_its_units():
    records = [
        record("1x_fast+2x_slow", "mps", block, rates=(1e6 * up, 1.0 * up, 3.0 * up))
        for block, up in ((1, 1.0), (2, 1.1))
    ]
    found = rows(records)
    assert one(found, variance.BLOCKS)["spread"] == pytest.approx(0.1)
    assert one(found, variance.BLOCKS)["workloads"] == "fast+slow"


def test_anchors_hold_sittings_against_each_other_and_count_nowhere_else(tmp_path):
    records = balanced({(n, b): 0.0 for n in (1, 2) for b in (1, 2)})
    for number, rate in ((1, 1000.0), (2, 1010.0), (3, 1020.0)):
        anchor = record(
            f"1x_{SMALL}--anchor", replicate=number, rates=(rate,), sitting=f"s{number}"
        )
        records.append(anchor)
    folder = furnish(tmp_path, records)
    runs = read_all_runs(folder / "runs.parquet")
    found = variance.table(runs)
    between = one(found, variance.SITTINGS)
    assert (between["values"], between["df"]) == (3, 2)
    assert between["spread"] == pytest.approx(0.02)
    assert one(found, variance.WITHIN)["values"] == 4
    assert (
        variance.main(["--runs", str(folder / "runs.parquet"), "--output", str(tmp_path / "v")])
        == 0
    )
    text = (tmp_path / "v.md").read_text()
    assert "| between sittings" in text and "within" in text and "3 sittings on 1 machine." in text
