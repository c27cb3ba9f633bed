"""estimates.parquet → what people read: pages, tables and the report's HTML, of one context.

python -m analysis pages --folder results/h200            the study's own files
python -m analysis pages --folder results/h200 --readme   README.md and the generated pages of docs/
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from analysis import advice, claims, labels
from analysis.choose import on_cpu, scope, update
from analysis.estimates.table import Estimates
from analysis.pages import PAGES, TABLES, choose, html, tables
from analysis.pages.book import Book, Told, only_published, plain
from analysis.quantities import QUANTITIES

ROOT, TEMPLATES = Path(__file__).parents[2], Path(__file__).parent / "templates"


# Markdown, not HTML: book.plain escapes what is not ours.
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    undefined=StrictUndefined,
    finalize=only_published,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_SPELLINGS = ("num", "span", "bare", "val", "share", "pct", "precise", "how_many", "advised")
_SPELLINGS += ("reason",)
_NO_QUANTITIES = ("count", "claim", "bench")  # rows of estimates.parquet of other kinds
_LABELS = (labels.job, labels.scenario, labels.method, labels.arm)


class Study:
    """What pages are made of: a study's estimates, its claims as judged, its advice."""

    def __init__(self, folder: Path, rules: Path):
        self.folder, self.name = folder, folder.resolve().name
        self.estimates = Estimates.read(folder / "estimates.parquet")
        self.judged = claims.judged(claims.read(rules), self.estimates)
        self.advice = choose.by_gain(advice.advise(self.estimates))
        self.tables = {name: getattr(tables, name)(self.estimates) for name in TABLES}

    @property
    def root(self) -> str:
        """SHA-256 of the list of the study's raw files; empty where it is not sealed."""
        listed = self.folder / "raw.sha256"
        return sha256(listed.read_bytes()).hexdigest() if listed.exists() else ""

    def page(self, template: str, base: str = "", docs: bool = False) -> str:
        """A template as Markdown. Raises PageError.

        base: where the study's files lie, as seen from the page. docs: the short form, for docs/.
        """
        context = self._context(Book(self.estimates), base) | {"docs": docs}
        return ENVIRONMENT.get_template(f"{template}.md.j2").render(context).strip() + "\n"

    def _context(self, book: Book, base: str) -> dict[str, Any]:
        estimates = self.estimates

        def count(name: str) -> Told:
            return book.val(estimates.get("count", name=name), 0)

        context = {name: getattr(book, name) for name in (*_SPELLINGS, "scope", "sources")}
        for label in _LABELS:
            context[label.__name__] = lambda name, label=label: plain(label(name))
        return context | {
            "study": plain(self.name),
            "root": Told(self.root),
            "base": Told(base),
            "count": count,
            "any_of": lambda name: count(name) not in ("0", "–"),
            "plural": lambda name: "" if count(name) == "1" else "s",
            "get": estimates.get,
            "of": estimates.of,
            "table": lambda table: table.markdown(book),
            "tables": self.tables,
            "flat": plain,
            "code": lambda text: Told(f"`{str(text).replace('`', '')}`"),
            "judged": self.judged,
            "advice": self.advice,
            "quantities": [q for name, q in QUANTITIES.items() if name not in _NO_QUANTITIES],
            "on_cpu": on_cpu(estimates),
            "hosts": [estimates.get("count", name="host_cells", host=h) for h in estimates.hosts()],
            "choose": choose,
            "common": advice.common(self.advice),
            "unmeasured": advice.unmeasured(estimates, self.advice),
            "near_memory": tables.near_memory(estimates),
            "estimates": estimates,
        }

    def outputs(self) -> Iterator[tuple[str, str]]:
        """(file name relative to the study's folder, content) of all of FILES."""
        names = {name: f"{name}.html" for name in (*PAGES, *TABLES)}
        for name in (*PAGES, *TABLES):
            inside = f"tables/{name}" if name in TABLES else name
            text = self.page(name, base="../" if name in TABLES else "")
            yield f"{inside}.md", text
            yield f"report/{name}.html", html.page(text, f"{self.name}: {name}", names)
        for name, table in self.tables.items():
            yield f"tables/{name}.csv", table.csv()
        yield "advice.csv", choose.advised(self.advice).csv()


def shipped(folder: Path, rules: Path) -> Iterator[tuple[str, str]]:
    """(file name relative to the repository, content) of README.md and docs/ that show a study."""
    study = Study(folder, rules)
    yield "README.md", study.page("readme", f"results/{study.name}/", docs=True)
    yield "docs/claims.md", study.page("claims", f"../results/{study.name}/", docs=True)


def closing_lines(folder: Path) -> str:
    """What the study can answer, advice, what was measured, where to look. Empty where nothing is
    there.
    """
    try:
        estimates = Estimates.read(folder / "estimates.parquet")
    except (OSError, ValueError):
        return ""
    book = Book(estimates)
    lines = [scope(estimates)[0]]
    advised = [] if on_cpu(estimates) else advice.advise(estimates)
    found = choose.foremost(advised)
    if found:
        lines.append(
            "How many of a job should share the GPU, in the way of writing that does most:"
        )
    for each in found[:8]:
        arm = f", {labels.arm(each.arm)}" if len(estimates.arms()) > 1 else ""
        said = each.sentences()
        better = f" {said[-1]}" if each.rewrite else ""
        lines.append(f"{labels.job(each.job)}{arm}: {said[0]}{better}")
    known = {each.job for each in found}
    if alone := dict.fromkeys(labels.job(e.job) for e in advised if e.job not in known):
        lines.append(f"Copies of these were not measured together: {', '.join(alone)}.")
    done, cells = (estimates.get("count", name=name) for name in ("cells_completed", "cells"))
    if done and cells:
        others = [e for e in estimates.of("count") if e.name.startswith("cells_") and e != done]
        told = [f"{book.val(e, 0)} {e.note.removeprefix('cells ')}" for e in others if e.value]
        told.insert(0, f"{book.val(done, 0)} are completed")
        lines.append(f"Of {book.val(cells, 0)} planned cells {', '.join(told)}.")
    lines.append(
        f"Read in {folder}: advice.md (all ways), findings.md, claims.md, belief.md, explorer.html"
    )
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
