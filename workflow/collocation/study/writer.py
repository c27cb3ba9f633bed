"""What an invocation writes into its study's folder, and sweeps from it at its end."""

import json

from workflow.collocation.study.session import Session


def write_plan(session: Session) -> None:
    """plan.json, runs.txt: what analysis may expect, and where it is."""
    session.folder.mkdir(parents=True, exist_ok=True)
    (session.folder / "plan.json").write_text(session.expected)
    (session.folder / "runs.txt").write_text("".join(f"{path}\n" for path in session.run_files()))


def still_planned(session: Session) -> bool:
    """Nobody finished a cell between the planning and now."""
    return not any(path.exists() for path in session.coming)


def sweep_postponed(session: Session) -> None:
    """Remove the markers of cells that the budget left for later: nothing was measured.

    A study that lacks them is not complete.
    """
    written = [path for path in session.coming if path.exists()]
    swept = [p for p in written if json.loads(p.read_text())["status"] == "postponed"]
    for path in swept:
        path.unlink()
    if swept or session.later:
        (session.folder / "complete").unlink(missing_ok=True)
