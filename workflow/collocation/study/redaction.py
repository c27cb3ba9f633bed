"""Finds secrets in texts and command lines, and hides them.

Most forms of tokens come from the package detect-secrets. This module adds forms that it lacks or
matches too narrowly, and every value after a name such as `password`.
"""

import os
import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path

from workflow.collocation.study.regular_files import write_whole

HIDDEN = "***"
open_for_owner = partial(os.open, mode=0o600)  # an opener of files that hold a command line
# Tokens by their prefixes, in addition to those that detect-secrets finds.
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
    """A pattern of the words in lower, upper and title case, faster than ignoring case."""
    return "|".join(form for word in words for form in (word, word.upper(), word.title()))


# Words before `key` that make a name's value a secret.
KEY_OWNERS = _spelled(
    *("api", "access", "account", "auth", "client", "deploy", "encryption", "license", "master"),
    *("private", "secret", "service", "signing", "storage"),
)
NAME = (
    rf"(?:(?:{_spelled('password', 'passwd', 'passphrase', 'passcode', 'secret', 'credential')})"
    rf"(?:s|S)?|{_spelled('token')}|(?:pwd|PWD)(?<!OLDPWD)|(?:{KEY_OWNERS})[-_.]?(?:key|KEY|Key)"
    r"|KEY|(?:pass|PASS|auth|AUTH)(?<![A-Za-z]....)|(?:pw|PW)(?<![A-Za-z]..))"
)
# Placeholders, which are no secrets: ***, $NAME, {name}, <name>, %s, true, TOKEN, page.token.
PLACEHOLDER = (
    r"(?:\*\*\*|\$\{?[A-Z_][A-Z0-9_]*\}?(?!\w)|\{[\w.]*\}|<[^<>\s]*>|%s|%\("
    r"|(?i:true|false|none|null|yes|no)\b|(?:[A-Z]+_)*(?:PASSWORD|TOKEN|SECRET|KEY|VALUE)\b"
    r"|\w[\w.]*\.(?:password|token|secret|key)\b)"
)
VALUE = rf"(?!\\?[\"']?{PLACEHOLDER})"
VALUE += r"(\"[^\"]+\"|'[^']+'|\\\"[^\"]+\"|[^\s\"';&|<>()]+)"
RANDOM = r"((?=[^\s\"']*\d)(?=[^\s\"']*[A-Za-z])[\w+/=.~-]{16,})"
NEXT = r"(?:=(?!=)|(?:\s+|\\?[\"']\s*,\s*\\?[\"'])(?!-))"  # to its value, also in JSON
# Kind → pattern. The last group that matched is the secret; without groups the whole match is.
PATTERNS = {
    "token": rf"\b(?:{TOKENS})",
    "private key": r"(?s:-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----"
    r"(?:.*?-----END [A-Z0-9 ]*-----|.*))",
    # The digits exclude a port before a path with an @.
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
# Kind → lower-case texts, of which every match has one. Looking for them first is faster.
HINTS = {
    "value of a name": ["passw", "passp", "passc", "secret", "credential", "token", "pwd", "apikey"]
    + [f"{word}{end}" for word in ("pass", "auth", "pw", "key") for end in "=\\\"':"]
    + [f"{joint}key" for joint in "-_."],
    "value of a header": ["authorization", "x-", "private-token", "job-token"],
    "authorization": ["basic", "bearer"],
}
# Only such texts go to detect-secrets.
MAY_HOLD_SECRET = re.compile(r"[\w-]{20}|PRIVATE KEY|hooks.slack")
# Kinds of detect-secrets with false alarms: they match digests, short names, or {name} in a URL.
FALSE_ALARMS = ("Base64", "Hex", "Public IP", "Secret Keyword", "Cloudant", "IBM", "SoftLayer")
FALSE_ALARMS += ("Basic",)
_NAME = re.compile(rf"[\w.+-]*?{NAME}")
_OPTION = re.compile(rf"-[\w.-]*?{NAME}")
_PLACEHOLDER = re.compile(PLACEHOLDER)
_NO_VALUE = re.compile(rf"{PLACEHOLDER}|-.*", re.DOTALL)
_PATTERNS = {kind: re.compile(pattern) for kind, pattern in PATTERNS.items()}


def secrets_in(text: str) -> Iterator[tuple[str, str]]:
    """Yields each secret in a text, and its kind."""
    for kind, pattern in _patterns_for(text):
        for match in pattern.finditer(text):
            yield match[match.lastindex or 0], kind


def redacted(text: str) -> str:
    """The text with *** in place of each secret."""
    for _, pattern in _patterns_for(text):
        text = pattern.sub(_masked, text)
    return text


def redacted_words(words: Sequence[str]) -> list[str]:
    """The words of a command with *** in place of each secret.

    The value of an option that is named after a secret is hidden whatever it looks like.
    """
    safe_words: list[str] = []
    for word in words:
        name, _, value = word.partition("=")
        previous = safe_words[-1] if safe_words else ""
        is_secret = value and _NAME.fullmatch(name) and not _PLACEHOLDER.fullmatch(value)
        if is_secret and previous != "-c":  # the word after -c is a script
            safe_words.append(f"{name}={HIDDEN}")
        elif _OPTION.fullmatch(previous) and not _NO_VALUE.fullmatch(word):
            safe_words.append(HIDDEN)
        else:
            # Patterns may need the option before a value.
            context = "".join(f"{earlier} " for earlier in safe_words[-3:])
            safe_words.append(redacted(context + word).removeprefix(context))
    return safe_words


def write_private(path: Path, text: str, durable: bool = False) -> None:
    """Write a file whole or not at all, readable by its owner alone: it may hold a command line.

    durable: wait until the disk has it.
    """
    write_whole(path, text, open_for_owner, durable)


def _patterns_for(text: str) -> Iterator[tuple[str, re.Pattern]]:
    """Yields the kinds and patterns that may match in a text."""
    lowered = text.lower()
    for kind, pattern in _PATTERNS.items():
        if kind not in HINTS or any(hint in lowered for hint in HINTS[kind]):
            yield kind, pattern
    if MAY_HOLD_SECRET.search(text):
        yield from _detect_secrets_patterns()


@cache
def _detect_secrets_patterns() -> list[tuple[str, re.Pattern]]:
    """Kinds and patterns of detect-secrets, imported late because that takes half a second."""
    from detect_secrets.core.plugins import util  # noqa: PLC0415

    plugins = util.get_mapping_from_secret_type_to_class().items()
    return [
        (kind, re.compile(f"({pattern.pattern})", pattern.flags))  # the whole match is the secret
        for kind, plugin in plugins
        if not kind.startswith(FALSE_ALARMS)
        for pattern in plugin.denylist
    ]


def _masked(match: re.Match) -> str:
    whole, (start, end) = match.start(), match.span(match.lastindex or 0)
    return match[0][: start - whole] + HIDDEN + match[0][end - whole :]
