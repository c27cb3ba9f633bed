"""The house: imports run one way, without circles, and no file is two rooms."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.studio import REPOSITORY

PACKAGES = ("workflow", "models", "analysis", "release", "bench")
MOST_LINES = 400
# Rooms of workflow/collocation, each of which imports only those before it; `spec` and `record`
# are the core, which everybody may import.
CORE = ("spec", "record")
ROOMS = (*CORE, "process_lifetime", "gpu", "sharing", "telemetry", "run", "plan")
# What packages may import of others beside the core.
ALLOWED = {
    "workflow": {"workflow"},
    "models": {"models"},
    "analysis": {"analysis"},
    "release": {"release", "analysis", "workflow"},
    "bench": {"bench", "analysis", "workflow", "models"},
}


def modules() -> dict[str, Path]:
    """Dotted name → file."""
    found = {}
    for package in PACKAGES:
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(name: str) -> Iterator[str]:
    """Modules of ours that a module imports when it is imported; not those inside functions."""
    for node in ast.walk(ast.parse(MODULES[name].read_text("utf-8"))):
        if not isinstance(node, ast.Import | ast.ImportFrom) or node.col_offset:
            continue
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        else:
            wanted = [f"{node.module}.{alias.name}" for alias in node.names]
            wanted = [one if one in MODULES else node.module for one in wanted]
        yield from (one for one in wanted if one in MODULES and one != name)


def room(name: str) -> str:
    return (name.split(".") + ["", ""])[2] if name.startswith("workflow.collocation") else ""


@pytest.mark.parametrize("name", [name for name in MODULES if room(name)])
def test_a_room_imports_only_those_before_it(name):
    for other in imports(name):
        if room(other):
            assert ROOMS.index(room(other)) <= ROOMS.index(room(name)), f"{name} imports {other}"


@pytest.mark.parametrize("name", MODULES)
def test_a_package_imports_of_others_the_core_alone(name):
    for other in imports(name):
        allowed = other.split(".")[0] in ALLOWED[name.split(".")[0]]
        assert allowed or room(other) in (*CORE, ""), f"{name} imports {other}"


def test_there_is_no_circle():
    done: set[str] = set()

    def follow(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in imports(name):
                follow(other, (*path, name))
            done.add(name)

    for name in MODULES:
        follow(name, ())


def test_no_file_is_two_rooms():
    endings = {".py", ".smk", ".js", ".j2"}
    files = [p for each in PACKAGES for p in (REPOSITORY / each).rglob("*") if p.suffix in endings]
    long = {p.name: n for p in files if (n := len(p.read_text("utf-8").splitlines())) > MOST_LINES}
    assert long == {}
