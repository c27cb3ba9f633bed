"""The machine's other GPUs: does somebody use them while a cell is measured?"""

from dataclasses import dataclass, field

from workflow.collocation.errors import NotInForce
from workflow.collocation.gpu import Device, find


@dataclass
class Neighbours:
    """Looks at the GPUs beside `device`; None: the cell uses none, and nothing is looked at.

    busy: on how many of them processes computed, at each look; an unknown number is None.
    """

    device: Device | None
    busy: list[int | None] = field(default_factory=list)

    def look(self) -> None:
        """Count once more. Asks the driver, and never raises: no cell fails of it."""
        if self.device is None:
            return
        try:
            listed = [card.processes()["compute"] for card in find(None) if card != self.device]
        except NotInForce:
            listed = [None]
        self.busy.append(None if None in listed else sum(map(bool, listed)))

    def account(self) -> dict[str, int | None]:
        """For run.json: the least that were seen busy; None where one look told nothing."""
        if not self.busy:
            return {}
        return {"other_gpus_busy": None if None in self.busy else min(self.busy)}
