"""What the workflow may ask of a GPU. Each vendor is one module behind it, such as nvidia.py."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Device(ABC):
    """One physical GPU. `index` is its driver's, `capability` the CUDA compute capability.

    `sm_count` (of the whole card) and `memory_bytes` are None where unknown: in MIG mode NVML tells
    the card's memory to administrators only, and a card that shares the CPU's memory has none.
    """

    uuid: str
    name: str
    index: int
    memory_bytes: int | None
    driver: str
    capability: tuple[int, int]
    numa_node: int | None
    sm_count: int | None = None

    def record(self) -> dict:
        """What run.json says of it."""
        return {key: getattr(self, key) for key in ("uuid", "name", "memory_bytes", "driver")}

    @abstractmethod
    def processes(self) -> dict[str, list[int] | None]:
        """PIDs on the card: all that "compute", and those that are "mps" clients; None where not
        readable. In a container they may be the host's PIDs.
        """

    @abstractmethod
    def memory_free(self) -> int | None:
        """Bytes that nobody uses; None where not readable."""

    @abstractmethod
    def too_many(self, processes: int) -> str | None:
        """Why the card does not let so many processes compute at once; None if it does."""

    @abstractmethod
    def shown_to(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment certainly sees the card."""
