"""Where a cell that failed says why: the log, the line of it, and the line of code it names."""

import os
import re
import sysconfig
from pathlib import Path

from workflow.collocation import ROOT

FRAME = re.compile(r'^ *File "(.+)", line (\d+),? in (.+)$')
# How a stack begins in a log: Python's own, the last call last, and faulthandler's, of a hang.
STACKS = ("Traceback (most recent call last)", "Current thread ")
ELSEWHERE = ("site-packages", "dist-packages", "<frozen", sysconfig.get_paths()["stdlib"])


def trail(folder: Path, reason: str) -> str:
    """'log: FILE, line N; at FILE, line N, in NAME', as far as it can be known.

    folder: of the attempt. reason: its record's, which names the member that decided.
    """
    member = re.search(r"\bmember (\d+)\b", reason)
    logs = [folder / "log" / f"member{member[1]}.log"] if member else []
    logs += [folder / "log" / "conductor.log"]
    log = next((path for path in logs if path.exists() and path.stat().st_size), logs[0])
    try:
        number, frame = _read(log.read_text(errors="replace").splitlines())
    except OSError:
        number, frame = 0, None
    said = f"log: {log}, line {number}" if number else f"log: {log}, which is empty"
    return f"{said}; at {_near(frame[1])}, line {frame[2]}, in {frame[3]}" if frame else said


def _read(lines: list[str]) -> tuple[int, re.Match | None]:
    """The number of the line that says what went wrong, and the frame that it happened in."""
    starts = [i for i, line in enumerate(lines) if line.startswith(STACKS)]
    if not starts:
        return max((i for i, line in enumerate(lines, 1) if line.strip()), default=0), None
    first = starts[-1]
    end = next(
        (i for i, line in enumerate(lines[first + 1 :], first + 1) if not line.startswith(" ")),
        len(lines),
    )
    frames = list(filter(None, map(FRAME.match, lines[first + 1 : end])))
    if lines[first].startswith(STACKS[1]):
        first, end, frames = first, first, frames[::-1]
    return min(end + 1, len(lines)), _own(frames)


def _own(frames: list[re.Match]) -> re.Match | None:
    """The last frame of the job's own code; of ours, or of a library, where there is none."""
    here = [frame for frame in frames if not any(place in frame[1] for place in ELSEWHERE)]
    ours = str(ROOT / "models")
    own = [frame for frame in here if not frame[1].startswith(ours)]
    return next(reversed(own or here or frames), None)


def _near(path: str) -> str:
    """From here, if it is below."""
    return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path
