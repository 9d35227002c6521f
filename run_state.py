"""The state of a run: plain data, with what a person or a program may do to it between runs."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from run_store import (
    RunBusyError,
    RunStoreError,
    append_line,
    check_run_id,
    owning,
    read_objects,
    state_path,
    sync_directory,
    write_atomically,
)
from tool_calls import clean_text

Message = dict[str, Any]
Call = dict[str, Any]

STATE_VERSION = 1
# The price of the book's examples, in US dollars per million tokens.
BOOK_PRICE: Mapping[str, float] = {"in": 2.0, "out": 12.0}

RunStatus = Literal[
    "running", "completed", "failed", "max_turns_exceeded", "budget_exceeded", "interrupted"
]
RESUMABLE: tuple[RunStatus, ...] = ("max_turns_exceeded", "budget_exceeded", "interrupted")
CostBasis = Literal["exact", "estimated", "unknown"]

# --- the state: plain data ----------------------------------------------------------------------


@dataclass
class RunState:
    """All that a run is. ``json.dumps(asdict(state))`` always works and reads back equal.

    ``turns`` counts this run's own answers; ``cost_usd`` and the token counts include its child
    runs. ``cost_basis`` says how far the cost can be trusted. ``rejected`` holds, by call id, the
    words that the model gets in place of a result. ``started`` lists calls whose tool was begun.
    ``revision`` counts the saves, so that an old copy cannot replace a newer one.
    """

    run_id: str
    messages: list[Message]
    version: int = STATE_VERSION
    turns: int = 0
    cost_usd: float = 0.0
    cost_basis: CostBasis = "exact"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    status: RunStatus = "running"
    interruption: dict[str, Any] | None = None
    approved: list[str] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    children: dict[str, RunState] = field(default_factory=dict)
    invalid_turns: int = 0
    revision: int = 0
    output: str = ""
    error: str | None = None

    @property
    def resumable(self) -> bool:
        """Whether ``run`` can go on from here; a completed or failed run needs ``follow_up``."""
        return self.status in RESUMABLE


def new_run(system: str, task: str, run_id: str | None = None) -> RunState:
    """A fresh run. Raises ValueError for a ``run_id`` that is not safe as a file name."""
    messages = [{"role": "system", "content": clean_text(system)}] if system else []
    messages.append({"role": "user", "content": clean_text(task)})
    return RunState(check_run_id(run_id or secrets.token_hex(6)), messages)


def pending(state: RunState) -> list[Call]:
    """The calls of the last assistant message that no tool message after it answers."""
    answered = set()
    for message in reversed(state.messages):
        if message["role"] == "tool":
            answered.add(message["tool_call_id"])
        else:
            calls: list[Call] = message.get("tool_calls") or []
            return [call for call in calls if call["id"] not in answered]
    return []


def cost(usage: Mapping[str, int], price: Mapping[str, float] = BOOK_PRICE) -> float:
    """US dollars for one answer; ``price`` is per million tokens: ``in``, ``out``, ``cached``.

    ``prompt_tokens`` includes ``cached_tokens``, so those are billed once, at their own price.
    """
    cached = usage.get("cached_tokens", 0)
    fresh = usage["prompt_tokens"] - cached
    return (
        fresh * price["in"]
        + cached * price.get("cached", price["in"])
        + usage["completion_tokens"] * price["out"]
    ) / 1_000_000


# The ids (Python's) of the state objects that a run is working on in this process.
live: set[int] = set()
_claiming = threading.Lock()


@contextmanager
def claimed(state: RunState) -> Iterator[None]:
    """Be the only one in this process to continue a run. Raises RunBusyError at once otherwise."""
    with _claiming:
        if id(state) in live:
            raise RunBusyError(f"run {state.run_id} is running already; nothing was changed")
        live.add(id(state))
    try:
        yield
    finally:
        live.discard(id(state))


# --- a person decides ---------------------------------------------------------------------------


def waiting_calls(state: RunState) -> list[dict[str, Any]]:
    """The calls that wait for a person: ``call_id``, ``tool_name``, ``args`` each."""
    interruption = state.interruption or {}
    if interruption.get("type") != "approval":
        return []
    return interruption.get("calls") or [interruption]


def approve(state: RunState, call_id: str) -> None:
    """Let a waiting call run at the next ``run``. Raises ValueError when it does not wait."""
    holder, own_id = _find_waiting(state, call_id)
    if own_id in holder.rejected:
        raise ValueError(f"call {call_id} has been rejected already")
    if own_id in holder.started:  # its outcome was unknown; a person says: once more
        holder.started.remove(own_id)
    if own_id not in holder.approved:
        holder.approved.append(own_id)


def reject(state: RunState, call_id: str, reason: str = "") -> None:
    """Refuse a waiting call; the model reads why. Raises ValueError when it does not wait."""
    holder, own_id = _find_waiting(state, call_id)
    if own_id in holder.approved and own_id not in holder.started:
        raise ValueError(f"call {call_id} has been approved already")
    words = "The user rejected this call: it was not executed."
    if own_id in holder.started:
        words = (
            "This call was started earlier and its outcome is unknown: it may have had its "
            "effect. The user decided not to run it again."
        )
    holder.rejected[own_id] = clean_text(f"{words} Reason: {reason}" if reason else words)


def _find_waiting(state: RunState, call_id: str) -> tuple[RunState, str]:
    """The run (this one or a child of it) that made a waiting call, and the call's id there.

    A child's call is named by its path: ``<call of the parent>/<call of the child>``. The last
    part is enough where only one waiting call ends so.
    """
    paths = [call["call_id"] for call in waiting_calls(state)]
    found = [path for path in paths if path == call_id or path.endswith(f"/{call_id}")]
    if call_id not in paths and len(found) != 1:
        raise ValueError(f"no call {call_id} waits for a decision; waiting: {paths or 'none'}")
    *parents, own_id = (call_id if call_id in paths else found[0]).split("/")
    for parent in parents:
        state = state.children[parent]
    return state, own_id


def follow_up(state: RunState, text: str) -> None:
    """Go on with a new user message; open calls are closed first, in words."""
    if id(state) in live:
        raise RunBusyError(f"run {state.run_id} is running; stop it before you go on")
    for call in pending(state):
        words = "Not executed: the user went on before this call was started."
        if call["id"] in state.started:
            words = "Interrupted while it ran: it may have had a partial effect."
        answer_call(state, call, state.rejected.get(call["id"], words))
    state.messages.append({"role": "user", "content": clean_text(text)})
    state.status, state.interruption, state.invalid_turns = "running", None, 0
    state.output, state.error = "", None


def answer_call(state: RunState, call: Call, text: str) -> None:
    name = call["function"]["name"]
    message = {"role": "tool", "tool_call_id": call["id"], "name": name, "content": text}
    state.messages.append(message)


# --- on disk ------------------------------------------------------------------------------------


# What turns a saved state of one version into the next: from version, to the function that takes
# the dict as it was saved and returns the dict as the next version would have saved it.
MIGRATIONS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def save(state: RunState, directory: str | Path) -> Path:
    """Write the state to ``<directory>/<run_id>.json``, atomically and durably.

    Raises RunBusyError when another process is continuing this run or a newer copy is there,
    RunStoreError when the file there is damaged, OSError when the disk refuses, ValueError for an
    unsafe run id. In each case the file stays as it was; only when nothing but the sync of its
    directory fails (OSError) is the state there all the same.
    """
    path = state_path(directory, state.run_id)
    # A run that works on this state holds the lock of its store itself.
    with nullcontext() if id(state) in live else owning(directory, state.run_id):
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_older(state, path)
        StateFile(path).save(state)
    return path


def load(directory: str | Path, run_id: str) -> RunState:
    """Read a saved state; an older version is brought up to date on the way.

    Raises RunStoreError (none there, damaged, of a version that this harness does not know),
    ValueError for an unsafe run id.
    """
    path = state_path(directory, run_id)
    try:
        saved, *changes = read_objects(path)
        for change in changes:
            saved = _merged(saved, change)
        state = _from_dict(saved)
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as problem:
        raise RunStoreError(f"the saved run {path} is damaged: {problem}") from None
    if state.run_id != run_id:
        raise RunStoreError(f"the saved run {path} is damaged: it holds run {state.run_id!r}")
    return state


def _from_dict(saved: dict[str, Any]) -> RunState:
    while saved["version"] in MIGRATIONS:
        saved = MIGRATIONS[saved["version"]](saved)
    if saved["version"] != STATE_VERSION:
        raise RunStoreError(
            f"the saved run has state version {saved['version']!r}; this harness reads versions "
            f"{min(MIGRATIONS, default=STATE_VERSION)} to {STATE_VERSION}. Load it with the "
            "harness that wrote it"
        )
    children = {key: _from_dict(child) for key, child in saved["children"].items()}
    saved = {**saved, "children": children}
    for name, hint in get_type_hints(RunState).items():
        if not _fits(saved[name], hint):
            raise TypeError(f"{name} is {saved[name]!r:.80}")
    return RunState(**saved)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value read from JSON is of the type that a field of RunState declares."""
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return value in arguments
    if get_origin(hint) is UnionType:
        return any(_fits(value, one) for one in arguments)
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(_fits(item, arguments[1]) for item in value.values())
    if hint in (int, float):  # the numbers of a state are counts and sums of money
        whole = int if hint is int else (int, float)
        return isinstance(value, whole) and not isinstance(value, bool) and value >= 0
    return hint is Any or isinstance(value, hint)


