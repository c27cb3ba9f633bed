"""Lines in GRACT alone: simulated hosts of different speeds, with a known gain at the paper's."""

import numpy as np
import pytest

from analysis.estimates import table as estimates
from analysis.estimates.quantities import AT_GRACT
from analysis.estimates.table import by_id
from collocate.app import main as collocate
from paper.gract_lines import line_estimates
from tests.handmade import built, frame, number, written
from tests.simulator import Design, Job, Noise, simulate

JOB, AT = "resnet26_cifar10_b32", 0.43
SEVEN = f"7x_{JOB}"
PAPER = [number("gract", f"1x_{JOB}", "naive", value=AT, source="LEC22")]
PAPER += [number("stp", SEVEN, method, value=3.0, source="SUIT25") for method in ("naive", "mps")]
PAPER += [number("stp", f"2x_{JOB}", "mps", value=1.98, source="SUIT25")]


def study(seed, job=None, **design):
    """A job whose sets of seven fill the GPU: STP is S / GRACT alone, whatever the host does."""
    job = job or Job(JOB, 2500, 0.35)
    made = built(simulate(Design([job], **{"counts": (2, 7), "hosts": 4} | design), seed))
    return [e._asdict() for e in by_id(made).values()]


def lines_of(rows, scenario=SEVEN):
    """(quantity, scenario, method) → its line read at the paper's GRACT, of one scenario."""
    lines = [row for row in line_estimates(frame(rows)) if row["scenario"] == scenario]
    return {(row["quantity"], scenario, row["method"]): row for row in lines}


def test_the_line_covers_the_true_gain_at_the_papers_gract():
    truth = {("stp", "naive"): 0.92 / AT, ("stp", "mps"): 1.6 / AT, ("antt", "mps"): 7 * AT / 1.6}
    truth[("rate_over_naive", "mps")] = 1.6 / 0.92
    inside, width = [], []
    for seed in range(6):
        lines = lines_of([*study(seed, hosts=5, replicates=2), *PAPER])
        for (quantity, method), value in truth.items():
            if not (line := lines.get((quantity + AT_GRACT, SEVEN, method))):
                continue  # hosts too alike
            inside.append(line["low"] <= value <= line["high"])
            width.append(line["high"] / line["low"] - 1)
            assert (line["n"], line["hosts"], len(line["replicates"])) == (10, 5, 10)
            assert line["value"] == pytest.approx(value, rel=0.1)
    assert len(inside) > 12 and sum(inside) / len(inside) >= 0.8
    assert sorted(width)[len(width) // 2] < 0.4


@pytest.mark.parametrize("cells", [2, 5])
@pytest.mark.parametrize("hosts", [4, 6])
def test_the_window_alone_that_gain_and_gract_share_makes_no_slope(hosts, cells):
    """Two small jobs under MPS gain all there is on every host, but the job alone wavers by 11 %
    from cell to cell.
    """
    inside, at = [], f"2x_{JOB}"
    for seed in range(40):
        random, rows = np.random.default_rng(seed), [*PAPER]
        for h, middle in enumerate(random.normal(np.log(0.3), 0.22, hosts)):
            alone = middle + random.normal(0, 0.11, cells)
            read_as = {"gract": np.exp(alone), "stp": 2 * np.exp(middle - alone)}
            for quantity, scenario, method in (("gract", f"1x_{JOB}", "naive"), ("stp", at, "mps")):
                replicates = [
                    {"cell": f"r{h}{k}" + quantity, "over": f"r{h}{k}gract", "value": value}
                    for k, value in enumerate(read_as[quantity])
                ]
                rows.append(number(quantity, scenario, method, host=f"h{h}", replicates=replicates))
        if e := lines_of(rows, at).get(("stp_at_gract", at, "mps")):
            assert (e["n"], e["hosts"]) == (hosts * cells, hosts)
            inside.append(e["low"] <= 2 <= e["high"])
    assert len(inside) >= 25 and sum(inside) / len(inside) >= 0.8


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        (lambda: [*study(1), *PAPER], True),
        (lambda: study(1), False),  # the paper has no such job
        (lambda: [*study(1), PAPER[0]], False),  # nor such a set
        (lambda: [*study(1, hosts=1, noise=Noise(host=0, alone=0.01)), *PAPER], False),  # one GRACT
        (lambda: [*study(1, hosts=4, replicates=1), *PAPER], True),
        (lambda: [*study(1, hosts=3, replicates=5), *PAPER], False),  # three points
        (lambda: [*study(1, Job(JOB, 2500, 0.99)), *PAPER], False),  # hosts too alike
        # In bf16 its kernels are others; without waiting for each step they are the same.
        (lambda: [*study(1, Job(JOB, 2500, 0.35, implementations={"bf16": 1.0})), *PAPER], False),
        (lambda: [*study(1, Job(JOB, 2500, 0.35, implementations={"eager": 1.0})), *PAPER], True),
    ],
)
def test_where_there_is_a_line(rows, lines):
    assert bool(lines_of(rows())) is lines


@pytest.mark.parametrize(
    ("gract", "points"),
    [
        ((0.65, 0.88, 0.92, 0.98), 4),  # however busy the job alone
        ((0.65, 0.88, 0.92, None), None),  # its reading is missing
    ],
)
def test_a_point_needs_a_reading_of_the_job_alone_and_no_more(gract, points):
    rows = [*PAPER]
    for h, reading in enumerate(gract):
        cell = {"cell": f"r{h}", "over": f"r{h}alone", "value": 1.2 / (reading or 1)}
        rows.append(number("stp", SEVEN, "mps", host=f"h{h}", replicates=[cell]))
        if reading:
            alone = [{"cell": f"r{h}alone", "over": "", "value": reading}]
            rows.append(number("gract", f"1x_{JOB}", "naive", host=f"h{h}", replicates=alone))
    line = lines_of(rows).get(("stp_at_gract", SEVEN, "mps"))
    assert (line and line["n"]) == points
    assert line is None or line["value"] == pytest.approx(1.2 / AT)


def test_it_says_whether_it_is_extrapolated_and_which_cells_it_is_through(tmp_path, capsys):
    for gract, extrapolated in ((0.43, False), (0.2, True)):
        rows = [*study(1, Job(JOB, 2500, gract)), *PAPER]
        assert (
            "extrapolated" in lines_of(rows)["stp_at_gract", SEVEN, "naive"]["note"]
        ) is extrapolated
    folder = written(tmp_path / "s", [*rows, *lines_of(rows).values()])
    some = f"stp_at_gract:{SEVEN}/paper_step/naive"
    e = estimates.get(estimates.read_estimates(folder / "estimates.parquet"), *some.split(":")[:1],
                      scenario=SEVEN, implementation="paper_step", method="naive")  # fmt: skip
    assert collocate(["explain", str(folder), some]) == 0
    output = capsys.readouterr().out
    assert "a line through" in output and all(r["cell"] in output for r in e.replicates)
