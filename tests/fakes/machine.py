"""A machine with one NVIDIA card that is not there, for the real code in this or other processes.

    environment = machine.create(folder, "h200_141", mig=True)   # for subprocesses
    machine.configure(folder, lost=True)                        # while they run, too
    context = machine.attach(os.environ)                         # in a process that "uses CUDA"
    with machine.installed(folder): ...                          # pynvml of this process sees it
    machine.does(folder, gract=0.5, power=300)                   # what the card does from now on

What NVML says is tests/fakes/driver.py, what MPS does tests/fakes/nvidia-cuda-mps-control, what
DCGM says tests/fakes/dcgmi.
"""

import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pynvml

from tests.fakes import activity, driver

FAKES = Path(__file__).resolve().parent
REPOSITORY = FAKES.parents[1]
CARDS = FAKES.parent / "cards"
UUID = "GPU-5a11ab1e-0000-4000-8000-00000000cafe"
CONTEXT_MIB = 500  # what a CUDA context takes of the card
CONTEXT_UNDER_LIMIT = 538_339_472  # bytes of a pinned-memory limit that are gone; read on an H200
WRONG_PRODUCTS = {78: [[n, n, n] for n in (2048, 3072, 4096)]}  # shapes, by SMs
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}

DEFAULTS = {"lost": False, "compute_mode": 0, "failures": [], "kill": None, "dcgm": None}
DEFAULTS |= {"blocks": [], "blocks_in_use": False, "gpm_refresh_ms": 0, "gpm_stale": "zero"}
DEFAULTS |= {"gpm_nan": [], "gpm_refused": {}, "fields_refused": []}


