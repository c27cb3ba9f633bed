"""A stand-in for NVIDIA's management library: one card whose state is a folder.

`Library` takes the place of the loaded libnvidia-ml.so in nvidia-ml-py (`pynvml.nvmlLib`), so the
arguments here are what its wrappers hand to C: handles, references and arrays. A function that is
not here answers NOT_SUPPORTED. Several processes see the same card.

    state.json      MIG mode, instances, settings, how often it was changed
    card.json       the card's table (tests/cards)
    processes/PID   who computes where; a file counts only as long as that process lives

Settings (tests/fakes/machine.py changes them):
  permission    False: what only a privileged user may ask answers NO_PERMISSION
  secret        True: no profiles are listed while MIG mode is off, as by drivers up to R535
  count         what profiles say of how many instances there can be, as wrongly as on some A30s
  needs_reset   a new MIG mode stays pending, as on Ampere; default: cards of capability 8.x
  busy          a new MIG mode is not taken, as when some program holds the device open
  lost          True: the card answers GPU_IS_LOST
  compute_mode  0 to 3, as NVML_COMPUTEMODE_…; machine.attach heeds it as the CUDA guide says: one
                process at a time, of MPS its server (2: none at all)
  host_pids     a number added to each PID that is listed, as in a container
  failures      [{"call": function or "change", "at": k, "error": code, "on": bool}]: the k-th call
                fails and, if "on", all that follow; "change" counts all functions that change
  kill          {"at": k, "after": bool}: who asks is killed at its k-th change
  blocks        functions that never come back: the caller hangs in C, deaf to Python's signals (a
                driver's hang may outlive SIGKILL, too; this does not)
  blocks_in_use  True: they do so only while somebody computes on the card
  gpm           whether the card has GPM; None: as of its capability, Hopper and newer
  gpm_refresh_ms  between two refreshes of GPM's counters
  gpm_stale     what a pair without a refresh in between reads: "zero", and NaN for DRAMA, as seen
                on an H200; "nan": NaN for all ratios, and 0 for traffic
  gpm_nan       GPM metric ids that are always NaN
  gpm_refused   {GPM metric id, as text: the nvmlReturn of that metric}
  gpm_unknown   GPM metric ids for which the whole call is refused
  fields_refused  ids of field values that the card does not have
  energy_step_ms  between two steps of the energy counter
  dcgm          the host engine that tests/fakes/dcgmi answers for; None: none runs

What it assumes of real cards under MIG, for none that may be divided was at hand:
  - a 1g with double memory and more SMs than a plain 1g offers two compute profiles of 1 slice, the
    second (7, 1_SLICE_REV1) with all SMs; a 2g offers it too, where it takes the place of both
    slices (users' listings of an H100, and pull request 85 of NVIDIA/go-nvlib);
  - the UUID of a MIG device says which card and where on it, no more: it comes back with the place.
    Ids of GPU instances never come back here, as real ones may: nothing should rest on either;
  - drivers up to R535 answer NOT_SUPPORTED for all profiles while the mode is off;
  - an instance is destroyed unless a process computes on it, or compute instances are in it;
  - what a restart leaves (`machine.restart`).

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.fakes import activity

SUCCESS, INVALID, UNSUPPORTED, FORBIDDEN = 0, 2, 3, 4
NOT_FOUND, SHORT, LOST, IN_USE, FULL = 6, 7, 15, 19, 23  # as NVML_ERROR_… in nvidia-ml-py
WHOLE = 0xFFFFFFFF  # the instance id of what runs on no instance
WORDS = {IN_USE: "In use by another client", FULL: "Insufficient Resources"}
MIB = 2**20
SLICES = (1, 2, 3, 4, 7, 8, 6, 1)  # of the compute profiles 0, 1, …
FULL_SLICE = 7  # the compute profile of one slice and all SMs of a 1g with double memory

# GPM metric id → what it tells, and how many of its units (per cent, MiB/s) one of ours is.
GPM = {1: "gract", 2: "smact", 3: "smocc", 4: "integer", 5: "tenso", 10: "drama"}
GPM |= {11: "fp64", 12: "fp32", 13: "fp16", 20: "pcie_tx", 21: "pcie_rx"}
GPM |= {60: "nvlink_rx", 61: "nvlink_tx", 172: "ctxsw_requests", 174: "ctxsw_active"}
GPM_UNITS = dict.fromkeys(GPM, (b"%", 100)) | dict.fromkeys((20, 21, 60, 61), (b"MiB/s", 1 / MIB))
GPM_UNITS[172] = (b"", 1)
# Field id → (what it tells, NVML's units in one of ours, type of the value).
UNSIGNED_INT, UNSIGNED_LONG_LONG = 1, 3
FIELDS = {
    74: ("power_violation", 1e9, UNSIGNED_LONG_LONG),
    75: ("thermal_violation", 1e9, UNSIGNED_LONG_LONG),
    82: ("memory_temperature", 1, UNSIGNED_INT),
    83: ("energy", 1e3, UNSIGNED_LONG_LONG),
    186: ("power", 1e3, UNSIGNED_INT),
}

# Of the whole card: SMs, memory in MiB, CUDA capability, cores per SM. The tables hold MIG's only.
CARDS = {
    "a30": (56, 24576, (8, 0), 64),
    "a100_40": (108, 40960, (8, 0), 64),
    "a100_80": (108, 81920, (8, 0), 64),
    "h100_80_sxm": (132, 81559, (9, 0), 128),
    "h200_141": (132, 143771, (9, 0), 128),
    "b200_180": (148, 183359, (10, 0), 128),
    "rtx_pro_6000": (188, 97887, (12, 0), 128),
}


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
        self.profiles = {profile["index"]: profile for profile in table["profiles"]}
        self.by_id = {profile["id"]: profile for profile in table["profiles"]}
        self.state = {"version": None}

    @contextmanager
    def open(self) -> Iterator[dict]:
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = (self.folder / "state.json").read_text()
            state = json.loads(before)
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

    def sm_count(self, profile: dict) -> int:
        """Of a GPU instance; where the table does not know, a number that no card has."""
        known = [p["sm_count"] // p["slices"] for p in self.by_id.values() if p["sm_count"]]
        return profile["sm_count"] or max(known) * profile["slices"] + 1

    def compute_sms(self, instance: dict, compute: int) -> int:
        """Of an instance of this compute profile in this GPU instance."""
        profile, slices = self.by_id[instance["profile"]], SLICES[compute]
        if full := self._full_slice(profile):
            single = next(p for p in self.by_id.values() if p["slices"] == 1)
            if slices == 1:
                return full if compute == FULL_SLICE else self.sm_count(single)
        share = self.sm_count(profile) * slices // profile["slices"]
        return share if slices == profile["slices"] else share - share % 2

    def memory_of(self, profile: dict) -> int:
        """MiB of a GPU instance; where the table does not know, like the others."""
        size = {p["id"]: p["placements"][0][1] for p in self.by_id.values()}
        known = [p["memory_mib"] // size[i] for i, p in self.by_id.items() if p["memory_mib"]]
        return profile["memory_mib"] or max(known) * size[profile["id"]]

    def _full_slice(self, profile: dict) -> int | None:
        """The SMs of the compute profile FULL_SLICE in a GPU instance; None if it has none.

        As users list them for an H100: a 2g and a 1g with the memory of a 2g have it, where that 1g
        has more SMs than a plain one.
        """
        doubles = [p for p in self.by_id.values() if p["slices"] == 1 and p["placements"][0][1] > 1]
        for double in doubles:
            single = next(p for p in self.by_id.values() if p["slices"] == 1)
            if self.sm_count(double) > self.sm_count(single) and (
                profile is double or profile["slices"] == 2
            ):
                return self.sm_count(double)
        return None

    def extent(self, instance: dict, compute: int) -> int:
        """How many of a GPU instance's compute slices an instance of that profile takes."""
        profile = self.by_id[instance["profile"]]
        return profile["slices"] if compute == FULL_SLICE else SLICES[compute]

    def compute_placements(self, instance: dict, compute: int) -> list[int]:
        """Where an instance of that compute profile may start in a GPU instance."""
        profile, slices = self.by_id[instance["profile"]], SLICES[compute]
        of = profile["slices"]
        if compute == FULL_SLICE:
            return [0] if self._full_slice(profile) else []
        if slices == of:
            return [0]
        if slices > of or slices not in (1, 2, 3, 4) or (slices == 3 and of < 7):
            return []
        step = {1: 1, 2: 2, 3: 4, 4: 4}[slices]
        return list(range(0, of - slices + 1, step))


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


