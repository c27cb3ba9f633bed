"""What a person can have got wrong in a file or on the command line, said in one line."""

import difflib
from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]  # of a workload, a method
Positive = Annotated[StrictInt, Field(ge=1)]


def printable(text: str) -> str:
    """Somebody else's words, without what could move a terminal's cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)


class ConfigError(Exception):
    """A mistake in a config file, as one line for the person who wrote it."""

    def __init__(self, message: str):
        middle = message[2000:-900] and " ... "  # left out of what nobody would read
        super().__init__(printable(f"{message[:2000]}{middle}{message[2000:][-900:]}"))


class NotInForce(Exception):
    """The method that a cell is about was not in force; the cell fails with this sentence."""


class Strict(BaseModel):
    """What a file holds: a key that is not known is refused, before anything else."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known(cls, given):
        for key in given if isinstance(given, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(f"{key}: unknown key; {allowed_values(key, cls.model_fields)}")
        return given


def allowed_values(given, known: Iterable[str]) -> str:
    """What may stand there instead, and what was probably meant."""
    return f"allowed: {', '.join(known)}{suggestion(given, known)}"


def suggestion(given, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(given), list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def not_allowed(where: str, given, known: Iterable[str]) -> str:
    """One line: the key, what stands there, what may, and what was probably meant."""
    return f"{where}: '{given}' is not allowed; {allowed_values(given, known)}"
