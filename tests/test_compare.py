"""Two studies side by side: what both have, with its spread, and nothing computed over the two."""

import csv
from dataclasses import replace

import pytest

from analysis import compare, labels
from analysis.__main__ import main as analysis
from analysis.estimates import schema
from analysis.estimates.schema import RANGE, Estimate, described
from analysis.estimates.table import Estimates

JOB = "resnet26_cifar10_b32"


def measured(quantity, n, method, value, width=0.0, **more):
    """A number over two hosts; without a width, of one replicate."""
    ends = {"low": value - width, "high": value + width, "spread": RANGE} if width else {}
    place = {"scenario": f"{n}x_{JOB}", "arm": "paper_step", "method": method} | more
    return described(Estimate(quantity, **place, value=value, **ends, n=3, hosts=2))


def outcome(scenario, status="completed", method="mps"):
    place = {"scenario": scenario, "arm": "paper_step", "method": method, "status": status}
    return described(Estimate("outcome", **place, value=1.0, n=1))


def verdict(name, status):
    return described(Estimate("claim", name=name, status=status, value=1.0, n=1))


A = [
    measured("stp", 2, "mps", 1.5, 0.1),
    measured("stp", 7, "mps", 5.0, 0.2),
    measured("stp", 7, "naive", 4.0),
    measured("stp", 7, "naive_again", 4.0, 0.2),
    measured("rate", 7, "mps", 20_000.0, 500.0),
    measured("smact", 7, "mps", 0.5, 0.1),
    measured("stp", 7, "mps", 3.0, host="h1"),
    replace(measured("stp", 7, "mps", 1.7), source="SUIT25"),
    outcome(f"7x_{JOB}"),
    verdict("C1", "holds"),
    verdict("C2", "holds"),
    described(Estimate("count", name="host_cells", host="h1", value=9.0, note="m1: Card A; v1")),
]
B = [
    measured("stp", 2, "mps", 1.6, 0.1),
    measured("stp", 7, "mps", 6.0, 0.2),
    measured("stp", 7, "naive", 4.1, 0.2),
    measured("stp", 7, "naive_again", 4.1, 0.2),
    measured("stp", 3, "mps", 2.0, 0.1),
    measured("rate", 7, "mps", 20_200.0, 500.0),
    measured("smact", 7, "mps", 0.9, 0.1),
    verdict("C1", "holds"),
    verdict("C2", "depends on the host"),
]
WORDS = {"7x/mps": "apart", "2x/mps": "overlap", "7x/naive": "no spread"}


def folder(path, rows):
    schema.write(rows, path / "estimates.parquet")
    return path


@pytest.fixture
def studies(tmp_path):
    return folder(tmp_path / "a", A), folder(tmp_path / "b|x", B), tmp_path / "out"


def run(a, b, output):
    return analysis(["compare", str(a), str(b), "--output", str(output)])


def test_what_both_have_stands_side_by_side_with_a_word():
    found = compare.pairs(Estimates(A), Estimates(B), ("stp",))
    words = {f"{p.a.scenario[:2]}/{p.a.method}": p.word for p in found if p.a.quantity == "stp"}
    assert words == WORDS
    assert [p.word for p in found if p.a.quantity == "claim"] == ["same", "differs"]
    one, two = measured("stp", 2, "mps", 1.0, 0.5), measured("stp", 2, "mps", 2.0, 0.5)
    assert compare.Pair(one, two).word == compare.Pair(two, one).word == "overlap"  # they touch


def test_the_table_has_the_numbers_of_both(studies):
    assert run(*studies) == 0
    rows = list(csv.DictReader((studies[2] / "compare.csv").open()))
    both = [Estimates(A), Estimates(B)]
    assert {row["quantity"] for row in rows} == {"stp", "rate", "claim"}
    for row in rows:
        for side, estimates in zip("AB", both, strict=True):
            e = estimates[row["id"].split()[0] if row["id"] else f"claim:{row['of']}"]
            if row["id"]:
                assert float(row[side]) == e.value
                assert row[f"{side} low"] == ("" if e.low is None else f"{e.low:.9g}")
            assert row[f"verdict in {side}"] == e.status
    assert not {"ratio", "difference"} & set(rows[0])


def test_the_page_says_what_differs_first(studies, capsys):
    assert run(*studies) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == (
        "4 numbers in both: 1 apart, 1 no spread, 2 overlap; 2 verdicts: 1 differs, 1 same"
    )
    assert said[1].endswith("compare.md") and len(said) == 2
    text = (studies[2] / "compare.md").read_text()
    assert "- A: a, 1 host (Card A)" in text and labels.span(A[0]) in text.replace("\\", "")
    gains = text[text.index("## Throughput gain") :]
    assert gains.index("| apart |") < gains.index("| no spread |") < gains.index("| overlap |")
    page = (studies[2] / "compare.html").read_text()
    assert "<td>depends on the host</td>" in page and "b|x" in page and "http" not in page


def test_what_nobody_needs_to_compare_is_left_out_and_what_reads_alike_is_the_same():
    one = [measured("stp", 1, "naive", 1.0), verdict("C3", "not testable")]
    also = measured("s", 7, "mps", 1.5, 0.1, design="alternate")
    near = replace(also, value=1.5001, design="blocks")
    found = compare.pairs(Estimates([*one, also]), Estimates([*one, near]))
    assert [(pair.a.id, pair.word) for pair in found] == [(also.id, "same")]
    in_one = compare.pairs(Estimates([also, one[1]]), Estimates([near, verdict("C3", "holds")]))
    assert [pair.word for pair in in_one] == ["same", "open"]


def test_the_page_says_how_sets_were_measured(tmp_path, studies):
    rates = [
        replace(measured("rate", 7, "mps", 9.0, 1.0), design=way) for way in ("blocks", "both")
    ]
    pair = [folder(tmp_path / way.design, [way]) for way in rates]
    assert run(*pair, studies[2]) == 0
    text = (studies[2] / "compare.md").read_text()
    assert "sets in cells of their own" in text and "sets in turns and sets in cells" in text


def test_studies_without_anything_in_common_say_what_each_has(studies, capsys):
    other = folder(studies[0].parent / "other", [outcome("2x_dlrm_criteo_b2048", method="mig")])
    assert run(studies[0], other, studies[2]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "A has ResNet26 b32 (paper style); B has DLRM b2048 (paper style)" in said
    assert run(studies[0], folder(other.parent / "e", [outcome(f"2x_{JOB}", "failed")]), other) == 1
    assert "B has no completed set" in capsys.readouterr().err
    assert not studies[2].exists()


def test_a_folder_that_is_no_study_gets_one_line(studies, capsys):
    there = studies[0].parent / "nothing"
    assert run(studies[0], there, studies[2]) == 1
    assert (
        analysis(["explorer", "--folder", str(there), "--output", str(studies[2] / "x.html")]) == 1
    )
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and all(f"{there}: no results of a study" in x for x in said)
