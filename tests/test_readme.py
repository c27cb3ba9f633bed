"""README's measured parts: made from a study's files, and those of the shipped study."""

import json
from pathlib import Path

import pytest

from analysis import pages
from release import readme
from tests.records import record
from tests.studies import furnish
from tests.studio import REPOSITORY

SHIPPED = REPOSITORY / "results" / "h200"
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


def test_readme_holds_what_the_shipped_study_gives():
    there = SHIPPED if (SHIPPED / "runs.parquet").exists() else None
    text = (REPOSITORY / "README.md").read_text()
    assert readme.fill(text, there, "results/h200") == text, "run `make readme`"


def test_gains_stand_apart_by_arm_with_intervals(made):
    text = readme.findings(made, "results/mine")
    rows = [line for line in text.splitlines() if line.startswith("| small")]
    assert len(rows) == 2
    assert "as the paper wrote it" in rows[0] and "tuned" in rows[1]
    assert all("3.00 [" in row and "(7×, mps)" in row for row in rows)
    assert "2 replicates at most" in text
    assert "[claims](results/mine/claims.md)" in text


def test_another_study_gives_another_text(made, tmp_path):
    other = study(tmp_path / "other", gain=2.0)
    assert "2.00 [" in readme.findings(other, "x") != readme.findings(made, "x")


def test_claims_are_counted_and_those_that_differ_are_told_with_their_reason(made, tmp_path):
    claims = json.loads((made / "claims.json").read_text())
    assert f"The paper's {len(claims['claims'])} claims" in readme.findings(made, "x")
    claims["claims"][0] |= {"verdict": "contradicted", "why": "the interval lies below 1"}
    text = readme._differences(claims)
    assert claims["claims"][0]["id"] in text and "*The interval lies below 1.*" in text


def test_instruments_are_told_where_they_were_measured(made, tmp_path):
    assert readme.instruments(made, "x") == readme.NOTHING
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
    assert readme.main(command) == 0
    assert "Throughput gain (STP" in target.read_text()
    assert readme.main([*command, "--check"]) == 0
