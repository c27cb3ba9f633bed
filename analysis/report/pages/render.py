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
from analysis.advice import study as study_advice
from analysis.advice.study import Advice
from analysis.estimates import table
from analysis.estimates.intervals import CONFIDENCE_TEXT
from analysis.files import write_if_changed
from analysis.report.pages import PAGES, TABLES, advice_tables, layout, listed, spelling, tables
from workflow.collocation.study.layout import MANIFEST, RAW
from workflow.collocation.study.names import implementation_order
from workflow.collocation.study.regular_files import read_bytes

TEMPLATES = Path(__file__).parent / "templates"
SPELLINGS = ("num", "bare", "span", "share", "share_of", "percent", "cells")
_PICTURE = "![{title}](figures/{figure}.png)\n\n*{title}.* {caption}"
_LINK = r'href="(?:tables/|\.\./)?({})\.md"'


class Numbers:
    """The estimates of a study's folder, as templates ask for them."""

    def __init__(self, folder: Path):
        self.folder, self.name = folder, folder.resolve().name
        self.estimates = table.read_estimates(folder / "estimates.parquet")

    def number(self, identity: str) -> table.Row:
        """The estimate of an id. Raises ValueError if there is none."""
        if identity not in self.estimates.index:
            raise ValueError(f"no number of {self.name} has the id {identity!r}")
        return table.get_by_id(self.estimates, identity)

    def between(self, quantity: str, **where: str) -> str:
        """Lowest and highest number of a quantity over sets: `1.90 to 3.37`."""
        rows = table.select(self.estimates, quantity, **{"window": ""} | where)
        return labels.range_of(rows[rows["jobs"] > 1]["value"])

    def by_host(self, identity: str) -> str:
        """A number with the lowest and the highest of single hosts: `4.98 (4.20 to 6.35)`."""
        estimate = self.number(identity)
        on_hosts = table.on_hosts(self.estimates, estimate)["value"]
        text = labels.number(estimate.value)
        return f"{text} ({labels.range_of(on_hosts)})" if len(on_hosts) > 1 else text


class StudyPages(Numbers):
    """The pages of a study, and what their templates use: its estimates and its advice.

    root: SHA-256 of the list of the study's raw files; empty if it is not sealed. figures: name →
    row of the list of figures.
    """

    pages = PAGES
    templates = (TEMPLATES,)

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.scope = labels.scope(self.estimates)
        self.on_cpu = labels.on_cpu(self.estimates)
        # Jobs as in the paper come first, and of these the highest gain.
        by_gain = sorted(study_advice.advise(self.estimates), key=_descending_gain)
        self.advice = sorted(
            by_gain, key=lambda advice: implementation_order(advice.implementation)
        )
        self.common_caveats = study_advice.common_caveats(self.advice)
        self.unmeasured = study_advice.unmeasured(self.estimates, self.advice)
        self.counts = study_advice.COUNTS
        raw = folder / RAW
        self.root = sha256(read_bytes(raw)).hexdigest() if raw.exists() else ""
        self.figures = {row["figure"]: row for row in listed(folder)}

    def page(self, template: str) -> str:
        """Render a template as Markdown."""
        environment = Environment(  # it does not escape HTML: `plain` escapes words of records
            loader=FileSystemLoader(self.templates),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        text = environment.get_template(f"{template}.md.j2").render(self.context())
        text = re.sub(r"\n{3,}", "\n\n", text.strip()) + "\n"
        return labels.for_script(self.folder, text)

    def context(self) -> dict[str, object]:
        """What templates may use, by name."""
        get = partial(table.get, self.estimates)

        def spell_row_or_id(spell: spelling.Spelling) -> Callable[[object], str]:
            return lambda number: spell(self.number(number) if isinstance(number, str) else number)

        def picture(name: str) -> str:
            figure = self.figures.get(name, {})
            return _PICTURE.format(**figure) if figure.get("title") else ""

        def any_of(name: str) -> bool:
            counted = get("count", name=name)
            return spelling.is_known(counted) and counted.value > 0

        return {
            "study": self,
            "estimates": self.estimates,
            "tables": tables,
            "advice_tables": advice_tables,
            "table": layout.markdown,
            "get": get,
            "of": partial(table.select, self.estimates),
            "any_of": any_of,
            "between": self.between,
            "by_host": self.by_host,
            "predictor": predict.predictor_constants(),
            "confidence": CONFIDENCE_TEXT,
            "number": self.number,
            "count": lambda name: spelling.count(get("count", name=name)),
            **{name: spell_row_or_id(getattr(spelling, name)) for name in SPELLINGS},
            "flat": spelling.plain,
            "labels": labels,
            "picture": picture,
            "not_drawn": [name for name, figure in self.figures.items() if not figure["title"]],
        }

    def outputs(self) -> Iterator[tuple[str, str]]:
        """(file name relative to the study's folder, content) of pages and tables."""
        for name in self.pages:
            text = self.page(name)
            yield f"{name}.md", text
            yield f"report/{name}.html", _html(text, f"{self.name}: {name}", self.pages)
        for name in TABLES:
            if name == "advice":
                frame = advice_tables.all_options(self.advice)
            else:
                frame = getattr(tables, name)(self.estimates)
            yield f"tables/{name}.csv", labels.for_script(self.folder, layout.csv(frame))


def _descending_gain(advice: Advice) -> float:
    return -advice.advised.stp.value if advice.advised else 0.0


def _html(markdown: str, title: str, pages: Sequence[str]) -> str:
    """A page as one HTML file, for phones, print and dark mode; links lead to the HTML of pages.

    The Markdown is ours: words of records were escaped when they were put into it.
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


def _best_written(advice: Iterable[Advice]) -> list[Advice]:
    """For each job measured in sets, the implementation whose advised option does the most work.

    The highest gain comes first.
    """
    shared = [of_job for of_job in advice if of_job.sets and of_job.advised]
    best = {of_job.job: of_job for of_job in sorted(shared, key=lambda a: a.advised.work)}
    return sorted(best.values(), key=_descending_gain)


def closing_lines(folder: Path) -> str:
    """The last lines of a run: what the study can answer, its advice, and where to look.

    Empty if there are no estimates.
    """
    try:
        estimates = table.read_estimates(folder / "estimates.parquet")
    except (OSError, ValueError):
        return ""
    lines = [labels.scope(estimates)]
    advice = [] if labels.on_cpu(estimates) else _best_written(study_advice.advise(estimates))
    if advice:
        lines.append(
            "How many of a job should share the GPU, in the way of writing that does most:"
        )
    for of_job in advice[:8]:
        sentences = of_job.sentences()[:1]
        if of_job.rewrite:
            sentences.append(of_job.rewrite)
        lines.append(f"{labels.job(of_job.job, of_job.implementation)}: {' '.join(sentences)}")
    pages = ("results.md", "advice.md", "claims.md", "belief.md", "explorer.html")
    written = [name for name in pages if (folder / name).exists()]
    lines.append(f"Read in {folder}: {', '.join(written)}")
    study = folder.name if folder.parent == Path("results") else folder
    lines.append(f"Where a number comes from: collocate explain {study} ID")
    check = "verify" if (folder / MANIFEST).exists() else "seal"
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
