"""Numbers as tables and sentences spell them; nothing where they are missing."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd


def fixed(value: float | None, digits: int) -> str:
    """So many digits behind the point."""
    return "" if value is None or pd.isna(value) else f"{value:.{digits}f}"


def significant(value: float | None, digits: int = 3) -> str:
    """So many digits in all: 0.00450, 46.2, 462, 4620."""
    if value is None or pd.isna(value):
        return ""
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:#.{digits}g}".rstrip(".")


def percent(value: float | None) -> str:
    """A ratio in whole per cent, without the sign."""
    return fixed(None if value is None else 100 * value, 0)


def number_of(number: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def told(rows: list[dict[str, str]], optional: Collection[str] | None = None) -> list[dict]:
    """Rows without the columns that are empty in all of them; `optional`: only if among these."""
    empty = {
        title
        for title in (rows[0] if rows else {})
        if (optional is None or title in optional) and not any(row[title] for row in rows)
    }
    return [{title: cell for title, cell in row.items() if title not in empty} for row in rows]