def overlaps(start: int, size: int, others) -> bool:
    return any(start < o["start"] + o["size"] and o["start"] < start + size for o in others)


# -- C's side of the arguments --------------------------------------------------------------------


def number(argument) -> int:
    return int(getattr(argument, "value", argument))


def target(reference):
    """What a byref(), a pointer or an array points at."""
    return getattr(reference, "_obj", reference)


def put(reference, value) -> None:
    target(reference).value = value


def fill(reference, **fields) -> None:
    for name, value in fields.items():
        setattr(target(reference), name, value)


def put_text(buffer, text: str, room) -> None:
    if len(text) >= number(room):
        raise Refused(SHORT)
    buffer.value = text.encode()


def stuck() -> None:
    """Never come back: a mutex that this thread holds already, waited for in C."""
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


# A handle is a number in a pointer: 1 for the card, 2 with a GPU and 3 with a compute instance,
# 4 for a MIG device.
def put_handle(reference, kind: int, gi: str = "0", ci: str = "0", index: int = 0) -> None:
    """index: in an array of handles; beyond its end C would write over what lies there."""
    if index >= getattr(target(reference), "_length_", 1):
        raise MemoryError("the library was given too small a buffer")
    address = ctypes.addressof(target(reference)) + index * ctypes.sizeof(ctypes.c_void_p)
    ctypes.c_uint64.from_address(address).value = kind << 40 | int(gi) << 20 | int(ci)


