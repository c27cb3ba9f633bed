"""Several cards in one machine: one driver.Library each, told apart by a handle's upper bits.

COLLOCATION_FAKE_NVML then names several folders, as PATH does. Assumed of the real thing: an index
counts along the bus, and a card knows nothing of its neighbours. MIG is for the first card alone:
handles that a call gives back, but for the two that find a card, do not say whose they are.
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

from tests.fakes.driver import INVALID, NOT_FOUND, SUCCESS, Card, Library, number, put, target

CARD_BIT = 48  # beyond the addresses of this process, so a pointer to anything else has none


def folders(environment: Mapping[str, str]) -> list[Path]:
    return [Path(each) for each in environment["COLLOCATION_FAKE_NVML"].split(os.pathsep)]


def card_of(environment: Mapping[str, str]) -> tuple[Path, Mapping[str, str]]:
    """The folder of the card that CUDA would choose, and the environment with that one alone."""
    there = folders(environment)
    wanted = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    for index, folder in enumerate(there if there[1:] else ()):
        uuid = Card(folder).peek()["uuid"]
        if wanted == str(index) or wanted and uuid.startswith(wanted):
            return folder, {**environment, "CUDA_VISIBLE_DEVICES": uuid}
    return there[0], environment


def library(environment: Mapping[str, str]):
    found = [Library(folder) for folder in folders(environment)]
    return Host(found) if found[1:] else found[0]


class Host:
    """Calls the library of the card that a call is about."""

    def __init__(self, cards: list[Library]):
        self._cards = cards
        for each in cards:
            each.samples = cards[0].samples
        self._whose: dict[int, int] = {}  # address of a sample → the card it was taken of

    def __getattr__(self, name: str):
        plain = name.removesuffix("_v2").removesuffix("_v3").removesuffix("V")

        def call(*arguments):
            if plain == "nvmlDeviceGetCount":
                put(arguments[0], len(self._cards))
                return SUCCESS
            if plain == "nvmlDeviceGetHandleByIndex":
                index, device = number(arguments[0]), arguments[1]
                return self._find([index], name, ctypes.c_uint(0), device)
            if plain == "nvmlDeviceGetHandleByUUID":
                return self._find(range(len(self._cards)), name, *arguments)
            if plain == "nvmlGpmMetricsGet":
                card = self._whose[_address(target(arguments[0]).sample2)]
            else:
                card, arguments = _whose(arguments)
            if plain == "nvmlGpmSampleGet":
                self._whose[_address(arguments[1])] = card
            return getattr(self._cards[card], name)(*arguments)

        return call

    def _find(self, cards, name: str, wanted, device) -> int:
        code = INVALID
        for card in cards:
            if card >= len(self._cards):
                return INVALID
            code = getattr(self._cards[card], name)(wanted, device)
            if code == SUCCESS:
                address = ctypes.addressof(target(device))
                ctypes.c_uint64.from_address(address).value |= card << CARD_BIT
                return code
            if code != NOT_FOUND:
                return code
        return code


def _whose(arguments: tuple) -> tuple[int, tuple]:
    """The card that a call's first argument is a handle of, the first one if it is none, and the
    arguments without that mark.
    """
    first = next(iter(arguments), None)
    if not isinstance(first, ctypes._Pointer):
        return 0, arguments
    value = _address(first)
    bare = ctypes.cast(ctypes.c_void_p(value & (1 << CARD_BIT) - 1), type(first))
    return value >> CARD_BIT, (bare, *arguments[1:])


def _address(pointer) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0
