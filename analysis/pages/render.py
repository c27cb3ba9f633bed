"""One context, and the pages that are made of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis import advice, claims, labels
from analysis.estimates.quantities import QUANTITIES
from analysis.estimates.table import Estimates
from analysis.names import PAPER_ARM
from analysis.pages import PAGES, TABLES, choose, html, isolation, tables
from analysis.pages.book import Book, Told, only_published, plain

TEMPLATES = Path(__file__).parent / "templates"


def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        finalize=only_published,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown; book.plain escapes what is not ours
    )


class Study:
    """What pages are made of: a study's estimates, its claims as judged, its advice."""

    def __init__(self, folder: Path, rules: Path):
        self.folder, self.name = folder, folder.resolve().name
        self.estimates = Estimates.read(folder / "estimates.parquet")
        self.judged = claims.judged(claims.read(rules), self.estimates)
        self.advice = advice.advise(self.estimates)
        self.tables = {
            "alone": tables.alone(self.estimates),
            "sets": tables.sets(self.estimates),
            "hosts": tables.hosts(self.estimates),
            "pair": tables.pairs(self.estimates),
        }

    def page(self, template: str, base: str = "", docs: bool = False) -> str:
        """A template as Markdown.

        base: where the study's files lie, as seen from the page. docs: the short form, for docs/.
        Raises PageError.
        """
        context = self._context(Book(self.estimates), base) | {"docs": docs}
        return _environment().get_template(f"{template}.md.j2").render(context).strip() + "\n"

    def _context(self, book: Book, base: str) -> dict[str, Any]:
        estimates = self.estimates

        def count(name: str, digits: int = 0) -> Told:
            return book.val(estimates.get("count", name=name), digits)

        def any_of(name: str) -> bool:
            found = estimates.get("count", name=name)
            return bool(found and found.value)

        spelling = "num span val pct pct1 milli bare bare_span share how_many advised reason"
        return {name: getattr(book, name) for name in spelling.split()} | {
            "study": plain(self.name),
            "base": Told(base),
            "count": count,
            "any_of": any_of,
            "plural": lambda name: "" if count(name) == "1" else "s",
            "get": estimates.get,
            "of": estimates.of,
            "table": lambda table: table.markdown(book),
            "tables": self.tables,
            "job": lambda name: plain(labels.job(name)),
            "scenario": lambda name: plain(labels.scenario(name)),
            "method": lambda name: plain(labels.method(name)),
            "arm": lambda name: plain(labels.arm(name)),
            "flat": plain,
            "code": lambda text: Told(f"`{text}`"),
            "sources": book.sources,
            "judged": self.judged,
            "advice": choose.by_gain(self.advice),
            "quantities": [
                q for q in QUANTITIES.values() if q.name not in ("count", "claim", "bench")
            ],
            "hosts": [
                (h, estimates.get("count", name="host_cells", host=h)) for h in estimates.hosts()
            ],
            "best": choose.best_sets(estimates),
            "choose": choose,
            "isolation": isolation,
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
        yield "tables/isolation.csv", isolation.table().csv()
        yield "advice.csv", choose.advised(self.advice).csv()


def shipped(folder: Path, rules: Path) -> Iterator[tuple[str, str]]:
    """(file name relative to the repository, content) of README.md and docs/ that show a study."""
    study = Study(folder, rules)
    for target, template, base in (
        ("README.md", "readme", f"results/{study.name}/"),
        ("docs/findings.md", "findings", f"../results/{study.name}/"),
        ("docs/claims.md", "claims", f"../results/{study.name}/"),
        ("docs/quantities.md", "quantities", f"../results/{study.name}/"),
    ):
        yield target, study.page(template, base, docs=True)


def closing_lines(folder: Path) -> str:
    """Advice first, then what was measured and where to look. Empty where nothing is there."""
    try:
        estimates = Estimates.read(folder / "estimates.parquet")
    except (OSError, ValueError):
        return ""
    book, advised = Book(estimates), choose.by_gain(advice.advise(estimates))
    found = [each for each in advised if each.arm == PAPER_ARM and len(each.options) > 1] or advised
    lines = [f"{labels.job(each.job)}: {(each.sentences() or [''])[0]}" for each in found[:8]]
    if lines:
        lines.insert(0, "How many of a job should share the GPU (all of it: advice.md):")
    done, cells = (estimates.get("count", name=name) for name in ("cells_completed", "cells"))
    if done and cells:
        lines.append(f"{book.val(done, 0)} of {book.val(cells, 0)} planned cells are completed.")
    lines.append(f"Read in {folder}: advice.md, findings.md, claims.md, belief.md, explorer.html")
    lines.append(f"Where a number comes from: python -m analysis explain ID --folder {folder}")
    return "\n".join(lines)
