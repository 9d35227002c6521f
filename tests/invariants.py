"""The seven invariants of a run, checked on everything that it leaves behind.

    check(Record(state, exchanges, events, executions=...))

``Record`` is the evidence: the state, the requests that every provider received (the parent's and
the children's: ``client.transport.journal``), the trace's events, and what the tools counted.
``check`` raises AssertionError for the first invariant that does not hold. The single checks
(``check_requests``, ``check_exit``, ...) can be used alone. ``tests/rig.py`` collects the evidence
and calls ``check`` after every segment of a run; a test that uses the rig has them all.

    I1 pairing       check_requests, check_transcript
    I2 one exit      check_exit
    I3 at most once  check_executions
    I4 plain data    check_plain
    I5 trace         check_trace
    I6 money         check_money
    I7 quick stop    check_stop (what was sent and started before the signal, and after the run)

Nothing here uses the harness's own functions to judge the harness.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from harness import RunState
from scripted_provider import Exchange

STATUSES = {"completed", "failed", "max_turns_exceeded", "budget_exceeded", "interrupted"}
INTERRUPTIONS = {
    "max_turns_exceeded": {"max_turns"},
    "budget_exceeded": {"max_budget"},
    "interrupted": {"approval", "cancelled", "stop_condition"},
}
EVENTS = {"turn", "tool_start", "tool_progress", "tool_result", "approval_required", "run_stopped"}
BOOK = {"in": 2.0, "out": 12.0}

# A call of a run: the run's id and the call's.
CallKey = tuple[str, str]


@dataclass
class Record:
    """The evidence of one run and its children, over all its segments.

    ``executions`` counts, by run id and call id, how often a tool that is not read-only was run;
    ``repeats`` how often a person said "once more" to such a call. ``kills`` is how many segments
    ended without a chance to say so. ``priced``: every answer cost what BOOK says.
    """

    state: RunState
    exchanges: Sequence[Exchange]
    events: Sequence[Mapping[str, Any]]
    executions: Mapping[CallKey, int] = field(default_factory=Counter)
    repeats: Mapping[CallKey, int] = field(default_factory=Counter)
    kills: int = 0
    priced: bool = True


def check(record: Record) -> None:
    """All invariants that can be seen once a segment has ended."""
    check_requests(record.exchanges)
    check_transcript(record.state)
    check_exit(record.state)
    check_executions(record.executions, record.repeats)
    check_plain(record.state)
    check_trace(record)
    check_money(record)


# --- I1: pairing ----------------------------------------------------------------------------------


def check_requests(exchanges: Sequence[Exchange]) -> None:
    """Every request could be sent to a strict endpoint, and this one did not complain."""
    for exchange in exchanges:
        assert exchange.status != 400, f"the provider refused a request: {exchange.request}"
        body = exchange.request
        assert "tools" not in body or body["tools"]
        open_calls = _check_messages(body["messages"])
        assert not open_calls, f"unanswered in a request: {open_calls}"
        for message in body["messages"]:
            for call in message.get("tool_calls") or ():
                arguments = call["function"]["arguments"]
                assert isinstance(arguments, str)
                assert isinstance(json.loads(arguments), dict), arguments


def check_transcript(state: RunState) -> None:
    """The same for the transcript, where only the last message's calls may still be open."""
    ids = [c["id"] for m in state.messages for c in m.get("tool_calls") or ()]
    assert len(set(ids)) == len(ids), f"an id stands twice: {ids}"
    for name in ("approved", "rejected", "started", "children"):
        assert set(getattr(state, name)) <= set(ids), f"{name} holds ids of no call"
    assert len(set(state.started)) == len(state.started)
    assert len(set(state.approved)) == len(state.approved)
    _check_messages(state.messages)
    for child in state.children.values():
        check_transcript(child)


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Roles, contents and pairing; the ids that are still open at the end."""
    waiting: list[str] = []
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting, f"an orphan: {message}"
            waiting.remove(message["tool_call_id"])
            assert isinstance(content, str)
            assert content
            continue
        assert not waiting, f"unanswered before {message['role']}: {waiting}"
        calls = message.get("tool_calls", [])
        assert calls or "tool_calls" not in message
        kinds = (str, type(None)) if calls else str
        assert isinstance(content, kinds), message
        waiting = [call["id"] for call in calls]
        assert all(waiting)
        assert all(isinstance(one, str) for one in waiting)
    return waiting


# --- I2: one exit ---------------------------------------------------------------------------------


def check_exit(state: RunState) -> None:
    """One of five statuses, with what belongs to it and nothing else."""
    assert state.status in STATUSES, state.status
    interruption = state.interruption
    assert (interruption is not None) == (state.status in INTERRUPTIONS)
    assert state.resumable == (state.status in INTERRUPTIONS)
    if interruption is not None:
        assert interruption["type"] in INTERRUPTIONS[state.status]
        _check_interruption(interruption)
    assert (state.error is not None) == (state.status == "failed")
    assert state.error is None or state.error.strip()
    if state.status == "completed":
        assert state.output.strip()
        assert not _open_ids(state)
    for child in state.children.values():
        assert child.status in STATUSES


def _check_interruption(interruption: Mapping[str, Any]) -> None:
    match interruption["type"]:
        case "approval":
            for call in interruption.get("calls", [interruption]):
                assert call["call_id"]
                assert call["tool_name"]
                assert isinstance(call["args"], dict)
        case "cancelled":
            assert interruption["reason"]
        case "stop_condition":
            assert interruption["name"]


def _open_ids(state: RunState) -> list[str]:
    return _check_messages(state.messages)


# --- I3: at most once -----------------------------------------------------------------------------


def check_executions(executions: Mapping[CallKey, int], repeats: Mapping[CallKey, int]) -> None:
    """A side effect happens at most once for each call, and again only where a person said so."""
    for key, times in executions.items():
        allowed = 1 + repeats.get(key, 0)
        assert times <= allowed, f"call {key} was executed {times} times, allowed {allowed}"


# --- I4: plain data -------------------------------------------------------------------------------


def check_plain(state: RunState) -> None:
    """JSON in UTF-8 and back, unchanged; every number finite and not negative."""
    plain = asdict(state)
    assert json.loads(json.dumps(plain, allow_nan=False).encode("utf-8")) == plain
    # Not only escaped: the text itself can be encoded (no lone surrogate anywhere).
    json.dumps(plain, ensure_ascii=False).encode("utf-8")
    for one in _with_children(state):
        for item in fields(one):
            number = getattr(one, item.name)
            if isinstance(number, (int, float)):
                assert math.isfinite(number), (item.name, number)
                assert number >= 0, (item.name, number)


def _with_children(state: RunState) -> Iterator[RunState]:
    yield state
    for child in state.children.values():
        yield from _with_children(child)


# --- I5: trace ------------------------------------------------------------------------------------


def check_trace(record: Record) -> None:
    """Each event is one of six, each start has its result, each segment its one last line."""
    starts: Counter[CallKey] = Counter()
    results: Counter[CallKey] = Counter()
    for event in record.events:
        assert event["type"] in EVENTS
        assert event["runId"]
        json.dumps(event, allow_nan=False, ensure_ascii=False).encode("utf-8")
        if event["type"] == "tool_start":
            assert isinstance(event["args"], str)
            starts[event["runId"], event["callId"]] += 1
        elif event["type"] == "tool_result":
            assert isinstance(event["ok"], bool)
            if event.get("executed", True):
                results[event["runId"], event["callId"]] += 1
        elif event["type"] == "run_stopped":
            assert event["reason"]
            assert event["status"] in STATUSES
    paused = set(_paused_children(record.state))
    for key in starts | results:
        missing = starts[key] - results[key]
        goes_on = missing == 1 and key in paused
        # A kill can swallow a line, or repeat one whose save it came before.
        assert missing == 0 or goes_on or abs(missing) <= record.kills, (
            f"call {key}: {starts[key]} starts, {results[key]} results"
        )
    for key, times in record.executions.items():
        assert starts[key] >= times - record.kills, f"{key} ran {times} times, {starts[key]} starts"


def _paused_children(state: RunState) -> Iterator[CallKey]:
    """Calls with a child run that stopped before they were answered: it goes on under one start.

    A new message of the user can close such a call; then it never gets a result.
    """
    still_open = _open_ids(state)
    for call_id, child in state.children.items():
        if call_id in still_open or child.status not in ("completed", "failed"):
            yield state.run_id, call_id
        yield from _paused_children(child)


def check_segment(events: Sequence[Mapping[str, Any]], run_id: str) -> None:
    """The events of one call of ``run``: one ``run_stopped`` for each run in it, at its end."""
    assert events, "a segment without a trace"
    assert events[-1]["type"] == "run_stopped"
    assert events[-1]["runId"] == run_id
    for one in {event["runId"] for event in events}:
        own = [event["type"] for event in events if event["runId"] == one]
        assert own.count("run_stopped") == 1, f"run {one}: {own}"
        assert own[-1] == "run_stopped", f"run {one}: {own}"


# --- I6: money ------------------------------------------------------------------------------------


def check_money(record: Record) -> None:
    """The sums in the state are those over all answers that arrived, the children's included."""
    for state in _with_children(record.state):
        answers = sum(message["role"] == "assistant" for message in state.messages)
        assert state.turns == answers
    if record.kills:  # a killed process may have saved what it did not live to trace
        return
    state = record.state
    turns = [event for event in record.events if event["type"] == "turn"]
    own = [event for event in turns if event["runId"] == state.run_id]
    assert [event["turn"] for event in own] == list(range(1, state.turns + 1))
    prompt = sum(event["prompt_tokens"] for event in turns)
    completion = sum(event["completion_tokens"] for event in turns)
    assert state.prompt_tokens == prompt
    assert state.completion_tokens == completion
    assert all(e["total_tokens"] == e["prompt_tokens"] + e["completion_tokens"] for e in turns)
    costs = [event["costUsd"] for event in own]
    assert costs == sorted(costs)
    assert state.cost_basis in ("exact", "estimated", "unknown")
    if record.priced:
        paid = (prompt * BOOK["in"] + completion * BOOK["out"]) / 1e6
        assert math.isclose(state.cost_usd, paid, abs_tol=1e-8), (state.cost_usd, paid)


def check_never_down(before: RunState, after: RunState) -> None:
    """Money, tokens and turns of a run never go down from one segment to the next."""
    for name in ("turns", "cost_usd", "prompt_tokens", "completion_tokens", "revision"):
        assert getattr(after, name) >= getattr(before, name), name


# --- I7: quick stop -------------------------------------------------------------------------------


def check_stop(before: tuple[int, int], after: tuple[int, int], seconds: float) -> None:
    """Numbers of requests and of tool starts at the signal and at the end, and the time between."""
    assert after == before, f"requests and starts: {before} at the signal, {after} at the end"
    assert seconds < 1.0, f"the run stopped {seconds:.2f} s after the signal"
