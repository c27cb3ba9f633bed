"""Archives that `collocate merge` must not open: each is one line, and nothing is written."""

import bz2
import gzip
import io
import lzma
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from release import archive, scratch
from tests import warm
from tests.studio import REPOSITORY

RUN = "theirs/cells/1x_a/paper_step/naive/r1/a1/run.json"
OPENERS = {"": lambda data: data, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0, pax: dict | None = None
):
    """A member's header, and its content."""
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    made.pax_headers = pax or {}
    return made, bytes(size if size < 1 << 20 else 0)


def packed(*entries, form: int = tarfile.PAX_FORMAT) -> bytes:
    """A plain tar of these, whatever their headers say of their size."""
    content = io.BytesIO()
    for made, data in entries:
        content.write(made.tobuf(form))
        content.write(data + bytes(-len(data) % 512))
    return content.getvalue() + bytes(1024)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder of temporary files, in which commands must leave nothing."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def refused(tmp_path: Path, temporary: Path, content: bytes, ending: str = "") -> str:
    """What merge says of an archive that it does not open: one line that names it."""
    bundle = tmp_path / f"theirs.tar{ending}"
    if not bundle.exists():
        bundle.write_bytes(OPENERS[ending](content))
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    words = ("merge", bundle, "--results", tmp_path / "ours", "--study", "ladder")
    done = warm.run("collocate", *words, timeout=600)
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}.keys() == before.keys()
    assert not list(temporary.iterdir()) and not (tmp_path / "ours").exists()
    assert done.returncode == 1 and not done.stdout and len(done.stderr.splitlines()) == 1
    assert str(bundle) in done.stderr, done.stderr
    return done.stderr


FINE = entry(RUN, size=700)
MEMBERS = {
    "a symbolic link": [entry("theirs/also", tarfile.SYMTYPE, RUN)],
    "a hard link": [FINE, entry("theirs/also", tarfile.LNKTYPE, RUN)],
    "a FIFO": [entry("theirs/pipe", tarfile.FIFOTYPE)],
    "a character device": [entry("theirs/null", tarfile.CHRTYPE)],
    "a block device": [entry("theirs/disk", tarfile.BLKTYPE)],
    "a file of an unknown kind": [entry("theirs/odd", b"Z")],
    "a sparse file": [entry("theirs/holes", pax={"GNU.sparse.map": "0,1", "GNU.sparse.size": "9"})],
    "a folder that is a link": [entry("theirs", tarfile.SYMTYPE, "/tmp"), FINE],
    "an absolute name": [entry("/theirs/x")],
    "a name that leads out": [entry("theirs/../../x")],
    "a name of nothing": [entry("./")],
    "a line break": [entry("theirs/a\nb")],
    "a terminal's code": [entry("theirs/\x1b[2Ja")],
    "a byte that is no text": [entry("theirs/a\udcffb")],
    "a long part": [entry("theirs/" + 300 * "x")],
    "a long name": [entry("theirs/" + 600 * "ab/" + "x")],
    "a name twice": [FINE, FINE],
    "another spelling of a name": [FINE, entry(f"./{RUN}")],
    "a file that is a folder": [FINE, entry(f"{RUN}/x")],
    "a folder that is a file": [FINE, entry("theirs/cells")],
    "a huge file": [entry("theirs/huge", size=1 << 40)],
    "a negative size": [entry("theirs/less", pax={"size": "-1024"})],
    "a large extended header": [entry("theirs/x", pax={"note": 10**6 * "x"})],
}
# The name as it is shown, where it is not that of the last member.
SHOWN = {"a folder that is a link": "theirs", "a name of nothing": "'./'"}
SHOWN |= {"a line break": "theirs/a\\nb", "a terminal's code": "theirs/\\x1b[2Ja"}
SHOWN |= {"a byte that is no text": "theirs/a\\udcffb", "a large extended header": "header"}


@pytest.mark.parametrize("kind", MEMBERS)
def test_a_member_that_is_no_plain_file_is_named_and_nothing_unpacked(tmp_path, temporary, kind):
    said = refused(tmp_path, temporary, packed(entry("theirs/first"), *MEMBERS[kind]))
    assert SHOWN.get(kind, MEMBERS[kind][-1][0].name[:100]) in said, said


