"""The figures' fonts: DejaVu Sans with the letters that a figure may hold, and nothing else.

A PDF embeds of a font what its text needs; to look for that among 6,000 glyphs would take longer
than to draw some figures. `python -m analysis.fonts` makes the files from matplotlib's own; which
letters they hold stands there. A second family to fall back on would cost as much as they save.
"""

from pathlib import Path

from matplotlib.font_manager import fontManager

FAMILY = "DejaVu Sans Lean"
FILES = {"DejaVuSans.ttf": "DejaVuSansLean.ttf", "DejaVuSans-Bold.ttf": "DejaVuSansLean-Bold.ttf"}
FOLDER = Path(__file__).parent


def register() -> str:
    """Make matplotlib know the files; the family to draw in."""
    for name in FILES.values():
        fontManager.addfont(FOLDER / name)
    return FAMILY
