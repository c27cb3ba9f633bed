"""Strings that should not leave a machine: its name, its users, their paths, addresses.

Looked for in texts, JSON and Parquet (values, names, metadata), compressed or not. Where bytes are
no text, only the own names of the machine are. GPU UUIDs and random machine aliases may stay.
"""

from __future__ import annotations

import getpass
import gzip
import io
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

# Names that many machines have tell nothing.
COMMON = {"localhost", "localhost.localdomain", "root", "user", "vm", "ubuntu", "debian", "host"}
SHORTEST = 3  # characters of a name that is looked for in texts
SHORTEST_IN_BYTES = 6  # where chance would spell shorter ones
PLACES = "home|Users|users|root|work|tmp|mnt|media|scratch|var|opt|srv|workspaces?|private|gpfs"
PLACES += "|lustre|lus|data|nfs|export|shared|projects?|storage|beegfs|cluster|afs|net|ceph"
_NATION = "at|be|ca|ch|cn|cz|de|dk|es|eu|fi|fr|gr|ie|in|it|jp|kr|nl|no|pl|pt|ru|se|sg|uk|us"
PATTERNS = {
    "path": (
        rf"(?<![\w.:/<*-])/(?:{PLACES})/[\w.@+-]+(?:/[\w.@+-]+)*",
        r"(?i:file):/{1,3}[\w.~%-][^\s\"'<>]*",
        r"(?<!\w)[A-Za-z]:\\Users\\[\w.-]+",
    ),
    "process of somebody": (
        r"PID \d+ \([^\n]*?, owner [^()\n]*\)",
        r"\bowner [\w-]+[.\\@][\w.@\\-]*\w",
        r"\bof user [\w.@-]+(?= may have)",
    ),
    "e-mail address": (r"(?<![\w.+-])[\w.+-]+@\w[\w-]*(?:\.[\w-]+)*\.[A-Za-z]{2,}(?![\w.]*\w@)",),
    "serial number": (r'(?i:"(?:\w*serial_?(?:number|no)|(?:gpu|board|card)_?serial)")',),
    "hardware address": (r"(?<![\w:])[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}(?![\w:])",),
    "host name": (
        rf"(?<![\w./@-])[A-Za-z][\w-]*(?:\.[\w-]+)+\.(?:edu|org|com|net|gov|mil|local|internal|lan|{_NATION})"
        r"(?![\w.(-]*[\w(/])",
    ),
}
_COMPILED = {kind: [re.compile(one) for one in some] for kind, some in PATTERNS.items()}
_ADDRESS = re.compile(r"(?<![\w.=])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_ADDRESS_6 = re.compile(
    r"(?<![\w:.])[0-9A-Fa-f]{1,4}:[0-9A-Fa-f:]{2,37}[0-9A-Fa-f](?:%\w+)?(?![\w:])"
)
# What code says of every machine.
HARMLESS = ("/tmp/gpu-collocation-locks", "/tmp/nvidia-mps", "127.0.0.1", "0.0.0.0")


@dataclass(frozen=True)
class Finding:
    """What was found, and where: the file, and the place in it."""

    file: str
    where: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}{f', {self.where}' if self.where else ''}: {self.kind} {self.text!r}"


def own_names() -> dict[str, str]:
    """This machine's names and its user's, each with what it is."""
    names = {socket.gethostname(): "host name", socket.getfqdn(): "host name"}
    names |= {name.partition(".")[0]: "host name" for name in list(names)}
    for variable in ("USER", "LOGNAME", "SUDO_USER"):
        names[os.environ.get(variable, "")] = "user name"
    try:
        names[getpass.getuser()] = "user name"
        names[str(Path.home())] = "home folder"
    except (KeyError, OSError, RuntimeError):  # a user without a name, or without a home
        pass
    return names


