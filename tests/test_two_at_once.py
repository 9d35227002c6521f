"""Two at the same run: one wins, the other gets a clear refusal and changes nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from harness import (
    RunBusyError,
    RunState,
    ToolContext,
    approve,
    follow_up,
    load,
    new_run,
    run,
    save,
    waiting_calls,
)
from run_state import live
from scripted_provider import asks, call, text
from tests.rig import Rig, client_of, journal_of, tool
from tests.support import ROOT
from tests.two_processes import ANSWERS, mail_tool


def paused(directory: Path) -> RunState:
    """A run that waits at send_mail, approved and saved."""
    state = new_run("", "Do it.", "paused")
    asyncio.run(run(state, [mail_tool(directory, 0)], client_of(*ANSWERS), store=directory))
    assert waiting_calls(state)
    approve(state, "m1")
    save(state, directory)
    return state


def effects(directory: Path) -> list[str]:
    file = directory / "effects"
    return file.read_text("utf-8").splitlines() if file.exists() else []


def until(met: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not met():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def started(directory: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.two_processes", str(directory), *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_in_two_processes_one_wins(tmp_path: Path) -> None:
    paused(tmp_path)
    with started(tmp_path) as one, started(tmp_path) as other:
        until(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
        (tmp_path / "go").touch()
        outcomes = [json.loads(process.communicate()[0]) for process in (one, other)]
    won, lost = sorted(outcomes, key=lambda outcome: "refused" in outcome)
    assert won == {"status": "completed", "turns": 2}
    assert lost["refused"].startswith("RunBusyError: run paused ")
    assert "nothing was changed" in lost["refused"]
    assert effects(tmp_path) == ["paused:m1"]
    assert load(tmp_path, "paused").status == "completed"


def test_a_dead_owner_does_not_hold_the_run(tmp_path: Path) -> None:
    """The system lets go of the lock when a process dies, however it dies."""
    state = paused(tmp_path)
    (tmp_path / "go").touch()
    with started(tmp_path, "hold") as owner:
        until(lambda: bool(effects(tmp_path)))
        with pytest.raises(RunBusyError, match="being continued elsewhere"):
            asyncio.run(run(state, [mail_tool(tmp_path, 0)], client_of(), store=tmp_path))
        with pytest.raises(RunBusyError, match="being continued elsewhere"):
            save(state, tmp_path)
        owner.kill()
    left = load(tmp_path, "paused")
    assert left.started == ["m1"]
    asyncio.run(run(left, [mail_tool(tmp_path, 0)], client_of(*ANSWERS), store=tmp_path))
    (waiting,) = waiting_calls(left)
    assert "outcome is unknown" in waiting["note"]
    assert effects(tmp_path) == ["paused:m1"]


def test_a_second_run_of_the_same_object_is_refused(tmp_path: Path) -> None:
    refusals: list[str] = []

    async def again(args: dict[str, Any], ctx: ToolContext) -> str:
        for state in (rig.state, deepcopy(rig.state)):
            try:
                await run(state, [], rig.client, store=tmp_path)
            except RunBusyError as problem:
                refusals.append(str(problem))
        return "tried"

    rig = Rig(asks(call("a1", "again")), text("ok"), tools=[tool("again", again)], store=tmp_path)
    rig.run()
    assert rig.state.status == "completed"
    assert refusals[0] == "run rig is running already; nothing was changed"
    assert refusals[1].startswith("run rig is being continued elsewhere; nothing was changed")


def test_a_run_without_a_store_is_guarded_in_its_process() -> None:
    state = new_run("", "Do it.")

    async def twice() -> list[RunState | BaseException]:
        client = client_of(text("ok"))
        both = (run(state, [], client), run(state, [], client))
        return list(await asyncio.gather(*both, return_exceptions=True))

    winner, loser = asyncio.run(twice())
    assert winner is state
    assert isinstance(loser, RunBusyError)
    assert state.turns == 1


def test_many_threads_at_once(tmp_path: Path) -> None:
    """Each in a loop of its own, as several tabs would have it."""
    state = paused(tmp_path)
    outcomes: list[str] = []
    together = threading.Barrier(8)

    def resume() -> None:
        own = load(tmp_path, "paused")
        together.wait()
        try:
            asyncio.run(run(own, [mail_tool(tmp_path, 0.05)], client_of(*ANSWERS), store=tmp_path))
            outcomes.append(own.status)
        except RunBusyError:
            outcomes.append("refused")

    threads = [threading.Thread(target=resume) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["completed"] + ["refused"] * 7
    assert effects(tmp_path) == ["paused:m1"]
    assert state.status == "interrupted"


def test_approving_twice_executes_once(tmp_path: Path) -> None:
    state = paused(tmp_path)
    approve(state, "m1")
    assert state.approved == ["m1"]

    async def double_click() -> list[Any]:
        both = [run(state, [mail_tool(tmp_path, 0.05)], client_of(*ANSWERS)) for _ in range(2)]
        return await asyncio.gather(*both, return_exceptions=True)

    asyncio.run(double_click())
    assert effects(tmp_path) == ["paused:m1"]
    with pytest.raises(ValueError, match="no call m1 waits"):
        approve(state, "m1")


def test_an_older_copy_does_not_undo_what_was_done(tmp_path: Path) -> None:
    older = paused(tmp_path)
    newer = load(tmp_path, "paused")
    asyncio.run(run(newer, [mail_tool(tmp_path, 0)], client_of(*ANSWERS), store=tmp_path))
    before = (tmp_path / "paused.json").read_bytes()
    client = client_of(*ANSWERS)
    with pytest.raises(RunBusyError, match="newer than this copy; nothing was changed"):
        asyncio.run(run(older, [mail_tool(tmp_path, 0)], client, store=tmp_path))
    with pytest.raises(RunBusyError, match="newer than this copy; nothing was changed"):
        save(older, tmp_path)
    assert (tmp_path / "paused.json").read_bytes() == before
    assert older.status == "interrupted"
    assert list(journal_of(client)) == []
    assert effects(tmp_path) == ["paused:m1"]


def test_a_new_run_does_not_take_over_the_file_of_another(tmp_path: Path) -> None:
    paused(tmp_path)
    before = (tmp_path / "paused.json").read_bytes()
    with pytest.raises(RunBusyError, match="an id of its own"):
        asyncio.run(run(new_run("", "Other.", "paused"), [], client_of(), store=tmp_path))
    assert (tmp_path / "paused.json").read_bytes() == before


def test_no_new_message_into_a_run_that_is_running() -> None:
    async def talks(args: dict[str, Any], ctx: ToolContext) -> str:
        with pytest.raises(RunBusyError, match="stop it before you go on"):
            follow_up(rig.state, "wait!")
        return "talked"

    rig = Rig(asks(call("t1", "talks")), text("ok"), tools=[tool("talks", talks)])
    assert rig.run().status == "completed"


def test_a_run_can_be_saved_elsewhere_while_it_runs(tmp_path: Path) -> None:
    async def copies(args: dict[str, Any], ctx: ToolContext) -> str:
        save(rig.state, tmp_path / "copy")
        save(rig.state, tmp_path / "store")
        return "copied"

    store = tmp_path / "store"
    rig = Rig(asks(call("c1", "copies")), text("ok"), tools=[tool("copies", copies)], store=store)
    assert rig.run().status == "completed"
    assert load(tmp_path / "copy", "rig").started == ["c1"]


@pytest.mark.parametrize("how", ["completed", "raises", "cancelled", "refused"])
def test_nobody_is_left_in_the_list_of_the_running(how: str, tmp_path: Path) -> None:
    before = set(live)

    async def one_run() -> None:
        state = new_run("", "Do it.", "one")
        client = client_of(text("ok"))
        if how == "raises":
            (tmp_path / "one.json").write_text("{")
        if how == "refused":
            save(state, tmp_path)
            state = new_run("", "Do it.", "one")
        task = asyncio.ensure_future(run(state, [], client, store=tmp_path))
        if how == "cancelled":
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait({task})
        assert (how == "completed") == (not task.cancelled() and task.exception() is None)

    asyncio.run(one_run())
    assert live == before
