"""README and docs: short, with links and commands that exist and numbers that were measured."""

import json
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import typer
import yaml

from analysis.advice.job import text as answer
from collocate import picture
from collocate.app import COMMANDS as NAMES
from collocate.app import app
from paper import pages as paper_pages
from tests.studio import REPOSITORY

README, DOCS = REPOSITORY / "README.md", sorted((REPOSITORY / "docs").glob("*.md"))
CONFIG, ARTIFACT = REPOSITORY / "config" / "README.md", REPOSITORY / "release" / "artifact.md"
PAGES = (README, *DOCS, CONFIG, ARTIFACT)
GENERATED = "collocate pages ladder"
COMMANDS = re.compile(r"^(?:\$ )?(collocate [^\n]+)|`(collocate [^`\n]+)`", re.M)
# Words of ours, which README would have to explain.
OURS = r"\b(cells?|sets?|stand-ins?|sealed|S|naive|paper_step|STP|GRACT)\b|[0-9a-f]{64}"


def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def test_readme_and_docs_are_short():
    """Words of docs/*.md are counted as `wc -w` does: whatever stands between spaces."""
    assert README.stat().st_size <= 6 * 1024
    assert len(DOCS) <= 8
    assert sum(len(text_of(page).split()) for page in DOCS) <= 9000


def test_readme_uses_no_word_that_it_would_have_to_explain():
    prose = re.sub(r"\]\([^)]*\)|<img[^>]*>|`[^`]*`", "", text_of(README))
    assert re.findall(OURS, prose) == []


def test_links_lead_somewhere():
    missing = []
    for page in (README, *DOCS, CONFIG):
        text = text_of(page)
        for target in re.findall(r'\]\(([^)\s]+)|src="([^"]+)', text):
            name, _, heading = "".join(target).partition("#")
            if "://" in name:
                continue
            there = page.parent / name if name else page
            if not there.exists() or heading and heading not in headings(there):
                missing.append((page.name, "".join(target)))
    assert missing == []


def headings(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    titles = re.findall(r"^#+ (.*)$", text_of(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_make_commands_that_they_name_exist():
    named = re.findall(r"^([a-z][a-z -]*):", text_of(REPOSITORY / "Makefile"), re.M)
    known = {*" ".join(named).split(), ".venv/.slurm"}
    for page in PAGES:
        assert {*re.findall(r"(?:^|`)make ([a-z./-]+)", text_of(page), re.M)} <= known, page.name


def test_commands_of_collocate_that_they_name_are_understood():
    """Every command parses: its name, its options, and what these allow."""
    for name in NAMES:
        import_module(f"collocate.{name}")
    understood = typer.main.get_command(app)
    wrong, count = [], 0
    for page in PAGES:
        for found in COMMANDS.findall(text_of(page)):
            line = re.split(r" #| >|  |; | && ", "".join(found))[0]
            _, name, *words = shlex.split(line.replace("$study", "ladder"))
            count += 1
            try:
                command = understood.commands[name]
                if words:  # without them it is the name of the command
                    command.make_context(name, words)
            except (KeyError, typer.TyperException) as error:
                wrong.append(f"{page.name}: {line}: {error!r}")
    assert count > 40 and wrong == []


def test_the_picture_of_the_terminal_is_the_recorded_answer():
    recorded = json.loads(text_of(picture.RECORD))
    assert text_of(picture.PICTURE) == picture.svg(recorded), GENERATED
    assert not {*picture.PRIVATE} & {*recorded}
    assert "http" not in text_of(picture.PICTURE).replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("method", ["naive", "mps"])
def test_an_answer_is_at_most_72_columns_wide(method):
    """Tables are, too, which cannot be cut."""
    measured = {"jobs": 12, "method": method, "rate": [12_345.0, 12_201.0, 12_499.0], "flags": []}
    measured |= {"stp": [2.94, 2.62, 13.29], "slowdown": [11.43, 10.28, 11.6]}
    measured |= {"memory_gb": 123.4, "joules": 2.88}
    alone = {
        "rate": 9_876.0,
        "interval": [9_876.0, 9_801.0, 9_999.0],
        "optimizer": "AdamW",
        "unit": "samples/s",
        "memory_gb": 12.9,
        "cores": 1.0,
    }
    alone |= {"joules": 0.123, "beside_rate": 9_765.0, "gract": 0.45, "smact": 0.31, "drama": 0.15}
    predicted = [{"method": method, "jobs": n, "stp": 11.77, "error": 0.2} for n in range(2, 49)]
    advice = {"asked": "python train.py", "card": "NVIDIA H200", "cores": 2, "alone": alone}
    advice |= {"verdict": "Run 12.", "notes": [], "measured": [measured], "predicted": predicted}
    advice["seconds"] = {"wall": 170.2, "counted": 99.9}
    for line in answer.terminal(advice).splitlines():
        if line.startswith("  "):
            assert len(line) <= 72, line


def test_readme_and_docs_show_the_studies_that_ship():
    study = REPOSITORY / "results" / "ladder"
    for name, text in paper_pages.docs_pages(study):
        assert (REPOSITORY / name).read_text("utf-8") == text, f"{name}: {GENERATED}"


def test_citation_and_zenodo_say_the_same():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text("utf-8"))
    zenodo = json.loads((REPOSITORY / ".zenodo.json").read_text("utf-8"))
    for key in ("title", "version", "license"):
        assert zenodo[key] == citation[key]
    [paper] = [entry["identifier"] for entry in zenodo["related_identifiers"]]
    assert paper == citation["references"][0]["doi"]