@dataclass(frozen=True)
class Detector:
    """Finds private strings; `names`: text → what it is, besides patterns that hold anywhere."""

    names: dict[str, str] = field(default_factory=own_names)

    @cached_property
    def _named(self) -> dict[str, re.Pattern]:
        kept = (n for n in self.names if len(n) >= SHORTEST and n.lower() not in COMMON)
        kept = (name for name in kept if name not in ("/root", "/home"))
        return {name: re.compile(rf"(?<!\w){re.escape(name)}(?!\w)") for name in kept}

    def in_text(self, text: str) -> Iterator[tuple[str, str]]:
        """(kind, what was found), each once."""
        seen = set()
        for kind, found in self._all(text):
            if found not in seen and not found.startswith(HARMLESS):
                seen.add(found)
                yield kind, found

    def _all(self, text: str) -> Iterator[tuple[str, str]]:
        for kind, several in _COMPILED.items():
            for pattern in several:
                yield from ((kind, found[0]) for found in pattern.finditer(text))
        for pattern in (_ADDRESS, _ADDRESS_6):
            for found in pattern.finditer(text):
                if _is_address(found[0]):
                    yield "address", found[0]
        for name, pattern in self._named.items():
            if pattern.search(text):
                yield self.names[name], name

    def strip(self, text: str) -> str:
        """The text with what was found replaced by what it was."""
        for kind, found in list(self.in_text(text)):
            text = text.replace(found, f"<{kind}>")
        return text

    # -- files ------------------------------------------------------------------------------------

    def in_file(self, path: Path, name: str | None = None) -> list[Finding]:
        return self.in_bytes(path.read_bytes(), name or path.name)

    def in_bytes(self, content: bytes, name: str) -> list[Finding]:
        """What a file's content holds."""
        if content[:4] == b"PAR1":
            return list(self._parquet(content, name))
        if content[:2] == b"\x1f\x8b":
            return self.in_bytes(gzip.decompress(content), name)
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            return list(self._bytes(content, name))
        return list(self._lines(text, name))

    def _lines(self, text: str, name: str) -> Iterator[Finding]:
        for kind, found in self.in_text(text):
            line = text.count("\n", 0, text.index(found)) + 1
            yield Finding(name, f"line {line}", kind, found)

    def _bytes(self, content: bytes, name: str) -> Iterator[Finding]:
        for own, pattern in self._named.items():
            there = len(own) >= SHORTEST_IN_BYTES and own.encode() in content
            if there and pattern.search(content.decode("latin-1")):
                yield Finding(name, "", self.names[own], own)

    def _parquet(self, content: bytes, name: str) -> Iterator[Finding]:
        table = pq.read_table(io.BytesIO(content))
        for where, text in _texts(table):
            for kind, found in self.in_text(text):
                yield Finding(name, where, kind, found)


def _is_address(text: str) -> bool:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return False
    if found.version == 6:  # 12:34:56 is a time, a::b may be code
        return len(text) > 6 and any(character.isdigit() for character in text)
    return max(found.packed) > 9  # 7.6.1.1 is a section


def _texts(table: pa.Table) -> Iterator[tuple[str, str]]:
    """All texts of a Parquet table, with their places."""
    for key, value in (table.schema.metadata or {}).items():
        if key != b"ARROW:schema":  # the same again, encoded
            yield "metadata", f"{key.decode()}={value.decode(errors='replace')}"
    for schema_field in table.schema:
        yield "column names", schema_field.name
        for value in (schema_field.metadata or {}).values():
            yield f"metadata of {schema_field.name}", value.decode(errors="replace")
        kind = schema_field.type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            values = table[schema_field.name].cast(pa.string()).unique().to_pylist()
            yield from ((f"column {schema_field.name}", v) for v in values if v)


def in_files(folder: Path, names: Iterable[str], detector: Detector | None = None) -> list[Finding]:
    """What the files of a folder hold."""
    detector = detector or Detector()
    return [f for name in names for f in detector.in_file(folder / name, name)]
