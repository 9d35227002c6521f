"""Saves: atomic, durable, checked when they are read, and never the larger part of a run."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import run_state
from harness import (
    Limits,
    RunBusyError,
    RunState,
    RunStoreError,
    Tool,
    ToolContext,
    load,
    new_run,
    run,
    save,
)
from run_state import MAX_CHANGES, STATE_VERSION, StateFile
from run_store import append_line, write_atomically
from scripted_provider import asks, call, text
from tests.rig import Rig, client_of

STATES = Path(__file__).parent / "states"

# --- a save that fails ----------------------------------------------------------------------------


class HalfWritten(io.FileIO):
    """A file on a disk that is full after half of the bytes."""

    def write(self, written: Any) -> int:
        super().write(written[: len(written) // 2])
        raise OSError(28, "No space left on device")


@contextmanager
def disk_full() -> Iterator[None]:
    with mock.patch("os.fdopen", HalfWritten):
        yield


def failing(name: str) -> Any:
    return mock.patch(name, side_effect=OSError(5, "Input/output error"))


open_file = os.open


def no_temporary_file(path: Any, *arguments: Any) -> int:
    if str(path).endswith(".tmp"):
        raise OSError(28, "No space left on device")
    return open_file(path, *arguments)


BROKEN_DISKS: dict[str, Callable[[], Any]] = {
    "half of the bytes": disk_full,
    "fsync": lambda: failing("os.fsync"),
    "replace": lambda: failing("pathlib.Path.replace"),
    "the file beside it": lambda: mock.patch("os.open", no_temporary_file),
    "interrupted": lambda: mock.patch("os.fsync", side_effect=KeyboardInterrupt),
}


@pytest.mark.parametrize("how", BROKEN_DISKS)
def test_a_save_that_fails_leaves_the_version_before(how: str, tmp_path: Path) -> None:
    state = new_run("", "Do it.", "r1")
    save(state, tmp_path)
    before = load(tmp_path, "r1")
    state.output = "newer"
    with BROKEN_DISKS[how](), pytest.raises((OSError, KeyboardInterrupt)):
        save(state, tmp_path)
    assert load(tmp_path, "r1") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r1.json", "r1.lock"]
    assert state.revision == before.revision  # what was not saved does not count as newer
    save(state, tmp_path)
    assert load(tmp_path, "r1").output == "newer"


BROKEN_LINES: dict[str, Callable[[], Any]] = {
    "half of the bytes": lambda: mock.patch("run_store._write_whole", half_of_a_line),
    "fsync": lambda: failing("os.fsync"),
    "interrupted": lambda: mock.patch("os.fsync", side_effect=KeyboardInterrupt),
}


def half_of_a_line(file: Any, line: bytes) -> None:
    file.write(line[: len(line) // 2])
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("how", BROKEN_LINES)
def test_a_line_that_fails_leaves_the_version_before(how: str, tmp_path: Path) -> None:
    state = new_run("", "Do it.", "r1")
    file = StateFile(tmp_path / "r1.json")
    file.save(state)
    before = file.path.read_text("utf-8")
    state.output = "newer"
    with BROKEN_LINES[how](), pytest.raises((OSError, KeyboardInterrupt)):
        file.save(state)
    assert file.path.read_text("utf-8") == before
    assert state.revision == 1
    file.save(state)
    assert load(tmp_path, "r1").output == "newer"


def failing_directories(code: int) -> Any:
    """A file system that syncs files and no directories."""
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        real_fsync(descriptor)

    return mock.patch("os.fsync", fsync)


@pytest.mark.skipif(os.name == "nt", reason="Windows does not sync directories")
def test_a_name_that_cannot_be_synced_is_told_and_the_save_is_there(tmp_path: Path) -> None:
    state = new_run("", "Do it.", "r1")
    with failing_directories(errno.EIO), pytest.raises(OSError, match="Input/output"):
        save(state, tmp_path)
    assert load(tmp_path, "r1") == state
    save(state, tmp_path)
    assert load(tmp_path, "r1").revision == 2


@pytest.mark.skipif(os.name == "nt", reason="Windows does not sync directories")
def test_a_file_system_that_syncs_no_directories_will_do(tmp_path: Path) -> None:
    rig = Rig(asks(ADD), text("ok"), store=tmp_path)
    with failing_directories(errno.EINVAL):
        rig.run()
    assert rig.state.status == "completed"


def test_a_failed_save_does_not_outrank_what_another_process_saved(tmp_path: Path) -> None:
    ours = new_run("", "Do it.", "r1")
    save(ours, tmp_path)
    theirs = load(tmp_path, "r1")
    with BROKEN_DISKS["fsync"](), pytest.raises(OSError, match="Input/output"):
        save(ours, tmp_path)
    save(theirs, tmp_path)
    with pytest.raises(RunBusyError, match="newer than this copy"):
        save(ours, tmp_path)


def test_what_a_kill_left_of_a_save_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "r1.json.tmp").write_text('{"run_id": "r1", "mess')
    save(new_run("", "Do it.", "r1"), tmp_path)
    assert load(tmp_path, "r1").run_id == "r1"
    assert not (tmp_path / "r1.json.tmp").exists()


@contextmanager
def noted_steps() -> Iterator[list[str]]:
    """What reaches the disk, in its order."""
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        steps.append(f"fsync the {kind}")
        real_fsync(descriptor)

    def replace(path: Path, target: Path) -> Path:
        steps.append("replace")
        return real_replace(path, target)

    with mock.patch("os.fsync", fsync), mock.patch.object(Path, "replace", replace):
        yield steps


WHOLE = ["fsync the file", "replace"]
DIRECTORY = [] if os.name == "nt" else ["fsync the directory"]


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path) -> None:
    """Write, fsync, replace, and then fsync the directory, which holds the name."""
    with noted_steps() as steps:
        save(new_run("", "Do it.", "r1"), tmp_path)
    assert steps == [*WHOLE, *DIRECTORY]


def test_a_run_waits_for_the_disk_when_it_has_paid_and_around_an_effect(tmp_path: Path) -> None:
    reads = call("n1", "read_note", {"id": 1})
    rig = Rig(asks(reads), asks(ADD), text("ok"), store=tmp_path)
    line = ["fsync the file"]
    moments: dict[str, list[str]] = {}
    with noted_steps() as steps:

        def note(event: dict[str, Any]) -> None:
            moments[f"{event['type']} {event.get('toolName', event.get('turn', ''))}"] = [*steps]
            steps.clear()

        rig.on_event = note
        rig.run()
    assert moments["turn 1"] == [*WHOLE, *DIRECTORY]
    assert moments["tool_start read_note"] == []
    assert moments["turn 2"] == line  # and with it what was read
    assert moments["tool_start add_note"] == line  # that it is started
    assert moments["turn 3"] == [*line, *line]  # its result, and the next answer
    assert moments["run_stopped "] == WHOLE


# --- a disk that fails in the middle of a run -----------------------------------------------------

MAIL = call("m1", "send_mail", {"text": "hello"})
ADD = call("a1", "add_note", {"text": "a"})


@contextmanager
def disk_failing_at(numbers: range) -> Iterator[None]:
    """Saves fail whose number, counted from 0, is among these."""
    count = [-1]

    def sometimes(write: Callable[..., None]) -> Callable[..., None]:
        def written(path: Path, content: str, **options: bool) -> None:
            count[0] += 1
            if count[0] in numbers:
                raise OSError(28, "No space left on device")
            write(path, content, **options)

        return written

    with (
        mock.patch("run_state.write_atomically", sometimes(write_atomically)),
        mock.patch("run_state.append_line", sometimes(append_line)),
    ):
        yield


@pytest.mark.parametrize("goes_on_failing", [False, True])
@pytest.mark.parametrize("number", range(8))
def test_whichever_save_fails_nothing_happens_twice(
    number: int, goes_on_failing: bool, tmp_path: Path
) -> None:
    rig = Rig(asks(ADD, MAIL), text("ok"), store=tmp_path)
    save(rig.state, tmp_path)
    with disk_failing_at(range(number, 999 if goes_on_failing else number + 1)):
        rig.run()
        if rig.waiting():
            rig.approve("m1")
            rig.run()
    if rig.state.status == "failed":
        assert "No space left" in (rig.state.error or "")
    for one in rig.effects:  # nothing was started that is not on record as started
        assert one.partition(":")[2] in load(tmp_path, "rig").started
    # Whatever the file holds, the run goes on from there.
    rig.state = load(tmp_path, "rig")
    rig.kills += 1
    if rig.state.status == "failed":
        rig.follow_up("go on")
    for _ in range(4):
        for path in rig.waiting():
            if "note" in (rig.state.interruption or {}):
                rig.reject(path, "once is enough")
            else:
                rig.approve(path)
        rig.run()
    assert rig.state.status == "completed"
    assert all(times == 1 for times in rig.executions.values())


def test_a_start_that_could_not_be_saved_is_no_start(tmp_path: Path) -> None:
    rig = Rig(asks(ADD), text("ok"), store=tmp_path)
    with disk_failing_at(range(1, 2)):  # 0 is the answer, 1 the start
        rig.run()
    assert (rig.state.status, rig.effects, rig.state.started) == ("failed", [], [])
    rig.follow_up("and now?")
    assert rig.told("a1").startswith("Not executed")


# --- the lines of a run that goes on --------------------------------------------------------------


def file_of_a_run(directory: Path) -> tuple[Path, list[RunState]]:
    """A file with a whole state and a line for each of three saves; the state at each of them."""
    state, file, saves = new_run("", "Do it.", "r1"), StateFile(directory / "r1.json"), []
    child = new_run("", "Help.", "r1.c")
    for number in range(4):
        state.messages.append({"role": "assistant", "content": f"\u2028 \ud83d line {number}"})
        state.turns += 1
        if number:
            state.children["c"] = child
            child.messages.append({"role": "assistant", "content": f"child {number}"})
        file.save(state)
        saves.append(deepcopy(state))
    return file.path, saves


def test_a_line_holds_only_the_messages_that_are_new(tmp_path: Path) -> None:
    path, saves = file_of_a_run(tmp_path)
    whole, *lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert "kept" not in whole
    assert [line["kept"] for line in lines] == [2, 3, 4]
    assert [len(line["messages"]) for line in lines] == [1, 1, 1]
    assert [line["children"]["c"]["kept"] for line in lines] == [0, 2, 3]
    assert load(tmp_path, "r1") == saves[-1]


def test_a_file_that_a_crash_cut_holds_the_last_save_that_is_whole(tmp_path: Path) -> None:
    path, saves = file_of_a_run(tmp_path)
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for size in range(first, len(content) + 1):
        path.write_bytes(content[:size])
        assert load(tmp_path, "r1") == saves[content[:size].count(b"\n") - 1]


def test_a_last_line_with_a_hole_was_never_saved(tmp_path: Path) -> None:
    """A power cut came when the end of the line was on the disk and its middle was not."""
    path, saves = file_of_a_run(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:-200] + bytes(150) + content[-50:])
    assert load(tmp_path, "r1") == saves[-2]
    path.write_bytes(content[:-200] + bytes(150) + content[-50:] + content[-50:])
    with pytest.raises(RunStoreError, match="is damaged"):
        load(tmp_path, "r1")


def test_children_that_change_places_are_not_mixed_up(tmp_path: Path) -> None:
    path, saves = file_of_a_run(tmp_path)
    state, file = saves[-1], StateFile(path)
    file.save(state)
    for number in range(20):
        _, child = state.children.popitem()
        child.messages = [*child.messages, {"role": "user", "content": str(number)}]
        state.children[str(number % 3)] = child
        file.save(state, sync=False)
        assert load(tmp_path, "r1") == state
        state.children[str(number % 3)] = new_run("", f"Help {number}.", "r1.c")
        file.save(state, sync=False)
        assert load(tmp_path, "r1") == state


@pytest.mark.parametrize("levels", [*range(400, 520, 8), 5000])
def test_children_of_children_without_end_are_damage(levels: int, tmp_path: Path) -> None:
    path, _ = file_of_a_run(tmp_path)
    state = json.loads(path.read_text("utf-8").splitlines()[0])
    before, after = json.dumps({**state, "children": {"c": "HERE"}}).split('"HERE"')
    path.write_text(before * levels + json.dumps(state) + after * levels, "utf-8")
    with suppress(RunStoreError) if levels < 5000 else pytest.raises(RunStoreError, match="damage"):
        load(tmp_path, "r1")  # and no other error than that


def test_a_number_too_large_for_a_float_is_damage(tmp_path: Path) -> None:
    state = saved(tmp_path)
    text = json.dumps({**state, "cost_usd": 0.5}).replace('"cost_usd": 0.5', '"cost_usd": 1e999')
    (tmp_path / "rig.json").write_text(text, "utf-8")
    refused(tmp_path, "is damaged")


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "17",
        "null",
        '{"kept": 0}',
        '{"kept": 99, "messages": [], "children": {}}',
        '{"kept": -1, "messages": [], "children": {}}',
        '{"kept": "1", "messages": [], "children": {}}',
    ],
)
def test_a_line_of_something_else_is_damage(line: str, tmp_path: Path) -> None:
    path, _ = file_of_a_run(tmp_path)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    with pytest.raises(RunStoreError, match="is damaged"):
        load(tmp_path, "r1")


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=12))
def test_whatever_is_saved_in_lines_is_loaded(steps: list[tuple[int, int, bool]]) -> None:
    """Messages are added, taken away and exchanged, in the run and in its child."""
    with TemporaryDirectory() as directory:
        state, file = new_run("", "Do it.", "r1"), StateFile(Path(directory, "r1.json"))
        for number, (removed, added, in_child) in enumerate(steps):
            one = state
            if in_child:
                one = state.children.setdefault("c", new_run("", "Help.", "r1.c"))
            del one.messages[max(0, len(one.messages) - removed) :]
            one.messages += [{"role": "user", "content": f"{number}"} for _ in range(added)]
            file.save(state, sync=False)
            assert load(directory, "r1") == state


def test_a_long_run_does_not_leave_a_long_file(tmp_path: Path) -> None:
    state, file = new_run("", "Do it.", "r1"), StateFile(tmp_path / "r1.json")
    lengths = []
    with mock.patch("os.fsync"):
        for _ in range(3 * MAX_CHANGES):
            file.save(state)
            lengths.append(len(file.path.read_text("utf-8").splitlines()))
    assert max(lengths) == MAX_CHANGES + 1
    assert lengths.count(1) == 3


def test_a_run_that_has_stopped_is_one_json_object(tmp_path: Path) -> None:
    rig = Rig(asks(ADD, MAIL), text("ok"), store=tmp_path)
    rig.run()
    assert rig.state.status == "interrupted"
    assert json.loads((tmp_path / "rig.json").read_text("utf-8")) == asdict(rig.state)


def test_a_file_that_is_gone_is_written_again(tmp_path: Path) -> None:
    rig = Rig(asks(ADD), text("ok"), store=tmp_path)
    loaded = []

    def look(event: dict[str, Any]) -> None:
        if event["type"] == "tool_result":
            (tmp_path / "rig.json").unlink()
        elif event["type"] == "turn":
            loaded.append(load(tmp_path, "rig").turns)

    rig.on_event = look
    rig.run()
    assert rig.state.status == "completed"
    assert loaded == [1, 2]


def test_a_run_goes_on_after_a_save_by_its_own_tool(tmp_path: Path) -> None:
    """Its lines stand on the file that the tool has put in place of the other one."""
    rig = Rig(asks(call("s1", "save_it")), asks(ADD), text("ok"), store=tmp_path)
    loaded = []

    def save_it(args: dict[str, Any], ctx: ToolContext) -> str:
        save(rig.state, tmp_path)
        return "saved"

    rig.tools.append(Tool("save_it", "Save.", None, save_it, read_only=True))
    rig.on_event = lambda event: loaded.append(load(tmp_path, "rig").turns)
    rig.run()
    assert rig.state.status == "completed"
    assert loaded == [1, 1, 1, 2, 2, 2, 3, 3]


# --- files that cannot be read --------------------------------------------------------------------


def saved(directory: Path) -> dict[str, Any]:
    """A state as it is saved, with a child that waits for a person."""
    rig = Rig(asks(call("p1", "ask_child", {"task": "go"})), store=directory)
    rig.add_child("ask_child", asks(MAIL))
    rig.run()
    state: dict[str, Any] = json.loads((directory / "rig.json").read_text("utf-8"))
    return state


def refused(directory: Path, words: str) -> None:
    """Loading, saving over it and running on it are refused, and the file stays as it is."""
    file = directory / "rig.json"
    before = file.read_bytes()
    with pytest.raises(RunStoreError, match=words) as caught:
        load(directory, "rig")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600 + len(str(directory))
    for attempt in (
        lambda state: save(state, directory),
        lambda state: asyncio.run(run(state, [], client_of(), store=directory)),
    ):
        state = new_run("", "Do it.", "rig")
        state.revision = 10**6
        with pytest.raises(RunStoreError, match=words):
            attempt(state)
        assert state.status == "running"
    assert file.read_bytes() == before


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_is_damaged(part: float, tmp_path: Path) -> None:
    saved(tmp_path)
    file = tmp_path / "rig.json"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * part)])
    refused(tmp_path, "is damaged")


@pytest.mark.parametrize(
    "raw",
    [b"null", b"[]", b"17", b'"x"', b"\xff\xfe", b"{}", b"\x00" * 100, b"[" * 100_000, b"{'a': 1}"],
    ids=repr,
)
def test_a_file_of_something_else_is_damaged(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "rig.json").write_bytes(raw)
    refused(tmp_path, "is damaged")


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a field is missing": lambda state: state.pop("started"),
    "a field too many": lambda state: state.update(surprise=1),
    "messages are a string": lambda state: state.update(messages="x"),
    "a message is a string": lambda state: state["messages"].append("x"),
    "turns are a string": lambda state: state.update(turns="3"),
    "turns are true": lambda state: state.update(turns=True),
    "turns are negative": lambda state: state.update(turns=-1),
    "the cost is negative": lambda state: state.update(cost_usd=-0.01),
    "the cost is NaN": lambda state: state.update(cost_usd=float("nan")),
    "the cost is infinite": lambda state: state.update(cost_usd=float("inf")),
    "the status is unknown": lambda state: state.update(status="paused"),
    "approved holds a number": lambda state: state.update(approved=[1]),
    "rejected is a list": lambda state: state.update(rejected=[]),
    "the interruption is a string": lambda state: state.update(interruption="x"),
    "the revision is null": lambda state: state.update(revision=None),
    "children are a list": lambda state: state.update(children=[]),
    "a child is damaged": lambda state: state["children"]["p1"].pop("messages"),
    "a child's cost is NaN": lambda state: state["children"]["p1"].update(cost_usd=float("nan")),
    "it holds another run": lambda state: state.update(run_id="other"),
    "it holds a path": lambda state: state.update(run_id="../rig"),
    "no version": lambda state: state.pop("version"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_with_a_wrong_field_is_damaged(name: str, tmp_path: Path) -> None:
    state = saved(tmp_path)
    CHANGES[name](state)
    (tmp_path / "rig.json").write_text(json.dumps(state), "utf-8")
    refused(tmp_path, "is damaged")


@pytest.mark.parametrize("version", [0, 2, 99, -1, "1", None, 1.5])
def test_an_unknown_version_is_refused_in_one_line(version: Any, tmp_path: Path) -> None:
    state = saved(tmp_path)
    state["version"] = version
    (tmp_path / "rig.json").write_text(json.dumps(state), "utf-8")
    refused(tmp_path, f"state version {version!r}; this harness reads versions 1 to 1")


def test_a_run_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunStoreError, match=r"no saved run r1 in "):
        load(tmp_path, "r1")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_may_not_be_read_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "r1.json").mkdir()
    with pytest.raises(RunStoreError, match="cannot be read"):
        load(tmp_path, "r1")


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(STATES.glob("v*.json")), ids=lambda path: path.stem)
def test_a_state_of_each_version_loads_and_goes_on(path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "rig.json")
    rig = Rig(asks(call("p1", "ask_child", {"task": "go"})), text("all done"), store=tmp_path)
    rig.add_child("ask_child", asks(MAIL), text("sent"))
    rig.state = load(tmp_path, "rig")
    assert rig.state.version == STATE_VERSION
    rig.kills += 1  # its trace is not here
    rig.approve("p1/m1")
    rig.run()
    assert (rig.state.status, rig.state.output) == ("completed", "all done")
    assert rig.effects == ["send_mail:m1"]


def test_the_present_version_is_among_them_and_has_every_field() -> None:
    """Whoever changes RunState raises STATE_VERSION, adds a migration, and keeps a state of it.

    To make it: ``(STATES / "vN.json").write_text(json.dumps(saved(directory), indent=1))``.
    """
    newest = json.loads((STATES / f"v{STATE_VERSION}.json").read_text("utf-8"))
    assert list(newest) == [field.name for field in fields(RunState)]
    assert list(newest["children"]["p1"]) == list(newest)


def test_each_version_before_has_its_migration() -> None:
    assert set(run_state.MIGRATIONS) == set(range(1, STATE_VERSION))


def test_an_older_version_is_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if this were version 3, and 1 had called its output ``answer``, and 2 ``result``."""
    state = saved(tmp_path)
    for one in (state, state["children"]["p1"]):
        one["answer"] = one.pop("output")
    (tmp_path / "rig.json").write_text(json.dumps(state), "utf-8")

    def to_2(old: dict[str, Any]) -> dict[str, Any]:
        new = {**old, "version": 2, "result": old["answer"]}
        del new["answer"]
        return new

    def to_3(old: dict[str, Any]) -> dict[str, Any]:
        new = {**old, "version": 3, "output": old["result"]}
        del new["result"]
        return new

    monkeypatch.setattr(run_state, "MIGRATIONS", {1: to_2, 2: to_3})
    monkeypatch.setattr(run_state, "STATE_VERSION", 3)
    loaded = load(tmp_path, "rig")
    assert (loaded.version, loaded.children["p1"].version) == (3, 3)
    assert loaded.children["p1"].interruption is not None
    save(loaded, tmp_path)
    assert load(tmp_path, "rig") == loaded


