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
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from abort_signal import AbortSignal, abandon, either, ends_in_time, give_up
from limits import Account, Limits, StopCondition, bill_for, budget, deadline, turn_cap
from run_state import (
    RESUMABLE,
    STATE_VERSION,
    Call,
    Message,
    RunState,
    RunStatus,
    StateFile,
    answer_call,
    approve,
    claimed,
    cost,
    follow_up,
    load,
    new_run,
    pending,
    refuse_older,
    reject,
    save,
    waiting_calls,
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
    excerpt,
    execute,
    result_text,
    tidy_message,
    verdicts,
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
MAX_LABEL_CHARS, MAX_ERROR_CHARS = 500, 2_000

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

    def spoilt_by(self, problem: Exception) -> _Exit:
        """Failed, with the first thing that went wrong."""
        error = self.error or f"{type(problem).__name__}: {error_text(problem)}"
        return replace(self, status="failed", interruption=None, error=error)


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
    completed or failed state comes back as it is. Before anything is changed, it raises ValueError
    for two tools of one name, a state of another version or an unsafe run id; RunBusyError when
    the run is being continued elsewhere, or was continued since it was loaded; RunStoreError for
    a damaged file in ``store``; OSError for a ``store`` or ``trace`` that cannot be opened. When
    the task around it is cancelled, it leaves the state interrupted and saved, and lets go.

    With a ``store`` a side effect happens at most once for each call, over crashes, resumes and
    processes; without one, only within this process.

    ``dedupe`` answers a repeated read-only call from memory (``"all"``: any call, which swallows
    writes). ``parent`` makes this a child run of the tool call in whose ``run`` it is started: it
    spends the parent's money, obeys its signal too, and writes to its trace and its store.
    """
    by_name = {tool.name: tool for tool in tools}
    if len(by_name) < len(tools):
        raise ValueError("two tools have the same name")
    if state.version != STATE_VERSION:
        raise ValueError(f"no such state version: {state.version!r} (this is {STATE_VERSION})")
    owner: _Run | None = parent.owner if parent else None
    if owner is None:
        check_run_id(state.run_id)
    elif store is not None or trace is not None:
        raise ValueError("a child run uses its parent's store and trace: leave them out")
    if state.status in ("completed", "failed"):
        return state
    limits = limits or Limits()
    conditions = limits.conditions() + [_named(condition) for condition in stop_when]
    budgets = [condition for condition in conditions if condition.status == "budget_exceeded"]
    with ExitStack() as stack:
        stack.enter_context(claimed(state))
        file: StateFile | None = None
        if store is not None:
            file = StateFile(stack.enter_context(owning(store, state.run_id)))
            refuse_older(state, file.path)
        this = _Run(
            state=state,
            tools=by_name,
            client=client,
            conditions=conditions,
            account=Account(state, budgets, owner.account if owner else None),
            signal=stack.enter_context(either(signal, parent.signal if parent else None)),
            trace=owner.trace if owner else stack.enter_context(open_trace(trace)),
            on_progress=on_progress,
            on_delta=on_delta,
            dedupe=dedupe,
            tool_errors_are_fatal=tool_errors_are_fatal,
            tool_error_text=tool_error_text or (lambda error: f"Error: {error_text(error)}"),
            file=file,
            parent=owner,
        )
        await this.to_exit()
    return state


def _named(condition: StopCondition | Callable[[RunState], bool]) -> StopCondition:
    if isinstance(condition, StopCondition):
        if condition.status not in RESUMABLE:
            raise ValueError(f"a stop condition cannot make a run {condition.status}")
        return condition
    return StopCondition(getattr(condition, "__name__", "stop condition"), condition)


@dataclass
class _Run:
    """One call of :func:`run`: the state, and what is fixed while the loop works on it."""

    state: RunState
    tools: dict[str, Tool]
    client: Client
    conditions: list[StopCondition]
    account: Account
    signal: AbortSignal
    trace: Trace
    on_progress: Callable[[str], None] | None
    on_delta: Callable[[str], None] | None
    dedupe: bool | Literal["all"]
    tool_errors_are_fatal: bool
    tool_error_text: Callable[[BaseException], str]
    file: StateFile | None  # in the store
    parent: _Run | None
    asked: set[str] = field(default_factory=set)  # of a person; undecided, they do not run
    seen: dict[str, str] = field(default_factory=dict)
    callback_error: Exception | None = None
    over: bool = False

    # The loop: stop if something says so, settle open calls, and only then ask the model.

    async def to_exit(self) -> None:
        self.asked = {call["call_id"] for call in waiting_calls(self.state)}
        self.state.status, self.state.interruption = "running", None
        try:
            while True:
                exit = self.why_stop()
                if exit is None:
                    exit = await (self.settle_calls() if pending(self.state) else self.ask())
                if exit is not None:
                    break
        except Exception as problem:  # saving, tracing, or a callback or condition of the caller
            exit = _Exit("failed").spoilt_by(problem)
        except BaseException:  # the task around us was cancelled
            self.finish(self.cancelled("the task was cancelled"))
            raise
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
        if self.account.used_up:  # a parent's budget: its own is among the conditions
            return _Exit("budget_exceeded", {"type": "max_budget"})
        if self.parent is not None and self.parent.ended:
            return self.cancelled("the run that started it has ended")
        if above := self.met_above():
            return _Exit("interrupted", {"type": "stop_condition", "name": above.name})
        return self.unpriced()

    def met_above(self) -> StopCondition | None:
        """A condition for which the run that this one is a child of will stop, or one above it."""
        if self.parent is None:
            return None
        met = (one for one in self.parent.conditions if one.met(self.parent.state))
        return next(met, None) or self.parent.met_above()

    def unpriced(self, output: str = "") -> _Exit | None:
        """A budget cannot hold what nobody can count."""
        if self.state.cost_basis != "unknown" or not self.account.limited:
            return None
        why = (
            "a budget is set, but the client has no price for this model: what was spent is not "
            "known. Give the client price=, or run without a budget"
        )
        return _Exit("failed", output=output, error=why)

    def cancelled(self, otherwise: str) -> _Exit:
        reason = clean_text(self.signal.reason or otherwise)
        return _Exit("interrupted", {"type": "cancelled", "reason": reason})

    def conclude(self, exit: _Exit) -> None:
        state = self.state
        state.status, state.interruption, state.output = exit.status, exit.interruption, exit.output
        state.error = exit.error and excerpt(clean_text(exit.error), MAX_ERROR_CHARS)

    def finish(self, exit: _Exit) -> None:
        """Put the exit into the state, the file and the trace, each even if another one fails."""
        state = self.state
        self.conclude(exit)
        try:
            self.save(last=True)
        except Exception as problem:
            exit = exit.spoilt_by(problem)
            self.conclude(exit)
        try:
            self.emit(
                "run_stopped",
                status=state.status,
                reason=(state.interruption or {}).get("type") or state.error or "answered",
                turns=state.turns,
                costUsd=state.cost_usd,
            )
        except Exception as problem:
            self.conclude(exit.spoilt_by(problem))
            with suppress(Exception):
                self.save(last=True)
        self.over = True

    @property
    def ended(self) -> bool:
        """Nothing is written for a run any more once it, or the run above it, has stopped."""
        return self.over or (self.parent is not None and self.parent.ended)

    # Asking the model.

    @cached_property
    def specs(self) -> list[dict[str, Any]]:
        return [tool.spec for tool in self.tools.values()]

    @cached_property
    def call_ids(self) -> set[str]:
        """The ids of all calls in the transcript: a new call gets none of them."""
        messages = self.state.messages
        return {call["id"] for message in messages for call in message.get("tool_calls") or ()}

    async def ask(self) -> _Exit | None:
        began = time.perf_counter()
        request = self.client.complete(self.state.messages, self.specs, on_delta=self.on_delta)
        task = asyncio.ensure_future(request)
        try:
            if not await ends_in_time(task, self.signal):
                await give_up(task)
        finally:
            abandon(task)  # of no effect once it is done
        if not task.done() or task.cancelled():
            return self.cancelled("the request was cancelled")
        if problem := task.exception():
            if self.signal.aborted:  # it may have failed because it was told to stop
                return self.cancelled("aborted")
            return _Exit("failed", error=error_text(problem))
        return self.accept(task.result(), _ms_since(began))

    def accept(self, reply: Reply, ms: int) -> _Exit | None:
        """Take an answer in: pay for it, store it with its verdicts, look at it, save.

        What the answer means is saved with it: a process that dies right after an answer that
        ends the run must not leave a run that asks again.
        """
        state = self.state
        bill = bill_for(reply.usage, reply.price, [state.messages, self.specs], reply.message)
        message = tidy_message(reply.message, self.call_ids, state.turns + 1)
        calls: list[Call] = message.get("tool_calls") or []
        refused = verdicts(calls, self.tools, cut_off=reply.finish_reason == "length")
        self.account.pay(bill)
        state.messages.append(message)
        state.turns += 1
        state.rejected.update(refused)
        all_refused = bool(calls) and len(refused) == len(calls)
        state.invalid_turns = state.invalid_turns + 1 if all_refused else 0
        exit = self.exit_after(reply, message)
        if exit is not None:
            self.conclude(exit)
        try:
            self.save()
        finally:  # it is paid for, even if it could not be saved
            self.emit(
                "turn",
                turn=state.turns,
                prompt_tokens=bill.prompt_tokens,
                completion_tokens=bill.completion_tokens,
                total_tokens=bill.prompt_tokens + bill.completion_tokens,
                costUsd=state.cost_usd,
                finish=excerpt(clean_text(reply.finish_reason)),
                ms=ms,
                costBasis=bill.basis,
            )
        return exit

    def exit_after(self, reply: Reply, message: Message) -> _Exit | None:
        """What an answer means for the run: an exit, or None when there are calls to settle."""
        text = message.get("content") or ""
        if exit := self.unpriced(text):
            return exit
        if self.state.invalid_turns >= MAX_INVALID_TURNS:
            last = self.state.rejected[message["tool_calls"][-1]["id"]]
            why = f"{MAX_INVALID_TURNS} turns in a row held no call that can be executed: {last}"
            return _Exit("failed", error=why)
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

    # Settling calls, one after another, in the order of the message.

    async def settle_calls(self) -> _Exit | None:
        for call in pending(self.state):
            if self.signal.aborted:
                return None
            exit = await self.settle(call)
            if exit is not None:
                return exit
        self.save(sync=False)  # what a power cut may take of it is safe to repeat
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
            return self.ask_person(call)
        key = tool.name + json.dumps(args, sort_keys=True)
        if key in self.seen:
            self.answer(call, self.seen[key], ok=True, executed=False, cached=True)
            return None
        return await self.execute(call, tool, args, key)

    def needs_person(self, call: Call, tool: Tool, args: dict[str, Any]) -> bool:
        if self.outcome_unknown(call, tool):
            return True
        if call["id"] in self.state.approved:
            return False
        return call["id"] in self.asked or tool.wants_approval(args)

    def outcome_unknown(self, call: Call, tool: Tool) -> bool:
        """It was started, has no result, and must not happen twice."""
        return call["id"] in self.state.started and not tool.safe_to_repeat

    def ask_person(self, first: Call) -> _Exit:
        """Stop, with every open call that a person must decide on: the first one and later ones."""
        waiting = []
        for call in pending(self.state):
            if call["id"] in self.state.rejected:
                continue
            try:
                tool, args = check_call(call, self.tools)
            except BadCallError:  # settled in words when its turn comes
                continue
            if call is not first and not self.needs_person(call, tool, args):
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
        if not self.begin(call, tool):
            return None
        began = time.perf_counter()
        try:
            outcome = await execute(tool, args, self.context(call, tool))
        except BaseException:  # the task around us was cancelled: nobody saw how far it came
            with suppress(Exception):
                self.leave_open(call, _ms_since(began))
            raise
        exit = self.record(call, tool, outcome, key, _ms_since(began))
        if exit is None and not tool.safe_to_repeat:
            self.save()  # with an exit, it is saved together with that
        return exit

    def begin(self, call: Call, tool: Tool) -> bool:
        """Note that a call is started, in the file and the trace, before it is.

        False, with the note taken back, when the run is told to stop at that moment.
        """
        started, call_id, begun = self.state.started, call["id"], False
        is_new = call_id not in started
        if is_new:
            started.append(call_id)
        try:
            if not tool.safe_to_repeat:
                self.save()  # from now on it is known that it was started
            if not self.signal.aborted:
                if call_id not in self.state.children:  # else it is a child run that goes on
                    arguments = call["function"]["arguments"]
                    self.emit("tool_start", toolName=tool.name, args=arguments, callId=call_id)
                begun = True
        finally:
            if is_new and not begun:
                started.remove(call_id)
        if not tool.read_only and self.dedupe != "all":
            self.seen.clear()  # what was read before a write may no longer be true
        return begun

    def context(self, call: Call, tool: Tool) -> ToolContext:
        loop, thread = asyncio.get_running_loop(), threading.get_ident()

        def report(label: str) -> None:
            if self.ended or call not in pending(self.state):
                return  # a tool that was given up on still talks
            try:
                self.emit("tool_progress", toolName=tool.name, callId=call["id"], label=label)
                if self.on_progress is not None:
                    self.on_progress(label)
            except Exception as problem:  # the caller's fault, not the tool's
                self.callback_error = problem

        def progress(label: str) -> None:
            label = excerpt(clean_text(str(label)), MAX_LABEL_CHARS)
            if threading.get_ident() == thread:
                report(label)
            else:
                with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                    loop.call_soon_threadsafe(report, label)

        run_id, call_id = self.state.run_id, call["id"]
        return ToolContext(self.signal, progress, run_id, call_id, f"{run_id}:{call_id}", self)

    def record(self, call: Call, tool: Tool, outcome: Outcome, key: str, ms: int) -> _Exit | None:
        """Write what became of a call into the transcript, and say whether the run stops."""
        if isinstance(outcome.error, _ChildPaused) and outcome.cut_by != "timeout":
            return _approval(outcome.error.calls) if outcome.error.calls else self.why_stop()
        match outcome.kind, outcome.cut_by:
            case "value", _:
                text = result_text(outcome.value)
                self.remember(tool, key, text)
                self.answer(call, text, ok=True, ms=ms)
            case "running", _:
                why = "it did not stop when told to and may still be running"
                self.answer(call, f"Interrupted: {why}.", ok=False, ms=ms)
            case _, "abort" if tool.safe_to_repeat:  # a resumed run does it again
                self.leave_open(call, ms)
            case _, "abort":
                why = "it may have had a partial effect"
                self.answer(call, f"Interrupted while it ran: {why}.", ok=False, ms=ms)
            case _, "timeout":
                effect = "" if tool.read_only else " and may have had a partial effect"
                why = f"no result after {tool.timeout_s:g} s; it was stopped{effect}"
                return self.record_error(call, TimeoutError(why), ms)
            case _:
                return self.record_error(call, outcome.error, ms)
        return None

    def record_error(self, call: Call, error: BaseException | None, ms: int) -> _Exit | None:
        """An error that the model can act on goes back as data; any other one stops the run."""
        error = error or RuntimeError("the tool failed")
        permanent = isinstance(error, PermanentToolError)
        words = f"Error: {error_text(error)}"
        if not permanent:
            try:
                words = self.tool_error_text(error)
            except Exception as problem:  # the call must have its answer all the same
                self.callback_error = problem
        self.answer(call, result_text(words), ok=False, ms=ms)
        if permanent or self.tool_errors_are_fatal:
            return _Exit("failed", error=error_text(error))
        return None

    def remember(self, tool: Tool, key: str, text: str) -> None:
        if self.dedupe == "all" or (self.dedupe and tool.read_only):
            self.seen[key] = text

    def leave_open(self, call: Call, ms: int) -> None:
        """It was cut short and stays unanswered; a child run is only paused, so not a word."""
        if call["id"] not in self.state.children:
            self.emit_result(call, ok=False, ms=ms, interrupted=True)

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
        if not self.ended:
            self.trace(event)

    def save(self, *, last: bool = False, sync: bool = True) -> None:
        if self.parent is not None:  # a child run lives in its parent's file
            self.parent.save(sync=sync)
        elif self.file is not None and not self.over:
            self.file.save(self.state, last=last, sync=sync)


def _ms_since(began: float) -> int:
    return round((time.perf_counter() - began) * 1000)


def _approval(waiting: list[dict[str, Any]]) -> _Exit:
    interruption = {"type": "approval", **waiting[0]}
    if len(waiting) > 1:
        interruption["calls"] = waiting
    return _Exit("interrupted", interruption)


# --- a run behind a tool ------------------------------------------------------------------------


class _ChildPaused(Exception):
    """A child run stopped and can go on: so does its parent. ``calls`` wait for a person."""

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

    The child's state lives in the parent's ``children``: after a pause, a stop or a crash it goes
    on where it was. Calls that wait for a person in it are named ``<parent's call>/<its call>``.
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
        calls = waiting_calls(child)
        # It has no conditions of its own: one that stopped it is its parent's.
        by_parent = (child.interruption or {}).get("type") == "stop_condition"
        if calls or by_parent or (child.resumable and ctx.signal.aborted):
            raise _ChildPaused([{**c, "call_id": f"{ctx.call_id}/{c['call_id']}"} for c in calls])
        return _report(child)

    read_only = all(tool.read_only for tool in tools)
    return Tool(name, description, parameters, run_child, read_only=read_only, idempotent=True)


def _report(child: RunState) -> str:
    if child.status == "completed":
        return child.output
    why = f"{child.status} after {child.turns} turns (${child.cost_usd:.6f})"
    detail = child.error or child.output or "no result"
    return f"The run stopped without an answer: {why}: {detail}"
