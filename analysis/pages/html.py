"""A Markdown page as one self-contained HTML file: readable on a phone, on paper and at night."""

from __future__ import annotations

import re
from html import escape

from markdown_it import MarkdownIt

_STYLE = """
:root{color-scheme:light dark;--ink:#1c1c1c;--soft:#5a5a5a;--paper:#fff;--line:#d5d5d5;--link:#0b5394;--tint:#f4f6f8}
@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--soft:#a8a8a8;--paper:#16181b;--line:#3a3d41;--link:#7db8f0;--tint:#1f2327}}
body{font:16px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;padding:1rem;max-width:78rem}
p,li{max-width:46rem}h1,h2,h3{line-height:1.25}a{color:var(--link)}nav{font-size:.9rem;color:var(--soft)}
.table{overflow-x:auto;margin:1rem 0}table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:.3rem .6rem;text-align:left;vertical-align:top}
th{background:var(--tint);position:sticky;top:0}td{min-width:3.5rem}
code,pre{font-size:.85em;background:var(--tint)}pre{padding:.6rem;overflow-x:auto}img{max-width:100%;background:#fff}
details{margin:1rem 0;color:var(--soft)}:focus-visible{outline:2px solid var(--link)}
@media(max-width:40rem){body{font-size:15px;padding:.6rem}th,td{padding:.25rem .4rem}}
@media print{body{font-size:9.5pt;max-width:none;color:#000;background:#fff}.table{overflow:visible}
table{font-size:7.5pt}tr,details{break-inside:avoid}a{color:inherit;text-decoration:none}nav{display:none}}
"""
_LINK = re.compile(r'href="(?:tables/|\.\./)?(\w+)\.md"')


def page(markdown: str, title: str, others: dict[str, str]) -> str:
    """The page; `others`: title → file name of its sisters. Links to them point to their HTML.

    The Markdown is ours: words from records were escaped when they were put into it.
    """
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)
    body = body.replace("<table>", '<div class="table" tabindex="0"><table>')
    body = body.replace("</table>", "</table></div>")
    body = _LINK.sub(lambda m: f'href="{m[1]}.html"' if f"{m[1]}.html" in others.values() else m[0], body)
    links = " · ".join(f'<a href="{escape(file)}">{escape(name)}</a>' for name, file in others.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><nav>{links}</nav>\n<main>\n{body}</main></body></html>\n"
    )
