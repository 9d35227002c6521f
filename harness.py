"""A run of an LLM agent that is kept under control: one loop, five exits.

The run is plain data (:class:`RunState`), and :func:`run` is a loop over it: stop if a limit says
so; settle the calls that the transcript leaves open; only then ask the model. Resuming, approving
and the normal case are the same path. Whatever the code decides about a call, it writes into the
transcript in words, because that is the only place where the model reads.

    state = new_run("You answer questions about log files.", "Which file mentions a timeout?")
    state = await run(state, tools, client, limits=Limits(max_turns=20, max_budget_usd=0.05))
    print(state.status, state.output)
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from abort_signal import AbortSignal, ends_in_time, give_up
from limits import Limits, StopCondition, budget, deadline, turn_cap
from run_state import (
    STATE_VERSION,
    Call,
    CostBasis,
    Message,
    RunState,
    RunStatus,
    answer_call,
    approve,
    cost,
    follow_up,
    live,
    load,
    new_run,
    pending,
    refuse_older,
    reject,
    save,
    waiting_calls,
    write_state,
)
from run_store import RunBusyError, RunStoreError, Trace, check_run_id, open_trace, owning
from tool_calls import (
    BadCallError,
    Outcome,
    PermanentToolError,
    Tool,
    ToolContext,
    check_call,
    clean_text,
    error_text,
    execute,
    result_text,
    tidy_message,
)

__all__ = [
    "AbortSignal",
    "Limits",
    "PermanentToolError",
    "RunBusyError",
    "RunState",
    "RunStatus",
    "RunStoreError",
    "StopCondition",
    "Tool",
    "ToolContext",
    "approve",
    "budget",
    "cost",
    "deadline",
    "follow_up",
    "load",
    "new_run",
    "pending",
    "reject",
    "run",
    "run_as_tool",
    "save",
    "turn_cap",
    "waiting_calls",
]

# So many turns in a row of nothing but calls that cannot be executed end the run as failed.
MAX_INVALID_TURNS = 3
# Ids that an endpoint takes back, and that can be part of a path of ids.
CALL_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

# --- the loop -----------------------------------------------------------------------------------


class Reply(Protocol):
    """One answer of a model. ``usage`` and ``price`` are None when they are not known."""

    @property
    def message(self) -> Message: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def refusal(self) -> str | None: ...
    @property
    def usage(self) -> Mapping[str, int] | None: ...
    @property
    def price(self) -> Mapping[str, float] | None: ...


class Client(Protocol):
    """All that the harness knows of a model: one method, which raises when it has no answer."""

    def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        *,
        on_delta: Callable[[str], None] | None = None,
    ) -> Awaitable[Reply]: ...


@dataclass(frozen=True)
class _Exit:
    """How a run stops, as a value."""

    status: RunStatus
    interruption: dict[str, Any] | None = None
    output: str = ""
    error: str | None = None


async def run(
    state: RunState,
    tools: Sequence[Tool],
    client: Client,
    *,
    limits: Limits | None = None,
    signal: AbortSignal | None = None,
    trace: str | Path | Callable[[dict[str, Any]], None] | None = None,
    on_progress: Callable[[str], None] | None = None,
    on_delta: Callable[[str], None] | None = None,
    stop_when: Sequence[StopCondition | Callable[[RunState], bool]] = (),
    dedupe: bool | Literal["all"] = False,
    tool_errors_are_fatal: bool = False,
    tool_error_text: Callable[[BaseException], str] | None = None,
    store: str | Path | None = None,
    parent: ToolContext | None = None,
) -> RunState:
    """Run until one of the five exits; the same state comes back, changed in place.

    What a provider, a model, a tool or a callback does wrong is a status, never an exception. A
    completed or failed state comes back as it is. Raises ValueError for two tools of one name, a
    state of another version or an unsafe run id; RunBusyError (nothing changed) when the run is
    being continued elsewhere, or was continued since it was loaded; RunStoreError for a damaged
    file in ``store``.

    ``dedupe`` answers a repeated read-only call from memory (``"all"``: any call, which swallows
    writes). ``parent`` makes this a child run of the tool call in whose ``run`` it is started: it
    spends the parent's money, obeys its signal and writes to its trace.
    """
    by_name = {tool.name: tool for tool in tools}
    if len(by_name) < len(tools):
        raise ValueError("two tools have the same name")
    if state.version != STATE_VERSION:
        raise ValueError(f"no such state version: {state.version!r} (this is {STATE_VERSION})")
    owner: _Run | None = parent.owner if parent else None
    if owner is None:
        check_run_id(state.run_id)
    if state.status in ("completed", "failed"):
        return state
    limits = limits or Limits()
    with ExitStack() as stack:
        stack.enter_context(_only_one(state, store))
        this = _Run(
            state=state,
            tools=by_name,
            client=client,
            limits=limits,
            conditions=limits.conditions() + [_named(condition) for condition in stop_when],
            signal=signal or (parent.signal if parent else AbortSignal()),
            trace=owner.trace if owner else stack.enter_context(open_trace(trace)),
            on_progress=on_progress,
            on_delta=on_delta,
            dedupe=dedupe,
            tool_errors_are_fatal=tool_errors_are_fatal,
            tool_error_text=tool_error_text or (lambda error: f"Error: {error_text(error)}"),
            store=store,
            parent=owner,
        )
        await this.to_exit()
    return state


def _named(condition: StopCondition | Callable[[RunState], bool]) -> StopCondition:
    if isinstance(condition, StopCondition):
        return condition
    return StopCondition(getattr(condition, "__name__", "stop condition"), condition)


@contextmanager
def _only_one(state: RunState, store: str | Path | None) -> Iterator[None]:
    """Keep a second run away from this state: in this process, and in the store."""
    if id(state) in live:
        raise RunBusyError(f"run {state.run_id} is running already; nothing was changed")
    live.add(id(state))
    try:
        with ExitStack() as stack:
            if store is not None:
                stack.enter_context(owning(store, state.run_id))
                refuse_older(state, store)
            yield
    finally:
        live.discard(id(state))


@dataclass
class _Run:
    """One call of :func:`run`: the state, and what is fixed while the loop works on it."""

    state: RunState
    tools: dict[str, Tool]
    client: Client
    limits: Limits
    conditions: list[StopCondition]
    signal: AbortSignal
    trace: Trace
    on_progress: Callable[[str], None] | None
    on_delta: Callable[[str], None] | None
    dedupe: bool | Literal["all"]
    tool_errors_are_fatal: bool
    tool_error_text: Callable[[BaseException], str]
    store: str | Path | None
    parent: _Run | None
    seen: dict[str, str] = field(default_factory=dict)
    callback_error: Exception | None = None

    # The loop: stop if something says so, settle open calls, and only then ask the model.

    async def to_exit(self) -> None:
        self.state.status, self.state.interruption = "running", None
        try:
            while True:
                exit = self.why_stop()
                if exit is None:
                    exit = await (self.settle_calls() if pending(self.state) else self.ask())
                if exit is not None:
                    break
        except asyncio.CancelledError:  # the task around us was cancelled
            self.finish(self.cancelled("the task was cancelled"))
            raise
        except Exception as problem:  # saving, tracing, or a callback or condition of the caller
            exit = _Exit("failed", error=f"{type(problem).__name__}: {error_text(problem)}")
        self.finish(exit)

    def why_stop(self) -> _Exit | None:
        if self.callback_error is not None:
            raise self.callback_error
        if self.signal.aborted:
            return self.cancelled("aborted")
        for condition in self.conditions:
            if condition.met(self.state):
                if condition.status == "interrupted":
                    detail = {"type": "stop_condition", "name": condition.name}
                    return _Exit(condition.status, detail)
                return _Exit(condition.status, {"type": condition.name})
        if self.parent is not None and self.parent.out_of_money():
            return _Exit("budget_exceeded", {"type": "max_budget"})
        return None

    def out_of_money(self) -> bool:
        limit = self.limits.max_budget_usd
        if limit is not None and self.state.cost_usd >= limit:
            return True
        return self.parent is not None and self.parent.out_of_money()

    def cancelled(self, otherwise: str) -> _Exit:
        reason = clean_text(self.signal.reason or otherwise)
        return _Exit("interrupted", {"type": "cancelled", "reason": reason})

    def conclude(self, exit: _Exit) -> None:
        self.state.status, self.state.interruption = exit.status, exit.interruption
        self.state.output, self.state.error = exit.output, exit.error

    def finish(self, exit: _Exit) -> None:
        state = self.state
        self.conclude(exit)
        reason = (exit.interruption or {}).get("type") or exit.error or "answered"
        try:
            self.save()
            self.emit(
                "run_stopped",
                status=state.status,
                reason=reason,
                turns=state.turns,
                costUsd=state.cost_usd,
            )
        except Exception as problem:  # nothing is left to tell it to but the state
            state.status = "failed"
            state.error = state.error or f"{type(problem).__name__}: {error_text(problem)}"

    # Asking the model.

    async def ask(self) -> _Exit | None:
        began = time.perf_counter()
        specs = [tool.spec for tool in self.tools.values()]
        request = self.client.complete(self.state.messages, specs, on_delta=self.on_delta)
        task = asyncio.ensure_future(request)
        try:
            if not await ends_in_time(task, self.signal):
                await give_up(task)
        finally:
            task.cancel()  # of no effect once it is done
        if not task.done() or task.cancelled():
            return self.cancelled("the request was cancelled")
        if problem := task.exception():
            return _Exit("failed", error=error_text(problem))
        return self.accept(task.result(), round((time.perf_counter() - began) * 1000))

    def accept(self, reply: Reply, ms: int) -> _Exit | None:
        """Take an answer in: pay for it, store it with its verdicts, look at it, save.

        What the answer means is saved with it: a process that dies right after an answer that
        ends the run must not leave a run that asks again.
        """
        state = self.state
        message = tidy_message(reply.message)
        calls = self.with_unique_ids(message.get("tool_calls") or [])
        if calls:
            message["tool_calls"] = calls
        usage, basis = self.usage_of(reply, message)
        self.spend(usage, reply.price, basis)
        state.messages.append(message)
        state.turns += 1
        verdicts = self.verdicts(calls, reply.finish_reason)
        state.rejected.update(verdicts)
        state.invalid_turns = (
            state.invalid_turns + 1 if calls and len(verdicts) == len(calls) else 0
        )
        exit = self.exit_after(reply, message, basis)
        if exit is not None:
            self.conclude(exit)
        self.save()
        self.emit(
            "turn",
            turn=state.turns,
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
            total_tokens=usage["prompt_tokens"] + usage["completion_tokens"],
            costUsd=state.cost_usd,
            finish=reply.finish_reason,
            ms=ms,
            costBasis=basis,
        )
        return exit

    def exit_after(self, reply: Reply, message: Message, basis: CostBasis) -> _Exit | None:
        """What an answer means for the run: an exit, or None when there are calls to settle."""
        if basis == "unknown" and self.has_budget():
            why = "a budget is set, but the client has no price for this model: give it price="
            return _Exit("failed", error=why)
        if self.state.invalid_turns >= MAX_INVALID_TURNS:
            last = self.state.rejected[message["tool_calls"][-1]["id"]]
            why = f"{MAX_INVALID_TURNS} turns in a row held no call that can be executed: {last}"
            return _Exit("failed", error=why)
        text = message.get("content") or ""
        if reply.finish_reason == "content_filter":
            return _Exit("failed", output=text, error="the provider's content filter cut it off")
        if message.get("tool_calls"):
            return None
        if reply.refusal:
            return _Exit("failed", output=text, error=f"the model refused: {reply.refusal}")
        if reply.finish_reason == "length":
            return _Exit("failed", output=text, error="the token limit cut the answer off")
        if not text.strip():
            return _Exit("failed", error="the model answered with nothing")
        return _Exit("completed", output=text)

    def with_unique_ids(self, calls: Sequence[Call]) -> list[Call]:
        """The calls, each with an id that no other call of this run has.

        Models leave ids out and use them again; an approval must never fit a second call.
        """
        used = {c["id"] for m in self.state.messages for c in m.get("tool_calls") or ()}
        unique = []
        for number, call in enumerate(calls, 1):
            call_id = call.get("id")
            if not isinstance(call_id, str) or not CALL_ID.fullmatch(call_id) or call_id in used:
                call_id = f"call_{self.state.turns + 1}_{number}"
                while call_id in used:
                    call_id += "_"
            used.add(call_id)
            unique.append({**call, "id": call_id})
        return unique

    def verdicts(self, calls: Sequence[Call], finish_reason: str) -> dict[str, str]:
        """For each call that must not be executed, the words for the model."""
        verdicts = {}
        for call in calls:
            if finish_reason == "length":
                verdicts[call["id"]] = (
                    "Error: the token limit cut this message off, so the call was not executed. "
                    "Send it again, complete and shorter."
                )
                continue
            try:
                check_call(call, self.tools)
            except BadCallError as problem:
                verdicts[call["id"]] = str(problem)
        return verdicts

    # Money.

    def usage_of(self, reply: Reply, message: Message) -> tuple[Mapping[str, int], CostBasis]:
        if reply.usage is not None:
            return reply.usage, "exact" if reply.price is not None else "unknown"
        # Without counts: one token for three bytes is more than text usually takes. A budget
        # must rather stop too early than never.
        sent = json.dumps([self.state.messages, [tool.spec for tool in self.tools.values()]])
        usage = {
            "prompt_tokens": math.ceil(len(sent) / 3),
            "completion_tokens": math.ceil(len(json.dumps(message)) / 3),
        }
        return usage, "estimated" if reply.price is not None else "unknown"

    def spend(
        self,
        usage: Mapping[str, int],
        price: Mapping[str, float] | None,
        basis: CostBasis,
    ) -> None:
        """Add an answer to this run and to every run that it is a child of."""
        state = self.state
        state.prompt_tokens += usage["prompt_tokens"]
        state.completion_tokens += usage["completion_tokens"]
        if price is not None:
            # To the billionth of a dollar, so that sums of exact prices stay exact to look at.
            state.cost_usd = round(state.cost_usd + cost(usage, price), 9)
        order = ("exact", "estimated", "unknown")
        state.cost_basis = max(state.cost_basis, basis, key=order.index)
        if self.parent is not None:
            self.parent.spend(usage, price, basis)

    def has_budget(self) -> bool:
        if self.limits.max_budget_usd is not None:
            return True
        return self.parent is not None and self.parent.has_budget()

    # Settling calls, one after another, in the order of the message.

    async def settle_calls(self) -> _Exit | None:
        for call in pending(self.state):
            if self.signal.aborted:
                return None
            exit = await self.settle(call)
            if exit is not None:
                return exit
        self.save()
        return None

    async def settle(self, call: Call) -> _Exit | None:
        if call["id"] in self.state.rejected:
            self.answer(call, self.state.rejected[call["id"]], ok=False, executed=False)
            return None
        try:
            tool, args = check_call(call, self.tools)
        except BadCallError as problem:  # the tools are other ones than when it was asked for
            self.answer(call, str(problem), ok=False, executed=False)
            return None
        if self.needs_person(call, tool, args):
            return self.ask_person()
        key = tool.name + json.dumps(args, sort_keys=True)
        if key in self.seen:
            self.answer(call, self.seen[key], ok=True, executed=False, cached=True)
            return None
        return await self.execute(call, tool, args, key)

    def needs_person(self, call: Call, tool: Tool, args: dict[str, Any]) -> bool:
        if self.outcome_unknown(call, tool):
            return True
        return call["id"] not in self.state.approved and tool.wants_approval(args)

    def outcome_unknown(self, call: Call, tool: Tool) -> bool:
        """It was started, has no result, and must not happen twice."""
        return call["id"] in self.state.started and not tool.safe_to_repeat

    def ask_person(self) -> _Exit:
        """Stop, with every open call that a person must decide on."""
        waiting = []
        for call in pending(self.state):
            if call["id"] in self.state.rejected:
                continue
            tool, args = check_call(call, self.tools)
            if not self.needs_person(call, tool, args):
                continue
            item = {"call_id": call["id"], "tool_name": tool.name, "args": args}
            if self.outcome_unknown(call, tool):
                item["note"] = (
                    "It was started before and its outcome is unknown: it may have had its "
                    "effect. Approve to run it again, reject to leave it."
                )
            waiting.append(item)
            self.emit(
                "approval_required",
                toolName=tool.name,
                args=call["function"]["arguments"],
                callId=call["id"],
            )
        return _approval(waiting)

    async def execute(self, call: Call, tool: Tool, args: dict[str, Any], key: str) -> _Exit | None:
        continued = call["id"] in self.state.children  # a child run that had stopped
        if call["id"] not in self.state.started:
            self.state.started.append(call["id"])
        if not tool.safe_to_repeat:
            self.save()  # whatever happens now, it is known that this call was started
        if not continued:
            arguments = call["function"]["arguments"]
            self.emit("tool_start", toolName=tool.name, args=arguments, callId=call["id"])
        began = time.perf_counter()
        outcome = await execute(tool, args, self.context(call, tool))
        ms = round((time.perf_counter() - began) * 1000)
        exit = self.record(call, tool, outcome, key, ms)
        if not tool.safe_to_repeat:
            self.save()
        return exit

    def context(self, call: Call, tool: Tool) -> ToolContext:
        loop, thread = asyncio.get_running_loop(), threading.get_ident()

        def report(label: str) -> None:
            if call not in pending(self.state) or self.state.status != "running":
                return  # a tool that was given up on still talks
            self.emit("tool_progress", toolName=tool.name, callId=call["id"], label=label)
            if self.on_progress is not None:
                self.on_progress(label)

        def guarded(label: str) -> None:
            try:
                report(label)
            except Exception as problem:  # the caller's fault, not the tool's
                self.callback_error = problem

        def progress(label: str) -> None:
            label = clean_text(str(label))
            if threading.get_ident() == thread:
                guarded(label)
            else:
                loop.call_soon_threadsafe(guarded, label)

        run_id, call_id = self.state.run_id, call["id"]
        return ToolContext(self.signal, progress, run_id, call_id, f"{run_id}:{call_id}", self)

    def record(self, call: Call, tool: Tool, outcome: Outcome, key: str, ms: int) -> _Exit | None:
        """Write what became of a call into the transcript, and say whether the run stops."""
        if isinstance(outcome.error, _ChildWaits):
            return _approval(outcome.error.calls)
        match outcome.kind, outcome.cut_by:
            case "value", None | "abort":
                text = result_text(outcome.value)
                self.remember(tool, key, text)
                self.answer(call, text, ok=True, ms=ms)
            case "running", _:
                why = "it did not stop when told to and may still be running"
                self.answer(call, f"Interrupted: {why}.", ok=False, ms=ms)
            case _, "timeout":
                late = TimeoutError(f"no result after {tool.timeout_s:g} s; it was stopped")
                return self.record_error(call, late, ms)
            case _, "abort" if tool.safe_to_repeat:  # left open: a resumed run does it again
                self.emit_result(call, ok=False, ms=ms, interrupted=True)
            case _, "abort":
                why = "it may have had a partial effect"
                self.answer(call, f"Interrupted while it ran: {why}.", ok=False, ms=ms)
            case _:
                return self.record_error(call, outcome.error, ms)
        return None

    def record_error(self, call: Call, error: BaseException | None, ms: int) -> _Exit | None:
        """An error that the model can act on goes back as data; any other one stops the run."""
        error = error or RuntimeError("the tool failed")
        permanent = isinstance(error, PermanentToolError)
        words = f"Error: {error_text(error)}" if permanent else self.tool_error_text(error)
        self.answer(call, result_text(words), ok=False, ms=ms)
        if permanent or self.tool_errors_are_fatal:
            return _Exit("failed", error=error_text(error))
        return None

    def remember(self, tool: Tool, key: str, text: str) -> None:
        if self.dedupe == "all" or (self.dedupe and tool.read_only):
            self.seen[key] = text
        elif not tool.read_only:
            self.seen.clear()  # what was read before a write may no longer be true

    def answer(self, call: Call, text: str, *, ok: bool, **details: Any) -> None:
        answer_call(self.state, call, text)
        self.emit_result(call, ok=ok, **details)

    def emit_result(self, call: Call, **details: Any) -> None:
        self.emit("tool_result", toolName=call["function"]["name"], callId=call["id"], **details)

    # Telling.

    def emit(self, kind: str, **details: Any) -> None:
        event = {"runId": self.state.run_id, "type": kind, **details}
        if self.parent is not None:
            event["parentRunId"] = self.parent.state.run_id
        self.trace(event)

    def save(self) -> None:
        if self.parent is not None:
            self.parent.save()  # a child run lives in its parent's file
        elif self.store is not None:
            write_state(self.state, self.store)


def _approval(waiting: list[dict[str, Any]]) -> _Exit:
    interruption = {"type": "approval", **waiting[0]}
    if len(waiting) > 1:
        interruption["calls"] = waiting
    return _Exit("interrupted", interruption)


# --- a run behind a tool ------------------------------------------------------------------------


class _ChildWaits(Exception):
    """A child run waits for a person, so its parent must."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        self.calls = calls


