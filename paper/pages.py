"""Pages of a study that is held against the paper, and README.md with the generated docs/."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from analysis.report.pages import spelling
from analysis.report.pages.render import Numbers, StudyPages, write_texts
from paper import PAGES, claims, findings, tables
from paper.rules import read_rules
from paper.verdicts import Verdict
from workflow.collocation import ROOT
from workflow.collocation.study.regular_files import read_json

TEMPLATES = Path(__file__).parent / "templates"
RECORDED = ROOT / "docs" / "recorded_advice.json"  # what README's picture shows


class PaperPages(StudyPages):
    """Pages of a study, with verdicts on the paper's claims."""

    pages = PAGES
    templates = (TEMPLATES, *StudyPages.templates)

    def __init__(self, folder: Path, docs: bool = False):
        """docs: the page on claims in its short form."""
        super().__init__(folder)
        self.docs = docs
        self.rules = read_rules()
        self.judged = claims.judge_claims(self.rules, self.estimates)
        self.post_hoc = claims.post_hoc_claims(self.rules, self.estimates)

    def differing_without_lines(self) -> str:
        """Claims with another verdict at our hosts' own GRACT: `C5 too imprecise, 1.38 (…); …`.

        That is, without the lines that extrapolate our numbers to the paper's GRACT.
        """
        rules = [judgement.claim.without_lines() for judgement in self.judged]
        rules = self.rules.model_copy(update={"claims": rules})
        measured, parts = claims.judge_claims(rules, self.estimates), []
        for on_line, without in zip(self.judged, measured, strict=True):
            verdicts = {on_line.verdict, without.verdict}
            alike = len(verdicts) == 1 or verdicts == {Verdict.AGREES, Verdict.HOLDS}
            if not alike and Verdict.NOT_TESTABLE not in verdicts:
                number = spelling.span(tables.decisive_number(without, self.estimates))
                parts.append(f"{on_line.claim.id} {without.verdict}, {number}")
        return "; ".join(parts)

    def context(self) -> dict[str, object]:
        return super().context() | {
            "beside": lambda name: Numbers(self.folder.with_name(name)),
            "claims": tables,
            "docs": self.docs,
            "findings": findings,
            "verdict": lambda: escape(read_json(RECORDED)["verdict"]),
        }


def write_docs(folder: Path) -> None:
    """Write README.md and the generated pages of docs/ from a study that ships."""
    write_texts(ROOT, docs_pages(folder))


def docs_pages(folder: Path) -> Iterator[tuple[str, str]]:
    """(file name relative to the repository, content) of README.md and the generated docs/."""
    study = PaperPages(folder, docs=True)
    yield "README.md", study.page("readme")
    yield "docs/results.md", study.page("findings")
    yield "docs/claims.md", study.page("claims")
    yield "docs/artifact.md", study.page("artifact")
