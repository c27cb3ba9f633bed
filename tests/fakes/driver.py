"""A stand-in for NVIDIA's management library: cards whose state is a folder each.

`install` puts it in the place of nvidia-ml-py's functions; constants, structs and errors stay that
module's own. A function that is not here answers FUNCTION_NOT_FOUND. Several processes see the same
cards. COLLOCATION_FAKE_NVML names their folders, as PATH does; an index counts along the bus, and
MIG is for the first card alone.

    state.json      MIG mode, instances, settings, how often it was changed
    card.json       the card's table (tests/cards)
    processes/PID   who computes where; a file counts only as long as that process lives

Settings (tests/fakes/machine.py changes them):
  lost          True: the card answers GPU_IS_LOST
  compute_mode  0 to 3, as NVML_COMPUTEMODE_…
  failures      [{"call": function or "change", "at": k, "error": code, "on": bool}]: the k-th call
                fails and, if "on", all that follow; "change" counts all functions that change
  kill          k: who asks is killed at its k-th change, before it is done
  blocks        functions that never come back: the caller hangs in C, deaf to Python's signals (a
                driver's hang may outlive SIGKILL, too; this does not)
  blocks_in_use  True: they do so only while somebody computes on the card
  gpm_refresh_ms  between two refreshes of GPM's counters
  gpm_stale     what a pair without a refresh in between reads: "zero", and NaN for DRAMA, as seen
                on an H200; "nan": NaN for all ratios, and 0 for traffic
  gpm_nan       GPM metric ids that are always NaN
  gpm_refused   {GPM metric id, as text: the nvmlReturn of that metric}
  fields_refused  ids of field values that the card does not have
  dcgm          the host engine that tests/fakes/dcgmi answers for; None: none runs

What it assumes of real cards under MIG, for none that may be divided was at hand:
  - a 1g with double memory and more SMs than a plain 1g offers two compute profiles of 1 slice, the
    second (7, 1_SLICE_REV1) with all SMs; a 2g offers it too, where it takes the place of both
    slices (users' listings of an H100, and pull request 85 of NVIDIA/go-nvlib);
  - the UUID of a MIG device says which card and where on it, no more: it comes back with the place.
    Ids of GPU instances never come back here, as real ones may: nothing should rest on either;
  - an instance is destroyed unless a process computes on it, or compute instances are in it.

What the card is doing is state["activity"]: see tests/fakes/activity.py.
"""

import ctypes
import fcntl
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from tests.fakes import activity

SUCCESS, INVALID, UNSUPPORTED, FORBIDDEN = 0, 2, 3, 4
NOT_FOUND, LOST, IN_USE, FULL = 6, 15, 19, 23  # as NVML_ERROR_… in nvidia-ml-py
WORDS = {IN_USE: "In use by another client", FULL: "Insufficient Resources"}
MIB = 2**20
SLICES = (1, 2, 3, 4, 7)  # of the compute profiles 0, 1, …
COMPUTE = {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4), 7: SLICES}  # in a GPU instance's slices
FULL_SLICE = 7  # the compute profile of one slice and all SMs of a 1g with double memory

# GPM metric id → what it tells, and how many of its units (per cent, MiB/s) one of ours is.
GPM = {1: "gract", 2: "smact", 3: "smocc", 4: "integer", 5: "tenso", 10: "drama"}
GPM |= {11: "fp64", 12: "fp32", 13: "fp16", 20: "pcie_tx", 21: "pcie_rx"}
GPM |= {60: "nvlink_rx", 61: "nvlink_tx"}
GPM_UNITS = dict.fromkeys(GPM, 100) | dict.fromkeys((20, 21, 60, 61), 1 / MIB)
# Field id → (what it tells, NVML's units in one of ours, type of the value).
UNSIGNED_INT, UNSIGNED_LONG_LONG = 1, 3
FIELDS = {
    83: ("energy", 1e3, UNSIGNED_LONG_LONG),
    186: ("power", 1e3, UNSIGNED_INT),
}

