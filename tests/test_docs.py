"""README and docs: short, with links and commands that exist and numbers that were measured."""

import json
import re

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


def test_readme_and_docs_show_the_studies_that_ship():
    study = REPOSITORY / "results" / "ladder"
    for name, text in render.shipped(study, REPOSITORY / "config" / "claims.yaml"):
        assert (REPOSITORY / name).read_text("utf-8") == text, f"{name}: make readme STUDY=ladder"


def test_citation_and_zenodo_say_the_same():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text("utf-8"))
    zenodo = json.loads((REPOSITORY / ".zenodo.json").read_text("utf-8"))
    for key in ("title", "version", "license"):
        assert zenodo[key] == citation[key]
    [paper] = [entry["identifier"] for entry in zenodo["related_identifiers"]]
    assert paper == citation["references"][0]["doi"]
