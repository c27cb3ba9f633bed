"""Secrets in texts and command lines: where they are, and the text without them.

Most forms of tokens are known to detect-secrets. Here are the forms that it lacks or knows too
narrowly, and whatever follows a name that speaks of a secret.
"""

import os
import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path

HIDDEN = "***"
open_for_owner = partial(os.open, mode=0o600)  # opens files that hold a command line
# Tokens by their beginnings, beside those that detect-secrets finds.
TOKENS = (
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|nvapi-[\w-]{20,}"
    r"|gl(?:pat|dt|ft|rt|cbt|ptt|soat|imt|agent|oas|wt)-[\w.-]{20,}"
    r"|hf_[A-Za-z0-9]{20,}|api_org_[A-Za-z0-9]{20,}|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}"
    r"|AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|pypi-\w{16}[\w-]*|npm_[A-Za-z0-9]{20,}"
    r"|sk-(?:\w{20}|(?=[\w-]*\d)[\w-]{20})[\w-]*|[rs]k_(?:live|test)_\w{16,}|gsk_[A-Za-z0-9]{20,}"
    r"|r8_[A-Za-z0-9]{20,}|wandb_v\d_\w{20,}|dckr_pat_[\w-]{20,}|dapi[0-9a-f]{32}|hvs\.[\w-]{20,}"
    r"|A(?:KIA|SIA|BIA|CCA)[0-9A-Z]{16}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)?"
)


def _spelled(*words: str) -> str:
    """In the three ways in which names are written; `re` skips to such literals quickly."""
    return "|".join(form for word in words for form in (word, word.upper(), word.title()))


# At the end of a name: its value is a secret.
KEY_OF = _spelled(
    *("api", "access", "account", "auth", "client", "deploy", "encryption", "license", "master"),
    *("private", "secret", "service", "signing", "storage"),
)
NAME = (
    rf"(?:(?:{_spelled('password', 'passwd', 'passphrase', 'passcode', 'secret', 'credential')})"
    rf"(?:s|S)?|{_spelled('token')}|(?:pwd|PWD)(?<!OLDPWD)|(?:{KEY_OF})[-_.]?(?:key|KEY|Key)"
    r"|KEY|(?:pass|PASS|auth|AUTH)(?<![A-Za-z]....)|(?:pw|PW)(?<![A-Za-z]..))"
)
# What stands for a value: ***, $NAME, {name}, <name>, %s, true, TOKEN, page.token.
PLACEHOLDER = (
    r"(?:\*\*\*|\$\{?[A-Z_][A-Z0-9_]*\}?(?!\w)|\{[\w.]*\}|<[^<>\s]*>|%s|%\("
    r"|(?i:true|false|none|null|yes|no)\b|(?:[A-Z]+_)*(?:PASSWORD|TOKEN|SECRET|KEY|VALUE)\b"
    r"|\w[\w.]*\.(?:password|token|secret|key)\b)"
)
VALUE = rf"(?!\\?[\"']?{PLACEHOLDER})"
VALUE += r"(\"[^\"]+\"|'[^']+'|\\\"[^\"]+\"|[^\s\"';&|<>()]+)"
RANDOM = r"((?=[^\s\"']*\d)(?=[^\s\"']*[A-Za-z])[\w+/=.~-]{16,})"
NEXT = r"(?:=(?!=)|(?:\s+|\\?[\"']\s*,\s*\\?[\"'])(?!-))"  # to its value, in a list of JSON too
# Kind → pattern; the last group that matched is the secret, or else all of it.
PATTERNS = {
    "token": rf"\b(?:{TOKENS})",
    "private key": r"(?s:-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----"
    r"(?:.*?-----END [A-Z0-9 ]*-----|.*))",
    # Not a port before a path with an @.
    "password in a URL": r"://[^\s/?#\"'<>:@]*:(?!\d{1,5}[/?#])"
    rf"(?!{PLACEHOLDER}@)([^\s\"'<>]+)@(?=[\w\[{{.-])",
    "token in a URL": r"://([\w.~%-]{20,})@",
    "value of an option": rf"-(?<!\w-)[\w.-]{{0,60}}?{NAME}{NEXT}{VALUE}",
    "value of a key": rf"-(?<!\w-)(?:[\w.-]{{0,60}}[-_.])?key{NEXT}{RANDOM}",
    "value of a name": rf"{NAME}(?:=(?!=){VALUE}"
    r"|\\?[\"']?\s{0,3}[=:]\s{0,3}\\?[\"'](?!\*\*\*)([^\"'\s\\]{4,})\\?[\"'])",
    "login": r"(?:-u|--user|--proxy-user)(?:=|\s+|[\"']\s*,\s*[\"'])[\"']?"
    rf"[A-Za-z][^\s:\"']*:(?!{PLACEHOLDER})([^\s\"']+)",
    "W&B key": r"(?:wandb|WANDB|W&B)[^\n]{0,80}?(?<![\w@/])([0-9a-f]{40})(?!\w)",
    "value of a header": r"(?:[Aa]uthorization|AUTHORIZATION|[Xx]-[\w-]{0,20}(?:[Kk]ey|[Tt]oken)"
    r"|(?:PRIVATE|JOB|Private|Job|private|job)-(?:TOKEN|[Tt]oken))"
    rf"\\?[\"']?\s*[=:]\s*\\?[\"']?+(?:(?i:basic|bearer|token)\s+)?+"
    rf"(?!{PLACEHOLDER})([\w+/.~-]{{6,}}=*)",
    "authorization": r"\b(?:Basic|Bearer|basic|bearer|BASIC|BEARER)\s+"
    r"(?=\S*(?:\d|=|[a-z][A-Z]))([\w+/.~-]{8,}=*)",
}
# Small letters of which each match of a kind has some: they are looked for first, it is faster.
NEEDED = {
    "value of a name": ["passw", "passp", "passc", "secret", "credential", "token", "pwd", "apikey"]
    + [f"{word}{end}" for word in ("pass", "auth", "pw", "key") for end in "=\\\"':"]
    + [f"{joint}key" for joint in "-_."],
    "value of a header": ["authorization", "x-", "private-token", "job-token"],
    "authorization": ["basic", "bearer"],
}
LONG = re.compile(r"[\w-]{20}|PRIVATE KEY|hooks.slack")  # what detect-secrets may know
# Kinds of detect-secrets that are told by randomness, as digests are, or by a short name; and URLs,
# where it takes {name} for a password.
VAGUE = ("Base64", "Hex", "Public IP", "Secret Keyword", "Cloudant", "IBM", "SoftLayer", "Basic")
_NAMED, _OPTION = re.compile(rf"[\w.+-]*?{NAME}"), re.compile(rf"-[\w.-]*?{NAME}")
_PLACEHOLDER, _NO_VALUE = re.compile(PLACEHOLDER), re.compile(rf"{PLACEHOLDER}|-.*", re.DOTALL)
_OURS = {kind: re.compile(pattern) for kind, pattern in PATTERNS.items()}


