"""Two studies side by side: what both have, with its spread, and nothing computed over the two."""

import csv

from analysis.estimates.table import RANGE
from collocate.app import main as collocate
from tests.handmade import number, written

JOB = "resnet26_cifar10_b32"


def measured(quantity, n, method, value, width=0.0, **more):
    """A number over two hosts; without a width, of one replicate."""
    ends = {"low": value - width, "high": value + width, "spread": RANGE} if width else {}
    return number(quantity, f"{n}x_{JOB}", method, value=value, **ends) | {"hosts": 2} | more


def verdict(name, status):
    return number("claim", name=name, status=status)


A = [
    measured("stp", 2, "mps", 1.5, 0.1),
    measured("stp", 7, "mps", 5.0, 0.2),
    measured("stp", 7, "naive", 4.0),
    measured("stp", 1, "naive", 1.0),
    measured("rate", 7, "mps", 20_000.0, 500.0),
    measured("smact", 7, "mps", 0.5, 0.1),
    measured("stp", 7, "mps", 3.0, host="h1"),
    measured("stp", 7, "mps", 1.7, source="SUIT25"),
    verdict("C1", "holds"),
    verdict("C2", "holds"),
]
B = [
    measured("stp", 2, "mps", 1.6, 0.1),
    measured("stp", 7, "mps", 6.0, 0.2),
    measured("stp", 7, "naive", 4.1, 0.2),
    measured("stp", 1, "naive", 1.0),
    measured("stp", 3, "mps", 2.0, 0.1),
    measured("rate", 7, "mps", 20_200.0, 500.0),
    verdict("C1", "holds"),
    verdict("C2", "depends on the host"),
]


def test_what_both_have_stands_condition_by_condition_and_what_differs_first(tmp_path, capsys):
    a, b, output = written(tmp_path / "a", A), written(tmp_path / "b|x", B), tmp_path / "out"
    assert collocate(["compare", str(a), str(b), "--output", str(output)]) == 0
    said = [" ".join(capsys.readouterr().out.split())]
    assert said[0].startswith(
        "4 numbers in both: 1 apart, 1 no spread, 2 overlap; 2 verdicts: 1 differs, 1 same"
    )
    with (output / "compare.csv").open(encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    place = f"stp:7x_{JOB}/paper_step/mps"
    assert {identity.partition(":")[0] for identity in rows} == {"stp", "rate", "claim"}
    assert (rows[place]["value"], rows[place]["value_b"], rows[place]["word"]) == (
        *("5.0", "6.0", "apart"),
    )
    assert rows["claim:C2"]["word"] == "differs"
    text = (output / "compare.md").read_text(encoding="utf-8")
    gains = text[text.index("## Throughput gain") :]
    assert gains.index("| apart |") < gains.index("| no spread |") < gains.index("| overlap |")
    assert "5.00 (4.80 to 5.20) | 6.00 (5.80 to 6.20)" in gains
    assert "| C2 | holds | depends on the host | differs |" in text


def test_each_side_says_how_many_replicates_it_has(tmp_path):
    def made(name, n):
        cell = {"value": 4.0, "numerator": None, "denominator": None, "over": "", "batches": ()}
        cells = [{"cell": f"c{k}"} | cell for k in range(n)]
        row = measured("stp", 2, "mps", 4.0) | {"n": n, "replicates": cells}
        return written(tmp_path / name, [row])

    a, b, output = made("a", 1), made("b", 2), tmp_path / "out"
    assert collocate(["compare", str(a), str(b), "--output", str(output)]) == 0
    assert "| 4.00 (one replicate) | 4.00 |" in (output / "compare.md").read_text("utf-8")


def test_studies_that_have_nothing_in_common_are_one_line(tmp_path, capsys):
    a, b = written(tmp_path / "a", A), written(tmp_path / "b", A[-2:])
    assert collocate(["compare", str(a), str(b), "--output", str(tmp_path / "out")]) == 1
    assert "no number in common" in capsys.readouterr().err
