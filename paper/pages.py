"""Pages of a study that is held against the paper, and README.md with the generated docs/."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from analysis.report.pages.render import Numbers, StudyPages, write_texts
from paper import PAGES, claims, findings, rules, tables
from workflow.collocation.study.regular_files import read_json

ROOT, TEMPLATES = Path(__file__).parents[1], Path(__file__).parent / "templates"
RECORDED = ROOT / "docs" / "recorded_advice.json"  # what README's picture shows


class PaperPages(StudyPages):
    """Pages of a study, with its claims as judged."""

    pages = PAGES
    templates = (TEMPLATES, *StudyPages.templates)

    def __init__(self, folder: Path, docs: bool = False):
        """docs: the page on claims in its short form."""
        super().__init__(folder)
        self.docs = docs
        self.rules = rules.read(rules.CLAIMS)
        self.judged = claims.judged(self.rules, self.estimates)
        self.post_hoc = claims.post_hoc(self.rules, self.estimates)

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
    write_texts(ROOT, shipped(folder))


def shipped(folder: Path) -> Iterator[tuple[str, str]]:
    """(file name relative to the repository, content) of README.md and the generated docs/."""
    study = PaperPages(folder, docs=True)
    yield "README.md", study.page("readme")
    yield "docs/results.md", study.page("findings")
    yield "docs/claims.md", study.page("claims")
    yield "docs/artifact.md", study.page("artifact")
