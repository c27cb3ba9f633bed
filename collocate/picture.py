"""The picture of a terminal in README.md: an answer that was recorded, as SVG."""

import io
import json
from collections.abc import Mapping
from pathlib import Path

from collocate import ROOT, terminal

RECORD = ROOT / "docs" / "recorded_advice.json"
PICTURE = ROOT / "docs" / "advise.svg"
PRIVATE = ("run", "folder")  # keys of advice.json that say where things are on a machine
INK, PAPER, PROMPT = (31, 35, 40), (246, 248, 250), "#57606a"
ROW, CHARACTER = 1.22, 0.61  # a row's height and a column's width, of a letter's height
# Fonts that systems have: nothing is downloaded. Rich gives every text its length, so columns stay
# aligned in each of them.
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {terminal_height}" role="img">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono",
"Liberation Mono", monospace; }}
{styles}
</style>
<defs>
{lines}
</defs>
<rect width="{width}" height="{terminal_height}" rx="8" fill="#f6f8fa"/>
<g transform="translate(8, 12)" class="{unique_id}-matrix">
{matrix}
</g>
</svg>
"""


def record(advice: Path) -> None:
    """Keep a copy of an advice.json for the picture, without what is private to a machine."""
    content = json.loads(advice.read_text("utf-8"))
    public = {key: value for key, value in content.items() if key not in PRIVATE}
    RECORD.write_text(json.dumps(public, indent=1) + "\n", encoding="utf-8")


def svg(advice: Mapping) -> str:
    """The terminal after `collocate advise`: no wider than its longest line, 72 columns at most.

    advice: the content of an advice.json.
    """
    from rich.console import Console
    from rich.terminal_theme import TerminalTheme
    from rich.text import Text

    from analysis.advice.job import text

    prompt = f"$ collocate advise -- {advice['asked']}"
    answer = text.terminal(advice)
    screen = terminal.wrapped(f"{prompt}\n{answer}", terminal.WIDEST)
    question = terminal.wrapped(prompt, terminal.WIDEST)
    verdict = terminal.wrapped(advice["verdict"], terminal.WIDEST)
    page = Text(screen + "\n")  # below the last line is room
    page.stylize(PROMPT, 0, len(question))
    page.stylize("bold", len(question) + 1, len(question) + 1 + len(verdict))
    columns = max(map(len, screen.splitlines()))
    console = Console(record=True, width=columns, file=io.StringIO(), color_system="truecolor")
    console.print(page, soft_wrap=True)
    theme = TerminalTheme(PAPER, INK, [INK] * 8)
    return console.export_svg(
        theme=theme, code_format=FORMAT, font_aspect_ratio=CHARACTER, unique_id="advise"
    )


def draw() -> None:
    """Write the picture of the recorded answer."""
    PICTURE.write_text(svg(json.loads(RECORD.read_text("utf-8"))), encoding="utf-8")
