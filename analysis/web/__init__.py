"""Pages of one file each: templates, style and script stand beside this module.

A page holds all that it shows and asks for nothing: its content security policy forbids every
request, so that it opens from a disk, offline, and a reader's browser tells nobody.
"""

from __future__ import annotations

import json
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

FOLDER = Path(__file__).parent


def render(template: str, **values: object) -> str:
    """The page that TEMPLATE makes of the values; text is escaped."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = asset
    return environment.get_template(template).render(values) + "\n"


def asset(name: str) -> Markup:
    """A style or script beside this module, as it stands."""
    return Markup((FOLDER / name).read_text(encoding="utf-8"))


def script(source: str) -> Markup:
    """JavaScript for a <script> element, which the text must not end."""
    return Markup(source.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def json_text(value: object) -> Markup:
    """JSON for a <script type="application/json"> element; NaN and infinity are an error."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("</", "<\\/").replace("<!--", "<\\u0021--"))


def write(page: str, path: Path) -> None:
    """The page is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(page, encoding="utf-8")
    partial.replace(path)
