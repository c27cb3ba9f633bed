"""A Device that says what a test wants NVML to say: assumed are only the answers' forms."""

from dataclasses import dataclass, field

from workflow.collocation.gpu import Device


@dataclass(frozen=True)
class FakeCard(Device):
    """listed: what NVML lists on the card. free: bytes. most: processes that may compute."""

    uuid: str = "GPU-0"
    name: str = "a card that is not there"
    index: int = 0
    memory_bytes: int | None = 141 * 2**30
    driver: str = "580.1"
    capability: tuple[int, int] = (9, 0)
    numa_node: int | None = None
    sm_count: int | None = 132
    listed: dict = field(default_factory=lambda: {"compute": [], "mps": []})
    free: int | None = 130 * 2**30
    most: int = 99

    def processes(self):
        return self.listed

    def memory_free(self):
        return self.free

    def too_many(self, processes):
        return "too many" if processes > self.most else None

    def shown_to(self, environment):
        return environment.get("CUDA_VISIBLE_DEVICES", self.uuid) == self.uuid