# Of the whole card: SMs, memory in MiB, CUDA capability, cores per SM. The tables hold MIG's only.
CARDS = {
    "a30": (56, 24576, (8, 0), 64),
    "a100_40": (108, 40960, (8, 0), 64),
    "h100_80_sxm": (132, 81559, (9, 0), 128),
    "h200_141": (132, 143771, (9, 0), 128),
    "rtx_pro_6000": (188, 97887, (12, 0), 128),
}
ENERGY_STEP_NS = 50_000_000
CHANGES = {
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
}
OF_THE_DRIVER = {
    "nvmlInitWithFlags",
    "nvmlErrorString",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleFree",
}


def folders(environment: Mapping[str, str]) -> list[Path]:
    return [Path(each) for each in environment["COLLOCATION_FAKE_NVML"].split(os.pathsep)]


def install(module, folders: list[Path]) -> None:
    """Have nvidia-ml-py's module ask these cards instead of NVIDIA's library."""
    module.nvmlLib = Library(module, folders)
    for name, call in module.nvmlLib.functions().items():
        setattr(module, name, call)


class Refused(Exception):
    """A call's error code."""


class Card:
    """The card in a folder. `open` gives its state for one call, and keeps what was changed."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self.state_file = str(self.folder / "state.json")  # every call looks at it
        table = json.loads((self.folder / "card.json").read_text())
        self.key, self.name = table["key"], table["name"]
        self.sms, self.memory_mib, self.capability, self.cores = CARDS[self.key]
        self.by_id = {profile["id"]: profile for profile in table["profiles"]}
        for profile in self.by_id.values():
            profile["memory"] = profile["placements"][0][1]
        for key, per in (("sm_count", "slices"), ("memory_mib", "memory")):
            known = [p[key] // p[per] for p in self.by_id.values() if p[key]]
            for profile in self.by_id.values():  # of what is not known, a number that no card has
                profile[key] = profile[key] or max(known) * profile[per] + 1
        self.single = next((p for p in self.by_id.values() if p["slices"] == 1), None)
        self.state = {"version": None}

    @contextmanager
    def open(self) -> Iterator[dict]:
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = (self.folder / "state.json").read_text()
            self.state = state = json.loads(before)
            try:
                yield state
            finally:
                if json.dumps(state) != before:
                    state["version"] += 1
                    new = self.folder / "state.new"
                    new.write_text(json.dumps(state))
                    os.utime(new, ns=(0, state["version"]))  # by which `peek` knows it
                    new.replace(self.folder / "state.json")

    def peek(self) -> dict:
        """The state, not to be changed."""
        version = os.stat(self.state_file).st_mtime_ns  # noqa: PTH116 (twice as fast)
        if version != self.state["version"]:
            self.state = json.loads(Path(self.state_file).read_text())
        return self.state

    def processes(self) -> dict[int, dict]:
        """Those that live: PID → {"place": uuid, "kind": "compute", "mps" or "server", ...}."""
        found = {}
        for path in sorted((self.folder / "processes").iterdir()):
            with suppress(FileNotFoundError):
                entry = json.loads(path.read_text())
                if birth(int(path.name)) == entry["birth"]:
                    found[int(path.name)] = entry
        return found

    def offers(self, instance: dict) -> dict[int, tuple[int, int, int]]:
        """Of a GPU instance: compute profile → its slices and SMs, and the slices that it takes."""
        profile = self.by_id[instance["profile"]]
        of, sms, found = profile["slices"], profile["sm_count"], {}
        for index, slices in enumerate(SLICES):
            if slices in COMPUTE[of]:
                share = sms * slices // of
                found[index] = slices, share if slices == of else share - share % 2, slices
        rich = [p for p in self.by_id.values() if p["slices"] == 1 and p["memory"] == 2]
        for double in rich if of == 2 else [p for p in rich if p is profile]:
            if double["sm_count"] > self.single["sm_count"]:
                found[0] = 1, self.single["sm_count"], 1
                found[FULL_SLICE] = 1, double["sm_count"], of
        return found


def birth(pid: int) -> str | None:
    """The process's start time; None if it has ended. A zombie has."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    return None


