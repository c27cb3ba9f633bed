"""Unpacks an archive that somebody else made: plain files and folders only, within bounds.

All headers are checked before anything is written, and no more is read than the bounds allow.
"""

import bz2
import gzip
import lzma
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from analysis.files import printable
from workflow.collocation.study.regular_files import open_regular

MAX_MEMBERS = 50_000
MAX_BYTES = 1_000_000_000  # of all files together; a study that ships has 30 MB
MAX_PADDING = 1 << 24  # bytes after the last member
MAX_HEADER = 16_384  # bytes between the contents of two files
MAX_NAME, MAX_PART = 1000, 255  # characters of a name, bytes between two slashes
MAX_DEPTH = 20
DECOMPRESS = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
FILTER = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # new in Python 3.11.4


class Refused(ValueError):
    """Why an archive is not unpacked, in words that follow its name."""


class _ForwardReader:
    """The content of an archive, which tarfile can read only forward, in bounded steps."""

    def __init__(self, content: BinaryIO, limit: int):
        self.content, self.tell = content, content.tell
        self.limit = self.remaining = limit  # bytes that may be read until the next member
        self.last_read = b""

    def seek(self, position: int) -> None:
        if position < self.tell():
            raise Refused("a header leads back into the archive")
        self.content.seek(position)

    def read(self, size: int) -> bytes:
        self.remaining -= size
        if size < 0 or self.remaining < 0:
            raise Refused(f"a header is longer than {self.limit} bytes")
        self.last_read = self.content.read(size)
        return self.last_read


def unpack(bundle: Path, folder: Path) -> None:
    """Unpack a tar archive (plain, gz, bz2 or xz) into a folder.

    Raises Refused, with nothing written, if it is damaged, or holds anything but plain files and
    folders with plain names.
    """
    with open_regular(bundle) as file:
        decompress = DECOMPRESS.get(file.read(2), open)
    with decompress(bundle, "rb") as content:
        position = ""
        try:
            archive = tarfile.TarFile(fileobj=_ForwardReader(content, MAX_HEADER))
            for member in _checked_members(archive):
                position = f" after {_name_text(member)}"
            end = content.tell()
            while content.read(MAX_HEADER):  # to the end, where a checksum is verified
                if content.tell() - end > MAX_PADDING:
                    raise Refused(f"goes on for more than {MAX_PADDING:,} bytes after its end")
        except Refused:
            raise
        except Exception as error:  # the archive may hold anything
            raise Refused(f"is no tar archive, or is damaged{position}: {error}") from error
        content.seek(0)
        archive = tarfile.TarFile(
            fileobj=_ForwardReader(content, MAX_BYTES), copybufsize=MAX_HEADER
        )
        archive.extractall(folder, _checked_members(archive), **FILTER)


def _checked_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Each member, checked before anything after its header is read. Raises Refused."""
    files, folders, total_bytes, reader = set(), set(), 0, archive.fileobj
    for count, member in enumerate(archive, 1):
        path, is_folder = PurePosixPath(member.name), member.isdir()
        parents = {*path.parents}
        total_bytes += member.size
        is_repeated = not files.isdisjoint({path, *parents})
        is_repeated |= path in folders and not is_folder
        problem = _header_problem(member)
        if not problem and is_repeated:
            problem = "is there twice"
        elif not problem and total_bytes > MAX_BYTES:
            problem = f"would make it more than {MAX_BYTES:,} bytes"
        elif not problem and count > MAX_MEMBERS:
            problem = f"would make it more than {MAX_MEMBERS:,} files and folders"
        if problem:
            raise Refused(f"{_name_text(member)} {problem}")
        (folders if is_folder else files).add(path)
        folders |= parents
        reader.remaining = reader.limit
        yield member
    if reader.last_read != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("its end is missing")


def _header_problem(member: tarfile.TarInfo) -> str | None:
    """What is wrong with one member's header, in words that follow its name."""
    name, parts = member.name, PurePosixPath(member.name).parts
    is_plain_file = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.sparse is None
    if not (is_plain_file or member.isdir()):
        return "is a link, a device or else no plain file or folder"
    if name.startswith("/") or ".." in parts or not (parts or member.isdir()):
        return "does not lie below the archive's folder"
    if not name.isprintable():
        return "has characters in its name that cannot be printed"
    longest_part = max((len(os.fsencode(part)) for part in parts), default=0)
    if len(name) > MAX_NAME or longest_part > MAX_PART or len(parts) > MAX_DEPTH:
        return "has too long a name"
    return "tells a size below 0" if member.size < 0 else None


def _name_text(member: tarfile.TarInfo) -> str:
    return f"member '{printable(member.name)[:100]}'"
