"""The house: imports run one way, without circles, and no file is two rooms."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter

from tests.studio import REPOSITORY

PACKAGES = ("workflow", "models", "analysis", "paper", "release", "bench", "collocate")
MOST_LINES = 400
# Rooms of workflow/collocation, each of which imports only those before it; the first ones are the
# core, which everybody may import.
CORE = ("study", "record", "process_lifetime")
ROOMS = (*CORE, "member", "gpu", "sharing", "telemetry", "run", "sweep", "plan")
# Modules of workflow that models may import.
SHARED_WITH_MODELS = (
    "workflow.collocation.member.failures",
    "workflow.collocation.member.protocol",
    "workflow.collocation.member.spec",
    "workflow.collocation.member.view",
    "workflow.collocation.process_lifetime",
    "workflow.collocation.study.layout",
    "workflow.collocation.study.regular_files",
)
# Rooms of analysis, each of which imports only itself and those before it.
ANALYSIS = ("files", "source_digest", "estimates", "labels", "advice", "report")
# What other packages may import beside the core.
ALLOWED = {
    "workflow": {"workflow"},
    "models": {"models"},
    "analysis": {"analysis"},
    "paper": {"paper", "analysis"},
    "release": {"release", "analysis", "workflow"},
    "bench": {"bench", "analysis", "workflow", "models"},
    "collocate": {"collocate", "paper", "release", "analysis", "workflow"},
}


def dotted(path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


PATHS = [path for package in PACKAGES for path in sorted((REPOSITORY / package).rglob("*.py"))]
MODULES = {dotted(path): ast.parse(path.read_text("utf-8")) for path in PATHS}


def imports(name: str) -> Iterator[str]:
    """Modules of ours that a module imports when it is imported; not those inside functions."""
    for node in ast.walk(MODULES[name]):
        if not isinstance(node, ast.Import | ast.ImportFrom) or node.col_offset:
            continue
        wanted = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            wanted = [f"{node.module}.{each}" for each in wanted]
            wanted = [each if each in MODULES else node.module for each in wanted]
        yield from (each for each in wanted if each in MODULES and each != name)


def room(name: str) -> str:
    return (name.split(".") + ["", ""])[2] if name.startswith("workflow.collocation") else ""


def test_imports_run_one_way():
    """A room imports only those before it; other packages import the core, and models even less."""
    wrong = []
    for name, other in [(each, other) for each in MODULES for other in imports(each)]:
        both = room(name) and room(other)
        package = name.split(".")[0]
        shared = other in SHARED_WITH_MODELS if package == "models" else room(other) in (*CORE, "")
        allowed = other.split(".")[0] in ALLOWED[package] or shared
        if not allowed or (both and ROOMS.index(room(other)) > ROOMS.index(room(name))):
            wrong.append(f"{name} imports {other}")
    assert wrong == []
    TopologicalSorter({name: set(imports(name)) for name in MODULES}).prepare()  # no circle


def test_analysis_leads_from_records_to_reports():
    """Advice imports no report, labels import no advice, estimates import neither."""
    wrong = []
    for name in MODULES:
        for other in imports(name):
            if name.startswith("analysis.") and other.startswith("analysis."):
                importer, imported = (ANALYSIS.index(n.split(".")[1]) for n in (name, other))
                if imported > importer:
                    wrong.append(f"{name} imports {other}")
    assert wrong == []


def test_no_file_is_two_rooms():
    endings = {".py", ".smk", ".js", ".j2"}
    files = [p for each in PACKAGES for p in (REPOSITORY / each).rglob("*") if p.suffix in endings]
    long = {p.name: n for p in files if (n := len(p.read_text("utf-8").splitlines())) > MOST_LINES}
    assert long == {}


def test_undocumented_interfaces_of_snakemake_are_used_in_one_module():
    names = r"workflow\.(global_resources|parent_groupids|resource_settings|output_settings"
    names += r"|local_exec|main_snakefile|is_main_process)|snakemake\.(logging|settings)"
    files = [REPOSITORY / "Snakefile", *(REPOSITORY / "workflow").rglob("*.smk"), *PATHS]
    users = {path.name for path in files if re.search(names, path.read_text("utf-8"))}
    assert users == {"snakemake_internals.py"}
