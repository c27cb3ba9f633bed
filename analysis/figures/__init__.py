"""Figures, one module each: `draw(study, arm) -> (figure, drawn data)`, a TITLE and a CAPTION.

CATEGORIES has them in the order of the report. Those in OVER_ARMS compare arms, or know none, and
are drawn once; of the arms other than the first only those in EVERY_ARM are drawn.
"""

CATEGORIES = {
    "Throughput": ("epoch_time", "throughput_gain", "slowdown_map", "latency", "arms"),
    "Mixes": ("mixes", "scaling"),
    "GPU": ("activity", "memory", "energy", "decomposition", "timeline", "mig_layouts"),
    "The paper": ("reported_against_measured",),
}
NAMES = tuple(name for names in CATEGORIES.values() for name in names)
OVER_ARMS = ("arms", "mig_layouts")
EVERY_ARM = ("epoch_time", "throughput_gain", "activity")


def stems(arms: list[str]) -> list[tuple[str, str | None]]:
    """(figure, arm) of all that is drawn of a study with these arms; None: one over all arms.

    The first arm, which gets all figures, is `faithful` where there is one.
    """
    order = sorted(arms, key=lambda arm: (arm != "faithful", arm))
    found: list[tuple[str, str | None]] = [(name, None) for name in NAMES if name in OVER_ARMS]
    for arm in order:
        names = NAMES if arm == order[0] else EVERY_ARM
        found += [(name, arm) for name in names if name not in OVER_ARMS]
    return found


def stem(name: str, arm: str | None) -> str:
    """The file's name without its ending."""
    return name if arm is None else f"{name}_{arm}"
