"""What others wrote is neither markup on a page nor TeX in a figure."""

from html.parser import HTMLParser

from markdown_it import MarkdownIt

from analysis.report.pages.spelling import plain
from collocate.app import main as collocate
from tests.handmade import Estimate, written

NASTY = (
    "<script>alert(1)</script>",
    "![x](http://evil.example/x.png)",
    "[x](javascript:alert(1))",
    "<http://evil.example>",
    "`</code>![x](//evil.example/x.png)",
    "a|b\n\n# Heading\n\n![x](//evil.example/x)",
    "$\\href{javascript:alert(1)}{x}$",
    "&lt;script&gt;",
    "~~~\n```\n",
    "</table><iframe src=//evil.example>",
)


class Tags(HTMLParser):
    """The elements of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)


def test_no_name_is_markup_on_any_page(tmp_path):
    """Of an implementation, a method, a GPU, a claim, and the study itself."""
    found = []
    for number, nasty in enumerate(NASTY, 1):
        place = {"scenario": "2x_a_b1", "implementation": f"x{nasty}", "method": f"mps_{nasty}"}
        found += [
            Estimate("stp", **place, value=1.5, n=1, hosts=1),
            Estimate("outcome", **place, status="completed", value=1.0, n=1),
            Estimate("claim", name=nasty, status=nasty, value=1.0, note=nasty),
            Estimate("count", name="host_cells", host=f"h{number}", value=9.0, note=f"m: {nasty};"),
        ]
        assert MarkdownIt().render(plain(nasty)).count("<") == 2, "a paragraph, and nothing in it"
        assert "$" not in plain(nasty).replace("\\$", "")
    folder = written(tmp_path / "theirs", found)
    assert collocate(["compare", str(folder), str(folder), "--output", str(folder)]) == 0
    assert collocate(["step", "pages", "--folder", str(folder)]) == 0
    for name in ("compare", "results", "advice"):
        page = (folder / f"{name}.md").read_text()
        shown = Tags(MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(page)).found
        assert not shown & {"script", "img", "iframe", "s"} and "\n$" not in page


def test_the_name_of_a_job_is_no_tex_in_a_figure(tmp_path):
    found = [
        Estimate(name, f"{n}x_my$\\frac{{1}}{{_b1", "paper_step", "mps" if n > 1 else "naive",
                 value=float(n), n=1, hosts=1)
        for n in (1, 2) for name in ("rate", "memory")
    ]  # fmt: skip
    written(tmp_path, found)
    assert collocate(["step", "figures", "--folder", str(tmp_path)]) == 0
    assert (tmp_path / "figures/rate_against_n.svg").exists()
