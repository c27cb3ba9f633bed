"""Errors that a person can cause, each as one line, and the base of all models of files."""

import difflib
from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]  # of a workload, a method
Positive = Annotated[StrictInt, Field(ge=1)]


def printable(text: str) -> str:
    """The text with ? in place of what could move a terminal's cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)


class ConfigError(Exception):
    """A mistake in a config file or on the command line, in one line of limited length."""

    def __init__(self, message: str):
        middle = message[2000:-900] and " ... "
        super().__init__(printable(f"{message[:2000]}{middle}{message[2000:][-900:]}"))


class NotInForce(Exception):
    """The method that a cell is about was not in force; the cell fails with this sentence."""


class Strict(BaseModel):
    """A model that refuses unknown keys, and names the keys that it knows."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, content):
        for key in content if isinstance(content, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(f"{key}: unknown key; {allowed_values(key, cls.model_fields)}")
        return content


def allowed_values(value, allowed: Iterable[str]) -> str:
    """'allowed: a, b', and which of them was probably meant."""
    return f"allowed: {', '.join(allowed)}{suggestion(value, allowed)}"


def suggestion(value, allowed: Iterable[str]) -> str:
    """'; did you mean ...?' with the closest of the allowed values; empty if none is close."""
    close = difflib.get_close_matches(str(value), list(allowed), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def not_allowed(key: str, value, allowed: Iterable[str]) -> str:
    """The message for a value that is not among the allowed ones."""
    return f"{key}: '{value}' is not allowed; {allowed_values(value, allowed)}"
