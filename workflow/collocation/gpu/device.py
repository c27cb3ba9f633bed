"""What the workflow may ask of a GPU. Who made it is behind this: another maker's is one module."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class Device(ABC):
    """One physical GPU. `index` is its driver's, `capability` the CUDA compute capability.

    `sm_count`: SMs of the whole card; it and `memory_bytes` are null where unknown: in MIG mode
    NVML tells the card's memory to administrators only.
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
        """PIDs on the card: all that "compute", and those that are "mps" clients; null where not
        readable. In a container they may be the host's PIDs.
        """
