"""The commands of a sweep: from one command with {n} in it, or from a file with a line for each."""

import re
import shlex
import shutil
from pathlib import Path

# Of a shell: where words begin so, unless they are quoted.
SHELL = re.compile(r"(?<!\S)(#|(?:&&|\|\||>>|[|;&<>])(?!\S))")
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{n\}|[{}]")


def numbered(words: list[str], count: int) -> list[list[str]]:
    """The commands of `count` runs: `{n}` is a run's number from 0, `{{` and `}}` are braces.

    Raises ValueError for any other brace.
    """
    return [[_fill(word, number) for word in words] for number in range(count)]


def _fill(word: str, number: int) -> str:
    def replacement(match: re.Match) -> str:
        if match[0] in "{}":
            raise ValueError(f"{word}: {{n}} is the run's number; write {{{{ and }}}} for braces")
        return str(number) if match[0] == "{n}" else match[0][0]

    return PLACEHOLDER.sub(replacement, word)


def listed(path: Path) -> list[list[str]]:
    """The commands of a file: one a line, quoted as in a shell; `#` begins a comment.

    Raises ValueError with the line's number, and OSError.
    """
    commands = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            words = _words(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        commands += [words] if words else []
    if not commands:
        raise ValueError(f"{path}: no command in it")
    return commands


def _words(line: str) -> list[str]:
    """The words before a comment. Raises ValueError for an operator of a shell among them."""
    for sign in SHELL.finditer(line):
        try:
            words = shlex.split(line[: sign.start()])
        except ValueError:  # within quotes
            continue
        if sign[0] == "#":
            return words
        raise ValueError(f"'{sign[0]}' is for a shell; write bash -c '…'")
    return shlex.split(line)


def missing_program(commands: list[list[str]]) -> str:
    """A sentence on the first program that is not there; empty if all are.

    Programs are looked up as a shell in the working directory does.
    """
    for program in dict.fromkeys(words[0] for words in commands):
        if shutil.which(program) is None:
            return f"'{program}' is no program on PATH; for a line of shell, write bash -c '…'"
    return ""