def handle_parts(handle) -> tuple[int, str, str]:
    value = ctypes.cast(handle, ctypes.c_void_p).value or 0
    return value >> 40, str(value >> 20 & 0xFFFFF), str(value & 0xFFFFF)


class Library:
    """Its attribute nvmlX is a C function; the method _nvmlX does what all versions of it do."""

    CHANGES = {
        "nvmlDeviceSetMigMode",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceDestroy",
        "nvmlGpuInstanceDestroy",
    }
    OF_THE_DRIVER = {
        "nvmlInitWithFlags",
        "nvmlShutdown",
        "nvmlErrorString",
        "nvmlSystemGetDriverVersion",
        "nvmlDeviceGetCount",
        "nvmlGpmSampleAlloc",
        "nvmlGpmSampleFree",
    }
    PRIVILEGED = CHANGES | {  # NVML's documentation: "Requires privileged user"
        "nvmlDeviceGetGpuInstancePossiblePlacements",
        "nvmlDeviceGetGpuInstances",
        "nvmlDeviceGetGpuInstanceById",
        "nvmlGpuInstanceGetComputeInstanceById",
        "nvmlGpuInstanceGetComputeInstances",
    }

    def __init__(self, folder: Path):
        self._card = Card(folder)
        self.samples: dict[int, tuple[int, str] | None] = {}  # address → (time, entity) in it

    def __getattr__(self, name: str):
        plain = name.removesuffix("_v2").removesuffix("_v3").removesuffix("V")
        body = getattr(type(self), f"_{plain}", None)

        def answer(state: dict, arguments: tuple) -> int | bytes:
            try:
                self._refuse(state, plain)
                return body(self, state, *arguments) or SUCCESS
            except Refused as refused:
                return refused.args[0]

        def call(*arguments) -> int | bytes:
            if body is None:
                return UNSUPPORTED
            state = self._card.peek()
            unused = state["settings"]["blocks_in_use"] and not self._card.processes()
            if plain in state["settings"]["blocks"] and not unused:
                (self._card.folder / "stuck").touch()  # somebody is
                stuck()
            failing = {failure["call"] for failure in state["settings"]["failures"]}
            if plain not in self.CHANGES | failing:
                return answer(state, arguments)
            with self._card.open() as state:
                for key in {plain, "change"} if plain in self.CHANGES else {plain}:
                    state["calls"][key] = state["calls"].get(key, 0) + 1
                if plain in self.CHANGES:
                    self._kill(state, after=False)
                said = answer(state, arguments)
            if plain in self.CHANGES:
                self._kill(state, after=True)
            return said

        return call

    def _refuse(self, state: dict, name: str) -> None:
        """Have the call fail if a setting says so."""
        settings, calls = state["settings"], state["calls"]
        for failure in settings["failures"]:
            if failure["call"] == name or (failure["call"] == "change" and name in self.CHANGES):
                count = calls[failure["call"]]
                if count == failure["at"] or (failure["on"] and count > failure["at"]):
                    raise Refused(failure["error"])
        if settings["lost"] and name not in self.OF_THE_DRIVER:
            raise Refused(LOST)
        if name in self.PRIVILEGED and not settings["permission"]:
            raise Refused(FORBIDDEN)

    def _kill(self, state: dict, after: bool) -> None:
        kill = state["settings"]["kill"]
        if kill and kill["after"] == after and state["calls"]["change"] == kill["at"]:
            asker = sys.modules.get("workflow.collocation.gpu.nvml_subprocess")
            if asker and asker.CHILD.inside:  # it asks for another, who is to be killed
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    # -- the driver and the card ------------------------------------------------------------------

    def _nvmlInitWithFlags(self, state, flags):
        pass

    def _nvmlShutdown(self, state):
        pass

    def _nvmlErrorString(self, state, code):
        return WORDS.get(number(code), "Unknown Error").encode()

    def _nvmlSystemGetDriverVersion(self, state, buffer, room):
        put_text(buffer, state["driver"], room)

    def _nvmlDeviceGetCount(self, state, count):
        put(count, 1)

    def _nvmlDeviceGetHandleByIndex(self, state, index, device):
        if number(index) != 0:
            raise Refused(INVALID)
        put_handle(device, 1)

    def _nvmlDeviceGetHandleByUUID(self, state, wanted, device):
        name = wanted.value.decode()
        if name == state["uuid"]:
            return put_handle(device, 1)
        for gi, ci, compute in devices(state):
            if name == compute["uuid"]:
                return put_handle(device, 4, gi, ci)
        raise Refused(NOT_FOUND)

    def _nvmlDeviceGetUUID(self, state, device, buffer, room):
        compute = self._mig(state, device)
        put_text(buffer, compute["uuid"] if compute else state["uuid"], room)

    def _nvmlDeviceGetName(self, state, device, buffer, room):
        name = self._card.name
        if self._mig(state, device):
            _, gi, _ = handle_parts(device)
            name += " MIG " + self._card.by_id[state["instances"][gi]["profile"]]["name"]
        put_text(buffer, name, room)

    def _nvmlDeviceGetMemoryInfo(self, state, device, memory):
        total = self._card.memory_mib
        if self._mig(state, device):
            _, gi, _ = handle_parts(device)
            total = self._card.memory_of(self._card.by_id[state["instances"][gi]["profile"]])
        used = sum(entry["memory"] for entry in self._card.processes().values())
        fill(memory, total=total * MIB, used=used, free=total * MIB - used)

    def _nvmlDeviceGetCudaComputeCapability(self, state, device, major, minor):
        put(major, self._card.capability[0])
        put(minor, self._card.capability[1])

    def _nvmlDeviceGetNumGpuCores(self, state, device, count):
        put(count, self._card.sms * self._card.cores)

    def _nvmlDeviceGetPciInfo(self, state, device, info):
        fill(info, busId=b"FFFFFFFF:FF:00.0")

    def _nvmlDeviceGetComputeMode(self, state, device, mode):
        put(mode, state["settings"]["compute_mode"])

    def _nvmlDeviceGetTemperature(self, state, device, sensor, value):
        put(value, int(self._now(state, "temperature")))

    def _nvmlDeviceGetPowerUsage(self, state, device, value):
        put(value, int(self._now(state, "power") * 1000))

    def _nvmlDeviceGetClockInfo(self, state, device, clock, value):
        put(value, int(self._now(state, {1: "sm_clock", 2: "memory_clock"}[number(clock)])))

    def _nvmlDeviceGetCurrentClocksEventReasons(self, state, device, value):
        put(value, int(self._now(state, "throttle")))

    def _nvmlDeviceGetUtilizationRates(self, state, device, rates):
        if state["mode"]:
            raise Refused(UNSUPPORTED)
        gpu, memory = self._now(state, "gpu_util"), self._now(state, "memory_util")
        fill(rates, gpu=round(gpu * 100), memory=round(memory * 100))

    def _nvmlDeviceGetFieldValues(self, state, device, count, array):
        for field in target(array)[: number(count)]:
            name, scale, kind = FIELDS.get(field.fieldId, (None, 1, UNSIGNED_INT))
            known = name and field.fieldId not in state["settings"]["fields_refused"]
            field.nvmlReturn = SUCCESS if known else UNSUPPORTED
            if known:
                field.valueType = kind
                value = int(self._now(state, name) * scale)
                setattr(field.value, {UNSIGNED_INT: "uiVal"}.get(kind, "ullVal"), value)

    def _now(self, state: dict, name: str) -> float:
        """A gauge as it is, a counter as far as it has come."""
        if name == "energy":
            step = int(state["settings"]["energy_step_ms"] * 1e6)
            at = time.monotonic_ns()
            return activity.total(state["activity"], "power", at - at % step if step else at)
        if name.endswith("_violation"):
            return activity.total(state["activity"], name, time.monotonic_ns())
        return activity.now(state["activity"], name)

    # -- GPM --------------------------------------------------------------------------------------

    def _nvmlGpmQueryDeviceSupport(self, state, device, support):
        fill(support, isSupportedDevice=int(self._has_gpm(state)))

    def _nvmlGpmSampleAlloc(self, state, sample):
        address = max(self.samples, default=0x1000) + 0x1000
        self.samples[address] = None
        ctypes.c_uint64.from_address(ctypes.addressof(target(sample))).value = address

    def _nvmlGpmSampleFree(self, state, sample):
        self.samples.pop(self._sample(sample))

    def _nvmlGpmSampleGet(self, state, device, sample):
        self._take(state, sample, "gpu")

    def _nvmlGpmMigSampleGet(self, state, device, instance, sample):
        if str(number(instance)) not in state["instances"]:
            raise Refused(INVALID)
        self._take(state, sample, f"gi:{number(instance)}")

    def _take(self, state: dict, sample, entity: str) -> None:
        if not self._has_gpm(state):
            raise Refused(UNSUPPORTED)
        at = time.monotonic_ns()
        refresh = int(state["settings"]["gpm_refresh_ms"] * 1e6)
        self.samples[self._sample(sample)] = (at - at % refresh if refresh else at, entity)

    def _nvmlGpmMetricsGet(self, state, reference):
        request, settings = target(reference), state["settings"]
        if request.version != 1 or request.numMetrics > len(request.metrics):
            raise Refused(INVALID)
        older, newer = (self.samples[self._sample(s)] for s in (request.sample1, request.sample2))
        asked = request.metrics[: request.numMetrics]
        unknown = set(settings["gpm_unknown"])
        if not older or not newer or any(m.metricId in unknown for m in asked):
            raise Refused(INVALID)
        for metric in asked:
            refused = settings["gpm_refused"].get(str(metric.metricId))
            metric.nvmlReturn = refused or (SUCCESS if metric.metricId in GPM else UNSUPPORTED)
            metric.value = 0.0
            if metric.nvmlReturn == SUCCESS:
                metric.metricInfo.unit = GPM_UNITS[metric.metricId][0]
                metric.value = self._gpm(state, metric.metricId, older, newer)

    def _gpm(self, state: dict, metric: int, older: tuple, newer: tuple) -> float:
        name, (unit, scale) = GPM[metric], GPM_UNITS[metric]
        (start, entity), (end, _) = older, newer
        if metric in state["settings"]["gpm_nan"]:
            return float("nan")
        if start == end:  # not refreshed in between
            nan = name == "drama" or (state["settings"]["gpm_stale"] == "nan" and unit == b"%")
            return float("nan") if nan else 0.0
        rate = activity.mean(state["activity"], name, start, end, entity)
        return rate * ((end - start) / 1e9 if name == "ctxsw_requests" else scale)

    def _has_gpm(self, state: dict) -> bool:
        said = state["settings"]["gpm"]
        return self._card.capability >= (9, 0) if said is None else said

    def _sample(self, pointer) -> int:
        """The address of a sample buffer that was allocated and not yet freed."""
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        if address not in self.samples:
            raise Refused(INVALID)
        return address

    def _nvmlDeviceGetComputeRunningProcesses(self, state, device, count, array):
        self._list(state, device, count, array, ("compute", "mps", "server"))

    def _nvmlDeviceGetMPSComputeRunningProcesses(self, state, device, count, array):
        self._list(state, device, count, array, ("mps",))

    def _list(self, state, device, count, array, kinds) -> None:
        self._mig(state, device)
        kind, gi, ci = handle_parts(device)
        places = {state["uuid"]: (WHOLE, WHOLE)}
        places |= {entry["uuid"]: (int(g), int(c)) for g, c, entry in devices(state)}
        wanted = (int(gi), int(ci)) if kind == 4 else None
        listed = [
            (pid, *places[entry["place"]], entry["memory"])
            for pid, entry in self._card.processes().items()
            if entry["kind"] in kinds and entry["place"] in places
            if wanted in (None, places[entry["place"]])
        ]
        room = number(target(count))
        put(count, len(listed))
        if room < len(listed):
            raise Refused(SHORT)
        for index, (pid, gpu_instance, compute_instance, memory) in enumerate(listed):
            fill(
                array[index],
                pid=pid + state["settings"]["host_pids"],
                usedGpuMemory=memory,
                gpuInstanceId=gpu_instance,
                computeInstanceId=compute_instance,
            )

    # -- MIG: mode and what the card offers -------------------------------------------------------

    def _nvmlDeviceGetMigMode(self, state, device, current, pending):
        if not self._card.profiles:
            raise Refused(UNSUPPORTED)
        put(current, state["mode"])
        put(pending, state["pending"])

    def _nvmlDeviceSetMigMode(self, state, device, mode, activation):
        if not self._card.profiles:
            raise Refused(UNSUPPORTED)
        mode = number(mode)
        settings = state["settings"]
        state["pending"] = mode
        put(activation, SUCCESS)
        if mode == state["mode"]:
            return
        if settings["busy"] or state["instances"] or self._card.processes():
            put(activation, IN_USE)
        elif not settings["needs_reset"]:
            state["mode"] = mode

    def _nvmlDeviceGetGpuInstanceProfileInfo(self, state, device, index, info):
        if not self._card.profiles:
            raise Refused(UNSUPPORTED)
        if state["settings"]["secret"] and not state["mode"]:
            raise Refused(UNSUPPORTED)
        if number(index) > max(self._card.profiles):
            raise Refused(INVALID)
        if number(index) not in self._card.profiles:
            raise Refused(UNSUPPORTED)
        profile = self._card.profiles[number(index)]
        fill(
            info,
            id=profile["id"],
            sliceCount=profile["slices"],
            instanceCount=state["settings"]["count"] or profile["most"],
            multiprocessorCount=self._card.sm_count(profile),
            memorySizeMB=self._card.memory_of(profile),
            name=f"MIG {profile['name']}".encode(),
        )

    def _nvmlDeviceGetGpuInstancePossiblePlacements(self, state, device, profile_id, array, count):
        placements = self._profile(profile_id)["placements"]
        room = number(target(count))
        put(count, len(placements))
        if array is None:
            return
        if room < len(placements):
            raise Refused(SHORT)
        for index, (start, size) in enumerate(placements):
            fill(target(array)[index], start=start, size=size)

    def _nvmlDeviceGetMaxMigDeviceCount(self, state, device, count):
        most = max((profile["most"] for profile in self._card.profiles.values()), default=0)
        put(count, most if state["mode"] else 0)

    # -- MIG: GPU instances -----------------------------------------------------------------------

    def _nvmlDeviceCreateGpuInstanceWithPlacement(
        self, state, device, profile_id, placement, instance
    ):
        self._needs_mode(state)
        profile = self._profile(profile_id)
        start, size = target(placement).start, target(placement).size
        if [start, size] not in [list(known) for known in profile["placements"]]:
            raise Refused(INVALID)
        there = state["instances"].values()
        alike = sum(other["profile"] == profile["id"] for other in there)
        if alike >= profile["most"] or overlaps(start, size, there):
            raise Refused(FULL)
        gi = self._new(state)
        state["instances"][gi] = {
            "profile": profile["id"],
            "start": start,
            "size": size,
            "compute": {},
        }
        put_handle(instance, 2, gi)

    def _nvmlGpuInstanceDestroy(self, state, instance):
        gi, found = self._gpu_instance(state, instance)
        if found["compute"]:
            raise Refused(IN_USE)
        del state["instances"][gi]

    def _nvmlDeviceGetGpuInstances(self, state, device, profile_id, array, count):
        self._needs_mode(state)
        profile = self._profile(profile_id)
        found = [gi for gi, i in state["instances"].items() if i["profile"] == profile["id"]]
        for index, gi in enumerate(found):
            put_handle(array, 2, gi, index=index)
        put(count, len(found))

    def _nvmlDeviceGetGpuInstanceById(self, state, device, number_, instance):
        put_handle(instance, 2, number(number_))
        self._gpu_instance(state, target(instance))

    def _nvmlGpuInstanceGetInfo(self, state, instance, info):
        gi, found = self._gpu_instance(state, instance)
        fill(info, id=int(gi), profileId=found["profile"])
        fill(target(info).placement, start=found["start"], size=found["size"])

    # -- MIG: compute instances -------------------------------------------------------------------

    def _nvmlGpuInstanceGetComputeInstanceProfileInfo(self, state, instance, index, engines, info):
        _, found = self._gpu_instance(state, instance)
        index = number(index)
        if number(engines) != 0 or index > len(SLICES):
            raise Refused(INVALID)
        starts = self._card.compute_placements(found, index) if index < len(SLICES) else []
        if not starts:
            raise Refused(UNSUPPORTED)
        fill(
            info,
            id=index,
            sliceCount=SLICES[index],
            instanceCount=state["settings"]["count"] or len(starts),
            multiprocessorCount=self._card.compute_sms(found, index),
        )

    def _nvmlGpuInstanceCreateComputeInstance(self, state, instance, profile_id, compute):
        gi, found = self._gpu_instance(state, instance)
        size = self._card.extent(found, number(profile_id))
        for start in self._card.compute_placements(found, number(profile_id)):
            if not overlaps(start, size, found["compute"].values()):
                return self._add(state, gi, number(profile_id), start, compute)
        raise Refused(FULL)

    def _add(self, state, gi, profile_id, start, compute) -> None:
        """Ids count from 0 in each GPU instance; a MIG device takes the first free number."""
        instance = state["instances"][gi]
        at, there = (instance["profile"], instance["start"]), instance["compute"]
        ci = next(str(n) for n in range(8) if str(n) not in there)
        taken = {entry["slot"] for _, _, entry in devices(state)}
        there[ci] = {
            "profile": profile_id,
            "start": start,
            "size": self._card.extent(instance, profile_id),
            # As NVIDIA's, it says no more than which card, and where on it.
            "uuid": f"MIG-{uuid.uuid5(uuid.UUID(state['uuid'][4:]), f'{at} {start}')}",
            "slot": next(n for n in range(64) if n not in taken),
        }
        put_handle(compute, 3, gi, ci)

    def _nvmlComputeInstanceDestroy(self, state, compute):
        gi, ci, found = self._compute_instance(state, compute)
        if any(entry["place"] == found["uuid"] for entry in self._card.processes().values()):
            raise Refused(IN_USE)
        del state["instances"][gi]["compute"][ci]

    def _nvmlGpuInstanceGetComputeInstances(self, state, instance, profile_id, array, count):
        gi, found = self._gpu_instance(state, instance)
        wanted = number(profile_id)
        listed = [ci for ci, entry in found["compute"].items() if entry["profile"] == wanted]
        for index, ci in enumerate(listed):
            put_handle(array, 3, gi, ci, index)
        put(count, len(listed))

    def _nvmlGpuInstanceGetComputeInstanceById(self, state, instance, number_, compute):
        gi, _ = self._gpu_instance(state, instance)
        put_handle(compute, 3, gi, number(number_))
        self._compute_instance(state, target(compute))

    def _nvmlComputeInstanceGetInfo(self, state, compute, info):
        _, ci, found = self._compute_instance(state, compute)
        fill(info, id=int(ci), profileId=found["profile"])
        fill(target(info).placement, start=found["start"], size=found["size"])

    # -- MIG: devices -----------------------------------------------------------------------------

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, state, device, index, found):
        self._needs_mode(state)
        for gi, ci, compute in devices(state):
            if compute["slot"] == number(index):
                return put_handle(found, 4, gi, ci)
        raise Refused(NOT_FOUND)

    def _nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, state, device, parent):
        put_handle(parent, 1)

    def _nvmlDeviceGetGpuInstanceId(self, state, device, value):
        self._needs_mig(state, device)
        put(value, int(handle_parts(device)[1]))

    def _nvmlDeviceGetComputeInstanceId(self, state, device, value):
        self._needs_mig(state, device)
        put(value, int(handle_parts(device)[2]))

    def _nvmlDeviceGetAttributes(self, state, device, attributes):
        compute = self._needs_mig(state, device)
        instance = state["instances"][handle_parts(device)[1]]
        profile = self._card.by_id[instance["profile"]]
        fill(
            attributes,
            multiprocessorCount=self._card.compute_sms(instance, compute["profile"]),
            gpuInstanceSliceCount=profile["slices"],
            computeInstanceSliceCount=SLICES[compute["profile"]],
            memorySizeMB=self._card.memory_of(profile),
        )

    # -- what they share --------------------------------------------------------------------------

    def _new(self, state: dict) -> str:
        """An instance id that was never there before: nothing may rest on ids coming back."""
        state["ids"] += 1
        return str(state["ids"])

    def _needs_mode(self, state: dict) -> None:
        if not state["mode"]:
            raise Refused(UNSUPPORTED)

    def _profile(self, profile_id) -> dict:
        if number(profile_id) not in self._card.by_id:
            raise Refused(INVALID if self._card.by_id else UNSUPPORTED)
        return self._card.by_id[number(profile_id)]

    def _gpu_instance(self, state: dict, handle) -> tuple[str, dict]:
        kind, gi, _ = handle_parts(handle)
        if kind != 2 or gi not in state["instances"]:
            raise Refused(INVALID)
        return gi, state["instances"][gi]

    def _compute_instance(self, state: dict, handle) -> tuple[str, str, dict]:
        kind, gi, ci = handle_parts(handle)
        found = state["instances"].get(gi, {"compute": {}})["compute"].get(ci)
        if kind != 3 or found is None:
            raise Refused(INVALID)
        return gi, ci, found

    def _mig(self, state: dict, handle) -> dict | None:
        """The compute instance of a MIG device's handle, None for the card's."""
        kind, gi, ci = handle_parts(handle)
        if kind == 1:
            return None
        found = state["instances"].get(gi, {"compute": {}})["compute"].get(ci)
        if kind != 4 or found is None:
            raise Refused(INVALID)
        return found

    def _needs_mig(self, state: dict, handle) -> dict:
        if (found := self._mig(state, handle)) is None:
            raise Refused(UNSUPPORTED)
        return found
