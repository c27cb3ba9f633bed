"""A digest of what is trained and how it is run: the code that matters, as Python writes it again.

Comments, docstrings, formatting, analysis code and what only plans and prints do not enter it, so
editing them never makes measured cells look different.
"""

import ast
import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from workflow.collocation import ROOT

PACKAGES = ("models", "workflow/collocation")
NOT_DIGESTED = "workflow/collocation/plan/"  # plans and prints: no process of a cell imports it


def code_digest(root: Path = ROOT) -> str:
    """SHA-256 over what matters of models/ and workflow/collocation/."""
    paths = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
    named = ((path.relative_to(root).as_posix(), path) for path in paths)
    read = ((name, path) for name, path in named if not name.startswith(NOT_DIGESTED))
    return _sha(repr([(name, without_comments(path.read_bytes())) for name, path in read]))


def user_code_digest(names: Iterable[str], files: Iterable[Path] = ()) -> str | None:
    """One digest of the user's own files: these, and those behind names `module:function`; None
    without any, as of timm's models and installed ones.
    """
    found = []
    for path in (*filter(None, map(source_file, names)), *files):
        found.append(path.read_bytes())
        with contextlib.suppress(SyntaxError, ValueError):  # of another Python, or none
            found[-1] = without_comments(found[-1])
    return _sha(repr(found)) if found else None


def source_file(name: str) -> Path | None:
    """The file of `module:function`, where members import from: working directory, PYTHONPATH,
    repository.
    """
    module, colon, _ = name.partition(":")
    base = Path(*module.split("."))
    extra = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    files = (
        Path(folder, file)
        for folder in (Path.cwd(), *extra, ROOT)
        for file in (base.with_suffix(".py"), base / "__init__.py")
    )
    return next(filter(Path.is_file, files), None) if colon else None


def without_comments(source: bytes) -> str:
    """The code of a module without its comments and docstrings, formatted as Python does."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.unparse(module)


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