def test_more_members_than_the_bound_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_MEMBERS", 100)
    content = packed(*(entry(f"theirs/{number}") for number in range(101)))
    (tmp_path / "theirs.tar").write_bytes(content)
    with pytest.raises(ValueError, match="member 'theirs/100' would make it more than 100 files"):
        archive.unpack(tmp_path / "theirs.tar", tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()


def test_more_bytes_than_the_bound_are_refused_before_any_is_unpacked(tmp_path, temporary):
    half = archive.MAX_BYTES // 2 // 512 * 512
    with (tmp_path / "theirs.tar").open("wb") as file:  # with holes
        for name in "abc":
            file.write(entry(f"theirs/{name}", size=half)[0].tobuf())
            file.seek(half, os.SEEK_CUR)
        file.write(bytes(1024))
    said = refused(tmp_path, temporary, b"")
    assert "1,000,000,000 bytes" in said and "theirs/c" in said


def test_what_grows_when_it_is_decompressed_is_refused(tmp_path, temporary):
    """A bomb: 64 MB of zeros in each of many parts, after an archive's end."""
    bomb = gzip.compress(packed(FINE)) + 100 * gzip.compress(bytes(1 << 26))
    assert "after its end" in refused(tmp_path, temporary, bomb)


@pytest.mark.parametrize("ending", OPENERS)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.6, 0.8, 0.95])
def test_a_cut_archive_is_named_at_whatever_place_it_is_cut(tmp_path, temporary, ending, share):
    content = packed(FINE, (entry("theirs/noise", size=9000)[0], os.urandom(9000)))
    content = OPENERS[ending](content)
    said = refused(tmp_path, temporary, content[: int(share * len(content))])
    assert "damaged" in said


def test_what_is_no_archive_is_named(tmp_path, temporary):
    for content in (b"", b"PK" + bytes(700), os.urandom(5000), b"\x1f\x8b" + bytes(90)):
        assert "no tar archive" in refused(tmp_path, temporary, content)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("ending", OPENERS)
def test_plain_files_and_folders_are_unpacked_as_they_were(tmp_path, form, ending):
    long = "a+b_" * 20 + "/" + "c" * 60 + "/r1"
    names = {"./theirs/plain": b"1", f"theirs/{long}/run.json": bytes(70_000), "theirs/empty": b""}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=form) as made:
        made.addfile(entry("./", tarfile.DIRTYPE)[0])
        made.addfile(entry("theirs/", tarfile.DIRTYPE)[0])
        for name, data in names.items():
            made.addfile(entry(name, size=len(data))[0], io.BytesIO(data))
    bundle = tmp_path / "bundle"
    bundle.write_bytes(OPENERS[ending](content.getvalue()))
    archive.unpack(bundle, tmp_path / "unpacked")
    for name, data in names.items():
        assert (tmp_path / "unpacked" / name).read_bytes() == data


# -- temporary files ------------------------------------------------------------------------------


WAITS = """import os, pathlib, tempfile, time
from release.scratch import scratch
with scratch(), tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "half").write_text("1")
    print(flush=True)
    time.sleep(600)
"""


@pytest.fixture
def interrupted(temporary):
    """Ends a command that has begun to write temporary files by a signal; gives its exit code."""

    def interrupt(number: int) -> int:
        command = [sys.executable, "-c", WAITS]
        with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            [folder] = temporary.iterdir()
            assert [*folder.rglob("half")]
            with scratch.scratch():  # another command leaves it alone
                assert folder.exists()
            process.send_signal(number)
            return process.wait(60)

    return interrupt


@pytest.mark.parametrize("number", scratch.END_SIGNALS)
def test_a_signal_leaves_no_temporary_files(interrupted, temporary, number):
    assert interrupted(number) == 128 + number
    assert not list(temporary.iterdir())


def test_what_a_killed_command_left_the_next_one_removes(tmp_path, interrupted, temporary):
    assert interrupted(signal.SIGKILL) == -signal.SIGKILL
    assert list(temporary.iterdir())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = temporary / f"{scratch.PREFIX}link"
    link.symlink_to(elsewhere)
    warm.run("collocate", "merge", tmp_path / "nowhere", "--study", "ladder")
    assert list(temporary.iterdir()) == [link] and not list(elsewhere.iterdir())
