"""The digest of the code that matters: what changes it, and what does not; and provenance."""

import subprocess

import pytest

from workflow.collocation.record import provenance
from workflow.collocation.record import source_digest as digest

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
'''


@pytest.mark.parametrize(
    ("old", "new", "matters"),
    [
        ('"""A module."""', "", False),
        ('"""A coroutine."""', '"""Something\n        longer."""', False),
        ("  # of a circle", "  # and why", False),
        ("math.pi * radius**2", "(math.pi * (radius ** 2))", False),
        ("(radius, /, *, unit=None)", "(\n    radius,\n    /,\n    *,\n    unit=None,\n)", False),
        ("radius**2", "radius**3", True),
        ("(radius, /, *,", "(radius, *,", True),
        ("size: int = 3", "size = 3", True),
        ("async def", "def", True),
        ('"""A function."""', '"""A function."""\n    "a string that is no docstring"', True),
    ],
)
def test_code_matters_and_words_and_formatting_do_not(old, new, matters):
    assert old in SOURCE
    changed = digest.without_comments(SOURCE.replace(old, new)) != digest.without_comments(SOURCE)
    assert changed is matters


def test_what_trains_or_measures_enters_the_digest_and_nothing_else_does(tmp_path):
    matters = "models/train.py", "models/data/digits.py", "workflow/collocation/run/cell.py"
    beside = "workflow/collocation/plan/show.py", "analysis/merge.py", "models/notes.md"

    def write(text: str, *names: str) -> str:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return digest.code_digest(tmp_path)

    first = write("steps = 1\n", *matters, *beside)
    assert len(first) == 16
    assert write("changed = True\n", *beside) == write("steps = 1  # a day\n", *matters) == first
    seen = [write(f"changed = {index}\n", name) for index, name in enumerate(matters)]
    (tmp_path / matters[0]).rename(tmp_path / "models" / "moved.py")
    assert len({first, *seen, write("")}) == 5


def test_the_digest_of_a_users_own_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    file, script = tmp_path / "mine" / "nets.py", tmp_path / "old.py"
    script.write_text("print 'of Python 2'")
    file.write_text("def net(num_classes):\n    return num_classes\n")
    before = digest.user_code_digest(["mine.nets:net"])
    file.write_text("def net(num_classes):\n    # the same\n    return num_classes\n")
    assert before and digest.user_code_digest(["mine.nets:net"]) == before
    assert digest.user_code_digest(["mine.nets:net"], [script]) != before
    file.write_text("def net(num_classes):\n    return 2 * num_classes\n")
    assert digest.user_code_digest(["mine.nets:net"]) != before
    assert digest.user_code_digest(["resnet26", "no.such:net"]) is None


# -- provenance -----------------------------------------------------------------------------------


def test_mismatches_name_what_differs():
    versions = {"torch": "2.11", "timm": "1.0", "driver": "580", "numpy": "2.0"}
    content = {"digest": "d", "versions": versions}
    assert provenance.mismatches(content, "d", {**versions, "numpy": "2.1"}) == []
    other = {**versions, "torch": "2.13", "driver": "590"}
    assert provenance.mismatches(content, "e", other) == ["code", "torch", "driver"]
    laptop = {**versions, "torch": None, "driver": None}  # nothing to compare with
    assert provenance.mismatches(content, "d", laptop) == []
    for bare in ({}, {"versions": None}):
        assert provenance.mismatches(bare, "d", versions) == ["code", "torch", "timm", "driver"]


def test_a_machine_keeps_its_alias(tmp_path, monkeypatch):
    """Also where nothing can be kept, until it is started again."""
    (tmp_path / "file").write_text("")
    aliases = []
    for home in ("one", "other", "file"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / home))
        aliases.append(provenance.machine_alias())
        assert aliases[-1].startswith("machine-") and provenance.machine_alias() == aliases[-1]
    assert len(set(aliases)) == 3
    [secret] = tmp_path.glob("one/*/*")
    secret.write_text("")  # as a full disk leaves it
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "one"))
    assert provenance.machine_alias() == provenance.machine_alias() and secret.read_text()


def test_provenance_tells_no_names_or_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = provenance.collect_provenance("580.1", "d1", "s1")
    assert found.keys() == {"digest", "versions", "commit", "started_at", "session", "machine"}
    assert (found["digest"], found["session"]) == ("d1", "s1")
    assert found["versions"]["driver"] == "580.1"
    assert str(provenance.ROOT) not in str(found) + str(provenance.describe_host(1, None))


def test_an_unpacked_folder_has_no_commit_of_a_repository_around_it(tmp_path, monkeypatch):
    inner = tmp_path / "study"
    inner.mkdir()
    name = ["-c", "user.name=x", "-c", "user.email=x@y"]
    for command in (["init", "-q"], [*name, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.collect_provenance(None, "d")["commit"]
    monkeypatch.setattr(provenance, "ROOT", inner)
    assert provenance.collect_provenance(None, "d")["commit"] is None
