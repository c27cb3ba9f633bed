"""A Markdown page as one self-contained HTML file: readable on a phone, on paper and at night."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

_STYLE = Path(__file__).with_name("templates") / "page.css"
_LINK = re.compile(r'href="(?:tables/|\.\./)?(\w+)\.md"')


def page(markdown: str, title: str, others: dict[str, str]) -> str:
    """The page; `others`: title → file name of its sisters. Links to them point to their HTML.

    The Markdown is ours: words from records were escaped when they were put into it.
    """
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)
    body = body.replace("<table>", '<div class="table" tabindex="0"><table>')
    body = body.replace("</table>", "</table></div>")
    body = _LINK.sub(
        lambda m: f'href="{m[1]}.html"' if f"{m[1]}.html" in others.values() else m[0], body
    )
    links = " · ".join(
        f'<a href="{escape(file)}">{escape(name)}</a>' for name, file in others.items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE.read_text(encoding='utf-8')}</style></head>\n"
        f"<body><nav>{links}</nav>\n<main>\n{body}</main></body></html>\n"
    )
