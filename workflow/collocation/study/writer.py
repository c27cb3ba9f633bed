"""What an invocation writes into its study's folder, and sweeps from it at its end."""

import json

from workflow.collocation.methods import mig
from workflow.collocation.methods.evidence import NotInForce, Unsupported
from workflow.collocation.study import mig_plan
from workflow.collocation.study.session import Session


def write_plan(session: Session) -> None:
    """plan.json, runs.txt: what analysis may expect, and where it is."""
    session.folder.mkdir(parents=True, exist_ok=True)
    (session.folder / "plan.json").write_text(session.expected)
    (session.folder / "runs.txt").write_text("".join(f"{path}\n" for path in session.run_files()))


def write_mig_layouts(session: Session) -> None:
    """mig_layouts.json: where the study's MIG cells lie on this card, if it can be read."""
    cells = mig_plan.mig_cells(session.cells)
    if session.device is None or not cells:
        return
    try:
        card = mig.read(session.device)
    except (NotInForce, Unsupported):
        return
    if card is not None:
        source = f"read with NVML, driver {session.device.driver}"
        found = mig_plan.document(session.name, cells, card, source, read=True)
        (session.folder / "mig_layouts.json").write_text(json.dumps(found, indent=1) + "\n")


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
