"""The files of a run: ids that are safe as names, saves, one owner at a time, the trace."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RESERVED_ON_WINDOWS = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


class RunStoreError(Exception):
    """A saved run cannot be read, written or owned; the text says which and what to do."""


class RunBusyError(RunStoreError):
    """Somebody else is continuing this run, or has continued it since it was loaded."""


def check_run_id(run_id: Any) -> str:
    """The id, if it is safe as a file name. Raises ValueError before any path is made."""
    if (
        not isinstance(run_id, str)
        or not RUN_ID.fullmatch(run_id)
        or run_id.endswith(".")
        or _RESERVED_ON_WINDOWS.fullmatch(run_id)
    ):
        raise ValueError(
            f"run id {str(run_id)[:40]!r} is not usable as a file name: "
            "use 1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        )
    return run_id


def state_path(directory: str | Path, run_id: Any) -> Path:
    """Where a run is saved: ``<directory>/<run_id>.json``."""
    return Path(directory) / f"{check_run_id(run_id)}.json"


def write_atomically(path: Path, text: str) -> None:
    """Replace the file so that a reader, or a crash, sees the old text or the new, never half.

    Write beside it, fsync, replace. Until its directory is synced too, a power cut (not the end of
    the process) may bring back the file before, whole. For one writer at a time: whoever holds the
    run's lock.
    """
    # One name, not a new one each time: what a kill leaves behind is overwritten by the next save.
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(handle)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def append_line(path: Path, text: str, *, sync: bool = True) -> None:
    """Add a line to a file that is there, and fsync it: one write, and no new file.

    A crash can leave a part of the line, without its end: then it was never saved, and readers
    leave it out. When the disk refuses, the file stays as it was. Without ``sync`` the line
    outlives the process, but a power cut may take it, until a later line is synced.
    """
    with path.open("r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            _write_whole(file, f"{text}\n".encode())
            if sync:
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                file.truncate(size)
            raise


def _write_whole(file: BinaryIO, line: bytes) -> None:
    if file.write(line) != len(line):
        raise OSError("the file took only a part of a line")


def sync_directory(directory: Path) -> None:
    """Make the names in it durable too, where the system has such a step: Windows has none."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems have none either
            raise
    finally:
        os.close(descriptor)


def read_objects(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a saved run: the first one, and those of the lines after it.

    A last line without its end, or with a hole, was cut by a crash and is left out. Raises
    RunStoreError when there is no such file or it is damaged.
    """
    try:
        objects = _objects_in(path.read_text("utf-8").lstrip())
    except FileNotFoundError:
        raise RunStoreError(f"no saved run {path.stem} in {path.parent}") from None
    except (ValueError, RecursionError) as problem:
        raise RunStoreError(
            f"the saved run {path} is damaged ({problem}). Restore it from a backup, or move it "
            "away and start a new run; it was not changed"
        ) from None
    except OSError as problem:
        raise RunStoreError(f"the saved run {path} cannot be read: {problem}") from None
    if not all(isinstance(one, dict) for one in objects):
        raise RunStoreError(f"the saved run {path} is damaged (not an object); it was not changed")
    return objects


def _objects_in(text: str) -> list[Any]:
    first, end = _json.raw_decode(text)
    after, *lines = text[end:].split("\n")
    if after.strip():
        raise json.JSONDecodeError("Extra data", text, end)
    ended = lines[:-1]
    if ended and "\0" in ended[-1]:  # a power cut came when its end was on the disk already
        ended.pop()
    return [first, *(_json.decode(line) for line in ended if line)]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"it holds {number}")
    return value


_json = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


@contextmanager
def owning(directory: str | Path, run_id: str) -> Iterator[Path]:
    """Be the only one to continue this run. Raises RunBusyError at once when somebody else is.

    The operating system holds the lock for the process, so a dead owner does not keep it. Makes
    the directory, and gives the run's file in it as an absolute path: a tool that changes the
    working directory does not move it.
    """
    path = state_path(directory, run_id).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    release = _lock(path.with_suffix(".lock"))
    if release is None:
        raise RunBusyError(
            f"run {run_id} is being continued elsewhere; nothing was changed. "
            "Wait for that one to end, then load the run again"
        )
    try:
        yield path
    finally:
        release()


_held_in_this_page: set[Path] = set()


def _lock(path: Path) -> Callable[[], None] | None:
    """Lock a file: what unlocks it again, or None when somebody else has it."""
    if sys.platform == "emscripten":  # a page: no other process, and no lock of a system
        if path in _held_in_this_page:
            return None
        _held_in_this_page.add(path)
        return lambda: _held_in_this_page.discard(path)

    import filelock  # here, because in a page it warns that it has no lock to offer

    lock = filelock.FileLock(path, timeout=0, preserve_lock_file=True)
    try:
        lock.acquire()
    except filelock.Timeout:
        return None
    return lock.release


# --- the trace ----------------------------------------------------------------------------------

Trace = Callable[[dict[str, Any]], None]


@contextmanager
def open_trace(target: str | Path | Trace | None) -> Iterator[Trace]:
    """A function that takes events: to a file (JSON Lines, appended), a callable, or nowhere.

    Each event gets ``ts``, the time in UTC. A line leaves in one write, so that several runs can
    share a file and a crash cannot leave half a line between two others.
    """
    if target is None:
        yield lambda event: None
    elif callable(target):
        yield lambda event: target({**event, "ts": _now()})
    else:
        path = Path(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:
            if _is_torn(file):  # a crash in the middle of a line: end it, so that ours stands alone
                file.write(b"\n")
            yield lambda event: _write_line(file, event)


def _is_torn(file: BinaryIO) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


# Made once: json.dumps would make an encoder for each line.
_to_line = json.JSONEncoder(separators=(",", ":")).encode


def _write_line(file: BinaryIO, event: dict[str, Any]) -> None:
    _write_whole(file, _to_line({**event, "ts": _now()}).encode() + b"\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
