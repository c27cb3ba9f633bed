"""An advice as text for a terminal, or as Markdown: the verdict, then the numbers behind it."""

from collections.abc import Mapping, Sequence

from analysis import labels
from analysis.estimates.intervals import CONFIDENCE_TEXT

Rows = list[list[str]]
METHODS = {"naive": "separate", "mps": "under MPS"}
LEGEND = (
    "STP: work of all jobs, relative to one job alone, in turns with them. Slowdown: of the "
    f"slowest job. In brackets: {CONFIDENCE_TEXT} interval."
)
SHARES = {
    "gract": "GPU busy (GRACT)",
    "smact": "SMs busy (SMACT)",
    "drama": "memory busy (DRAMA)",
}


def terminal(advice: Mapping) -> str:
    """The advice, the content of advice.json, in lines that may be cut between words."""
    parts = [
        advice["verdict"],
        *advice["notes"],
        _asked(advice) + _columns(_rows(advice, narrow=True)),
    ]
    parts += [LEGEND] * bool(advice["measured"])
    parts += [_alone(advice), _columns(_predicted(advice)) + _error(advice)]
    return "\n\n".join(part.rstrip("\n") for part in parts if part)


def markdown(advice: Mapping) -> str:
    """The same with tables of Markdown."""
    parts = [f"**{advice['verdict']}**", *advice["notes"], _asked(advice), _table(_rows(advice))]
    parts += [LEGEND] * bool(advice["measured"])
    parts += [_alone(advice), _table(_predicted(advice)), _error(advice).strip()]
    return "\n\n".join(part.strip() for part in parts if part)


def _asked(advice: Mapping) -> str:
    cores = f"{advice['cores']} CPU core{'s' * (advice['cores'] > 1)} for each job"
    return f"{advice['asked']}\non {advice['card']}, {cores}\n"


def _rows(advice: Mapping, narrow: bool = False) -> Rows:
    """The header, one job alone, and each set that was measured; no column without an entry.

    narrow: for a terminal, where the interval of the slowdown has no room.
    """
    alone, unit = advice["alone"], advice["alone"]["unit"]
    rows = [["", unit, "STP", "slowdown", "GB", f"J/{unit.split('/')[0].removesuffix('s')}"]]
    rate, memory = labels.number(alone["rate"]), _number(alone["memory_gb"])
    rows.append(["one alone", rate, "", "", memory, _number(alone["joules"])])
    if alone["beside_rate"]:
        rows.append(["one, in turns", labels.number(alone["beside_rate"]), *4 * [""]])
    for each in advice["measured"]:
        slowdown = _number(each["slowdown"][0]) if narrow else _span(each["slowdown"])
        numbers = [labels.number(each["rate"][0]), _span(each["stp"]), slowdown]
        numbers += [_number(each["memory_gb"]), _number(each["joules"])]
        rows.append([f"{each['jobs']} {METHODS[each['method']]}", *numbers])
    used = [any(row[column] for row in rows[1:]) for column in range(len(rows[0]))]
    used[0] = True
    return [[cell for cell, shown in zip(row, used, strict=True) if shown] for row in rows]


def _alone(advice: Mapping) -> str:
    alone = advice["alone"]
    busy = [f"{alone[name]:.0%} {words}" for name, words in SHARES.items() if name in alone]
    busy.append(f"{alone['cores']:.1f} CPU cores busy")
    return f"One alone: {', '.join(busy)}."


def _predicted(advice: Mapping) -> Rows:
    """STP by method and number of jobs."""
    predicted = {(each["method"], each["jobs"]): each["stp"] for each in advice["predicted"]}
    counts = sorted({jobs for _, jobs in predicted})
    counts = [n for n in counts if n <= 8 or n == counts[-1]]
    if not predicted:
        return []
    rows = [["predicted STP", *map(str, counts)]]
    for method in dict.fromkeys(method for method, _ in predicted):
        stps = (predicted.get((method, n)) for n in counts)
        rows.append([METHODS[method], *("–" if stp is None else f"{stp:.2f}" for stp in stps)])
    return rows


def _error(advice: Mapping) -> str:
    errors = {each["method"]: each["error"] for each in advice["predicted"]}
    if not errors:
        return ""
    parts = [f"{error:.0%} ({METHODS[method]})" for method, error in errors.items()]
    return f"Nine of ten predictions were off by at most {', '.join(parts)}."


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _span(interval: Sequence[float | None]) -> str:
    """`2.94 [2.62, 3.29]`, or the value alone where no interval is known."""
    value, low, high = interval
    text = labels.number(value)
    return text if None in (low, high) else f"{text} [{labels.number(low)}, {labels.number(high)}]"


def _columns(rows: Rows) -> str:
    """Columns two blanks apart, moved in by two; the first is aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = row
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append(f"  {'  '.join(cells)}".rstrip() + "\n")
    return "".join(lines)


def _table(rows: Rows) -> str:
    if not rows:
        return ""
    header, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *body])
