"""README and docs: short, with links and commands that exist and numbers that were measured."""

import json
import re
from functools import cache

import pandas as pd
import pytest
import yaml

from analysis.pages import render
from tests.studio import REPOSITORY

README, DOCS = REPOSITORY / "README.md", sorted((REPOSITORY / "docs").glob("*.md"))


def test_readme_and_docs_are_short():
    assert README.stat().st_size <= 7 * 1024
    assert len(DOCS) <= 8
    assert sum(len(page.read_text("utf-8").split()) for page in DOCS) <= 9000


def test_links_lead_somewhere():
    missing = []
    for page in (README, *DOCS):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                missing.append((page.name, target))
    assert missing == []


def test_commands_that_they_name_exist():
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    named = re.findall(r"^# make ([a-z -]+?)   |^([a-z -]+):", makefile, re.M)
    known = {*" ".join(map(" ".join, named)).split(), ".venv/.train", ".venv/.slurm"}
    command = re.compile(r"(?:^|`)make (?:PYTHON=\S+ VENV= )?([a-z./-]+)", re.M)
    for page in (README, *DOCS):
        assert {*command.findall(page.read_text("utf-8"))} <= known, page.name


def test_readme_and_docs_show_the_study_that_ships():
    study = REPOSITORY / "results" / "h200"
    for name, text in render.shipped(study, REPOSITORY / "config" / "claims.yaml"):
        assert (REPOSITORY / name).read_text("utf-8") == text, f"{name}: make readme STUDY=h200"


@cache
def estimates(study: str) -> pd.DataFrame:
    return pd.read_csv(REPOSITORY / "results" / study / "estimates.csv").set_index("id")


SMALL, MEDIUM = "7x_resnet26_cifar10_b128", "7x_efficientnetv2_s_imagenet64_b128"
TOLD = {  # how docs/results.md spells a number → study, id, with its spread
    "5.27 [3.78, 7.33]": ("h200", f"stp:{SMALL}/paper_step/mps"),
    "3.09 [2.22, 4.30]": ("h200", f"stp:{SMALL}/paper_step/naive"),
    "2.03 [1.99, 2.07]": ("h200", f"stp:{SMALL}/graph/mps"),
    "6.85 [4.96, 9.48]": ("h200", "stp:7x_resnet26_cifar10_b32/paper_step/mps"),
    "4.19 [3.14, 5.57]": ("h200", "stp:7x_resnet26_cifar10_b32/paper_step/naive"),
    "4.03 [2.90, 5.61]": ("h200", f"stp:{MEDIUM}/paper_step/mps"),
    "2.54 [1.83, 3.54]": ("h200", f"stp:{MEDIUM}/paper_step/naive"),
    "1.57 [1.13, 2.18]": ("h200", "stp:3x_resnet152_imagenet_b32/paper_step/mps"),
    "1.16 [0.83, 1.61]": ("h200", "stp:3x_resnet152_imagenet_b32/paper_step/naive"),
    "5.75 [4.13, 8.01]": ("h200", f"stp:{SMALL}/paper_step/mps_overlap"),
    "1.35 [1.32, 1.38]": ("turns", "rate_over_naive:3x_resnet152_imagenet_b32/paper_step/mps"),
    "1.61 [1.58, 1.63]": ("turns", f"rate_over_naive:{MEDIUM}/paper_step/mps"),
    "1.83 [1.65, 2.03]": ("turns", "rate_over_naive:7x_resnet26_cifar10_b32/paper_step/mps"),
}


@pytest.mark.parametrize("said", TOLD)
def test_results_say_what_was_measured(said):
    study, name = TOLD[said]
    row = estimates(study).loc[name]
    assert re.findall(r"\d+\.\d+", said) == [f"{row[k]:.2f}" for k in ("value", "low", "high")]
    assert row["spread"] in ("prediction", "interval")
    page = " ".join((REPOSITORY / "docs" / "results.md").read_text("utf-8").split())
    assert said in page


@pytest.mark.parametrize(
    ("job", "kind", "said"),
    [
        ("resnet26_cifar10_b128", "compile", "107k"),
        ("efficientnetv2_s_imagenet64_b128", "compile", "18.3k"),
        ("resnet152_imagenet_b32", "compile", "2,228"),
        ("cait_xxs24_imagenet_b128", "compile", "2,286"),
        ("efficientnetv2_s_imagenet64_b128", "graph", "12.4k"),
        ("resnet152_imagenet_b32", "graph", "1,641"),
        ("cait_xxs24_imagenet_b128", "graph", "1,119"),
    ],
)
def test_rates_of_rewritten_jobs_are_those_of_that_study(job, kind, said):
    rate = estimates("arms").loc[f"rate:1x_{job}/{kind}/naive"]["value"]
    spelt = f"{rate / 1000:.3g}k" if said.endswith("k") else f"{rate:,.0f}"
    assert spelt == said and said in (REPOSITORY / "docs" / "results.md").read_text("utf-8")


def test_citation_and_zenodo_say_the_same():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text("utf-8"))
    zenodo = json.loads((REPOSITORY / ".zenodo.json").read_text("utf-8"))
    for key in ("title", "version", "license"):
        assert zenodo[key] == citation[key]
    [paper] = [entry["identifier"] for entry in zenodo["related_identifiers"]]
    assert paper == citation["references"][0]["doi"]
