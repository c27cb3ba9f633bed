"""estimates.parquet → what people read: pages, their tables as CSV, and the report's HTML."""

import re
from collections.abc import Callable, Iterable, Iterator
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
from analysis.files import update
from analysis.report.pages import PAGES, TABLES, belief, beyond, contents, listed, spelling, tables
from analysis.report.pages.spelling import known, plain
from paper import claims, findings
from paper.rules import CLAIMS
from paper.rules import read as read_rules
from workflow.collocation.study.names import implementation_order
from workflow.collocation.study.regular_files import read_bytes, read_json

ROOT, TEMPLATES = Path(__file__).parents[3], Path(__file__).parent / "templates"
# Markdown, not HTML: `plain` escapes what is not ours.
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
RECORDED = ROOT / "docs" / "recorded_advice.json"  # what README's picture shows
SPELLINGS = ("num", "bare", "span", "share", "share_of", "percent", "cells")
_PICTURE = "![{title}](figures/{figure}.png)\n\n*{title}.* {caption}"
_LINK = re.compile(rf'href="(?:tables/|\.\./)?({"|".join(PAGES)})\.md"')


class Numbers:
    """The estimates of a study's folder."""

    def __init__(self, folder: Path):
        self.folder, self.name = folder, folder.resolve().name
        self.estimates = estimates.read(folder / "estimates.parquet")

    def number(self, of: str) -> estimates.Row:
        """The number of an id. Raises ValueError where there is none."""
        if of not in self.estimates.index:
            raise ValueError(f"no number of {self.name} has the id {of!r}")
        return estimates.at(self.estimates, of)

    def between(self, quantity: str, **where: str) -> str:
        """The lowest and the highest of a quantity's numbers of several jobs."""
        found = estimates.of(self.estimates, quantity, **{"window": ""} | where)
        return labels.range_of(found[found["jobs"] > 1]["value"])


class Study(Numbers):
    """What pages are made of: a study's estimates, its claims as judged, its advice."""

    def __init__(self, folder: Path, rules: Path):
        super().__init__(folder)
        self.scope = scope(self.estimates)
        self.on_cpu = on_cpu(self.estimates)
        self.rules = read_rules(rules)
        self.judged = claims.judged(self.rules, self.estimates)
        self.post_hoc = claims.post_hoc(self.rules, self.estimates)
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

    def page(self, template: str, docs: bool = False) -> str:
        """A template as Markdown; docs: the short form, for docs/."""
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

        context = {
            "study": self,
            "beside": lambda name: Numbers(self.folder.with_name(name)),
            "estimates": self.estimates,
            "contents": contents,
            "belief": belief,
            "beyond": beyond,
            "findings": findings,
            "table": tables.markdown,
            "get": get,
            "of": partial(estimates.of, self.estimates),
            "any_of": lambda name: known(e := get("count", name=name)) and e.value > 0,
            "between": self.between,
            "by_host": by_host,
            "predictor": predict.constants(),
            "number": self.number,
            "verdict": lambda: escape(read_json(RECORDED)["verdict"]),
            "count": lambda name: spelling.count(get("count", name=name)),
            **{name: spelt(getattr(spelling, name)) for name in SPELLINGS},
            "docs": docs,
            "flat": plain,
            "labels": labels,
            "picture": picture,
            "not_drawn": [name for name, row in self.figures.items() if not row["title"]],
        }
        text = ENVIRONMENT.get_template(f"{template}.md.j2").render(context)
        text = re.sub(r"\n{3,}", "\n\n", text.strip()) + "\n"
        return labels.of_script(self.folder, text)

    def outputs(self) -> Iterator[tuple[str, str]]:
        """(file name relative to the study's folder, content) of all of FILES."""
        for name in PAGES:
            text = self.page(name)
            yield f"{name}.md", text
            yield f"report/{name}.html", _html(text, f"{self.name}: {name}")
        for name in TABLES:
            of = self.advice if name == "advice" else self.estimates
            text = tables.csv(getattr(contents, name)(of))
            yield f"tables/{name}.csv", labels.of_script(self.folder, text)


def _gain(each: Advice) -> float:
    return -each.advised.stp.value if each.advised else 0.0


def _html(markdown: str, title: str) -> str:
    """A page as one self-contained HTML file: readable on a phone, on paper and at night. Links to
    other pages point to their HTML.

    The Markdown is ours: words from records were escaped when they were put into it.
    """
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)
    body = body.replace("<table>", '<div class="table" tabindex="0"><table>')
    body = re.sub('(src|href)="(figures|tables)/', r'\1="../\2/', body)
    body = _LINK.sub(r'href="\1.html"', body.replace("</table>", "</table></div>"))
    links = " · ".join(f'<a href="{name}.html">{name}</a>' for name in PAGES)
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f"<body><nav>{links}</nav>\n<main>\n{body}</main></body></html>\n"
    )


def shipped(folder: Path, rules: Path) -> Iterator[tuple[str, str]]:
    """(file name relative to the repository, content) of README.md and the generated docs/."""
    study = Study(folder, rules)
    yield "README.md", study.page("readme")
    yield "docs/results.md", study.page("findings")
    yield "docs/claims.md", study.page("claims", docs=True)
    yield "docs/artifact.md", study.page("artifact")


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
        found = estimates.read(folder / "estimates.parquet")
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
    lines.append(f"Read in {folder}: results.md, advice.md, claims.md, belief.md, explorer.html")
    study = folder.name if folder.parent == Path("results") else folder
    lines.append(f"Where a number comes from: collocate explain {study} ID")
    check = "verify" if (folder / "MANIFEST.sha256").exists() else "seal"
    lines.append(f"Whether all follows from the raw files: collocate {check} {study}")
    return "\n".join(lines)


def write_pages(folder: Path, rules: Path = CLAIMS) -> None:
    """Write a study's pages and tables into its folder."""
    _write(folder, lambda: Study(folder, rules).outputs())


def write_docs(folder: Path, rules: Path = CLAIMS) -> None:
    """Write README.md and the generated pages of docs/ from a study that ships."""
    _write(ROOT, lambda: shipped(folder, rules))


def _write(into: Path, files: Callable[[], Iterable[tuple[str, str]]]) -> None:
    try:
        for name, text in files():
            update(into / name, text)
    except TemplateError as error:
        raise ValueError(f"a page's template: {error}") from None
