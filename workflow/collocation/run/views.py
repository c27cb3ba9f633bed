"""Which views of a folder this machine allows (member/view.py), and where what they hold lies."""

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from workflow.collocation.member.spec import MemberSpec, ScriptSpec, ViewSpec
from workflow.collocation.member.view import View, entries_of, mounts, remove
from workflow.collocation.run.task import free_ports

PREFIX = "collocate-view-"
OF_SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib64", "/sbin", "/usr")
ROOM = 1 << 30  # bytes that a file system must have free for what scripts write
MOST_COPIED, MOST_COPIED_FILES = 1 << 30, 20_000  # bytes and files of a folder that is copied
MOST_ENTRIES, MOST_PLACES = 1_000_000, 64  # that are looked through for links, that are covered


def plan_view(folder: Path, results: Path, copies: int) -> ViewSpec:
    """How copies of a script that runs in `folder` are kept from writing there.

    results: the folder of results, which may lie in it. copies: how many there may be at once.
    Raises ValueError with one line if neither an overlay nor a copy is possible.
    """
    folder = folder.resolve()
    try:
        return _plan_overlay(folder)
    except (ValueError, OSError) as error:
        no_overlay = str(error)
    try:
        return _plan_copy(folder, results.resolve(), copies)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"no overlay can cover {folder} ({no_overlay}), and it cannot be copied ({error})"
        ) from None


def keep_apart(specs: Sequence[MemberSpec], view: ViewSpec | None) -> list[MemberSpec]:
    """Give each script a view and a port of its own; other members stay as they are.

    view: its scratch is the folder for those of all members; None: they write where they run.
    """
    if not isinstance(specs[0].job, ScriptSpec):
        return list(specs)
    kept_apart = []
    for spec, port in zip(specs, free_ports(len(specs)), strict=True):
        mine = view and replace(view, scratch=str(Path(view.scratch, str(spec.index))))
        # torchrun takes its port from the second, and gives it to its workers as the first.
        ports = dict.fromkeys(("MASTER_PORT", "PET_MASTER_PORT"), str(port))
        job = replace(spec.job, view=mine)
        kept_apart.append(replace(spec, job=job, environment=spec.environment | ports))
    return kept_apart


@contextmanager
def with_scratch(view: ViewSpec) -> Iterator[ViewSpec]:
    """This view with a new folder below its scratch as its scratch, removed at the end.

    Those that killed processes of this user left there are removed too.
    """
    for left in Path(view.scratch).glob(f"{PREFIX}*"):
        with suppress(OSError), _locked(left, fcntl.LOCK_NB):
            if left.stat().st_uid == os.geteuid():
                remove(left)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=view.scratch))
        with _locked(folder):
            if not folder.exists():  # Another process took it for one that was left.
                continue
            try:
                yield replace(view, scratch=str(folder))
            finally:
                remove(folder)
            return


@contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(descriptor)


def _bases(places: Sequence[Path], room: int) -> list[str]:
    """Folders for what scripts write, with so many bytes free; none lies in one of the places."""
    bases = dict.fromkeys(map(os.path.realpath, (tempfile.gettempdir(), "/dev/shm")))
    return [
        base
        for base in bases
        if os.access(base, os.W_OK)
        and shutil.disk_usage(base).free >= room
        and not any(Path(base).is_relative_to(place) for place in places)
    ]


# -- overlays --------------------------------------------------------------------------------------


def _plan_overlay(folder: Path) -> ViewSpec:
    places = places_behind(folder)
    for base in _bases(places, ROOM):
        # In a user namespace, root could not read what belongs to others.
        for user_namespace in (False, True):
            if user_namespace and any(map(_belongs_to_others, places)):
                continue  # in which nobody could write their files
            view = ViewSpec(
                kind="overlay",
                scratch=base,
                places=list(map(str, places)),
                user_namespace=user_namespace,
            )
            if _is_allowed(view, folder):
                return view
    raise ValueError("the system allows none")