def run_as_tool(
    name: str,
    description: str,
    system: str,
    tools: Sequence[Tool],
    client: Client,
    limits: Limits | None = None,
) -> Tool:
    """A tool with a whole run behind it: its own transcript and limits, the parent's money.

    The child's state lives in the parent's ``children``, so a pause or a crash continues it.
    ``limits``: 6 turns and 0.05 USD unless given.
    """
    limits = limits or Limits(max_turns=6, max_budget_usd=0.05)
    task = {"type": "string", "description": "What to find out or do, in full sentences."}
    parameters = {"type": "object", "properties": {"task": task}, "required": ["task"]}

    async def run_child(args: dict[str, Any], ctx: ToolContext) -> str:
        children = ctx.owner.state.children
        if ctx.call_id not in children:
            children[ctx.call_id] = new_run(system, args["task"])
            children[ctx.call_id].run_id = f"{ctx.run_id}.{ctx.call_id}"
        child = await run(children[ctx.call_id], tools, client, limits=limits, parent=ctx)
        if calls := waiting_calls(child):
            raise _ChildWaits([{**c, "call_id": f"{ctx.call_id}/{c['call_id']}"} for c in calls])
        return _report(child)

    read_only = all(tool.read_only for tool in tools)
    return Tool(name, description, parameters, run_child, read_only=read_only, idempotent=True)


def _report(child: RunState) -> str:
    if child.status == "completed":
        return child.output
    why = f"{child.status} after {child.turns} turns (${child.cost_usd:.6f})"
    detail = child.error or child.output or "no result"
    return f"The run stopped without an answer: {why}: {detail}"