def test_a_migration_that_fails_is_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    monkeypatch.setattr(run_state, "MIGRATIONS", {1: lambda old: {"version": 2, "x": old["y"]}})
    monkeypatch.setattr(run_state, "STATE_VERSION", 2)
    with pytest.raises(RunStoreError, match="is damaged"):
        load(tmp_path, "rig")


# --- what a save costs ----------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [10, 40])
def test_a_save_writes_what_is_new(turns: int, tmp_path: Path) -> None:
    """So what a run writes grows as the run does, and what it sends grows with its square."""
    notes = [asks(call(f"n{n}", "read_note", {"id": 1})) for n in range(turns)]
    wholes: list[int] = []
    lines: list[int] = []

    def noted(sizes: list[int], write: Callable[..., None]) -> Callable[..., None]:
        def written(path: Path, content: str, **options: bool) -> None:
            sizes.append(len(content))
            write(path, content, **options)

        return written

    rig = Rig(*notes, store=tmp_path)
    with (
        mock.patch("run_state.write_atomically", noted(wholes, write_atomically)),
        mock.patch("run_state.append_line", noted(lines, append_line)),
    ):
        rig.run(limits=Limits(max_turns=turns))
    sent = [len(json.dumps(exchange.request)) for exchange in rig.exchanges]
    assert len(sent) == turns
    assert (len(wholes), len(lines)) == (2, 2 * turns - 2)  # the first and the last save
    assert max(wholes) < 1.5 * max(sent)
    ids = len(json.dumps(rig.state.started))  # the part of a line that grows
    assert max(lines) < 700 + ids


def test_reads_are_saved_together_and_each_effect_by_itself(tmp_path: Path) -> None:
    reads = [call(f"n{n}", "read_note", {"id": 1}) for n in range(5)]
    adds = [call(f"a{n}", "add_note", {"text": "a"}) for n in range(3)]
    for calls, saves in ((reads, 1), (adds, 2 * 3 + 1)):
        rig = Rig(asks(*calls), text("ok"), store=tmp_path / str(saves))
        rig.run()
        # Beside these: one save for each of two answers, and one at the end.
        assert rig.state.revision == saves + 3


def test_what_is_saved_is_the_state(tmp_path: Path) -> None:
    saved(tmp_path)
    assert asdict(load(tmp_path, "rig")) == json.loads((tmp_path / "rig.json").read_text("utf-8"))
