"""The digest of the code that matters: what changes it, and what does not."""

import ast
import subprocess

import pytest

from workflow.collocation import ROOT
from workflow.collocation.record import provenance
from workflow.collocation.record import source_digest as digest
from workflow.collocation.record.source_digest import code_digest, tree

SOURCE = '''
"""A module."""
import math


class Thing:
    """A class."""

    size: int = 3

    async def wait(self):
        """A coroutine."""
        return self.size


def area(radius, /, *, unit=None):
    """A function."""
    return math.pi * radius**2  # of a circle


def check(value, parser, display):
    parser.add_argument("--least", help="the least value")
    print(f"checking {value}")
    display.say("checked" if value else "nothing to check", loud=False)
    if value < 3:
        raise ValueError(f"{value} is less " "than three") from None
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""', ""),
        ('    """A class."""\n', ""),
        ('"""A coroutine."""', '"""Something\n        longer."""'),
        ("  # of a circle", "  # and why"),
        ("import math\n", "# a comment\n\n\nimport math\n"),
        ("math.pi * radius**2", "(math.pi * (radius ** 2))"),
        ("(radius, /, *, unit=None)", "(\n    radius,\n    /,\n    *,\n    unit=None,\n)"),
        # what people are told
        ("the least value", "no less than this"),
        ("checking {value}", "looking at {value} now"),
        ('"nothing to check"', '"no value"'),
        ('is less " "than three', "is under 3"),
    ],
)
def test_words_and_formatting_do_not_matter(old, new):
    assert old in SOURCE
    assert tree(SOURCE.replace(old, new)) == tree(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("radius**2", "radius**3"),
        ("radius**2", "radius**True"),
        ("(radius, /, *,", "(radius, *,"),
        ("size: int = 3", "size = 3"),
        ("async def", "def"),
        ("import math", "import cmath as math"),
        ('"""A function."""', '"""A function."""\n    "a string that is no docstring"'),
        # what is done around a message
        ("--least", "--most"),
        ("ValueError", "TypeError"),
        ("loud=False", "loud=True"),
        ("{value} is", "{value + 1} is"),
    ],
)
def test_code_matters(old, new):
    assert old in SOURCE
    assert tree(SOURCE.replace(old, new)) != tree(SOURCE)


def test_a_python_that_knows_more_fields_gives_the_same():
    """3.12 gave functions `type_params`, which are empty in code that does without."""

    class FunctionDef(ast.AST):
        _fields = ("name", "type_params", "returns")

    class Older(ast.AST):
        _fields = ("name",)

    Older.__name__ = "FunctionDef"
    newer = FunctionDef(name="f", type_params=[], returns=None)
    assert digest._dump(newer) == digest._dump(Older(name="f")) == "FunctionDef(name='f')"


@pytest.fixture
def repository(tmp_path):
    files = {
        "models/train.py": "steps = 1\n",
        "models/data/digits.py": "size = 8\n",
        "workflow/collocation/run/cell.py": "wait = 2\n",
        "workflow/collocation/plan/show.py": "width = 80\n",
        "analysis/merging/merge.py": "rows = 3\n",
        "tests/test_run.py": "assert True\n",
        "README.md": "words\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_trains_or_measures_enters_the_digest_and_nothing_else_does(repository):
    before = code_digest(repository)
    beside = "workflow/collocation/plan/show.py"
    for name in ("analysis/merging/merge.py", "tests/test_run.py", "README.md", beside):
        (repository / name).write_text("changed = True\n")
    (repository / "models" / "notes.md").write_text("words\n")
    (repository / "models" / "train.py").write_text("# the number of steps\nsteps = 1\n")
    assert code_digest(repository) == before and len(before) == 16
    seen = [before]
    for name in ("models/train.py", "models/data/digits.py", "workflow/collocation/run/cell.py"):
        path = repository / name
        path.write_text("changed = True\n")
        seen.append(code_digest(repository))
        path.rename(path.with_name("moved.py"))
        seen.append(code_digest(repository))
    path.with_name("moved.py").unlink()
    seen.append(code_digest(repository))
    assert len(set(seen)) == len(seen)


def test_nothing_that_a_cell_runs_imports_what_is_left_out():
    paths = {
        path.relative_to(ROOT).as_posix(): path
        for package in digest.PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    beside = {name for name in paths if name.startswith(digest.BESIDE)}
    assert all(any(name.startswith(part) for name in beside) for part in digest.BESIDE)
    left_out = {name.removesuffix(".py").replace("/", ".") for name in beside}
    for name in paths.keys() - beside:
        for node in ast.walk(ast.parse(paths[name].read_text())):
            if isinstance(node, ast.Import):
                imported = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            else:
                continue
            assert not imported & left_out, name


def test_the_digest_of_a_users_own_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    file = tmp_path / "mine" / "nets.py"
    file.write_text("def net(num_classes):\n    return num_classes\n")
    before = digest.own_digest(["mine.nets:net"])
    file.write_text("def net(num_classes):\n    # the same\n    return num_classes\n")
    assert before and digest.own_digest(["mine.nets:net"]) == before
    file.write_text("def net(num_classes):\n    return 2 * num_classes\n")
    assert digest.own_digest(["mine.nets:net"]) != before
    assert digest.own_digest(["resnet26", "no.such:net"]) is None


# -- provenance -----------------------------------------------------------------------------------


def test_mismatches_name_what_differs():
    versions = {"torch": "2.11", "timm": "1.0", "driver": "580", "numpy": "2.0"}
    content = {"provenance": {"digest": "d", "versions": versions}}
    assert provenance.mismatches(content, "d", versions) == []
    assert provenance.mismatches(content, "d", {**versions, "numpy": "2.1"}) == []
    other = {**versions, "torch": "2.13", "driver": "590"}
    assert provenance.mismatches(content, "e", other) == ["code", "torch", "driver"]
    laptop = {**versions, "torch": None, "driver": None}  # nothing to compare with
    assert provenance.mismatches(content, "d", laptop) == []
    assert provenance.mismatches({}, "d", versions) == ["code", "torch", "timm", "driver"]


@pytest.fixture
def alias_of():
    """A machine's alias, as another process would find it."""

    def find(otherwise: str | None = None) -> str:
        provenance._passing_secret.cache_clear()
        return provenance.machine_alias(otherwise)

    return find


def test_a_machine_keeps_its_alias(tmp_path, monkeypatch, alias_of):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    alias = alias_of()
    assert alias.startswith("machine-") and alias_of() == alias == alias_of("machine-other")
    [path] = tmp_path.glob("*/secret")
    path.write_text("")  # an interrupted write
    again = alias_of()
    assert again != alias and alias_of() == again


def test_where_nothing_can_be_kept_a_session_has_one_alias(tmp_path, monkeypatch, alias_of):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    alias = alias_of()
    assert alias.startswith("machine-") and provenance.machine_alias() == alias
    assert alias_of(alias) == alias != alias_of()  # jobs are told it


def test_provenance_tells_no_names_or_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = provenance.collect("580.1", "s1")
    assert found.keys() == {"digest", "versions", "commit", "started_at", "sitting", "machine"}
    assert (found["sitting"], found["versions"]["driver"]) == ("s1", "580.1")
    assert str(provenance.ROOT) not in str(found) + str(provenance.host(1, None))


def test_an_unpacked_folder_has_no_commit_of_a_repository_around_it(tmp_path, monkeypatch):
    outer = tmp_path / "outer"
    inner = outer / "study"
    inner.mkdir(parents=True)
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        name = ["-c", "user.name=x", "-c", "user.email=x@y"]
        subprocess.run(["git", "-C", str(outer), *name, *command], check=True)
    monkeypatch.setattr(provenance, "ROOT", outer)
    assert provenance.collect(None)["commit"]
    monkeypatch.setattr(provenance, "ROOT", inner)
    assert provenance.collect(None)["commit"] is None
