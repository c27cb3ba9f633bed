"""estimates.parquet → what people read: pages, their tables as CSV, and the report's HTML.

python -m analysis pages --folder results/h200            the study's own files
python -m analysis pages --folder results/h200 --readme   README.md and docs/claims.md
"""

from __future__ import annotations

import csv
from argparse import Namespace
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from analysis import advice, claims, estimates, labels
from analysis.choose import on_cpu, scope, update
from analysis.figures import INDEX
from analysis.pages import PAGES, TABLES, advised, contents, html, judged, spelling, tables
from analysis.pages.spelling import known, plain

ROOT, TEMPLATES = Path(__file__).parents[2], Path(__file__).parent / "templates"
# Markdown, not HTML: `plain` escapes what is not ours.
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
SPELLINGS = (spelling.num, spelling.bare, spelling.span, spelling.share, spelling.percent)
_PICTURE = "![{title}](figures/{figure}.png)\n\n*{title}.* {caption}"


class Study:
    """What pages are made of: a study's estimates, its claims as judged, its advice."""

    def __init__(self, folder: Path, rules: Path):
        self.folder, self.name = folder, folder.resolve().name
        self.estimates = estimates.read(folder / "estimates.parquet")
        self.scope = scope(self.estimates)[0]
        self.on_cpu = on_cpu(self.estimates)
        self.judged = claims.judged(claims.read(rules), self.estimates)
        self.advice = advised.by_gain(advice.advise(self.estimates))
        self.common = advice.common(self.advice)
        self.unmeasured = advice.unmeasured(self.estimates, self.advice)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Those that are also written as CSV."""
        found = {name: getattr(contents, name)(self.estimates) for name in TABLES[:-1]}
        return found | {"advice": advised.everything(self.advice)}

    @property
    def root(self) -> str:
        """SHA-256 of the list of the study's raw files; empty where it is not sealed."""
        listed = self.folder / "raw.sha256"
        return sha256(listed.read_bytes()).hexdigest() if listed.exists() else ""

    def figures(self) -> dict[str, dict[str, str]]:
        """Name → row of the list of figures; empty before any was drawn."""
        path = self.folder / INDEX
        if not path.exists():
            return {}
        with path.open(encoding="utf-8", newline="") as file:
            return {row["figure"]: row for row in csv.DictReader(file)}

    def page(self, template: str, docs: bool = False) -> str:
        """A template as Markdown; docs: the short form, for docs/."""

        def spelt(spell: spelling.Spell) -> Callable[[object], str]:
            """It spells a row, or the number of an id. Raises ValueError where there is none."""

            def of(e: object) -> str:
                if isinstance(e, str) and e not in self.estimates.index:
                    raise ValueError(f"no number has the id {e!r}")
                return spell(estimates.at(self.estimates, e) if isinstance(e, str) else e)

            return of

        def get(quantity: str, **where: str) -> estimates.Row | None:
            return estimates.get(self.estimates, quantity, **where)

        def count(name: str) -> str:
            return spelling.count(get("count", name=name))

        figures = self.figures()
        context = {
            "study": self,
            "estimates": self.estimates,
            "contents": contents,
            "judgement": judged,
            "advised": advised,
            "table": tables.markdown,
            "get": get,
            "of": lambda quantity, **where: estimates.of(self.estimates, quantity, **where),
            "any_of": lambda name: known(e := get("count", name=name)) and e.value > 0,
            "count": count,
            **{spell.__name__: spelt(spell) for spell in SPELLINGS},
            "docs": docs,
            "flat": plain,
            "labels": labels,
            "picture": lambda name: (
                _PICTURE.format(**figures[name]) if figures.get(name, {}).get("title") else ""
            ),
            "not_drawn": [name for name, row in figures.items() if not row["title"]],
        }
        text = ENVIRONMENT.get_template(f"{template}.md.j2").render(context)
        return text.strip() + "\n"

    def outputs(self) -> Iterator[tuple[str, str]]:
        """(file name relative to the study's folder, content) of all of FILES."""
        sisters = {name: f"{name}.html" for name in PAGES}
        for name in PAGES:
            text = self.page(name)
            yield f"{name}.md", text
            yield f"report/{name}.html", html.page(text, f"{self.name}: {name}", sisters)
        for name, table in self.tables().items():
            yield f"tables/{name}.csv", tables.csv(table)


def shipped(folder: Path, rules: Path) -> Iterator[tuple[str, str]]:
    """(file name relative to the repository, content) of README.md and what docs/ show of it."""
    study = Study(folder, rules)
    yield "README.md", study.page("readme")
    yield "docs/claims.md", study.page("claims", docs=True)


def closing_lines(folder: Path) -> str:
    """What the study can answer, advice, what was measured, where to look. Empty where nothing is
    there.
    """
    try:
        found = estimates.read(folder / "estimates.parquet")
    except (OSError, ValueError):
        return ""
    lines = [scope(found)[0]]
    chosen = [] if on_cpu(found) else advised.foremost(advice.advise(found))
    if chosen:
        lines.append(
            "How many of a job should share the GPU, in the way of writing that does most:"
        )
    for each in chosen[:8]:
        said = each.sentences()
        better = f" {said[-1]}" if each.rewrite else ""
        lines.append(f"{labels.job(each.job, each.arm)}: {said[0]}{better}")
    lines.append(f"Read in {folder}: results.md, advice.md, claims.md, belief.md, explorer.html")
    there = "" if folder.parent == Path("results") else f" CONFIG=results={folder.parent}"
    lines.append(f"Where a number comes from: make explain STUDY={folder.name}{there} ID=...")
    return "\n".join(lines)


def run(given: Namespace) -> None:
    """The command: pages into the study's folder, or README.md and docs/ into the repository."""
    try:
        if given.readme:
            into, files = ROOT, shipped(given.folder, given.claims)
        else:
            into, files = given.folder, Study(given.folder, given.claims).outputs()
        for name, text in files:
            update(into / name, text)
    except TemplateError as error:
        raise ValueError(f"a page's template: {error}") from None
