"""One cell's telemetry: what the sampler is told of the cell, and what the record is told of it.

Nothing that goes wrong in here costs a cell its result.
"""

import time
import traceback
from pathlib import Path

from workflow.collocation.cell import cores
from workflow.collocation.cell.progress import Display
from workflow.collocation.gpu import Device
from workflow.collocation.methods import Sharing
from workflow.collocation.methods.evidence import owner
from workflow.collocation.telemetry.values import Telemetry, Window
from workflow.collocation.telemetry.watch import Silent, Watch

IDLE_ROWS, IDLE_S = 3, 4.0  # of the card before members are built, and how long to wait for them


class Observation:
    """Watches a cell while it runs, from outside; a context manager.

    settings: config's `telemetry`. core_sets: CPUs by member. scratch: a folder that goes with the
    cell. watch: what the conductor tells phases, members and windows.
    """

    def __init__(
        self,
        settings: dict,
        device: Device | None,
        sharing: Sharing,
        core_sets: list[list[int]],
        folder: Path,
        scratch: Path,
        display: Display,
    ):
        self.device, self.sharing = device, sharing
        self.folder, self.display = folder, display
        self.off = settings["source"] == "off"
        self.instances = sharing.instances() if device else {}
        self.seats = {m: sharing.entity(m) for m in range(len(core_sets))} if device else {}
        self.began = time.monotonic()
        self.watch = (
            Silent()
            if self.off
            else Watch(
                scratch,
                folder / "log" / "sampler.log",
                device.uuid if device else None,
                ["gpu", *self.instances] if device else [],
                settings,
                cores.spare(core_sets),
            )
        )

    def __enter__(self) -> "Observation":
        self.watch.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self.watch.__exit__(*error)

    def see_idle(self) -> None:
        """Wait until the card has been seen without members for a moment."""
        if self.device is None or self.off:
            return
        while self.watch.rows() < IDLE_ROWS and time.monotonic() < self.began + IDLE_S:
            time.sleep(0.02)

    def account(self, windows: list[Window], pids: set[int]) -> dict:
        """End the sampler; the record's fields `telemetry`, `flags` and `files`.

        pids: of all members. Raises OSError where the files cannot be written: a disk is full.
        """
        if self.off:
            return {"telemetry": Telemetry(status="off"), "flags": [], "files": {}}
        lines = self.watch.end()
        try:
            # Arrow, which the conductor imports while the fork server starts
            from workflow.collocation.telemetry import files
            from workflow.collocation.telemetry.summary import Facts, summarise

            facts = Facts(
                gpu=self.device is not None,
                sm_count=self.device and self.device.sm_count,
                instances=self.instances,
                seats=self.seats,
                own=frozenset(pids | (self.sharing.own_pids() if self.device else set())),
                owner=owner,
            )
            telemetry, flags = summarise(lines, windows, facts)
            written = files.write(self.folder, lines, windows)
        except OSError:
            raise
        except Exception as error:
            self.display.say(traceback.format_exc(), loud=False)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            telemetry = Telemetry(status="incomplete", reason=reason)
            flags, written = ["telemetry_incomplete"], {}
        if telemetry.reason:
            self.display.say(f"telemetry: {telemetry.reason}", loud=False)
        return {"telemetry": telemetry, "flags": flags, "files": written}