# Made once, and not looking for circles: a state is saved twice a turn, and holds what was JSON.
_to_json = json.JSONEncoder(default=vars, allow_nan=False, check_circular=False).encode
# So many changes after the whole state; then the whole is written again, lest the file grow long.
MAX_CHANGES = 100


class StateFile:
    """The file of a run that goes on: its whole state, and a line for what each later save changed.

    A whole state takes a new file and grows with the run; a line takes one write and one fsync,
    and holds only the messages that are new: one that is saved is taken not to change any more.
    For whoever holds the run's lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._changes = 0
        # What the file has of each transcript: the run's own, at (), and those of its children.
        self._written: dict[tuple[str, ...], list[Message]] = {}

    def save(self, state: RunState, *, last: bool = False, sync: bool = True) -> None:
        """Add what has changed; the first time, and the ``last``, write the whole state.

        What is saved outlives the process, and with ``sync`` a power cut too; but for the last
        save: such a cut may bring back the lines before it. Raises OSError when the disk refuses,
        and then the file stays as it was, unless only its directory could not be synced.
        """
        whole = last or not self._written or self._changes == MAX_CHANGES or not self.path.exists()
        state.revision += 1
        try:
            if whole:
                write_atomically(self.path, _to_json(vars(state)) + "\n")
            else:
                append_line(self.path, _to_json(self._change(state)), sync=sync)
        except BaseException:
            state.revision -= 1  # nobody must take what was not saved for the newer one
            self._written = {}  # the next save takes no line for granted
            raise
        self._changes = 0 if whole else self._changes + 1
        self._written = dict(_transcripts(state))
        if whole and not last:
            sync_directory(self.path.parent)

    def _change(self, state: RunState, *path: str) -> dict[str, Any]:
        """The state without the messages that the file has, and its children likewise."""
        written = self._written.get(path, [])
        kept = len(written) if state.messages[: len(written)] == written else 0
        children = {key: self._change(child, *path, key) for key, child in state.children.items()}
        new = state.messages[kept:]
        return {**vars(state), "kept": kept, "messages": new, "children": children}


def _transcripts(state: RunState, *path: str) -> Iterator[tuple[tuple[str, ...], list[Message]]]:
    """Copies of the lists of messages, with the keys that lead to each."""
    yield path, list(state.messages)
    for key, child in state.children.items():
        yield from _transcripts(child, *path, key)


def _merged(saved: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The state that was saved, brought up to date by a line of the file."""
    merged = dict(change)
    kept = merged.pop("kept")
    if not 0 <= kept <= len(saved["messages"]):
        raise ValueError(
            f"a line builds on {kept} messages, but there are {len(saved['messages'])}"
        )
    merged["messages"] = saved["messages"][:kept] + change["messages"]
    merged["children"] = {
        key: _merged(saved["children"].get(key, {"messages": [], "children": {}}), child)
        for key, child in change["children"].items()
    }
    return merged


def refuse_older(state: RunState, path: Path) -> None:
    """Raise RunBusyError if the file holds later work; RunStoreError if nobody can know."""
    if path.exists() and load(path.parent, state.run_id).revision > state.revision:
        raise RunBusyError(
            f"run {state.run_id} in {path.parent} is newer than this copy; nothing was changed. "
            "Load it again, or give the new run an id of its own"
        )
