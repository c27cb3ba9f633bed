"""Advice on one job for a reader, as text for a terminal or as Markdown: first the verdict."""

from collections.abc import Callable, Mapping, Sequence

from analysis import labels
from analysis.estimates.intervals import CONFIDENCE_TEXT

Rows = list[list[str]]
METHODS = {"naive": "separate", "mps": "under MPS"}
MOST_PREDICTED = 8  # columns of predictions; of more jobs only the largest number is shown
LEGEND = (
    "STP: work of all jobs, relative to one job alone. Slowdown: of the slowest job. In brackets: "
    f"{CONFIDENCE_TEXT} interval."
)
SHARES = {"gract": "GPU busy (GRACT)", "smact": "SMs busy (SMACT)", "drama": "memory busy (DRAMA)"}


def terminal(advice: Mapping) -> str:
    """Advice, the content of advice.json, as lines that a terminal may wrap between words."""
    if "together" in advice:
        return _pair(advice, _columns)
    measured = _columns(_measured(advice, with_all_intervals=False))
    parts = [advice["verdict"], *advice["notes"], f"{_question(advice)}\n{measured}"]
    if advice["measured"]:
        parts.append(LEGEND)
    parts += [_alone(advice), _columns(_predicted(advice)) + _prediction_error(advice)]
    return "\n\n".join(part.rstrip("\n") for part in parts if part)


def markdown(advice: Mapping) -> str:
    """Advice, the content of advice.json, as Markdown with tables."""
    if "together" in advice:
        return _pair(advice, labels.markdown_table)
    parts = [f"**{advice['verdict']}**", *advice["notes"], _question(advice)]
    parts.append(labels.markdown_table(_measured(advice, with_all_intervals=True)))
    if advice["measured"]:
        parts.append(LEGEND)
    parts += [_alone(advice), labels.markdown_table(_predicted(advice)), _prediction_error(advice)]
    return "\n\n".join(part for part in parts if part)


def _pair(advice: Mapping, table: Callable[[Rows], str]) -> str:
    """Advice on two jobs. table: shows rows."""
    jobs = [f"{number} {command}" for number, command in enumerate(advice["asked"], 1)]
    rows = [["", "alone", *(METHODS[each["method"]] for each in advice["together"])]]
    for number, alone in enumerate(advice["alone"]):
        counted = f", steps of {alone['optimizer']}" if alone["optimizer"] else ""
        jobs[number] += counted
        slowed = [labels.interval(*each["slowdowns"][number]) for each in advice["together"]]
        rows.append([str(number + 1), f"{_value(alone['rate'])} {alone['unit']}", *slowed])
    rows.append(["STP", "", *(labels.interval(*each["stp"]) for each in advice["together"])])
    question = "\n".join([*jobs, _where(advice)])
    parts = [advice["verdict"], *advice["notes"], question, table(rows)]
    if advice["together"]:
        legend = (
            "Of each job: how many times as long as alone it takes. STP: work of both, relative "
        )
        parts.append(f"{legend}to one at a time. In brackets: {CONFIDENCE_TEXT} interval.")
    return "\n\n".join(part.rstrip("\n") for part in parts if part)


def _question(advice: Mapping) -> str:
    return f"{advice['asked']}\n{_where(advice)}"


def _where(advice: Mapping) -> str:
    plural = "s" if advice["cores"] > 1 else ""
    question = f"on {advice['card']}, {advice['cores']} CPU core{plural} for each job"
    if seconds := advice["seconds"]:
        question += f"; counted {seconds['counted']:.0f} of {seconds['wall']:.0f} s"
    return question


def _measured(advice: Mapping, with_all_intervals: bool) -> Rows:
    """A header, the job alone, and each measured set; columns without an entry are left out."""
    alone = advice["alone"]
    unit = alone["unit"]
    rows = [["", unit, "STP", "slowdown", "GB", f"J/{unit.split('/')[0].removesuffix('s')}"]]
    costs = [_number(alone["memory_gb"]), _number(alone["joules"])]

    def value(numbers: Sequence[float | None]) -> str:
        return labels.interval(*numbers) if with_all_intervals else _value(numbers)

    rows.append(["one alone", value(alone["interval"]), "", "", *costs])
    if alone["beside_rate"]:
        rows.append(["one, in turns", labels.number(alone["beside_rate"]), "", "", "", ""])
    for measured in advice["measured"]:
        rows.append(
            [
                f"{measured['jobs']} {METHODS[measured['method']]}",
                value(measured["rate"]),
                labels.interval(*measured["stp"]),
                value(measured["slowdown"]),
                _number(measured["memory_gb"]),
                _number(measured["joules"]),
            ]
        )
    _, *bodies = zip(*rows[1:], strict=True)
    used = [0, *(column for column, cells in enumerate(bodies, 1) if any(cells))]
    return [[row[column] for column in used] for row in rows]


def _alone(advice: Mapping) -> str:
    alone = advice["alone"]
    busy = [f"{alone[name]:.0%} {title}" for name, title in SHARES.items() if name in alone]
    busy.append(f"{alone['cores']:.1f} CPU cores busy")
    counted = f" (steps of {alone['optimizer']})" if alone["optimizer"] else ""
    return f"One alone{counted}: {', '.join(busy)}."


def _predicted(advice: Mapping) -> Rows:
    """Predicted STP: a row for each method, a column for each number of jobs."""
    stps: dict[str, dict[int, float]] = {}  # method → number of jobs → STP
    for predicted in advice["predicted"]:
        stps.setdefault(predicted["method"], {})[predicted["jobs"]] = predicted["stp"]
    if not stps:
        return []
    counts = sorted(set().union(*stps.values()))
    counts = [n for n in counts if n <= MOST_PREDICTED or n == counts[-1]]
    rows = [["predicted STP", *map(str, counts)]]
    for method, by_count in stps.items():
        cells = [f"{by_count[n]:.2f}" if n in by_count else "–" for n in counts]
        rows.append([METHODS[method], *cells])
    return rows


def _prediction_error(advice: Mapping) -> str:
    errors = {predicted["method"]: predicted["error"] for predicted in advice["predicted"]}
    if not errors:
        return ""
    parts = [f"{error:.0%} ({METHODS[method]})" for method, error in errors.items()]
    text = f"Nine of ten predictions were off by at most {', '.join(parts)}."
    corrected = {p["method"] for p in advice["predicted"] if p.get("rescaled")}
    if corrected:
        names = " and ".join(METHODS[method] for method in METHODS if method in corrected)
        text += f" Those {names} are corrected by the set that was measured."
    return text


def _number(number: float | None) -> str:
    return "" if number is None else f"{number:.3g}"


def _value(interval: Sequence[float | None]) -> str:
    """`2.94` of `[2.94, 2.62, 3.29]`; a dash for a number that is not known."""
    return labels.number(interval[0])


def _columns(rows: Rows) -> str:
    """Columns for a terminal, indented; the first is aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = ""
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        text += f"  {'  '.join(cells)}".rstrip() + "\n"
    return text
