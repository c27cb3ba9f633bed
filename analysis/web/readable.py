"""Markdown files of a study as one self-contained HTML page each, for the report.

python -m analysis.web.readable --output results/smoke/report results/smoke/claims.md ...
"""

from __future__ import annotations

import argparse
import re
import sys
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from analysis import web

# Its ends stay in one line.
_INTERVAL = re.compile(r"\[([\d.,]+), ([\d.,]+)\]")


def page(markdown: str) -> str:
    """The HTML page of a Markdown text (CommonMark and tables); its title is the first heading.

    HTML within it is shown as text.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(markdown)
    headings = [b.content for a, b in pairwise(tokens) if a.type == "heading_open"]
    body = parser.renderer.render(tokens, parser.options, {})
    body = _INTERVAL.sub("[\\1,\N{NO-BREAK SPACE}\\2]", body)
    body = body.replace("<table>", '<div class="scroll wide"><table>')
    body = body.replace("</table>", "</table></div>")
    return web.render("text.html", title=(headings or ["Results"])[0], text=Markup(body))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.web.readable",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.md")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER")
    arguments = parser.parse_args(argv)
    for path in arguments.files:
        text = page(path.read_text(encoding="utf-8"))
        web.write(text, arguments.output / f"{path.stem}.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
