"""answers.md: a line for each job, what was predicted, and how often intervals held the truth."""

from collections.abc import Mapping, Sequence
from statistics import median

from analysis import labels

COMPARED = ["stated", "true", "ratio", "holds"]  # columns of a comparison
ANSWERS = ["job", "set", *(f"{name} steps/s" for name in COMPARED)]
ANSWERS += [f"{name} STP" for name in COMPARED] + [f"{name} alone" for name in COMPARED]
ANSWERS += ["of best", "wall s", "counted", "verdict"]
PAIRS = ["pair", "method", "job", *(f"{name} steps/s" for name in COMPARED)]
PREDICTIONS = ["job", "set", *(f"{name} STP" for name in COMPARED), "predicted from"]
LEGEND = "Ratio: stated over true. Holds: whether the stated interval holds the true value."


def markdown(answers: Mapping[str, Mapping]) -> str:
    """The content of answers.json as tables; answers: by the name of the job."""
    cards = {answer["advice"]["card"] for answer in answers.values() if "advice" in answer}
    parts = [f"{', '.join(sorted(cards))}. {LEGEND}"]
    parts.append(
        labels.markdown_table([ANSWERS, *(_answer_row(*each) for each in answers.items())])
    )
    predictions = [
        [name, _set_name(score), *_cells(score), "a set" if score["rescaled"] else "one alone"]
        for name, answer in answers.items()
        for score in answer.get("predictions", [])
    ]
    if predictions:
        parts.append(labels.markdown_table([PREDICTIONS, *predictions]))
    pairs = [
        [pair, score["method"], name, *_cells(score)]
        for pair, answer in answers.items()
        for name, score in zip(pair.split("+"), answer.get("pair", []), strict=False)
    ]
    if pairs:
        parts.append(labels.markdown_table([PAIRS, *pairs]))
    sets = [answer["set"] for answer in answers.values() if "set" in answer]
    compared = {
        "steps/s of sets": [each["rate"] for each in sets],
        "STP of sets": [each["stp"] for each in sets],
        "steps/s alone": [answer["lone"] for answer in answers.values() if "lone" in answer],
    }
    parts.append("\n".join(f"- {name}: {_summary(each)}" for name, each in compared.items()))
    return "\n\n".join(parts) + "\n"


def _answer_row(name: str, answer: Mapping) -> list[str]:
    """Cells of a job; what was not measured is empty, and failures stand beside the verdict."""
    advice, of_set = answer.get("advice"), answer.get("set")
    row = [name, _set_name(of_set) if of_set else ""]
    for comparison in (of_set and of_set["rate"], of_set and of_set["stp"], answer.get("lone")):
        row += _cells(comparison) if comparison else [""] * len(COMPARED)
    share = answer.get("share_of_best")
    row.append("" if share is None else f"{share:.2f}")
    if advice:
        seconds = advice["seconds"]
        row += [f"{answer['wall_s']:.0f}", f"{seconds['counted'] / seconds['wall']:.0%}"]
    else:
        row += ["", ""]
    verdict = [advice["verdict"]] if advice else []
    verdict += [f"FAILED: {problem}" for problem in answer["problems"]]
    return [*row, " ".join(verdict).replace("|", "/")]


def _set_name(job_set: Mapping) -> str:
    unadvised = "" if job_set.get("advised", True) else ", not advised"
    return f"{job_set['jobs']}x{job_set['method']}{unadvised}"


def _cells(comparison: Mapping) -> list[str]:
    value, low, high = comparison["stated"]
    interval = "" if low is None else f" [{low:.3g}, {high:.3g}]"
    stated = "unknown" if value is None else f"{value:.3g}{interval}"
    ratio, holds = comparison["ratio"], comparison["holds"]
    return [
        stated,
        f"{comparison['true']:.3g}",
        "" if ratio is None else f"{ratio:.3f}",
        {True: "yes", False: "no", None: ""}[holds],
    ]


def _summary(comparisons: Sequence[Mapping]) -> str:
    """How many intervals hold the truth, and how far the stated values are off."""
    ratios = [each["ratio"] for each in comparisons if each["ratio"] is not None]
    if not ratios:
        return "none"
    known = [each["holds"] for each in comparisons if each["holds"] is not None]
    spread = f"median {median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
    return f"{sum(known)} of {len(known)} intervals hold the truth; ratio {spread}"
