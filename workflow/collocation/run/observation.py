"""One cell's telemetry: what the sampler is told of the cell, and what the record is told of it.

Nothing that goes wrong in here costs a cell its result.
"""

import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from workflow.collocation.gpu import Device, cores
from workflow.collocation.record.values import File, Telemetry, Window
from workflow.collocation.run.progress import Display
from workflow.collocation.sharing.base import Method
from workflow.collocation.sharing.evidence import owner
from workflow.collocation.telemetry.lines import one_line
from workflow.collocation.telemetry.watch import Watch

IDLE_ROWS, IDLE_S = 3, 4.0  # of a card before members are built, and how long to wait for them


@dataclass
class Observation:
    """Watches a cell while it runs, from outside, by `watch`: to be entered, and told of phases.

    settings: config's `telemetry`. core_sets: CPUs by member. scratch: goes with the cell.
    """

    settings: dict
    device: Device | None
    sharing: Method
    core_sets: list[list[int]]
    folder: Path
    scratch: Path
    display: Display

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.instances = self.sharing.instances() if self.device else {}
        about = {"gpu": self.device and self.device.uuid, "cores": cores.spare(self.core_sets)}
        about["entities"] = ["gpu", *self.instances] if self.device else []
        log = self.folder / "log" / "sampler.log"
        self.watch = Watch(self.scratch, log, self.settings | about)

    def see_idle(self) -> None:
        """Wait until card or machine has been seen without members for a moment."""
        kind, least = ("gpu", IDLE_ROWS) if self.device else ("host", 1)
        until = self.began + (0 if self.watch.off else IDLE_S)
        while time.monotonic() < until and self.watch.rows(kind) < least:
            time.sleep(0.02)

    def account(
        self, windows: list[Window], pids: set[int]
    ) -> tuple[Telemetry, list[str], dict[str, File]]:
        """End the sampler; the record's `telemetry`, and what is to add to its `flags` and `files`.

        pids: of all members. Raises OSError where the files cannot be written: a disk is full.
        """
        if self.watch.off:
            return Telemetry(status="off"), [], {}
        lines = self.watch.end()
        try:
            # Arrow, which the conductor imports while the fork server starts
            from workflow.collocation.telemetry import files
            from workflow.collocation.telemetry.summary import Summary

            members = range(len(self.core_sets) if self.device else 0)
            summary = Summary(
                lines,
                windows,
                has_gpu=self.device is not None,
                sm_count=self.device and self.device.sm_count,
                instances=self.instances,
                seats={member: self.sharing.entity(member) for member in members},
                own=frozenset(pids | (self.sharing.own_pids() if self.device else set())),
                owner=owner,
            )
            telemetry, flags = summary.telemetry()
            written = files.write(self.folder, lines, windows)
        except OSError:
            raise
        except Exception as error:
            self.display.say(traceback.format_exc(), loud=False)
            telemetry = Telemetry(status="incomplete", reason=one_line(error))
            flags, written = ["telemetry_incomplete"], {}
        return telemetry, flags, written
