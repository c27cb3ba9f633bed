"""estimates.parquet → what people read: pages, their tables as CSV, and the report's HTML."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from html import escape
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError
from markdown_it import MarkdownIt

from analysis import labels
from analysis.advice import predict
from analysis.advice import study as advice
from analysis.advice.study import Advice
from analysis.choose import on_cpu, scope
from analysis.estimates import table as estimates
from analysis.estimates.intervals import CONFIDENCE_TEXT
from analysis.files import write_if_changed
from analysis.report.pages import PAGES, TABLES, belief, beyond, contents, listed, spelling, tables
from analysis.report.pages.spelling import known, plain
from workflow.collocation.study.names import implementation_order
from workflow.collocation.study.regular_files import read_bytes

ROOT, TEMPLATES = Path(__file__).parents[3], Path(__file__).parent / "templates"
SPELLINGS = ("num", "bare", "span", "share", "share_of", "percent", "cells")
_PICTURE = "![{title}](figures/{figure}.png)\n\n*{title}.* {caption}"
_LINK = r'href="(?:tables/|\.\./)?({})\.md"'


class Numbers:
    """The estimates of a study's folder."""

    def __init__(self, folder: Path):
        self.folder, self.name = folder, folder.resolve().name
        self.estimates = estimates.read_estimates(folder / "estimates.parquet")

    def number(self, of: str) -> estimates.Row:
        """The number of an id. Raises ValueError where there is none."""
        if of not in self.estimates.index:
            raise ValueError(f"no number of {self.name} has the id {of!r}")
        return estimates.get_by_id(self.estimates, of)

    def between(self, quantity: str, **where: str) -> str:
        """The lowest and the highest of a quantity's numbers of several jobs."""
        found = estimates.select(self.estimates, quantity, **{"window": ""} | where)
        return labels.range_of(found[found["jobs"] > 1]["value"])


class StudyPages(Numbers):
    """What pages are made of: a study's estimates and its advice."""

    pages = PAGES
    templates = (TEMPLATES,)

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.scope = scope(self.estimates)
        self.on_cpu = on_cpu(self.estimates)
        # Jobs as in the paper first, and of these the highest gain.
        found = sorted(advice.advise(self.estimates), key=_gain)
        self.advice = sorted(found, key=lambda each: implementation_order(each.implementation))
        self.common = advice.common(self.advice)
        self.unmeasured = advice.unmeasured(self.estimates, self.advice)
        self.counts = advice.COUNTS
        raw = folder / "raw.sha256"
        # SHA-256 of the list of the study's raw files; empty where it is not sealed.
        self.root = sha256(read_bytes(raw)).hexdigest() if raw.exists() else ""
        # Name → row of the list of figures; empty before any was drawn.
        self.figures = {row["figure"]: row for row in listed(folder)}

    def page(self, template: str) -> str:
        """A template as Markdown."""
        # Not HTML: `plain` escapes what is not ours.
        environment = Environment(
            loader=FileSystemLoader(self.templates),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        text = environment.get_template(f"{template}.md.j2").render(self.context())
        text = re.sub(r"\n{3,}", "\n\n", text.strip()) + "\n"
        return labels.of_script(self.folder, text)

    def context(self) -> dict[str, object]:
        """What templates may use, by name."""
        get = partial(estimates.get, self.estimates)

        def spelt(spell: spelling.Spell) -> Callable[..., str]:
            """It spells a row, or the number of an id."""
            return lambda e: spell(self.number(e) if isinstance(e, str) else e)

        def by_host(of: str) -> str:
            """A number with the lowest and the highest host's: `4.98 (4.20 to 6.35)`."""
            e = self.number(of)
            each = estimates.on_hosts(self.estimates, e)["value"]
            ends = f" ({labels.range_of(each)})" if len(each) > 1 else ""
            return labels.number(e.value) + ends

        def picture(name: str) -> str:
            drawn = self.figures.get(name, {})
            return _PICTURE.format(**drawn) if drawn.get("title") else ""

        return {
            "study": self,
            "estimates": self.estimates,
            "contents": contents,
            "belief": belief,
            "beyond": beyond,
            "table": tables.markdown,
            "get": get,
            "of": partial(estimates.select, self.estimates),
            "any_of": lambda name: known(e := get("count", name=name)) and e.value > 0,
            "between": self.between,
            "by_host": by_host,
            "predictor": predict.predictor_constants(),
            "number": self.number,
            "confidence": CONFIDENCE_TEXT,
            "count": lambda name: spelling.count(get("count", name=name)),
            **{name: spelt(getattr(spelling, name)) for name in SPELLINGS},
            "flat": plain,
            "labels": labels,
            "picture": picture,
            "not_drawn": [name for name, row in self.figures.items() if not row["title"]],
        }

    def outputs(self) -> Iterator[tuple[str, str]]:
        """(file name relative to the study's folder, content) of pages and tables."""
        for name in self.pages:
            text = self.page(name)
            yield f"{name}.md", text
            yield f"report/{name}.html", _html(text, f"{self.name}: {name}", self.pages)
        for name in TABLES:
            of = self.advice if name == "advice" else self.estimates
            text = tables.csv(getattr(contents, name)(of))
            yield f"tables/{name}.csv", labels.of_script(self.folder, text)


def _gain(each: Advice) -> float:
    return -each.advised.stp.value if each.advised else 0.0


def _html(markdown: str, title: str, pages: Sequence[str]) -> str:
    """A page as one self-contained HTML file: readable on a phone, on paper and at night. Links to
    other pages point to their HTML.

    The Markdown is ours: words from records were escaped when they were put into it.
    """
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)
    body = body.replace("<table>", '<div class="table" tabindex="0"><table>')
    body = re.sub('(src|href)="(figures|tables)/', r'\1="../\2/', body)
    body = re.sub(_LINK.format("|".join(pages)), r'href="\1.html"', body)
    body = body.replace("</table>", "</table></div>")
    links = " · ".join(f'<a href="{name}.html">{name}</a>' for name in pages)
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f"<body><nav>{links}</nav>\n<main>\n{body}</main></body></html>\n"
    )


