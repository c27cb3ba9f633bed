"""Digests of the code that a measurement depends on, without comments, docstrings and formatting.

Code that only analyses, plans or prints is left out, so editing it makes no cell mismatched.
"""

import ast
import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from workflow.collocation import ROOT

PACKAGES = ("models", "workflow/collocation")
# No process of a cell imports these.
NOT_DIGESTED = ("workflow/collocation/plan/", "workflow/collocation/sweep/")


def code_digest(root: Path = ROOT) -> str:
    """SHA-256 (16 hex digits) of models/ and workflow/collocation/ in the repository `root`."""
    sources = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if not name.startswith(NOT_DIGESTED):
                sources.append((name, without_comments(path.read_bytes())))
    return _sha256(repr(sources))


def user_code_digest(names: Iterable[str], files: Iterable[Path] = ()) -> str | None:
    """One digest of the user's own code; None if there is none.

    names: `module:function`, of which installed modules do not count. files: of any kind.
    """
    sources = []
    for path in (*filter(None, map(source_file, names)), *files):
        source = path.read_bytes()
        with contextlib.suppress(SyntaxError, ValueError):  # not Python
            source = without_comments(source)
        sources.append(source)
    return _sha256(repr(sources)) if sources else None


def source_file(name: str) -> Path | None:
    """The file of `module:function` in the working directory, PYTHONPATH or this repository.

    None if there is none, or if the name has no colon.
    """
    module, colon, _ = name.partition(":")
    base = Path(*module.split("."))
    python_path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for folder in (Path.cwd(), *python_path, ROOT) if colon else ():
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if Path(folder, file).is_file():
                return Path(folder, file)
    return None


def without_comments(source: bytes) -> str:
    """The code of a module without comments and docstrings, formatted by Python."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.unparse(module)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
