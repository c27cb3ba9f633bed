"""A digest of what is trained and how it is run: the syntax trees of the code that matters.

Comments, docstrings, formatting, analysis code, what only plans and prints, and the text of errors
and messages do not enter it, so editing them never makes measured cells look different.
"""

import ast
import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from workflow.collocation import ROOT

PACKAGES = ("models", "workflow/collocation")
# What plans and prints: no process of a cell imports it.
BESIDE = ("workflow/collocation/plan/",)
SAYING = ("print", "say", "error", "warn", "ArgumentParser")  # whose strings are for people
TOLD = ("help", "description")  # and arguments that are
_known: dict[str, str] = {}  # SHA-256 of the texts → their digest


def code_digest(root: Path = ROOT) -> str:
    """SHA-256 (16 hex digits) over the trees of models/ and workflow/collocation/ but BESIDE."""
    return code(root)[1]


def code(root: Path = ROOT) -> tuple[str, str]:
    """SHA-256 over the texts, and `code_digest` of them.

    Parsing takes longer than reading: what the second is for the first is kept, and `remember`
    takes what another process has found.
    """
    paths = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
    named = [(path.relative_to(root).as_posix(), path) for path in paths]
    texts = [(name, path.read_bytes()) for name, path in named if not name.startswith(BESIDE)]
    read = hashlib.sha256(repr(texts).encode()).hexdigest()
    if read not in _known:
        digest = hashlib.sha256()
        for name, text in texts:
            digest.update(name.encode())
            digest.update(tree(text).encode())
        _known[read] = digest.hexdigest()[:16]
    return read, _known[read]


def remember(read: str, digest: str) -> None:
    _known[read] = digest


def own_digest(names: Iterable[str], files: Iterable[Path] = ()) -> str | None:
    """One digest of the user's own files: these, and those behind names `module:function`; None
    without any, as of timm's models and installed ones.
    """
    found = []
    for path in (*filter(None, map(_source, names)), *files):
        content = path.read_bytes()
        with contextlib.suppress(SyntaxError, ValueError):
            content = tree(content).encode() if path.suffix == ".py" else content
        found.append(hashlib.sha256(content).hexdigest()[:16])
    if len(found) < 2:
        return found[0] if found else None
    return hashlib.sha256("".join(found).encode()).hexdigest()[:16]


def _source(name: str) -> Path | None:
    """The file, where members import from: working directory, PYTHONPATH, repository."""
    module, colon, _ = name.partition(":")
    file = Path(*module.split(".")).with_suffix(".py")
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    extra = (folder for folder in given if folder not in ("", str(ROOT)))
    places = (folder / file for folder in (Path.cwd(), *map(Path, extra), ROOT))
    return next(filter(Path.is_file, places), None) if colon else None


def tree(source: str | bytes) -> str:
    """The syntax tree of a module as text, without docstrings, positions and what people are told.

    Fields without content are left out, which makes it the same for all versions of Python:
    `ast.dump` shows them or not, and newer versions add some.
    """
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        for told in _told(node):
            _silence(told)
    return _dump(module)


def _told(node: ast.AST) -> list[ast.AST]:
    """Expressions whose strings are for people: of an error that is raised, of a message."""
    if isinstance(node, ast.Raise):
        return [node.exc] if isinstance(node.exc, ast.Call) else []
    if not isinstance(node, ast.Call):
        return []
    name = getattr(node.func, "attr", getattr(node.func, "id", None))
    if name in SAYING:
        return [*node.args, *node.keywords]
    return [keyword for keyword in node.keywords if keyword.arg in TOLD]


def _silence(node: ast.AST) -> None:
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr):
            part.values = [each for each in part.values if isinstance(each, ast.FormattedValue)]
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            part.value = ""


def _dump(node) -> str:
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f"{type(node).__name__}({', '.join(f'{name}={_dump(v)}' for name, v in fields)})"
    if isinstance(node, list):
        return f"[{', '.join(_dump(item) for item in node)}]"
    return repr(node)
