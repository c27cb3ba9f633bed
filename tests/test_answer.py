"""What reaches `make advise` of a job, and that its sentence and its JSON say the same."""

import re
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from analysis.__main__ import _parser
from analysis.estimates import Row
from analysis.job_advice import answer, command, request
from analysis.job_advice.answer import Job, Measured, Option
from analysis.job_advice.request import Request
from analysis.predict import Prediction
from tests.studio import REPOSITORY


def job(card="NVIDIA H200", card_gb=141.0) -> Job:
    return Job(100.0, {"gract": 0.9, "smact": 0.5}, 10.0, 1.0, 1.0, 2, 300.0, card, card_gb)


def row(value: float) -> Row:
    fields = dict.fromkeys(Row._fields)
    return Row(**fields | {"value": value, "low": value - 0.01, "high": value + 0.01, "unit": "1"})


def said(found: list[Measured], chosen: Option, **bounds) -> dict:
    asked = Request("a", "a", {"batch_size": 1}, ["a"], ".", "paper_step", **bounds)
    return command.Answer(asked, job(), [chosen], chosen, found, Path("f")).as_json()


@pytest.mark.parametrize(("stp", "high", "jobs"), [(1.02, 1.08, 1), (0.9, 1.2, 1), (1.5, 1.7, 4)])
def test_what_is_predicted_to_gain_nothing_is_not_advised(stp, high, jobs):
    chosen = Option(4, "mps", 41.0, Prediction(stp, stp - 0.1, high, 0.1, "gaps"))
    told = said([], chosen)
    assert told["jobs"] == jobs and told["verdict"].startswith("One" if jobs == 1 else "Predicted")


@pytest.mark.parametrize(("slowdown", "words"), [(1.5, "bounds.*MAX=3"), (inf, "Run 4 under MPS")])
def test_a_bound_that_is_broken_is_the_reason(slowdown, words):
    chosen = Option(4, "mps", 41.0, Prediction(2.9, 2.7, 3.1, 0.1, "gaps"))
    measured = Measured(chosen, row(250.0), row(2.5), row(1.6), 41.0, 1.0)
    assert re.search(words, said([measured], chosen, slowdown=slowdown)["verdict"])


def test_a_card_that_does_not_tell_its_memory_is_no_cpu():
    asked = Request("a", "a", {"batch_size": 1}, ["a"], ".", "paper_step", most=2)
    unknown = job("NVIDIA GB10", 0.0)
    sets = answer.options(unknown, asked)
    assert not unknown.on_cpu and [each.method for each in sets] == ["naive", "mps"]
    assert answer.fits(unknown, sets) and job("CPU", 0.0).on_cpu


@pytest.mark.parametrize("command", ["advise", "recipe"])
def test_make_passes_a_command_as_it_was_typed_and_no_option_to_the_script(command, tmp_path):
    shown = tmp_path / "shown"
    shown.write_text('#!/bin/sh\nprintf "%s\\n" "$@"; echo "environment ${JSON-} ${BUDGET-}"\n')
    shown.chmod(0o755)
    make = ["make", "-s", f"PYTHON={shown}", "VENV=", command, "JSON=1", "BUDGET=60s"]
    make += ["RUN=python train.py $HOME 'a b'", "STEPS=step (?P<step>\\d+)$"]
    run = subprocess.run(make, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    *words, environment = run.stdout.splitlines()
    assert environment.split() == ["environment"]
    assert words[words.index("--run") + 1] == "python train.py $HOME 'a b'"
    assert command == "recipe" or words[words.index("--steps") + 1] == r"step (?P<step>\d+)$"


@pytest.mark.parametrize(
    ("line", "shell"),
    [
        ("{python} a.py --data ~/x", True),
        ("{python} a.py data/*.txt", True),
        ("{python} a~b", False),
    ],
)
def test_what_a_shell_expands_goes_to_one(line, shell, tmp_path):
    asked = line.format(python=sys.executable)
    words = ["--run", asked, "--directory", str(tmp_path)]
    given = _parser().parse_args(["advise-job", *words])
    assert (request.read(given).words[0] == "bash") is shell
