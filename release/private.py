"""Strings that should not leave a machine: its name, its users, their paths, addresses.

Looked for in texts, JSON and Parquet (values, names, metadata), compressed or not. Where bytes are
no text, only the own names of the machine are. GPU UUIDs and random machine aliases may stay.
"""

import getpass
import gzip
import io
import ipaddress
import os
import re
import socket
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from analysis.records import safe
from analysis.records.safe import MOST_TEXT, one_line

# Names that many machines have tell nothing.
COMMON = {"localhost", "localhost.localdomain", "root", "user", "vm", "ubuntu", "debian", "host"}
COMMON |= {"/root", "/home"}
SHORTEST, SHORTEST_IN_BYTES = 3, 6  # characters of a name: in bytes chance would spell shorter ones
PLACES = "home|Users|users|root|work|tmp|mnt|media|scratch|var|opt|srv|workspaces?|private|gpfs"
PLACES += "|lustre|lus|data|nfs|export|shared|projects?|storage|beegfs|cluster|afs|net|ceph"
ENDINGS = "edu|org|com|net|gov|mil|local|internal|lan|at|be|ca|ch|cn|cz|de|dk|es|eu|fi|fr|gr|ie|in"
ENDINGS += "|it|jp|kr|nl|no|pl|pt|ru|se|sg|uk|us"
PATTERNS = (
    ("path", rf"(?<![\w.:/<*-])/(?:{PLACES})/[\w.@+-]+(?:/[\w.@+-]+)*"),
    ("path", r"(?i:file):/{1,3}[\w.~%-][^\s\"'<>]*"),
    ("path", r"(?<!\w)[A-Za-z]:\\{1,2}Users\\{1,2}[\w.-]+"),  # in JSON, too
    ("process of somebody", r"PID \d+ \([^\n]*?, owner [^()\n]*\)"),
    ("process of somebody", r"\bowner [\w-]+[.\\@][\w.@\\-]*\w"),
    ("process of somebody", r"\bof user [\w.@-]+(?= may have)"),
    ("e-mail address", r"(?<![\w.+-])[\w.+-]+@\w[\w-]*(?:\.[\w-]+)*\.[A-Za-z]{2,}(?![\w.]*\w@)"),
    ("serial number", r'(?i:"(?:\w*serial_?(?:number|no)|(?:gpu|board|card)_?serial)")'),
    ("hardware address", r"(?<![\w:])[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}(?![\w:])"),
    ("host name", rf"(?<![\w./@-])[A-Za-z][\w-]*(?:\.[\w-]+)+\.(?:{ENDINGS})(?![\w.(-]*[\w(/])"),
    ("address", r"(?<![\w.=])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"),
    ("address", r"(?<![\w:.])[0-9A-Fa-f]{1,4}:[0-9A-Fa-f:]{2,37}[0-9A-Fa-f](?:%\w+)?(?![\w:])"),
)
# What code says of every machine.
HARMLESS = ("/tmp/gpu-collocation-locks", "/tmp/nvidia-mps", "127.0.0.1", "0.0.0.0")


def own_names() -> dict[str, str]:
    """This machine's names and its user's, each with what it is."""
    names = {socket.gethostname(): "host name", socket.getfqdn(): "host name"}
    names |= {name.partition(".")[0]: "host name" for name in list(names)}
    for variable in ("USER", "LOGNAME", "SUDO_USER"):
        names[os.environ.get(variable, "")] = "user name"
    with suppress(KeyError, OSError, RuntimeError):  # a user without a name, or without a home
        names |= {getpass.getuser(): "user name", str(Path.home()): "home folder"}
    return names


class Detector:
    """Finds private strings; `names`: text → what it is, besides patterns that hold anywhere."""

    def __init__(self, names: Mapping[str, str] | None = None):
        names = own_names() if names is None else names
        kept = [name for name in names if len(name) >= SHORTEST and name.lower() not in COMMON]
        own = {name: re.compile(rf"(?<!\w){re.escape(name)}(?!\w)") for name in kept}
        self.patterns = [(kind, re.compile(pattern)) for kind, pattern in PATTERNS]
        self.patterns += [(names[name], own[name]) for name in kept]
        self.long = [(names[name], own[name]) for name in kept if len(name) >= SHORTEST_IN_BYTES]

    def in_text(self, text: str, patterns: list | None = None) -> list[tuple[str, str]]:
        """(kind, what was found), each once."""
        found = {
            one[0]: kind
            for kind, pattern in (self.patterns if patterns is None else patterns)
            for one in pattern.finditer(text)
            if kind != "address" or _is_address(one[0])
        }
        return [(kind, one) for one, kind in found.items() if not one.startswith(HARMLESS)]

    def strip(self, text: str) -> str:
        for kind, found in self.in_text(text):
            text = text.replace(found, f"<{kind}>")
        return text

    def search(self, files: Mapping[str, bytes]) -> Iterator[str]:
        """Sentences: what files hold, and where."""
        for name, content in files.items():
            try:
                if content[:2] == b"\x1f\x8b":
                    content = _unpacked(content)
                parts = [*self._texts(content)]
            except (OSError, ValueError, EOFError, zlib.error) as error:
                yield f"private: {name} cannot be searched: {one_line(error)}"
                continue
            for where, text, patterns in parts:
                for kind, found in self.in_text(text, patterns):
                    line = text.count("\n", 0, text.index(found)) + 1
                    yield f"private: {name}, {where}line {line}: {kind} {found!r}"

    def _texts(self, content: bytes) -> Iterator[tuple[str, str, list]]:
        """(where, text, what it is searched for) of all in a file."""
        if content[:4] != b"PAR1":
            try:
                yield "", content.decode("utf-8"), self.patterns
            except UnicodeDecodeError:
                yield "bytes, ", content.decode("latin-1"), self.long
            return
        table = safe.table(content, "the table")
        told = [table.schema.metadata, *(column.metadata for column in table.schema)]
        lines = [
            v.decode(errors="replace") for own in told for pair in (own or {}).items() for v in pair
        ]
        yield "schema, ", "\n".join([*map(str, table.schema), *lines]), self.patterns
        for name, kind in zip(table.schema.names, table.schema.types, strict=True):
            if not pa.types.is_primitive(kind):
                values = {*map(str, table[name].to_pylist())}
                yield f"column {name}, ", "\n".join(values), self.patterns


def _unpacked(content: bytes) -> bytes:
    """Of a gzip file. Raises OSError, EOFError, zlib.error, or ValueError for too much of it."""
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
        found = packed.read(MOST_TEXT + 1)
    if len(found) > MOST_TEXT:
        raise ValueError(f"it unpacks to more than {MOST_TEXT} bytes")
    return found


def _is_address(text: str) -> bool:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return False
    if found.version == 6:  # 12:34:56 is a time, a::b may be code
        return len(text) > 6 and any(character.isdigit() for character in text)
    return max(found.packed) > 9  # 7.6.1.1 is a section
