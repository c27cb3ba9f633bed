"""Unpacking an archive that somebody else made: plain files and folders, within bounds.

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

MOST_MEMBERS = 50_000
MOST_BYTES = 1_000_000_000  # of all files together; a study that ships has 30 MB
MOST_PADDING = 1 << 24  # bytes after the last member
MOST_HEADER = 16_384  # bytes between the contents of two files
MOST_NAME, MOST_PART, MOST_DEEP = 1000, 255, 20  # characters of a name, bytes of a part, parts
DECOMPRESS = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
FILTER = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # new in Python 3.11.4


class Refused(ValueError):
    """Why an archive is not unpacked, in words that follow its name."""


class _Forward:
    """The content of an archive, in which tarfile can only go forward, in bounded steps."""

    def __init__(self, content: BinaryIO, most: int):
        self.content, self.tell = content, content.tell
        self.most = self.left = most  # bytes to be read until the next member
        self.last = b""  # what was read last

    def seek(self, place: int) -> None:
        if place < self.tell():
            raise Refused("a header leads back into the archive")
        self.content.seek(place)

    def read(self, size: int) -> bytes:
        self.left -= size
        if size < 0 or self.left < 0:
            raise Refused(f"a header is longer than {self.most} bytes")
        self.last = self.content.read(size)
        return self.last


def unpack(bundle: Path, folder: Path) -> None:
    """Unpack a tar archive (plain, gz, bz2 or xz). Raises Refused, with nothing written, where it
    is damaged or holds anything but plain files and folders with plain names.
    """
    with open_regular(bundle) as file:
        decompress = DECOMPRESS.get(file.read(2), open)
    with decompress(bundle, "rb") as content:
        after = ""
        try:
            for member in _members(tarfile.TarFile(fileobj=_Forward(content, MOST_HEADER))):
                after = f" after {_shown(member)}"
            end = content.tell()
            while content.read(MOST_HEADER):  # to the checksum
                if content.tell() - end > MOST_PADDING:
                    raise Refused(f"goes on for more than {MOST_PADDING:,} bytes after its end")
        except Refused:
            raise
        except Exception as error:  # whatever it holds
            raise Refused(f"is no tar archive, or is damaged{after}: {error}") from error
        content.seek(0)
        archive = tarfile.TarFile(fileobj=_Forward(content, MOST_BYTES), copybufsize=MOST_HEADER)
        archive.extractall(folder, _members(archive), **FILTER)


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Each member, checked before anything that follows its header is read. Raises Refused."""
    files, folders, total, reader = set(), set(), 0, archive.fileobj
    for count, member in enumerate(archive, 1):
        name, path = member.name, PurePosixPath(member.name)
        folder, above, total = member.isdir(), {*path.parents}, total + member.size
        plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.sparse is None
        outside = name.startswith("/") or ".." in path.parts or not (path.parts or folder)
        longest = max(map(len, map(os.fsencode, path.parts)), default=0)
        long = len(name) > MOST_NAME or longest > MOST_PART or len(path.parts) > MOST_DEEP
        twice = not files.isdisjoint({path, *above}) or (path in folders and not folder)
        for wrong, words in (
            (not (plain or folder), "is a link, a device or else no plain file or folder"),
            (outside, "does not lie below the archive's folder"),
            (not name.isprintable(), "has characters in its name that cannot be printed"),
            (long, "has too long a name"),
            (member.size < 0, "tells a size below 0"),
            (twice, "is there twice"),
            (total > MOST_BYTES, f"would make it more than {MOST_BYTES:,} bytes"),
            (count > MOST_MEMBERS, f"would make it more than {MOST_MEMBERS:,} files and folders"),
        ):
            if wrong:
                raise Refused(f"{_shown(member)} {words}")
        (folders if folder else files).add(path)
        folders |= above
        reader.left = reader.most
        yield member
    if reader.last != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("its end is missing")


def _shown(member: tarfile.TarInfo) -> str:
    return f"member '{printable(member.name)[:100]}'"