def _foremost(found: Iterable[Advice]) -> list[Advice]:
    """Of each job that was measured in sets, the way of writing whose advised option does the most;
    the highest gain first.
    """
    shared = [each for each in found if each.sets and each.advised]
    best = {each.job: each for each in sorted(shared, key=lambda each: each.advised.work)}
    return sorted(best.values(), key=_gain)


def closing_lines(folder: Path) -> str:
    """What the study can answer, advice, what was measured, where to look. Empty where nothing is
    there.
    """
    try:
        found = estimates.read_estimates(folder / "estimates.parquet")
    except (OSError, ValueError):
        return ""
    lines = [scope(found)]
    chosen = [] if on_cpu(found) else _foremost(advice.advise(found))
    if chosen:
        lines.append(
            "How many of a job should share the GPU, in the way of writing that does most:"
        )
    for each in chosen[:8]:
        said = each.sentences()
        better = f" {said[-1]}" if each.rewrite else ""
        lines.append(f"{labels.job(each.job, each.implementation)}: {said[0]}{better}")
    pages = ("results.md", "advice.md", "claims.md", "belief.md", "explorer.html")
    written = [name for name in pages if (folder / name).exists()]
    lines.append(f"Read in {folder}: {', '.join(written)}")
    study = folder.name if folder.parent == Path("results") else folder
    lines.append(f"Where a number comes from: collocate explain {study} ID")
    check = "verify" if (folder / "MANIFEST.sha256").exists() else "seal"
    lines.append(f"Whether all follows from the raw files: collocate {check} {study}")
    return "\n".join(lines)


def write_pages(study: StudyPages) -> None:
    """Write a study's pages and tables into its folder."""
    write_texts(study.folder, study.outputs())


def write_texts(folder: Path, texts: Iterable[tuple[str, str]]) -> None:
    """Write texts, (file name, content), into a folder. Raises ValueError of a wrong template."""
    try:
        for name, text in texts:
            write_if_changed(folder / name, text)
    except TemplateError as error:
        raise ValueError(f"a page's template: {error}") from None