def _belongs_to_others(place: Path) -> bool:
    """Whether a folder holds something of another user or group."""
    own = os.geteuid(), os.getegid()
    for entry in _entries(place):
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if (status.st_uid, status.st_gid) != own:
                return True
    return False


def _is_allowed(view: ViewSpec, folder: Path) -> bool:
    """Whether a process can enter this view of a folder."""
    with with_scratch(view) as view:
        view = replace(view, scratch=str(Path(view.scratch, "trial")))
        trial = View(
            ScriptSpec(
                command=[], working_folder=str(folder), steps="", step_timeout_s=0, view=view
            )
        )
        trial.begin_run()
        try:
            subprocess.run(["true"], preexec_fn=trial.enter, check=True)
        except subprocess.SubprocessError:
            return False
    return True


def places_behind(folder: Path) -> list[Path]:
    """The folders that paths below a folder lead to: itself, targets of its links, and mounts.

    Of a link to a file, it is the folder of that file. Each comes before those below it. Raises
    ValueError with what cannot be covered.
    """
    places, left = set(), MOST_ENTRIES
    ways = [(folder, folder)]  # folders, and a path that leads to each
    while ways:
        place, way = ways.pop()
        if any(place.is_relative_to(known) for known in places):
            continue
        if any(shared.is_relative_to(place) for shared in _shared()):
            raise ValueError(f"{way} leads to {place}, which other processes need")
        places.add(place)
        # Data of others, perhaps very many files, is covered without looking for links in it.
        for entry in _entries(place) if os.access(place, os.W_OK) else ():
            left -= 1
            if left < 0:
                raise ValueError(f"over {MOST_ENTRIES:,} files would have to be searched for links")
            if entry.is_symlink() and (target := _written_through(entry.path)):
                ways.append((target, Path(entry.path)))
    places = {place for place in places if places.isdisjoint(place.parents)}
    for mount in mounts():
        if not places.isdisjoint(mount.parents):
            if not mount.is_dir():
                raise ValueError(f"{mount} is mounted")
            places.add(mount)
    if len(places) > MOST_PLACES:
        raise ValueError(f"its links lead to over {MOST_PLACES} folders")
    return sorted(places)


def _shared() -> list[Path]:
    """Folders through which processes talk. Nothing that holds one of them can be covered."""
    return list(map(Path, ("/dev/shm", "/proc", "/run", "/sys", "/tmp", tempfile.gettempdir())))


def _entries(folder: Path) -> Iterator[os.DirEntry]:
    """All that lies below a folder; links are not followed."""
    waiting = [folder]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def _written_through(link: str) -> Path | None:
    """The folder that writing through a link can alter; None if there is none.

    Not of the system: an environment's links lead there, and no script writes to them.
    """
    target = Path(os.path.realpath(link))
    if any(target.is_relative_to(folder) for folder in OF_SYSTEM):
        return None
    with suppress(PermissionError):  # nobody writes through a link that may not be followed
        if target.is_dir():
            return None if os.statvfs(target).f_flag & os.ST_RDONLY else target
        can_be_made = not target.exists() and target.parent.is_dir()
        if can_be_made or (target.is_file() and os.access(target, os.W_OK)):
            return target.parent
    return None


# -- copies ----------------------------------------------------------------------------------------


def _plan_copy(folder: Path, results: Path, copies: int) -> ViewSpec:
    left_out = [str(folder / ".git"), str(folder / ".venv"), str(results)]
    size = 0
    for count, (_, status) in enumerate(entries_of(folder, left_out), 1):
        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
        if size > MOST_COPIED or count > MOST_COPIED_FILES:
            limit = f"{MOST_COPIED >> 30} GB or {MOST_COPIED_FILES:,} files"
            raise ValueError(f"it holds more than {limit}, links followed")
    for base in _bases([folder], copies * size + ROOM):
        return ViewSpec(kind="copy", scratch=base, left_out=left_out)
    raise ValueError(f"no disk has room for {copies} of it")
