"""What is the same for every study, made once: Altair's charts, and the library that draws them.

Kept in the user's cache folder where one can be written. To load Altair and to make the charts
would take half the time of the whole page.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from analysis import looks, web
from analysis.explorer import timelines


def charts() -> dict[str, dict]:
    """The specs of analysis.explorer.charts, by name."""
    own = Path(__file__).with_name("charts.py"), Path(timelines.__file__), Path(looks.__file__)
    code = hashlib.sha256(b"".join(path.read_bytes() for path in own)).hexdigest()[:12]
    return json.loads(_kept(f"charts-{version('altair')}-{code}.json", _made))


def library() -> str:
    """Vega, Vega-Lite and Vega-Embed, of the Vega-Lite version that Altair writes."""
    packages = version("altair"), version("vl-convert-python")
    return _kept(f"vega-{'-'.join(packages)}.js", _bundle)


def _made() -> str:
    from analysis.explorer import charts

    return json.dumps({"cells": charts.cells(), "timeline": charts.timeline()})


def _bundle() -> str:
    import altair
    import vl_convert

    written = re.match(r"v(\d+\.\d+)", altair.SCHEMA_VERSION)[1]
    return vl_convert.javascript_bundle(vl_version=written)


def _kept(name: str, make: Callable[[], str]) -> str:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    path = caches / "gpu-collocation" / name
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        made = make()
    with suppress(OSError):
        web.write(made, path)
    return made