def create(
    folder: Path, card: str = "h200_141", mig: bool = False, uuid: str = UUID, **settings
) -> dict[str, str]:
    """Make the machine in `folder`; gives what subprocesses need in their environment.

    card: the name of a table in tests/cards, or "none" for a card that has no MIG. mig: whether
    MIG mode is on. uuid: its own for machines that are there at once, or each would find the
    other's MPS daemons on its card. settings: see tests/fakes/driver.py.
    """
    folder = Path(folder)
    (folder / "processes").mkdir(parents=True)
    has_mig = card != "none"
    key = card if has_mig else "h100_80_sxm"
    table = json.loads((CARDS / f"{key}.json").read_text()) if has_mig else {"name": "NVIDIA X"}
    profiles = table.get("profiles", [])
    table = {"key": key, "name": table["name"], "profiles": profiles}
    (folder / "card.json").write_text(json.dumps(table))
    state = {
        "version": 0,
        "uuid": uuid,
        "driver": "580.159",
        "mode": int(mig),
        "instances": {},
        "ids": 0,
        "calls": {},
        "activity": [{"t": time.monotonic_ns()}],
        "settings": DEFAULTS,
    }
    (folder / "state.json").write_text(json.dumps(state))
    os.utime(folder / "state.json", ns=(0, 0))
    configure(folder, **settings)
    path = [str(FAKES), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        "COLLOCATION_FAKE_NVML": str(folder),
        "PYTHONPATH": os.pathsep.join([str(FAKES / "nvml"), str(REPOSITORY)]),
        "PATH": os.pathsep.join(path),
    }


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Have this process's own nvidia-ml-py find the machine's library instead of NVIDIA's, and so
    the child that asks it (gpu/nvml_subprocess.py).
    """
    from workflow.collocation.gpu import nvidia, nvml_subprocess  # trainers need neither

    child, nvml_subprocess.CHILD = nvml_subprocess.CHILD, nvml_subprocess.NvmlProcess()
    nvidia._FAILING.clear()
    before = dict(vars(pynvml))
    driver.install(pynvml, [folder])
    try:
        yield
    finally:
        nvml_subprocess.CHILD.end()
        nvml_subprocess.CHILD = child
        vars(pynvml).update(before)


def configure(folder: Path, **settings) -> None:
    """Change settings, and count calls from 0 again."""
    with driver.Card(folder).open() as state:
        if unknown := settings.keys() - state["settings"].keys():
            raise ValueError(f"no such setting: {', '.join(unknown)}")
        state["settings"] |= settings
        state["calls"] = {}


def does(folder: Path, entity: str = "gpu", **values: float) -> None:
    """Have the card, or its GPU instance "gi:<id>", do this from now on; the rest stays as it is.

    values: of tests/fakes/activity.py.
    """
    if unknown := values.keys() - activity.QUIET.keys():
        raise ValueError(f"no such activity: {', '.join(unknown)}")
    with driver.Card(folder).open() as state:
        last = state["activity"][-1]
        changed = {entity: last.get(entity, {}) | values, "t": time.monotonic_ns()}
        state["activity"].append(last | changed)


def fail(folder: Path, call: str, at: int = 1, error: int = 999, on: bool = False) -> None:
    """Have the `at`-th call from now fail with `error`; with `on`, all that follow too."""
    configure(folder, failures=[{"call": call, "at": at, "error": error, "on": on}])


def changes(folder: Path) -> int:
    """How many calls were to change the card since the settings were."""
    with driver.Card(folder).open() as state:
        return state["calls"].get("change", 0)


def mode(folder: Path) -> bool:
    """Whether MIG mode is on."""
    with driver.Card(folder).open() as state:
        return bool(state["mode"])


def switch(folder: Path, on: bool) -> None:
    """Switch MIG mode, as an administrator does."""
    with driver.Card(folder).open() as state:
        state["mode"] = int(on)


def layout(folder: Path) -> list[tuple]:
    """What is there: (profile id, start, size, slices of its compute instances)."""
    with driver.Card(folder).open() as state:
        return sorted(
            (i["profile"], i["start"], i["size"], [c["takes"] for c in i["compute"].values()])
            for i in state["instances"].values()
        )


def mig_uuids(folder: Path) -> list[str]:
    """UUIDs of the MIG devices that are there now."""
    with driver.Card(folder).open() as state:
        return [compute["uuid"] for _, _, compute in driver.devices(state)]


# -- CUDA -----------------------------------------------------------------------------------------


def attach(environment: Mapping[str, str], pid: int | None = None, memory_mb: int = 0) -> dict:
    """What making a CUDA context does, for this process or for `pid`; gives what it then sees.

    memory_mb: what it allocates then. Raises RuntimeError where CUDA would fail.
    """
    folder, wanted = chosen(environment)
    pid = pid or os.getpid()
    card = driver.Card(folder)
    place, sms, memory, name = _device(card, wanted)
    server = _join(environment, folder, pid, place)
    free = memory - CONTEXT_MIB * driver.MIB
    products = {}
    if server:
        if percentage := environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
            granted = int(sms * float(percentage) / 100)  # pairs, at least 8: as read on an H200
            sms = min(sms, max(8, granted - granted % 2))
            wrong = WRONG_PRODUCTS.get(sms, [])
            products = {"products": {"bf16": {"sizes": 8, "wrong": wrong}}}
        limit = _limit(environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""))
        if limit is not None:
            free = min(free, limit - CONTEXT_UNDER_LIMIT)
        if free <= 0:
            raise RuntimeError("CUDA error: out of memory")
        occupy(folder, server, place, "server")
    used = sum(entry["memory"] for entry in card.processes().values())
    if memory_mb and used + (CONTEXT_MIB + memory_mb) * driver.MIB > memory:
        raise RuntimeError("CUDA error: out of memory")
    occupy(folder, pid, place, "mps" if server else "compute", memory_mb)
    return {
        "device_uuid": place,
        "sm_count": sms,
        "sm_source": "affinity",
        "memory_free": free,
        "device_name": name,
        **products,
    }


def occupy(
    folder: Path, pid: int, place: str | None = None, kind: str = "compute", memory_mb: int = 0
) -> None:
    """Have a living process compute at `place`, the UUID of a MIG device, or else of the card."""
    place = place or driver.Card(folder).peek()["uuid"]
    entry = {"place": place, "kind": kind, "memory": (CONTEXT_MIB + memory_mb) * driver.MIB}
    new = folder / f"{pid}.{os.getpid()}.new"  # two members may do so for one MPS server
    new.write_text(json.dumps(entry | {"birth": driver.birth(pid)}))
    new.replace(folder / "processes" / str(pid))


def _device(card: driver.Card, wanted: str) -> tuple[str, int, int, str]:
    """UUID, SMs, bytes and name of the device that CUDA would choose."""
    with card.open() as state:
        for gi, _, compute in driver.devices(state):
            if wanted == compute["uuid"]:
                instance = state["instances"][gi]
                profile = card.by_id[instance["profile"]]
                sms = card.offers(instance)[compute["profile"]][1]
                name = f"{card.name} MIG {profile['name']}"
                return wanted, sms, profile["memory_mib"] * driver.MIB, name
        whole = wanted == "0" or (wanted and state["uuid"].startswith(wanted))
        if state["settings"]["lost"] or not whole or state["mode"]:
            raise RuntimeError("no CUDA-capable device is detected")
        return state["uuid"], card.sms, card.memory_mib * driver.MIB, card.name


def chosen(environment: Mapping[str, str]) -> tuple[Path, str]:
    """The folder of the card that CUDA would choose, and by what name."""
    there = driver.folders(environment)
    wanted = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    for index, folder in enumerate(there if there[1:] else ()):
        uuid = driver.Card(folder).peek()["uuid"]
        if wanted == str(index) or wanted and uuid.startswith(wanted):
            return folder, uuid
    return there[0], wanted


def _join(environment: Mapping[str, str], folder: Path, pid: int, place: str) -> int | None:
    """Become a client of the daemon in the pipe folder; gives its server's PID.

    None without a daemon: as the real thing, the process then runs without MPS and without a word.
    """
    pipe = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY") or folder / "nvidia-mps")
    try:
        _ask(pipe, "get_server_list")
    except OSError:
        return None
    daemon = psutil.Process(int((pipe / "nvidia-cuda-mps-control.pid").read_text()))
    shown = daemon.environ().get("CUDA_VISIBLE_DEVICES", place).split(",")
    if not any(place.startswith(name) for name in shown):
        raise RuntimeError("no CUDA-capable device is detected")
    (pipe / "clients" / str(pid)).touch()
    servers = re.findall(r"^\d+$", _ask(pipe, "get_server_list"), re.M)
    return int(servers[0])


def _ask(pipe: Path, command: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(pipe / "control"))
        with connection.makefile("rw") as stream:
            print(command, file=stream, flush=True)
            return stream.read()


def _limit(text: str) -> int | None:
    """Bytes of "0=600M"; None without a limit."""
    found = re.fullmatch(r"0=(\d+)([KMG]?)B?", text)
    return int(found[1]) * UNITS[found[2]] if found else None
