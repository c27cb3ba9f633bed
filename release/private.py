"""Finds private strings in files: names of machines and users, paths, addresses, tokens.

It searches texts, JSON, CSV and Parquet. GPU UUIDs and random aliases of machines may stay.
"""

import getpass
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from workflow.collocation.study.redaction import HIDDEN, secrets_in

# Names that many machines have are not private.
COMMON = {"localhost", "localhost.localdomain", "root", "user", "vm", "ubuntu", "debian", "host"}
COMMON |= {"/root", "/home"}
PLACES = "home|u|Users|users|root|work|tmp|mnt|media|scratch|var|opt|srv|workspaces?|private|gpfs"
PLACES += "|lustre|lus|data|nfs|export|shared|projects?|storage|beegfs|cluster|afs|net|ceph"
# Each alternative begins with a literal, to which `re` skips quickly.
PATTERNS = {
    "path": rf"/(?<![\w.:/<*-]/)(?:{PLACES})/[\w.@+-]+(?:/[\w.@+-]+)*"
    r"|(?:file|FILE|File):/{1,3}[\w.~%-]\S*|~(?<![\w~/]~)[a-z_][\w-]+(?=/)"
    r"|:(?<=[A-Za-z]:)\\{1,2}Users\\{1,2}[\w.-]+",
    "process of somebody": r"PID \d+ \([^\n]*?, owner (?!root\))[^()\n]*\)"
    r"|\bof user [\w.@-]+(?= may have)",
    "e-mail address": r"@(?<=[\w.+-]@)\w[\w-]*(?:\.[\w-]+)*\.[A-Za-z]{2,}(?![\w.]*\w@)",
    "serial number": r'(?i:"(?:\w*serial_?(?:number|no)|(?:gpu|board|card)_?serial)")',
    "hardware address": r":(?<=[0-9A-Fa-f]{2}:)(?<![\w:]..:)"
    r"[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){4}(?![\w:])",
    "host name": r"(?<![\w./@-])[A-Za-z][\w-]*(?:\.[\w-]+)+\.(?:edu|org|com|net|gov|local|internal"
    r"|lan|be|ca|ch|cn|cz|de|dk|es|eu|fi|fr|it|jp|kr|nl|no|pl|pt|se|uk)(?![\w.(-]*[\w(/])",
    "address": r"(?<![\w.=])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
    r"|(?<![\w:.])[0-9A-Fa-f]{1,4}:[0-9A-Fa-f:]{2,37}[0-9A-Fa-f](?:%\w+)?(?![\w:])",
}
# What the code itself says, on every machine.
HARMLESS = ("/tmp/gpu-collocation-locks", "/tmp/nvidia-mps", "127.0.0.1", "0.0.0.0")


def local_names() -> dict[str, str]:
    """This machine's names and its user's, each with its kind."""
    hosts = (socket.gethostname(), socket.getfqdn())
    names = dict.fromkeys((*hosts, *(name.partition(".")[0] for name in hosts)), "host name")
    users = (os.environ.get(variable, "") for variable in ("USER", "LOGNAME", "SUDO_USER"))
    names |= dict.fromkeys(users, "user name")
    with suppress(KeyError, OSError, RuntimeError):  # a user without a name, or without a home
        names |= {getpass.getuser(): "user name", str(Path.home()): "home folder"}
    return {name: kind for name, kind in names.items() if len(name) > 2 and name not in COMMON}


class Detector:
    """Finds private strings by patterns that hold anywhere, and by names.

    names: kind of each name, such as "host name"; by default those of this machine.
    """

    def __init__(self, names: Mapping[str, str] | None = None):
        if names is None:
            names = local_names()
        self.patterns = [(kind, re.compile(pattern)) for kind, pattern in PATTERNS.items()]
        for name, kind in names.items():
            self.patterns.append((kind, re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")))
        self.kinds = {kind for kind, _ in self.patterns}

    def in_text(self, text: str) -> dict[str, str]:
        """Private strings in a text, each with its kind; secrets have their first kind."""
        strings = {}
        for kind, pattern in self.patterns:
            for match in pattern.finditer(text):
                string = match[0]
                if kind == "address" and not _is_address(string):
                    continue
                if not string.startswith(HARMLESS):
                    strings[string] = kind
        return strings | dict(reversed([*secrets_in(text)]))

    def search(self, folder: Path, names: Iterable[str]) -> Iterator[str]:
        """Sentences on what the files with these names hold; images are left out.

        Of a secret only the beginning is shown.
        """
        for name in names:
            if name.endswith((".png", ".pdf", ".gz")):
                continue
            for string, kind in self.in_text(_text(folder / name)).items():
                if kind in self.kinds:
                    yield f"private: {name}: {kind} {string!r}"
                else:
                    beginning = string[:4] if len(string) > 15 else ""
                    yield f"private: {name}: {kind} {beginning}{HIDDEN}"


def _text(path: Path) -> str:
    """A file's text; of a table its schema and each different text in it."""
    table = None
    if path.suffix == ".parquet":
        table = pq.read_table(path)
    elif path.suffix == ".csv":
        with suppress(pa.ArrowInvalid):
            table = csv.read_csv(path)
    if table is None:
        return path.read_text(encoding="utf-8", errors="replace")
    texts = [table.schema.to_string()]
    for column in table.columns:
        if column.type in (pa.string(), pa.binary()):
            texts += map(str, column.unique().to_pylist())
    return "\n".join(texts)


def _is_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if address.version == 6:  # 12:34:56 is a time, a::b may be code
        return len(text) > 6 and any(character.isdigit() for character in text)
    return max(address.packed) > 9  # 7.6.1.1 is a section
