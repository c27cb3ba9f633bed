"""The machine's other GPUs: does somebody use them while a cell is measured?"""

from dataclasses import dataclass, field

from workflow.collocation.gpu import Device, find, leave_out
from workflow.collocation.gpu.nvml_subprocess import Silent
from workflow.collocation.spec.errors import NotInForce


@dataclass
class Neighbours:
    """Looks at the GPUs beside a cell's; device None: it uses none, and nothing is looked at.

    busy: on how many of them processes computed, at each look; None where the driver did not tell.
    """

    device: Device | None
    busy: list[int | None] = field(default_factory=list)

    def look(self) -> None:
        """Count once more."""
        if self.device is None:
            return
        try:
            others = [card for card in find(None) if card != self.device]
        except NotInForce:
            others = []
        if not others:
            return
        seen = [self._used(card) for card in others]
        self.busy.append(None if None in seen else sum(seen))

    def account(self) -> dict[str, int | None]:
        """For run.json: the least that were seen busy; None where one look told nothing."""
        if not self.busy:
            return {}
        return {"other_gpus_busy": None if None in self.busy else min(self.busy)}

    def _used(self, card: Device) -> bool | None:
        """Whether processes compute on it. A card that does not answer is asked no more, or no
        question about our own would be answered.
        """
        try:
            listed = card.processes()["compute"]
        except Silent as silent:
            leave_out(card.index, silent)
            return None
        return None if listed is None else bool(listed)