def devices(state: dict) -> list[tuple[str, str, dict]]:
    """The MIG devices there are, as (GPU instance, compute instance, its entry)."""
    return [
        (gi, ci, compute)
        for gi, instance in state["instances"].items()
        for ci, compute in instance["compute"].items()
    ]


def target(reference):
    """What a byref(), or an array, points at."""
    return getattr(reference, "_obj", reference)


def stuck() -> None:
    """Never come back: a mutex that this thread holds already, waited for in C."""
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


class Handle(NamedTuple):
    """Of a card; with instances, of the MIG device or of the compute instance that they are."""

    card: int
    gi: str | None = None
    ci: str | None = None


def pointer(value: int, kind: type):
    """A handle that users copy as C does."""
    return ctypes.cast(ctypes.c_void_p(value), kind)


def value_of(handle) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


class Library:
    """The method _nvmlX is nvidia-ml-py's nvmlX, for the card that a call is about."""

    def __init__(self, module, folders: list[Path]):
        self.nvml = module
        self.cards = [Card(folder) for folder in folders]
        self.samples: dict[int, tuple | None] = {}  # address → (time, (card, entity)) in it

    def functions(self) -> dict[str, Callable]:
        names = [name[1:] for name in dir(self) if name.startswith("_nvml")]
        return {name: partial(self._call, name) for name in names}

    def _call(self, name: str, *arguments):
        try:
            return self._ask(name, *arguments)
        except Refused as refused:
            raise self.nvml.NVMLError(refused.args[0]) from None

    def _ask(self, name: str, *arguments):
        card = self.cards[getattr(next(iter(arguments), None), "card", 0)]
        body, settings = getattr(self, f"_{name}"), card.peek()["settings"]
        if name in settings["blocks"] and (not settings["blocks_in_use"] or card.processes()):
            (card.folder / "stuck").touch()  # somebody is
            stuck()
        if name not in CHANGES | {failure["call"] for failure in settings["failures"]}:
            self._refuse(card.state, name)
            return body(card, *arguments)
        with card.open() as state:
            for key in {name, "change"} if name in CHANGES else {name}:
                state["calls"][key] = state["calls"].get(key, 0) + 1
            if name in CHANGES and state["calls"]["change"] == settings["kill"]:
                asker = sys.modules.get("workflow.collocation.gpu.nvml_subprocess")
                if asker and asker.CHILD.inside:  # it asks for another, who is to be killed
                    os.kill(os.getppid(), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            self._refuse(state, name)
            return body(card, *arguments)

    def _refuse(self, state: dict, name: str) -> None:
        """Have the call fail if a setting says so."""
        for failure in state["settings"]["failures"]:
            if failure["call"] == name or (failure["call"] == "change" and name in CHANGES):
                count = state["calls"][failure["call"]]
                if count == failure["at"] or (failure["on"] and count > failure["at"]):
                    raise Refused(failure["error"])
        if state["settings"]["lost"] and name not in OF_THE_DRIVER:
            raise Refused(LOST)

    # -- the driver and the card ------------------------------------------------------------------

    def _nvmlInitWithFlags(self, card, flags):
        pass

    def _nvmlErrorString(self, card, code):
        return WORDS.get(code, "Unknown Error")

    def _nvmlSystemGetDriverVersion(self, card):
        return card.state["driver"]

    def _nvmlDeviceGetCount(self, card):
        return len(self.cards)

    def _nvmlDeviceGetHandleByIndex(self, card, index):
        return Handle(index)

    def _nvmlDeviceGetHandleByUUID(self, card, name):
        for index, each in enumerate(self.cards):
            state = each.peek()
            if name == state["uuid"]:
                self._refuse(state, "nvmlDeviceGetHandleByUUID")
                return Handle(index)
        for gi, ci, compute in devices(card.state):
            if name == compute["uuid"]:
                return Handle(0, gi, ci)
        raise Refused(NOT_FOUND)

    def _nvmlDeviceGetUUID(self, card, device):
        return card.state["uuid"] if device.gi is None else self._mig(card, device)["uuid"]

    def _nvmlDeviceGetName(self, card, device):
        return card.name

    def _nvmlDeviceGetMemoryInfo(self, card, device):
        total = card.memory_mib * MIB
        used = sum(entry["memory"] for entry in card.processes().values())
        return SimpleNamespace(total=total, used=used, free=total - used)

    def _nvmlDeviceGetCudaComputeCapability(self, card, device):
        return card.capability

    def _nvmlDeviceGetNumGpuCores(self, card, device):
        return card.sms * card.cores

    def _nvmlDeviceGetPciInfo(self, card, device):
        return SimpleNamespace(busId="FFFFFFFF:FF:00.0")

    def _nvmlDeviceGetComputeMode(self, card, device):
        return card.state["settings"]["compute_mode"]

    def _nvmlDeviceGetTemperature(self, card, device, sensor):
        return int(self._now(card, "temperature"))

    def _nvmlDeviceGetPowerUsage(self, card, device):
        return int(self._now(card, "power") * 1000)

    def _nvmlDeviceGetClockInfo(self, card, device, clock):
        return int(self._now(card, {1: "sm_clock", 2: "memory_clock"}[clock]))

    def _nvmlDeviceGetCurrentClocksEventReasons(self, card, device):
        return int(self._now(card, "throttle"))

    def _nvmlDeviceGetUtilizationRates(self, card, device):
        if card.state["mode"]:
            raise Refused(UNSUPPORTED)
        gpu, memory = self._now(card, "gpu_util"), self._now(card, "memory_util")
        return SimpleNamespace(gpu=round(gpu * 100), memory=round(memory * 100))

    def _nvmlDeviceGetFieldValues(self, card, device, ids):
        found = []
        for field in ids:
            name, scale, kind = FIELDS.get(field, (None, 1, UNSIGNED_INT))
            known = name and field not in card.state["settings"]["fields_refused"]
            value = int(self._now(card, name) * scale) if known else 0
            its = SimpleNamespace(uiVal=value, ullVal=value)
            code = SUCCESS if known else UNSUPPORTED
            found.append(SimpleNamespace(nvmlReturn=code, valueType=kind, value=its))
        return found

    def _now(self, card, name: str) -> float:
        """A gauge as it is, a counter as far as it has come."""
        history, at = card.state["activity"], time.monotonic_ns()
        if name == "energy":
            return activity.total(history, "power", at - at % ENERGY_STEP_NS)
        return activity.now(history, name)

    def _nvmlDeviceGetComputeRunningProcesses(self, card, device):
        return self._list(card, ("compute", "mps", "server"))

    def _nvmlDeviceGetMPSComputeRunningProcesses(self, card, device):
        return self._list(card, ("mps",))

    def _list(self, card, kinds) -> list[SimpleNamespace]:
        there = {card.state["uuid"]} | {entry["uuid"] for _, _, entry in devices(card.state)}
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=entry["memory"])
            for pid, entry in card.processes().items()
            if entry["kind"] in kinds and entry["place"] in there
        ]

    # -- GPM --------------------------------------------------------------------------------------

    def _nvmlGpmQueryDeviceSupport(self, card, device):
        return SimpleNamespace(isSupportedDevice=int(card.capability >= (9, 0)))

    def _nvmlGpmSampleAlloc(self, card):
        address = max(self.samples, default=0x1000) + 0x1000
        self.samples[address] = None
        return pointer(address, self.nvml.c_nvmlGpmSample_t)

    def _nvmlGpmSampleFree(self, card, sample):
        del self.samples[value_of(sample)]

    def _nvmlGpmSampleGet(self, card, device, sample):
        self._take(card, device, sample, "gpu")

    def _nvmlGpmMigSampleGet(self, card, device, instance, sample):
        if str(instance) not in card.state["instances"]:
            raise Refused(INVALID)
        self._take(card, device, sample, f"gi:{instance}")

    def _take(self, card, device, sample, entity: str) -> None:
        at = time.monotonic_ns()
        refresh = int(card.state["settings"]["gpm_refresh_ms"] * 1e6)
        at -= at % refresh if refresh else 0
        self.samples[value_of(sample)] = at, (device.card, entity)

    def _nvmlGpmMetricsGet(self, card, request):
        older, newer = (self.samples[value_of(s)] for s in (request.sample1, request.sample2))
        card = self.cards[newer[1][0]]
        settings = card.peek()["settings"]
        asked = request.metrics[: request.numMetrics]
        if request.version != 1:
            raise Refused(INVALID)
        for metric in asked:
            refused = settings["gpm_refused"].get(str(metric.metricId))
            metric.nvmlReturn = refused or (SUCCESS if metric.metricId in GPM else UNSUPPORTED)
            good = metric.nvmlReturn == SUCCESS
            metric.value = self._gpm(card, metric.metricId, older, newer) if good else 0.0

    def _gpm(self, card, metric: int, older: tuple, newer: tuple) -> float:
        name, scale, settings = GPM[metric], GPM_UNITS[metric], card.state["settings"]
        (start, (_, entity)), end = older, newer[0]
        if metric in settings["gpm_nan"]:
            return float("nan")
        if start == end:  # not refreshed in between
            nan = name == "drama" or (settings["gpm_stale"] == "nan" and scale == 100)
            return float("nan") if nan else 0.0
        rate = activity.mean(card.state["activity"], name, start, end, entity)
        return rate * scale

    # -- MIG --------------------------------------------------------------------------------------

    def _nvmlDeviceGetMigMode(self, card, device):
        if not card.by_id:
            raise Refused(UNSUPPORTED)
        return [card.state["mode"], card.state["mode"]]

    def _nvmlDeviceGetGpuInstanceProfileInfo(self, card, device, index):
        for profile in card.by_id.values():
            if profile["index"] == index:
                return SimpleNamespace(
                    id=profile["id"],
                    sliceCount=profile["slices"],
                    instanceCount=profile["most"],
                    multiprocessorCount=profile["sm_count"],
                    memorySizeMB=profile["memory_mib"],
                    name=f"MIG {profile['name']}",
                )
        raise Refused(UNSUPPORTED)

    def _nvmlDeviceGetGpuInstancePossiblePlacements(self, card, device, profile, array, count):
        placements = card.by_id[profile]["placements"]
        target(count).value = len(placements)
        for index, (start, size) in enumerate(placements if array is not None else ()):
            array[index].start, array[index].size = start, size

    def _nvmlDeviceGetMaxMigDeviceCount(self, card, device):
        return max(profile["most"] for profile in card.by_id.values())

    def _nvmlDeviceCreateGpuInstanceWithPlacement(self, card, device, number, placement):
        profile, there = card.by_id[number], card.state["instances"]
        start, size = target(placement).start, target(placement).size
        if not card.state["mode"] or [start, size] not in profile["placements"]:
            raise Refused(INVALID)
        alike = sum(other["profile"] == number for other in there.values())
        if alike >= profile["most"] or any(
            start < o["start"] + o["size"] and o["start"] < start + size for o in there.values()
        ):
            raise Refused(FULL)
        card.state["ids"] += 1
        there[gi := str(card.state["ids"])] = {"profile": number, "start": start, "size": size}
        there[gi]["compute"] = {}
        return pointer(int(gi), self.nvml.c_nvmlGpuInstance_t)

    def _nvmlGpuInstanceDestroy(self, card, instance):
        gi, found = self._gpu_instance(card, instance)
        if found["compute"]:
            raise Refused(IN_USE)
        del card.state["instances"][gi]

    def _nvmlDeviceGetGpuInstances(self, card, device, profile, array, count):
        there = card.state["instances"].items()
        found = [gi for gi, instance in there if instance["profile"] == profile]
        for index, gi in enumerate(found):
            array[index] = pointer(int(gi), self.nvml.c_nvmlGpuInstance_t)
        target(count).value = len(found)

    def _nvmlDeviceGetGpuInstanceById(self, card, device, number):
        return pointer(number, self.nvml.c_nvmlGpuInstance_t)

    def _nvmlGpuInstanceGetInfo(self, card, instance):
        gi, found = self._gpu_instance(card, instance)
        place = SimpleNamespace(start=found["start"], size=found["size"])
        return SimpleNamespace(id=int(gi), profileId=found["profile"], placement=place)

    def _nvmlGpuInstanceGetComputeInstanceProfileInfo(self, card, instance, index, engines):
        offers = card.offers(self._gpu_instance(card, instance)[1])
        if index not in offers:
            raise Refused(UNSUPPORTED)
        slices, sms, _ = offers[index]
        return SimpleNamespace(id=index, sliceCount=slices, multiprocessorCount=sms)

    def _nvmlGpuInstanceCreateComputeInstance(self, card, instance, profile):
        """Ids count from 0 in each GPU instance; a MIG device takes the first free number."""
        gi, found = self._gpu_instance(card, instance)
        there, (_, _, takes) = found["compute"], card.offers(found)[profile]
        if (
            sum(one["takes"] for one in there.values()) + takes
            > (card.by_id[found["profile"]]["slices"])
        ):
            raise Refused(FULL)
        ci = next(str(n) for n in range(8) if str(n) not in there)
        taken = {entry["slot"] for _, _, entry in devices(card.state)}
        # As NVIDIA's, it says no more than which card, and where on it.
        place = f"{found['profile'], found['start']} {ci}"
        there[ci] = {
            "profile": profile,
            "takes": takes,
            "uuid": f"MIG-{uuid.uuid5(uuid.UUID(card.state['uuid'][4:]), place)}",
            "slot": next(n for n in range(64) if n not in taken),
        }
        return Handle(0, gi, ci)

    def _nvmlGpuInstanceGetComputeInstanceById(self, card, instance, number):
        return Handle(0, self._gpu_instance(card, instance)[0], str(number))

    def _nvmlComputeInstanceDestroy(self, card, compute):
        found = self._mig(card, compute)
        if any(entry["place"] == found["uuid"] for entry in card.processes().values()):
            raise Refused(IN_USE)
        del card.state["instances"][compute.gi]["compute"][compute.ci]

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, card, device, index):
        for gi, ci, compute in devices(card.state):
            if compute["slot"] == index:
                return Handle(0, gi, ci)
        raise Refused(NOT_FOUND)

    def _nvmlDeviceGetGpuInstanceId(self, card, device):
        return int(device.gi)

    def _nvmlDeviceGetComputeInstanceId(self, card, device):
        return int(device.ci)

    def _nvmlDeviceGetAttributes(self, card, device):
        compute, instance = self._mig(card, device), card.state["instances"][device.gi]
        slices, sms, _ = card.offers(instance)[compute["profile"]]
        return SimpleNamespace(
            multiprocessorCount=sms,
            computeInstanceSliceCount=slices,
            memorySizeMB=card.by_id[instance["profile"]]["memory_mib"],
        )

    def _gpu_instance(self, card, handle) -> tuple[str, dict]:
        gi = str(value_of(handle))
        if gi not in card.state["instances"]:
            raise Refused(INVALID)
        return gi, card.state["instances"][gi]

    def _mig(self, card, handle: Handle) -> dict:
        """The compute instance that a handle is of."""
        found = card.state["instances"].get(handle.gi, {"compute": {}})["compute"].get(handle.ci)
        if found is None:
            raise Refused(INVALID)
        return found
