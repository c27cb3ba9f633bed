"""Shipped against derived: what was put in, taken out or changed is one difference each."""

import json

import pytest

from release import compare, verify
from release.contents import MANIFEST
from release.verify import Line

LINES = [f"- at {n} jobs: a gain of {1 + n / 7:.4f}" for n in range(1, 40)]
HEAD = "cell,attempt,rate"
ROWS = [f"{n}x_a/faithful/mps/r1,1,{1000 / n!r}" for n in range(1, 20)]


def differences(folder, ending, one, other) -> list[str]:
    for name, text in (("one", one), ("other", other)):
        (folder / f"{name}.{ending}").write_text(text)
    return compare.files(folder / f"one.{ending}", folder / f"other.{ending}")


def of_texts(one, other) -> list[str]:
    return list(compare.texts("\n".join(one), "\n".join(other)))


@pytest.mark.parametrize("place", [0, 17, len(LINES) - 1])
def test_a_line_of_a_text_is_one_difference(place):
    before, line, after = LINES[:place], LINES[place], LINES[place + 1 :]
    at = f"line {place + 1}: "
    lost = of_texts(LINES, before + after)
    assert lost == [f"{at}shipped {line}, derived nothing"]
    new = of_texts(LINES, [*before, "- a new one", line, *after])
    assert new == [f"{at}shipped nothing, derived - a new one"]
    changed = of_texts(LINES, [*before, line.replace("gain", "loss"), *after])
    assert len(changed) == 1 and changed[0].startswith(at) and "derived" in changed[0]


def test_a_number_that_moves_a_line_elsewhere_is_two_differences():
    """As guidelines, which are sorted: the same line goes from one place to another."""
    found = of_texts(LINES, [*LINES[:5], *LINES[6:20], LINES[5], *LINES[20:]])
    assert len(found) == 2 and sum("derived nothing" in what for what in found) == 1


def test_lines_that_repeat_are_held_in_their_places():
    rows = [f"<td>{n % 4}</td>" for n in range(80)]
    other = [*rows]
    other[9] = other[30] = other[62] = "<td>new</td>"
    assert [what.partition(":")[0] for what in of_texts(rows, other)] == [
        "line 10", "line 31", "line 63"
    ]  # fmt: skip


def test_last_digits_are_no_difference_beside_a_line_that_is_new():
    one = [f"rate {n / 3!r}" for n in range(1, 30)]
    other = [f"rate {n / 3 * (1 + 1e-14)!r}" for n in range(1, 30)]
    assert one != other and of_texts(one, other) == []
    assert len(of_texts(one, [*other[:9], "new", *other[9:]])) == 1
    assert len(of_texts(one, [line.replace("rate", "pace") for line in other])) == len(one)


def test_a_line_of_a_table_is_named_by_its_cell():
    row = "| 2x_a/faithful/mps/r1 | completed | a long proof of what was in force | {} |"
    (what,) = of_texts([row.format("yes")], [row.format("no")])
    assert what.startswith("line 1, cell 2x_a/faithful/mps/r1: ")
    data = ["3x_b/tuned/mig/r2", "2x_a/faithful/mps/r1", [7, 8], "4x_b/tuned/mig/r2"]
    (what,) = of_texts([json.dumps(data)], [json.dumps(data).replace("7", "9")])
    assert what.startswith("line 1, cell 2x_a/faithful/mps/r1: ")
    (what,) = of_texts(["two words", row], ["two words and more", row])
    assert what == "line 1: shipped two words, derived two words and more"


def test_a_row_of_a_table_is_one_difference(tmp_path):
    def of(rows):
        return differences(tmp_path, "csv", "\n".join([HEAD, *ROWS]), "\n".join([HEAD, *rows]))

    named = "cell 4x_a/faithful/mps/r1, attempt 1"
    assert of(ROWS[:3] + ROWS[4:]) == [f"{named} is not derived"]
    assert of([*ROWS[:3], "new/faithful/mps/r1,1,2", *ROWS[3:]]) == [
        "cell new/faithful/mps/r1, attempt 1 is derived, and does not ship"
    ]
    changed = [*ROWS[1:3], ROWS[3].replace("250", "251"), *ROWS[4:]]
    assert of(changed) == [
        "cell 1x_a/faithful/mps/r1, attempt 1 is not derived",
        f"{named} column rate: shipped 250.0, derived 251.0",
    ]
    assert of([*reversed(ROWS)]) == ["rows are in another order"]


def test_a_row_is_named_by_a_time_up_to_its_last_digits(tmp_path):
    one, other = "t,power\n0.3,1\n0.4,2\n", "t,power\n0.30000000000000004,1\n0.4,3\n"
    assert differences(tmp_path, "csv", one, other) == ["t 0.4 column power: shipped 2, derived 3"]


def test_rows_without_a_name_are_held_against_those_around_them(tmp_path):
    rows = [f"{n},{n * n}" for n in range(30)]
    one, other = ("\n".join(["a,b", *these]) for these in (rows, rows[:7] + rows[8:]))
    assert differences(tmp_path, "csv", one, other) == ["row 8: shipped 7,49, derived nothing"]
    same = "\n".join(["a,b", *("1,1",) * 5])
    assert differences(tmp_path, "csv", same, same.replace("1,1", "1,2", 1)) == [
        "row 1 column b: shipped 1, derived 2"
    ]


def test_an_entry_of_a_list_is_one_difference(tmp_path):
    entries = [{"cell": f"{n}x_a", "gain": n / 3} for n in range(1, 9)]
    one, other = (json.dumps({"rows": these}) for these in (entries, entries[1:]))
    (what,) = differences(tmp_path, "json", one, other)
    assert what == "rows[1x_a] is not derived"
    assert differences(tmp_path, "json", "[]", "[null]") == ["[0] is derived, and does not ship"]
    changed = [*entries[:3], {"cell": "4x_a", "gain": 7}, *entries[4:]]
    (what,) = differences(tmp_path, "json", one, json.dumps({"rows": changed}))
    assert what.startswith("rows[4x_a].gain: shipped 1.33")


def test_an_artefact_has_one_line_however_often_it_differs():
    assert Line("claims.md").text == "ok claims.md"
    assert Line("claims.md", ("one", "two")).text == "DIFFERS claims.md: one; two"
    many = Line("claims.md", tuple(map(str, range(20))))
    assert many.text == "DIFFERS claims.md: 0; 1; 2; and more"
    assert many.full.splitlines() == ["DIFFERS claims.md:", *(f"  {n}" for n in range(20))]


@pytest.mark.parametrize(("flags", "text"), [([], "; two; 3; and more"), (["--all"], "\n  4\n")])
def test_every_difference_can_be_asked_for(tmp_path, monkeypatch, capsys, flags, text):
    (tmp_path / MANIFEST).touch()
    lines = [Line("claims.md", ("one", "two", "3", "4")), Line("runs.csv")]
    monkeypatch.setattr(verify, "verify", lambda study: iter(lines))
    assert verify.main([*flags, str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert text in said and said.endswith("ok runs.csv\n1 artefact differs\n")
