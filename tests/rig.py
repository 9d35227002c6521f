"""A run with everything recorded: scripted answers in, and the evidence that invariants need.

    rig = Rig(asks(call("n1", "read_note", {"id": 1})), text("done"))
    rig.run()                        # one segment; the invariants are checked at its end
    rig.state.status, rig.effects, rig.sent(2), rig.told("n1")

The answers are those to the 1st, 2nd, ... request; an answer can also be a Fault of the scripted
provider. When they run out, the model says "done". The standard tools are ``read_note`` (read
only), ``add_note`` (a side effect), ``send_mail`` (a side effect that needs approval); more can be
given. Each execution is noted in ``effects``.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from chat_client import ChatClient, price_for
from harness import (
    AbortSignal,
    Limits,
    RunState,
    Tool,
    ToolContext,
    approve,
    follow_up,
    load,
    new_run,
    reject,
    run,
    run_as_tool,
    save,
    waiting_calls,
)
from scripted_provider import Exchange, Fault, Message, ScriptedTransport, text, transport
from tests import invariants

Answer = Message | Fault


def client_of(*answers: Answer, **options: Any) -> ChatClient:
    """A client of a strict provider in this process that gives these answers, one a turn."""
    faults = {turn: one for turn, one in enumerate(answers) if isinstance(one, Fault)}

    def script(turn: int, tool_text: str) -> Message:
        answer = answers[turn] if turn < len(answers) else text("done")
        return text("done") if isinstance(answer, Fault) else answer

    carrier = transport({"script": script}, faults=faults)
    options = {"price": price_for("book"), "max_retries": 2, "sleep": _no_wait, **options}
    return ChatClient("http://scripted/v1", "script", transport=carrier, **options)


async def _no_wait(seconds: float) -> None:
    """Retries in tests do not wait."""


_NOTE: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "required": ["id"],
}
_TEXT: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
}


class Rig:
    """One run, its tools, its provider, and all that they leave behind."""

    def __init__(
        self,
        *answers: Answer,
        tools: Sequence[Tool] = (),
        client: ChatClient | None = None,
        store: Path | None = None,
        priced: bool = True,
        **options: Any,
    ) -> None:
        self.client = client or client_of(*answers)
        self.clients = [self.client]
        self.store = store
        self.options = options
        self.priced = priced
        self.state: RunState = new_run("Be brief.", "Do it.", "rig")
        self.notes: dict[int, str] = {1: "old", 2: "second"}
        self.effects: list[str] = []
        self.executions: Counter[invariants.CallKey] = Counter()
        self.repeats: Counter[invariants.CallKey] = Counter()
        self.events: list[dict[str, Any]] = []
        self.kills = 0
        self.on_event: Callable[[dict[str, Any]], None] | None = None  # for one segment
        self.signal = AbortSignal()
        self._at_signal: tuple[tuple[int, int], float] | None = None
        self.tools = [self.counted(tool) for tool in (*self._standard_tools(), *tools)]

    # Tools.

    def _standard_tools(self) -> list[Tool]:
        async def read_note(args: dict[str, Any], ctx: ToolContext) -> str:
            return self.notes[args["id"]]

        async def add_note(args: dict[str, Any], ctx: ToolContext) -> str:
            self.notes[max(self.notes) + 1] = args["text"]
            return f"noted: {args['text']}"

        async def send_mail(args: dict[str, Any], ctx: ToolContext) -> str:
            return f"sent: {args['text']}"

        return [
            Tool("read_note", "Read a note.", _NOTE, read_note, read_only=True),
            Tool("add_note", "Add a note.", _TEXT, add_note),
            Tool("send_mail", "Send a mail.", _TEXT, send_mail, needs_approval=True),
        ]

    def counted(self, tool: Tool) -> Tool:
        """The same tool; each execution is noted before it begins."""

        def note(ctx: ToolContext) -> None:
            self.effects.append(f"{tool.name}:{ctx.call_id}")
            if not tool.safe_to_repeat:
                self.executions[ctx.run_id, ctx.call_id] += 1

        @functools.wraps(tool.run)
        async def noted(args: dict[str, Any], ctx: ToolContext) -> Any:
            note(ctx)
            return await tool.run(args, ctx)

        @functools.wraps(tool.run)
        def noted_in_thread(args: dict[str, Any], ctx: ToolContext) -> Any:
            note(ctx)
            return tool.run(args, ctx)

        is_async = inspect.iscoroutinefunction(tool.run)
        return replace(tool, run=noted if is_async else noted_in_thread)

    def child(
        self,
        name: str,
        *answers: Answer,
        tools: Sequence[Tool] | None = None,
        limits: Limits | None = None,
    ) -> Tool:
        """A tool with a whole run behind it, whose tools and requests count here.

        ``tools``: the standard ones unless given.
        """
        client = client_of(*answers)
        self.clients.append(client)
        own = self.tools[:3] if tools is None else tools
        return run_as_tool(name, "Ask a child.", "A child.", own, client, limits)

    def add_child(self, name: str, *answers: Answer, **options: Any) -> ChatClient:
        """Give the run such a tool; the child's client, to look at its requests."""
        self.tools.append(self.child(name, *answers, **options))
        return self.clients[-1]

    # Segments.

    def run(self, **options: Any) -> RunState:
        """One call of harness.run, in an event loop of its own, checked at its end."""
        return asyncio.run(self.go_on(**options))

    async def go_on(
        self, *, stop_once: Callable[[], object] | None = None, **options: Any
    ) -> RunState:
        """One call of harness.run. ``stop_once``: set the signal when this has become true."""
        before, first = deepcopy(self.state), len(self.events)
        was_final = self.state.status in ("completed", "failed")
        self.signal = AbortSignal()
        self._at_signal = None
        watcher = asyncio.ensure_future(self._stop_once(stop_once)) if stop_once else None
        options = {
            "signal": self.signal,
            "trace": self.note_event,
            "store": self.store,
            **self.options,
            **options,
        }
        try:
            result = await run(self.state, self.tools, self.client, **options)
        finally:
            ended, self.on_event = time.monotonic(), None
            if watcher is not None:
                watcher.cancel()
        assert result is self.state
        if not was_final:
            invariants.check_segment(self.events[first:], self.state.run_id)
        self.check(before)
        if self._at_signal is not None:
            counts, at = self._at_signal
            invariants.check_stop(counts, self.counts(), ended - at)
        return self.state

    async def _stop_once(self, condition: Callable[[], object]) -> None:
        while not condition():  # noqa: ASYNC110  the harness under test has no event to wait for
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.01)  # so that what has begun is under way
        self.stop()

    def check(self, before: RunState | None = None) -> None:
        """All invariants on all that has been seen so far."""
        invariants.check(
            invariants.Record(
                self.state,
                self.exchanges,
                self.events,
                self.executions,
                self.repeats,
                self.kills,
                self.priced,
            )
        )
        if before is not None:
            invariants.check_never_down(before, self.state)

    def note_event(self, event: dict[str, Any]) -> None:
        self.events.append(json.loads(json.dumps(event, allow_nan=False)))
        if self.on_event is not None:
            self.on_event(event)

    def stop(self, reason: str = "the user pressed Stop") -> None:
        """Set the signal, and remember what had been sent and started by then."""
        self._at_signal = (self.counts(), time.monotonic())
        self.signal.abort(reason)

    def counts(self) -> tuple[int, int]:
        return len(self.exchanges), len(self.effects)

    # What a person does between segments.

    def approve(self, call_id: str) -> None:
        waiting = [call for call in waiting_calls(self.state) if call["call_id"] == call_id]
        approve(self.state, call_id)
        for call in waiting:
            if "note" in call:
                *_, own_id = call_id.split("/")
                self.repeats[self._run_id_of(call_id), own_id] += 1

    def reject(self, call_id: str, reason: str = "") -> None:
        reject(self.state, call_id, reason)

    def follow_up(self, words: str) -> None:
        follow_up(self.state, words)

    def reload(self) -> None:
        """Go on with a copy from the store, as another process would."""
        assert self.store is not None
        save(self.state, self.store)
        loaded = load(self.store, self.state.run_id)
        assert loaded == self.state
        self.state = loaded

    def waiting(self) -> list[str]:
        return [call["call_id"] for call in waiting_calls(self.state)]

    def _run_id_of(self, path: str) -> str:
        run_id = self.state.run_id
        for parent in path.split("/")[:-1]:
            run_id = f"{run_id}.{parent}"
        return run_id

    # Evidence.

    @property
    def exchanges(self) -> list[Exchange]:
        return [one for client in self.clients for one in journal_of(client)]

    def sent(self, number: int) -> list[Message]:
        """The messages of the n-th request of the run itself, counted from 1."""
        messages: list[Message] = journal_of(self.client)[number - 1].request["messages"]
        return messages

    def sent_one(self) -> bool:
        return self.requests > 0

    def runs_a_tool(self) -> bool:
        return bool(self.effects)

    @property
    def requests(self) -> int:
        return len(journal_of(self.client))

    def told(self, call_id: str) -> str:
        """What the transcript says to a call."""
        (content,) = [
            str(message["content"])
            for message in self.state.messages
            if message.get("tool_call_id") == call_id
        ]
        return content

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


def journal_of(client: ChatClient) -> Sequence[Exchange]:
    carrier = client.transport
    assert isinstance(carrier, ScriptedTransport)
    return list(carrier.journal)


def tool(
    name: str,
    function: Callable[..., Any],
    parameters: dict[str, Any] | None = None,
    **options: Any,
) -> Tool:
    """A tool of which only the function matters."""
    return Tool(name, f"The tool {name}.", parameters, function, **options)


TEXT_PARAMETER = _TEXT