def secrets_in(text: str) -> Iterator[tuple[str, str]]:
    """Each secret with its kind."""
    for kind, pattern in _patterns(text):
        yield from ((one[one.lastindex or 0], kind) for one in pattern.finditer(text))


def redacted(text: str) -> str:
    """The text with *** in place of each secret."""
    for _, pattern in _patterns(text):
        text = pattern.sub(_masked, text)
    return text


def redacted_words(words: Sequence[str]) -> list[str]:
    """The same of a command. A word that is an option's value is hidden whatever is in it."""
    shown: list[str] = []
    for word in words:
        name, _, value = word.partition("=")
        before = "".join(f"{word} " for word in shown[-3:])  # an option and its value are near
        in_shell = "".join(shown[-1:]) == "-c"
        if value and not in_shell and _NAMED.fullmatch(name) and not _PLACEHOLDER.fullmatch(value):
            shown.append(f"{name}={HIDDEN}")
        elif _OPTION.fullmatch("".join(shown[-1:])) and not _NO_VALUE.fullmatch(word):
            shown.append(HIDDEN)
        else:
            shown.append(redacted(before + word).removeprefix(before))
    return shown


def write_private(path: Path, text: str) -> None:
    """Write a file that holds a command line: all of it or nothing, for its owner alone."""
    partly = path.with_name(f".{path.name}.{os.getpid()}")
    with open(partly, "w", encoding="utf-8", opener=open_for_owner) as file:
        file.write(text)
    partly.replace(path)


def _patterns(text: str) -> Iterator[tuple[str, re.Pattern]]:
    """Those that may match in a text, with their kinds."""
    lowered = text.lower()
    for kind, pattern in _OURS.items():
        if kind not in NEEDED or any(part in lowered for part in NEEDED[kind]):
            yield kind, pattern
    if LONG.search(text):
        yield from _of_detect_secrets()


@cache
def _of_detect_secrets() -> list[tuple[str, re.Pattern]]:
    """Its kinds and patterns, imported when a text may need them: it takes half a second."""
    from detect_secrets.core.plugins import util  # noqa: PLC0415

    plugins = util.get_mapping_from_secret_type_to_class().items()
    return [
        (kind, re.compile(f"({pattern.pattern})", pattern.flags))  # all of it is the secret
        for kind, plugin in plugins
        if not kind.startswith(VAGUE)
        for pattern in plugin.denylist
    ]


def _masked(match: re.Match) -> str:
    whole, (start, end) = match.start(), match.span(match.lastindex or 0)
    return match[0][: start - whole] + HIDDEN + match[0][end - whole :]
