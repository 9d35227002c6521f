"""Small inputs that broke other harnesses, each with its kind; the invariants hold after each.

Where more than one behaviour would do, this is the one chosen, and its test says so:

* Broken arguments go back to the provider as ``{"malformed_arguments": <an excerpt>}``; the state
  keeps what the model wrote. (A01)
* Nothing, blanks and ``null`` count as no arguments; a tool with a required parameter is told
  which one is missing. (A02)
* An id that is missing or stands elsewhere in the run is minted anew when the answer arrives. (A04)
* Calls of one message are settled in call order. Those before the first one that a person must
  decide on are executed before the pause, the others after it. (A06)
* After Stop, resuming runs the calls that were never started; a new user message closes them in
  words first. A side effect that Stop interrupted is answered in words, a call that can safely be
  repeated is left open and repeated. (A09)
* What a tool returns although it was told to stop is its result. (A12)
* The turn cap is looked at before calls are settled: the open call runs after the resume. (A13)
* Unknown usage is estimated, upwards; an unknown price with a budget fails the run. (A14)
* A cut answer without calls is ``failed`` with its text in ``output``; so are a content filter's
  and a refusal's. (A16, A17)
* An error in a body of status 200 is triaged like an error of that status. (A18)
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

import run_store
import scripted_provider
from chat_client import ChatClient
from harness import (
    AbortSignal,
    Limits,
    RunBusyError,
    RunState,
    RunStoreError,
    Tool,
    ToolContext,
    approve,
    budget,
    cost,
    load,
    new_run,
    run,
    save,
)
from scripted_provider import (
    Fault,
    asks,
    call,
    changed,
    cut_body,
    dropped,
    empty_choices,
    finish_reason,
    http_error,
    no_usage,
    says,
    slow,
    text,
    whole_body,
)
from tests.rig import TEXT_PARAMETER, Rig, client_of, journal_of, tool

NOTE_1 = call("n1", "read_note", {"id": 1})
MAIL = call("m1", "send_mail", {"text": "hello"})


def raw_call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A call as a model may send it, with nothing put right."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def usage(**counts: Any) -> Fault:
    """The answer's usage replaced by these."""
    return changed(lambda body: body.update(usage=counts))


# --- A01: arguments are not JSON ------------------------------------------------------------------

BROKEN_ARGUMENTS = [
    '{"{"text": "a"}',
    'text = "a"',
    "{'text': 'a'}",
    '{"text": "a"',
    '{"text": "a"} {"text": "b"}',
    '{"text": NaN}',
    '{"text": 1e999}',
    '["a"]',
    '"a"',
    "17",
    "[" * 100_000,
    '{"text": ' + "9" * 5000 + "}",
    "x" * 50_000,
]


@pytest.mark.parametrize("raw", BROKEN_ARGUMENTS, ids=lambda raw: raw[:14])
def test_a01_broken_arguments_are_told_and_the_other_calls_run(raw: str) -> None:
    rig = Rig(asks(call("c1", "add_note", raw), call("c2", "read_note", '{"id": 1}')), text("ok"))
    rig.run()
    assert rig.state.status == "completed"
    assert rig.effects == ["read_note:c2"]
    assert "the arguments of add_note" in rig.told("c1")
    assert "not executed" in rig.told("c1")
    assert len(rig.told("c1")) < 500
    assert raw[:20] in rig.told("c1")
    assert rig.told("c2") == "old"
    assert rig.requests == 2
    broken, good = rig.sent(2)[2]["tool_calls"]
    assert set(json.loads(broken["function"]["arguments"])) == {"malformed_arguments"}
    assert len(broken["function"]["arguments"]) < 500
    assert good["function"]["arguments"] == '{"id": 1}'


def test_a01_arguments_nested_too_deep_are_told() -> None:
    """They would be saved, and not every stack has room to load them."""
    deep = [f'{{"text": {"[" * levels}{"]" * levels}}}' for levels in (99, 100)]
    rig = Rig(asks(call("c1", "add_note", deep[0]), call("c2", "add_note", deep[1])), text("ok"))
    rig.run()
    assert "do not fit" in rig.told("c1")
    assert "nested more than 100 deep" in rig.told("c2")
    assert rig.state.status == "completed"


# --- A02: arguments empty, null, missing, or already an object ------------------------------------


@pytest.mark.parametrize("raw", ["", "  ", None, "null", "{}", {}])
def test_a02_nothing_means_no_arguments(raw: Any) -> None:
    now = tool("now", lambda args, ctx: f"12:00 {args}", read_only=True)
    message = {"role": "assistant", "content": None, "tool_calls": [raw_call("c1", "now", raw)]}
    rig = Rig(says(message), text("noon"), tools=[now])
    rig.run()
    assert rig.state.output == "noon"
    assert rig.told("c1") == "12:00 {}"
    assert rig.sent(2)[2]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_a02_no_arguments_key_at_all() -> None:
    now = tool("now", lambda args, ctx: "12:00", read_only=True)
    one = {"id": "c1", "type": "function", "function": {"name": "now"}}
    message = {"role": "assistant", "content": None, "tool_calls": [one]}
    rig = Rig(says(message), text("noon"), tools=[now])
    assert rig.run().output == "noon"
    assert rig.effects == ["now:c1"]


def test_a02_an_object_in_place_of_a_string() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [raw_call("c1", "read_note", {"id": 1})],
    }
    rig = Rig(says(message))
    rig.run()
    assert rig.told("c1") == "old"
    assert rig.sent(2)[2]["tool_calls"][0]["function"]["arguments"] == '{"id": 1}'


@pytest.mark.parametrize("raw", ["", "{}", "null"])
def test_a02_a_required_parameter_that_is_missing_is_named(raw: str) -> None:
    rig = Rig(asks(call("c1", "read_note", raw)), text("ok"))
    rig.run()
    assert "missing parameter id" in rig.told("c1")
    assert rig.effects == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"id": "1"}, "id must be integer"), ({"id": 1.5}, "id must be integer"), ({}, "missing")],
)
def test_a02_arguments_that_do_not_fit_are_described(arguments: Any, said: str) -> None:
    rig = Rig(asks(call("c1", "read_note", arguments)))
    rig.run()
    assert said in rig.told("c1")
    assert rig.effects == []
    assert rig.state.status == "completed"


def test_a02_a_check_that_gives_up_is_no_execution() -> None:
    parameters = {"type": "object", "properties": {"n": {"multipleOf": 0.1}}}
    odd = tool("odd", lambda args, ctx: "ran", parameters)
    rig = Rig(asks(call("c1", "odd", '{"n": 1' + "0" * 400 + "}")), tools=[odd])
    rig.run()
    assert "do not fit" in rig.told("c1")
    assert rig.effects == []
    assert rig.state.status == "completed"


# --- A03: a tool name that does not exist ---------------------------------------------------------


@pytest.mark.parametrize("name", ["search_web", "", "../read_note", "read_note ", "ü" * 100, None])
def test_a03_an_invented_tool_is_told_what_exists(name: Any) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [raw_call("c1", name, "{}")]}
    rig = Rig(says(message), text("ok"))
    rig.run()
    assert "there is no tool named" in rig.told("c1")
    assert "Available tools: read_note, add_note, send_mail." in rig.told("c1")
    assert rig.state.status == "completed"
    assert rig.of_type("tool_start") == []
    (result,) = rig.of_type("tool_result")
    assert (result["ok"], result["executed"]) == (False, False)


def test_a03_repeated_inventions_end_in_the_turn_cap() -> None:
    rig = Rig(*[asks(call(f"c{n}", "search_web")) for n in range(9)])
    rig.run(limits=Limits(max_turns=2))
    assert (rig.state.status, rig.state.turns) == ("max_turns_exceeded", 2)


def test_a03_three_turns_of_nothing_but_bad_calls_fail() -> None:
    rig = Rig(*[asks(call(f"c{n}", "search_web")) for n in range(9)])
    rig.run(limits=Limits(max_turns=None))
    assert (rig.state.status, rig.state.turns) == ("failed", 3)
    assert "no tool named search_web" in (rig.state.error or "")


def test_a03_a_good_call_in_between_starts_the_count_anew() -> None:
    bad = [asks(call(f"c{n}", "search_web")) for n in range(4)]
    rig = Rig(bad[0], bad[1], asks(NOTE_1), bad[2], bad[3], text("ok"))
    assert rig.run().status == "completed"


def test_a03_without_any_tools() -> None:
    rig = Rig(asks(call("c1", "search_web")), text("ok"))
    rig.tools = []
    rig.run()
    assert "Available tools: none." in rig.told("c1")


# --- A04: ids -------------------------------------------------------------------------------------


def test_a04_an_id_used_again_in_a_later_turn() -> None:
    first, second = (asks(call("x1", "read_note", {"id": number})) for number in (1, 2))
    rig = Rig(first, second, text("ok"))
    rig.run()
    assert rig.state.status == "completed"
    assert [event["type"] for event in rig.events].count("tool_start") == 2
    results = [message["content"] for message in rig.sent(3) if message["role"] == "tool"]
    assert results == ["old", "second"]


@pytest.mark.parametrize("ids", [("", None), ("x", "x"), (None, None), (7, {}), ("ü", "a b")])
def test_a04_ids_missing_or_twice_or_unusable_are_minted(ids: tuple[Any, Any]) -> None:
    calls = [raw_call(one, "read_note", f'{{"id": {n}}}') for n, one in enumerate(ids, 1)]
    rig = Rig(says({"role": "assistant", "content": None, "tool_calls": calls}), text("ok"))
    rig.run()
    answers = [message for message in rig.sent(2) if message["role"] == "tool"]
    assert [answer["content"] for answer in answers] == ["old", "second"]
    assert len({answer["tool_call_id"] for answer in answers}) == 2


def test_a04_no_id_key_at_all() -> None:
    one = {"type": "function", "function": {"name": "read_note", "arguments": '{"id": 1}'}}
    rig = Rig(says({"role": "assistant", "content": None, "tool_calls": [one]}))
    assert rig.run().status == "completed"


def test_a04_a_minted_id_does_not_meet_one_of_the_models() -> None:
    calls = [raw_call(one, "read_note", '{"id": 1}') for one in ("call_1_2", "", "call_1_3")]
    rig = Rig(says({"role": "assistant", "content": None, "tool_calls": calls}))
    rig.run()
    assert rig.state.status == "completed"


def test_a04_an_approval_does_not_fit_a_later_call_of_the_same_id() -> None:
    rig = Rig(asks(MAIL), asks(MAIL), text("ok"))
    rig.run()
    rig.approve("m1")
    rig.run()
    assert rig.state.status == "interrupted"  # the second mail waits for its own approval
    assert rig.waiting() != ["m1"]
    assert rig.effects == ["send_mail:m1"]


# --- A05: the shape of the assistant message ------------------------------------------------------

HELLO = [{"type": "text", "text": "He"}, {"type": "text", "text": "llo"}]


@pytest.mark.parametrize("calls", [{"tool_calls": []}, {"tool_calls": None}, {}])
@pytest.mark.parametrize("content", [HELLO, "Hello", ["He", "llo"]])
def test_a05_content_in_parts_and_empty_calls(content: Any, calls: dict[str, Any]) -> None:
    rig = Rig(says({"role": "assistant", "content": content, **calls}), text("bye"))
    rig.run()
    assert (rig.state.status, rig.state.output) == ("completed", "Hello")
    rig.follow_up("and now?")
    rig.run()
    assert rig.state.output == "bye"
    assert rig.sent(2)[2] == {"role": "assistant", "content": "Hello"}


@pytest.mark.parametrize("content", [None, "", [], "I look."])
def test_a05_a_message_with_calls_is_kept_whatever_its_content(content: Any) -> None:
    message = {"role": "assistant", "content": content, "tool_calls": [NOTE_1]}
    rig = Rig(says(message), text("ok"))
    rig.run()
    assert rig.effects == ["read_note:n1"]
    assert rig.sent(2)[2]["content"] == (content or None)


@pytest.mark.parametrize("content", [None, "", "  \n", [], 17])
def test_a05_an_answer_of_nothing_is_failed_not_completed(content: Any) -> None:
    rig = Rig(says({"role": "assistant", "content": content}))
    rig.run()
    assert rig.state.status == "failed"
    assert "nothing" in (rig.state.error or "")
    rig.follow_up("try again")
    assert rig.run().status == "completed"


# --- A06: one call needs approval, the other does not ---------------------------------------------


@pytest.mark.parametrize("mail_first", [True, False])
def test_a06_each_runs_once_in_total(mail_first: bool, tmp_path: Path) -> None:
    calls = [MAIL, NOTE_1] if mail_first else [NOTE_1, MAIL]
    rig = Rig(asks(*calls), text("ok"), store=tmp_path)
    rig.run()
    assert (rig.state.interruption or {})["type"] == "approval"
    assert rig.waiting() == ["m1"]
    # Design: in call order, up to the first undecided call.
    assert rig.effects == ([] if mail_first else ["read_note:n1"])
    rig.reload()
    rig.approve("m1")
    rig.run()
    assert rig.state.status == "completed"
    assert sorted(rig.effects) == ["read_note:n1", "send_mail:m1"]
    answers = [message["tool_call_id"] for message in rig.sent(2) if message["role"] == "tool"]
    assert answers == [one["id"] for one in calls]
    assert rig.requests == 2


def test_a06_several_that_wait_are_listed_and_decided_one_by_one(tmp_path: Path) -> None:
    mails = [call(f"m{n}", "send_mail", {"text": str(n)}) for n in range(3)]
    rig = Rig(asks(*mails), text("ok"), store=tmp_path)
    rig.run()
    assert rig.waiting() == ["m0", "m1", "m2"]
    assert (rig.state.interruption or {})["call_id"] == "m0"
    rig.approve("m1")
    rig.run()  # m0 is still undecided, so m1 waits behind it
    assert rig.waiting() == ["m0", "m2"]
    assert rig.effects == []
    rig.reload()
    rig.approve("m0")
    rig.reject("m2", "two are enough")
    rig.run()
    assert rig.effects == ["send_mail:m0", "send_mail:m1"]
    assert rig.state.status == "completed"


def test_a06_an_undecided_call_asks_again_and_sends_nothing() -> None:
    rig = Rig(asks(MAIL), text("ok"))
    for _ in range(3):
        rig.run()
        assert rig.waiting() == ["m1"]
    assert (rig.requests, rig.effects) == (1, [])


def test_a06_approval_can_depend_on_the_arguments_and_a_failing_question_means_yes() -> None:
    def asks_first(args: dict[str, Any]) -> bool:
        return bool(args["text"].startswith("!"))

    careful = tool("careful", lambda args, ctx: "ran", TEXT_PARAMETER, needs_approval=asks_first)
    broken = tool("broken", lambda args, ctx: "ran", needs_approval=lambda args: bool(1 / 0))
    calls = [
        call("c1", "careful", {"text": "quiet"}),
        call("c2", "careful", {"text": "!loud"}),
        call("c3", "broken"),
    ]
    rig = Rig(asks(*calls), tools=[careful, broken])
    rig.run()
    assert rig.effects == ["careful:c1"]
    assert rig.waiting() == ["c2", "c3"]


def test_a06_a_sibling_whose_tool_is_gone_does_not_break_the_question() -> None:
    rig = Rig(asks(MAIL, call("n1", "add_note", {"text": "a"})), text("ok"))
    rig.run()
    rig.tools = [one for one in rig.tools if one.name != "add_note"]
    rig.run()
    assert rig.waiting() == ["m1"]
    rig.approve("m1")
    rig.run()
    assert "there is no tool named add_note" in rig.told("n1")
    assert rig.state.status == "completed"


def test_a06_deciding_on_a_call_that_does_not_wait_is_a_clear_error() -> None:
    rig = Rig(asks(MAIL), text("ok"))
    with pytest.raises(ValueError, match="no call m1 waits for a decision; waiting: none"):
        approve(rig.state, "m1")
    rig.run()
    with pytest.raises(ValueError, match=r"no call n9 waits .* waiting: \['m1'\]"):
        rig.reject("n9")
    rig.approve("m1")
    with pytest.raises(ValueError, match="approved already"):
        rig.reject("m1")
    rig.run()
    with pytest.raises(ValueError, match="no call m1 waits"):
        rig.approve("m1")


# --- A07: reject ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mail_first", [True, False])
def test_a07_the_model_reads_who_rejected_it_and_why(mail_first: bool, tmp_path: Path) -> None:
    calls = [MAIL, NOTE_1] if mail_first else [NOTE_1, MAIL]
    rig = Rig(asks(*calls), text("ok"), store=tmp_path)
    rig.run()
    rig.reject("m1", "wrong recipient: not this customer")
    rig.reload()
    rig.run()
    assert rig.effects == ["read_note:n1"]
    answers = {m["tool_call_id"]: m["content"] for m in rig.sent(2) if m["role"] == "tool"}
    assert "The user rejected this call: it was not executed." in answers["m1"]
    assert "wrong recipient: not this customer" in answers["m1"]
    assert rig.state.status == "completed"


@pytest.mark.parametrize("reason", ["", "\udc97\x00", "x" * 10_000, "<|endoftext|>"])
def test_a07_any_reason_will_do(reason: str) -> None:
    rig = Rig(asks(MAIL), text("ok"))
    rig.run()
    rig.reject("m1", reason)
    assert rig.run().status == "completed"
    assert "rejected" in rig.told("m1")


def test_a07_a_rejected_call_cannot_be_approved_after_all() -> None:
    rig = Rig(asks(MAIL), text("ok"))
    rig.run()
    rig.reject("m1", "no")
    with pytest.raises(ValueError, match="rejected already"):
        approve(rig.state, "m1")
    rig.run()
    assert rig.effects == []


# --- A08: approval inside a child run -------------------------------------------------------------

ASK_CHILD = call("p1", "ask_child", {"task": "send it"})


@pytest.mark.parametrize("path", ["p1/m1", "m1"])
@pytest.mark.parametrize("reloaded", [True, False])
def test_a08_the_parent_asks_and_the_child_goes_on(
    path: str, reloaded: bool, tmp_path: Path
) -> None:
    rig = Rig(asks(ASK_CHILD), text("all done"), store=tmp_path)
    child = rig.add_child("ask_child", asks(MAIL), text("sent"))
    rig.run()
    assert rig.waiting() == ["p1/m1"]
    assert (rig.state.interruption or {})["tool_name"] == "send_mail"
    if reloaded:
        rig.reload()
    rig.approve(path)
    rig.run()
    assert (rig.state.status, rig.state.output) == ("completed", "all done")
    assert rig.told("p1") == "sent"
    assert rig.effects == ["send_mail:m1"]
    assert len(journal_of(child)) == 2  # it was not started anew


def test_a08_rejected_in_the_child(tmp_path: Path) -> None:
    rig = Rig(asks(ASK_CHILD), text("all done"), store=tmp_path)
    rig.add_child("ask_child", asks(MAIL), text("not sent"))
    rig.run()
    rig.reject("m1", "not to them")
    rig.reload()
    rig.run()
    assert rig.effects == []
    assert rig.told("p1") == "not sent"
    assert "not to them" in rig.state.children["p1"].messages[-2]["content"]


def test_a08_two_children_that_wait_under_the_same_id(tmp_path: Path) -> None:
    calls = [call(one, "ask_child", {"task": "send it"}) for one in ("p1", "p2")]
    rig = Rig(asks(*calls), text("all done"), store=tmp_path)
    rig.add_child("ask_child", asks(MAIL), text("sent"))
    rig.run()
    assert rig.waiting() == ["p1/m1"]
    rig.approve("m1")
    rig.run()
    assert rig.waiting() == ["p2/m1"]
    rig.approve("m1")
    rig.run()
    assert rig.state.status == "completed"
    assert rig.effects == ["send_mail:m1", "send_mail:m1"]
    assert set(rig.executions.values()) == {1}


def test_a08_a_child_of_a_child(tmp_path: Path) -> None:
    rig = Rig(asks(ASK_CHILD), text("all done"), store=tmp_path)
    grandchild = rig.child("ask_grandchild", asks(MAIL), text("sent"))
    asks_it = asks(call("q1", "ask_grandchild", {"task": "go"}))
    rig.add_child("ask_child", asks_it, text("passed on"), tools=[grandchild])
    rig.run()
    assert rig.waiting() == ["p1/q1/m1"]
    rig.reload()
    rig.approve("m1")
    rig.run()
    assert (rig.state.status, rig.effects) == ("completed", ["send_mail:m1"])
    assert rig.told("p1") == "passed on"


# --- A09: Stop while a tool runs, then go on talking ----------------------------------------------


async def slow_tool(args: dict[str, Any], ctx: ToolContext) -> str:
    await asyncio.sleep(30)
    return "slow is done"


STARTED_AND_NOT = asks(call("s1", "slow"), call("n1", "add_note", {"text": "a"}))


def stopped_rig(*answers: Any, **options: Any) -> Rig:
    """A run that was stopped 0.1 s into the first of two calls."""
    rig = Rig(STARTED_AND_NOT, *answers, tools=[tool("slow", slow_tool, **options)])
    asyncio.run(rig.go_on(stop_once=rig.runs_a_tool))
    assert rig.state.status == "interrupted"
    assert rig.state.interruption == {"type": "cancelled", "reason": "the user pressed Stop"}
    assert rig.effects == ["slow:s1"]
    return rig


def test_a09_a_new_message_closes_both_calls_in_their_own_words() -> None:
    rig = stopped_rig(text("ok"))
    rig.follow_up("go on")
    rig.run()
    assert rig.state.status == "completed"
    assert "Interrupted while it ran" in rig.told("s1")
    assert "partial effect" in rig.told("s1")
    assert "Not executed" in rig.told("n1")
    assert rig.sent(2)[-1] == {"role": "user", "content": "go on"}
    assert rig.effects == ["slow:s1"]


def test_a09_without_a_new_message_the_call_that_never_started_runs() -> None:
    rig = stopped_rig(text("ok"))
    rig.run()
    assert rig.state.status == "completed"
    assert rig.effects == ["slow:s1", "add_note:n1"]
    assert "Interrupted while it ran" in rig.told("s1")


def test_a09_a_call_that_can_be_repeated_is() -> None:
    rig = stopped_rig(text("ok"), read_only=True)
    assert "s1" in [one["id"] for one in rig.state.messages[-1]["tool_calls"]]
    rig.tools[3] = rig.counted(tool("slow", lambda args, ctx: "fast now", read_only=True))
    rig.run()
    assert rig.effects == ["slow:s1", "slow:s1", "add_note:n1"]
    assert rig.told("s1") == "fast now"


@pytest.mark.parametrize("read_only", [True, False])
def test_a09_the_task_around_the_run_is_cancelled(read_only: bool, tmp_path: Path) -> None:
    """That may propagate; the state is in order, and a side effect is asked about."""
    slow = tool("slow", slow_tool, read_only=read_only)
    rig = Rig(STARTED_AND_NOT, text("ok"), tools=[slow], store=tmp_path)

    async def cancelled() -> None:
        task = asyncio.ensure_future(rig.go_on())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    rig.check()
    assert (rig.state.interruption or {})["reason"] == "the task was cancelled"
    assert load(tmp_path, "rig") == rig.state
    assert rig.events[-1]["type"] == "run_stopped"
    if read_only:
        return
    rig.run()
    assert rig.waiting() == ["s1"]
    assert "outcome is unknown" in (rig.state.interruption or {})["note"]
    rig.reject("s1", "leave it")
    rig.run()
    assert rig.state.status == "completed"
    assert "outcome is unknown" in rig.told("s1")
    assert rig.effects == ["slow:s1", "add_note:n1"]


def test_a09_a_stopped_child_goes_on_where_it_was(tmp_path: Path) -> None:
    rig = Rig(asks(ASK_CHILD), text("all done"), store=tmp_path)
    slow = rig.counted(tool("slow", slow_tool, read_only=True))
    child = rig.add_child("ask_child", asks(call("s1", "slow")), text("found"), tools=[slow])
    asyncio.run(rig.go_on(stop_once=rig.runs_a_tool))
    assert rig.state.status == "interrupted"
    assert rig.state.children["p1"].status == "interrupted"
    rig.reload()
    fast = rig.counted(tool("slow", lambda args, ctx: "fast", read_only=True))
    rig.tools[-1] = rig.child("ask_child", asks(call("s1", "slow")), text("found"), tools=[fast])
    rig.run()
    assert (rig.state.status, rig.told("p1")) == ("completed", "found")
    assert len(journal_of(child)) == 1
    assert [one["runId"] for one in rig.of_type("tool_start")].count("rig") == 1


# --- A10: Stop while waiting for a retry ----------------------------------------------------------


@pytest.mark.parametrize("fault", [http_error(429, retry_after=30), slow(30), http_error(503)])
def test_a10_stop_ends_the_wait(fault: Fault) -> None:
    rig = Rig(client=client_of(fault, sleep=asyncio.sleep))
    rig.client.max_retries = 50
    asyncio.run(rig.go_on(stop_once=rig.sent_one))
    assert rig.state.status == "interrupted"
    assert (rig.requests, rig.state.turns, rig.state.cost_usd) == (1, 0, 0.0)
    rig.client = client_of(text("ok"))
    rig.clients.append(rig.client)
    assert rig.run().status == "completed"


@pytest.mark.parametrize("on_delta", [None, lambda piece: None])
def test_a10_stop_while_the_body_drips(on_delta: Any) -> None:
    words = " ".join(["word"] * 200)
    carrier = scripted_provider.transport({"s": lambda turn, said: text(words)}, chunk_delay_s=0.05)
    rig = Rig(client=ChatClient("http://scripted/v1", "s", transport=carrier, price=PRICE))
    asyncio.run(rig.go_on(stop_once=rig.sent_one, on_delta=on_delta))
    if on_delta is None:  # the whole answer comes in one piece and was there before
        assert rig.state.status == "completed"
    else:
        assert (rig.state.status, rig.state.turns) == ("interrupted", 0)


def test_a10_a_signal_set_before_the_run_sends_nothing() -> None:
    rig, signal = Rig(text("ok")), AbortSignal()
    signal.abort("no")
    rig.run(signal=signal)
    assert rig.state.interruption == {"type": "cancelled", "reason": "no"}
    assert rig.requests == 0


def test_a10_a_client_that_fails_because_it_is_stopped_is_stopped() -> None:
    class Clumsy:
        async def complete(self, *args: Any, **options: Any) -> Any:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                raise ConnectionError("the socket was closed") from None

    rig = Rig()

    async def stopped() -> RunState:
        signal = AbortSignal()
        asyncio.get_running_loop().call_later(0.05, signal.abort, "enough")
        return await run(rig.state, [], Clumsy(), signal=signal)

    assert asyncio.run(stopped()).interruption == {"type": "cancelled", "reason": "enough"}


# --- A11: a plain function blocks -----------------------------------------------------------------


def test_a11_the_loop_goes_on_and_nothing_else_starts() -> None:
    let_go = threading.Event()
    blocks = tool("blocks", lambda args, ctx: let_go.wait(5))
    rig = Rig(asks(call("b1", "blocks"), call("n1", "add_note", {"text": "a"})), tools=[blocks])
    ticks: list[float] = []

    async def ticker() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def stopped() -> None:
        task = asyncio.ensure_future(ticker())
        await rig.go_on(stop_once=rig.runs_a_tool)
        task.cancel()

    asyncio.run(stopped())
    let_go.set()
    assert rig.state.status == "interrupted"
    assert rig.effects == ["blocks:b1"]
    assert "may still be running" in rig.told("b1")
    assert len(ticks) > 5


def test_a11_a_function_that_looks_at_the_signal_keeps_its_result() -> None:
    def looks(args: dict[str, Any], ctx: ToolContext) -> str:
        return f"half of it, {ctx.signal.reason}" if ctx.signal.wait_blocking(30) else "all of it"

    rig = Rig(asks(call("l1", "looks")), tools=[tool("looks", looks)])
    asyncio.run(rig.go_on(stop_once=rig.runs_a_tool))
    assert rig.state.status == "interrupted"
    assert rig.told("l1") == "half of it, the user pressed Stop"


def test_a11_what_a_tool_says_after_the_run_is_heard_by_nobody() -> None:
    let_go, ended = threading.Event(), threading.Event()

    def talks(args: dict[str, Any], ctx: ToolContext) -> None:
        let_go.wait(5)
        ctx.progress("still here")
        ended.set()

    rig = Rig(asks(call("t1", "talks")), tools=[tool("talks", talks)])
    labels: list[str] = []

    async def stopped() -> None:
        await rig.go_on(stop_once=rig.runs_a_tool, on_progress=labels.append)
        let_go.set()
        await asyncio.to_thread(ended.wait)
        await asyncio.sleep(0)

    asyncio.run(stopped())
    assert labels == []
    assert rig.events[-1]["type"] == "run_stopped"


def test_a11_progress_after_the_loop_has_closed_is_no_error() -> None:
    let_go, problems = threading.Event(), list[BaseException | None]()
    ended = threading.Event()

    def talks(args: dict[str, Any], ctx: ToolContext) -> None:
        let_go.wait(5)
        try:
            ctx.progress("still here")
            problems.append(None)
        except BaseException as problem:
            problems.append(problem)
        ended.set()

    rig = Rig(asks(call("t1", "talks")), tools=[tool("talks", talks)])
    asyncio.run(rig.go_on(stop_once=rig.runs_a_tool))
    let_go.set()
    assert ended.wait(5)
    assert problems == [None]


# --- A12: a tool swallows the cancellation --------------------------------------------------------


@pytest.mark.parametrize("swallowed", [asyncio.CancelledError, BaseException])
def test_a12_a_swallowed_stop_is_still_a_stop(swallowed: type[BaseException]) -> None:
    async def swallows(args: dict[str, Any], ctx: ToolContext) -> str:
        try:
            await asyncio.sleep(30)
        except swallowed:
            return "fine"
        return "never"

    rig = Rig(asks(call("s1", "swallows")), text("ok"), tools=[tool("swallows", swallows)])
    asyncio.run(rig.go_on(stop_once=rig.runs_a_tool))
    assert rig.state.status == "interrupted"
    assert (rig.requests, rig.told("s1")) == (1, "fine")


@pytest.mark.parametrize("read_only", [True, False])
def test_a12_a_tool_that_goes_on_is_left_behind(read_only: bool) -> None:
    async def goes_on(args: dict[str, Any], ctx: ToolContext) -> str:
        while True:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                if loop_ends.is_set():
                    raise

    loop_ends = threading.Event()
    rig = Rig(asks(call("g1", "goes_on")), tools=[tool("goes_on", goes_on, read_only=read_only)])

    async def stopped() -> None:
        await rig.go_on(stop_once=rig.runs_a_tool)
        loop_ends.set()

    asyncio.run(stopped())
    assert rig.state.status == "interrupted"
    assert "may still be running" in rig.told("g1")


def test_a12_a_client_that_swallows_the_stop_has_its_answer_kept() -> None:
    answer = client_of(text("late, but paid for"))

    class Stubborn:
        async def complete(self, *args: Any, **options: Any) -> Any:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                return await answer.complete(*args, **options)

    async def stopped() -> RunState:
        signal = AbortSignal()
        asyncio.get_running_loop().call_later(0.05, signal.abort)
        return await run(new_run("", "Do it."), [], Stubborn(), signal=signal)

    state = asyncio.run(stopped())
    assert (state.turns, state.output) == (1, "late, but paid for")


def test_a12_a_tool_that_cancels_itself_is_an_error_like_any_other() -> None:
    async def gives_up(args: dict[str, Any], ctx: ToolContext) -> None:
        raise asyncio.CancelledError

    rig = Rig(asks(call("c1", "gives_up")), text("ok"), tools=[tool("gives_up", gives_up)])
    assert rig.run().status == "completed"
    assert rig.told("c1") == "Error: the tool cancelled itself"


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), StopIteration("x"), GeneratorExit(), KeyboardInterrupt("in a thread")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("is_async", [True, False])
def test_a12_no_exception_of_a_tool_gets_out(error: BaseException, is_async: bool) -> None:
    if is_async and isinstance(error, KeyboardInterrupt):
        return  # asyncio itself hands this one to the loop's caller

    async def raises(args: dict[str, Any], ctx: ToolContext) -> None:
        raise error

    def raises_in_thread(args: dict[str, Any], ctx: ToolContext) -> None:
        raise error

    function: Callable[..., Any] = raises if is_async else raises_in_thread
    rig = Rig(asks(call("c1", "raises")), text("ok"), tools=[tool("raises", function)])
    assert rig.run().status == "completed"
    assert rig.told("c1").startswith("Error: ")


# --- A13: the turn cap with open calls ------------------------------------------------------------


def test_a13_the_open_call_runs_once_after_the_resume() -> None:
    rig = Rig(asks(call("a1", "add_note", {"text": "a"})), text("ok"))
    rig.run(limits=Limits(max_turns=1))
    # Design: the cap is looked at before the call is settled.
    assert (rig.state.status, rig.requests, rig.effects) == ("max_turns_exceeded", 1, [])
    assert rig.state.resumable
    rig.run(limits=Limits(max_turns=1))
    assert (rig.state.status, rig.requests, rig.effects) == ("max_turns_exceeded", 1, [])
    rig.run(limits=Limits(max_turns=3))
    assert (rig.state.status, rig.state.turns) == ("completed", 2)
    assert rig.effects == ["add_note:a1"]


@pytest.mark.parametrize(
    "limits", [Limits(max_turns=0), Limits(max_budget_usd=0), Limits(max_budget_usd=0.0)]
)
def test_a13_a_limit_of_nothing_sends_nothing(limits: Limits) -> None:
    rig = Rig(text("ok"))
    rig.run(limits=limits)
    assert rig.state.resumable
    assert rig.requests == 0


def test_a13_a_follow_up_closes_the_open_calls_first() -> None:
    rig = Rig(asks(call("a1", "add_note", {"text": "a"})), text("ok"))
    rig.run(limits=Limits(max_turns=1))
    rig.follow_up("never mind")
    rig.run()
    assert "Not executed" in rig.told("a1")
    assert (rig.state.status, rig.effects) == ("completed", [])


@pytest.mark.parametrize("ending", ["completed", "failed"])
def test_a13_a_final_state_comes_back_as_it_is(ending: str) -> None:
    rig = Rig(text("ok") if ending == "completed" else http_error(401))
    rig.run()
    assert rig.state.status == ending
    before = deepcopy(rig.state)
    rig.run()
    assert rig.state == before
    assert rig.requests == 1


# --- A14: usage and cached tokens (more in test_money.py) -----------------------------------------


@pytest.mark.parametrize("fault", [no_usage(), usage(), usage(total_tokens=7)], ids=str)
def test_a14_a_run_without_usage_goes_on_and_says_that_it_guesses(fault: Fault) -> None:
    rig = Rig(fault, priced=False)
    rig.run(limits=Limits(max_budget_usd=1.0))
    assert (rig.state.status, rig.state.cost_basis) == ("completed", "estimated")
    assert rig.state.cost_usd > 0


def test_a14_usage_null() -> None:
    rig = Rig(changed(lambda body: body.update(usage=None)), priced=False)
    rig.run()
    assert (rig.state.status, rig.state.cost_basis) == ("completed", "estimated")


def test_a14_cached_tokens_are_billed_once() -> None:
    counts = {"prompt_tokens": 2006, "cached_tokens": 1920, "completion_tokens": 300}
    per_thousand = {"in": 1000.0, "cached": 500.0, "out": 2000.0}
    assert cost(counts, per_thousand) == pytest.approx(1.646)
    details = {"cached_tokens": 1920}
    fault = usage(prompt_tokens=2006, completion_tokens=300, prompt_tokens_details=details)
    rig = Rig(client=client_of(fault, price=per_thousand), priced=False)
    rig.run()
    assert rig.state.cost_usd == pytest.approx(1.646)
    assert rig.state.prompt_tokens == 2006


# --- A15: a child spends its parent's money -------------------------------------------------------


def costing(usd: float, message: Any) -> Fault:
    """An answer that costs so much at the book's price."""

    def change(body: dict[str, Any]) -> None:
        body["choices"][0]["message"] = message
        body["usage"] = {"prompt_tokens": round(usd * 500_000), "completion_tokens": 0}

    return changed(change)


def test_a15_the_child_stops_when_its_parents_money_is_used() -> None:
    rig = Rig(costing(0.10, asks(ASK_CHILD)), text("too much"))
    notes = [costing(0.40, asks(call(f"n{n}", "read_note", {"id": 1}))) for n in range(9)]
    child = rig.add_child("ask_child", *notes, limits=Limits(max_turns=9))
    rig.run(limits=Limits(max_budget_usd=1.0))
    assert rig.state.status == "budget_exceeded"
    assert len(journal_of(child)) == 3
    assert rig.requests == 1
    assert rig.state.cost_usd == pytest.approx(0.10 + 3 * 0.40)
    assert "budget_exceeded after 3 turns" in rig.told("p1")
    assert rig.state.children["p1"].cost_usd == pytest.approx(1.20)


def test_a15_the_childs_own_budget_holds_too() -> None:
    rig = Rig(costing(0.10, asks(ASK_CHILD)), text("went on"))
    notes = [costing(0.40, asks(call(f"n{n}", "read_note", {"id": 1}))) for n in range(9)]
    rig.add_child("ask_child", *notes, limits=Limits(max_turns=9, max_budget_usd=0.5))
    rig.run(limits=Limits(max_budget_usd=5.0))
    assert (rig.state.status, rig.state.output) == ("completed", "went on")
    assert "budget_exceeded after 2 turns" in rig.told("p1")


# --- A16: finish_reason length --------------------------------------------------------------------


@pytest.mark.parametrize("raw", ['{"text": "half a sen', '{"text": "half a sen"}', ""])
def test_a16_a_call_of_a_cut_message_is_not_executed(raw: str) -> None:
    def change(body: dict[str, Any]) -> None:
        body["choices"][0]["message"] = asks(call("w1", "add_note", raw))
        body["choices"][0]["finish_reason"] = "length"

    rig = Rig(changed(change), text("ok"))
    rig.run()
    assert rig.effects == []
    assert "token limit" in rig.told("w1")
    assert "not executed" in rig.told("w1")
    assert rig.state.status == "completed"


def test_a16_for_ever_cut_is_bounded() -> None:
    def change(body: dict[str, Any]) -> None:
        body["choices"][0]["message"] = asks(call("w1", "add_note", {"text": "a"}))
        body["choices"][0]["finish_reason"] = "length"

    rig = Rig(*[changed(change)] * 9)
    rig.run(limits=Limits(max_turns=None))
    assert (rig.state.status, rig.requests) == ("failed", 3)
    assert "token limit" in (rig.state.error or "")


def test_a16_a_cut_text_is_not_a_silent_success() -> None:
    rig = Rig(finish_reason("length", "half a sen"))
    rig.run()
    assert (rig.state.status, rig.state.output) == ("failed", "half a sen")
    assert "token limit" in (rig.state.error or "")


# --- A17: content_filter and refusal --------------------------------------------------------------


def test_a17_a_content_filter_ends_the_run() -> None:
    rig = Rig(finish_reason("content_filter"))
    rig.run()
    assert (rig.state.status, rig.requests) == ("failed", 1)
    assert "content filter" in (rig.state.error or "")


def test_a17_a_content_filter_in_a_message_with_calls_executes_none() -> None:
    def change(body: dict[str, Any]) -> None:
        body["choices"][0]["message"] = asks(call("w1", "add_note", {"text": "a"}))
        body["choices"][0]["finish_reason"] = "content_filter"

    rig = Rig(changed(change), text("ok"))
    rig.run()
    assert (rig.state.status, rig.effects) == ("failed", [])
    rig.follow_up("go on")
    rig.run()
    assert (rig.state.status, rig.effects) == ("completed", [])


def test_a17_a_refusal_reaches_the_user() -> None:
    refusal = "I can't help with that."
    rig = Rig(says({"role": "assistant", "content": "", "refusal": refusal}))
    rig.run()
    assert (rig.state.status, rig.state.output, rig.requests) == ("failed", refusal, 1)
    assert refusal in (rig.state.error or "")


# --- A18: HTTP 200 that carries an error ----------------------------------------------------------


def error_in_200(code: Any, times: int | None = None) -> Fault:
    return whole_body({"error": {"message": "upstream said no", "code": code}}, times)


@pytest.mark.parametrize(
    "fault",
    [
        error_in_200(502, times=1),
        error_in_200(429, times=1),
        empty_choices(times=1),
        whole_body({"choices": None}, times=1),
        whole_body({}, times=1),
        whole_body([], times=1),
        whole_body("<html>busy</html>", times=1),
        whole_body("", times=1),
        whole_body({"choices": [{}]}, times=1),
        whole_body({"choices": [{"message": None}]}, times=1),
    ],
    ids=lambda fault: json.dumps(fault.body)[:30],
)
def test_a18_one_bad_body_is_retried(fault: Fault) -> None:
    rig = Rig(fault)
    assert rig.run().status == "completed"
    assert (rig.requests, rig.state.turns) == (2, 1)


@pytest.mark.parametrize(
    ("fault", "requests", "said"),
    [
        (error_in_200(502), 3, "upstream said no"),
        (error_in_200("model_gone"), 1, "upstream said no"),
        (empty_choices(), 3, "no choice"),
        (whole_body([]), 3, "no choice"),
        (whole_body("<html>busy</html>"), 3, "not JSON"),
        (whole_body({"choices": "x"}), 3, "no choice"),
    ],
)
def test_a18_bad_bodies_for_ever_fail_with_words(fault: Fault, requests: int, said: str) -> None:
    rig = Rig(fault)
    rig.run()
    assert (rig.state.status, rig.requests, rig.state.turns) == ("failed", requests, 0)
    assert said in (rig.state.error or "")


# --- A19: Retry-After, and a 429 that will never pass ---------------------------------------------

NOW = 1_700_000_000.0
IN_TWO_SECONDS = format_datetime(datetime.fromtimestamp(NOW + 2, UTC), usegmt=True)
LONG_AGO = format_datetime(datetime.fromtimestamp(NOW - 9999, UTC), usegmt=True)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        (IN_TWO_SECONDS, 2.0, 2.0),
        ("2", 2.0, 2.0),
        (None, 0.3, 0.5),
        (LONG_AGO, 0.0, 0.0),
        ("-5", 0.0, 0.0),
        ("nan", 0.3, 0.5),
        ("soon", 0.3, 0.5),
    ],
)
def test_a19_waits_what_the_provider_asks(header: Any, least: float, most: float) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    fault = http_error(429, retry_after=header, times=1)
    rig = Rig(client=client_of(fault, sleep=note, clock=lambda: NOW))
    assert rig.run().status == "completed"
    (wait,) = waits
    assert least <= wait <= most
    assert rig.state.turns == 1


@pytest.mark.parametrize("code", ["insufficient_quota", "billing_hard_limit_reached"])
def test_a19_an_empty_account_is_not_asked_again(code: str) -> None:
    rig = Rig(http_error(429, "You exceeded your current quota.", code=code))
    rig.run()
    assert (rig.state.status, rig.requests) == ("failed", 1)
    assert "quota" in (rig.state.error or "")


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_a19_what_no_retry_can_mend_is_not_retried(status: int) -> None:
    rig = Rig(client=client_of(text("ok")))
    rig.client = client_of(http_error(status, f"no: {status}"))
    state = asyncio.run(run(new_run("", "Do it."), [], rig.client))
    assert (state.status, len(journal_of(rig.client))) == ("failed", 1)
    assert f"no: {status}" in (state.error or "")


# --- A20: broken connections ----------------------------------------------------------------------


class Breaking(httpx.AsyncBaseTransport):
    """Raises these errors, one a request, and then hands over to the provider."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.provider = scripted_provider.transport({"s": lambda turn, said: text("ok")})

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.errors:
            raise self.errors.pop(0)
        return await self.provider.handle_async_request(request)


BREAKS = [httpx.ReadTimeout(""), httpx.ConnectError(""), httpx.RemoteProtocolError("")]


def broken(*errors: Exception) -> RunState:
    async def no_wait(seconds: float) -> None: ...

    client = ChatClient(
        "http://scripted/v1", "s", transport=Breaking(*errors), price=PRICE, sleep=no_wait
    )
    return asyncio.run(run(new_run("", "Do it."), [], client))


PRICE = {"in": 2.0, "out": 12.0}


def test_a20_three_broken_connections_and_then_an_answer() -> None:
    state = broken(*BREAKS)
    assert (state.status, state.turns) == ("completed", 1)


@pytest.mark.parametrize("error", BREAKS, ids=lambda error: type(error).__name__)
def test_a20_for_ever_broken_fails_with_a_text(error: Exception) -> None:
    state = broken(*[error] * 9)
    assert (state.status, state.turns, state.cost_usd) == ("failed", 0, 0.0)
    assert type(error).__name__ in (state.error or "")


@pytest.mark.parametrize("fault", [dropped(times=2), cut_body(times=2), dropped(), cut_body()])
def test_a20_dropped_and_cut(fault: Fault) -> None:
    rig = Rig(fault)
    rig.run()
    assert rig.state.status == ("completed" if fault.times else "failed")
    assert rig.requests == 3
    assert (rig.state.error is None) == (fault.times is not None)


@pytest.mark.parametrize("error", [RuntimeError(""), KeyError(), OSError(5, "x"), ValueError()])
def test_a20_a_client_that_raises_anything_is_a_failed_run(error: Exception) -> None:
    class Raises:
        async def complete(self, *args: Any, **options: Any) -> Any:
            raise error

    class RaisesAtOnce:
        def complete(self, *args: Any, **options: Any) -> Any:
            raise error

    for client in (Raises(), RaisesAtOnce()):
        state = asyncio.run(run(new_run("", "Do it."), [], client))
        assert state.status == "failed"
        assert state.error


# --- A21: special tokens --------------------------------------------------------------------------

SPECIAL = "<|endoftext|> and <|endofprompt|>"


def test_a21_special_tokens_are_text_everywhere() -> None:
    echo = tool("echo", lambda args, ctx: SPECIAL + args["text"], TEXT_PARAMETER, read_only=True)
    answers = [
        asks(call("e1", "echo", {"text": SPECIAL})),
        asks(call("e2", SPECIAL, {"text": SPECIAL})),
        text(SPECIAL),
    ]
    rig = Rig(*answers, tools=[echo])
    rig.state = new_run(SPECIAL, SPECIAL, "rig")
    rig.run()
    assert (rig.state.status, rig.state.output) == ("completed", SPECIAL)
    assert rig.told("e1") == SPECIAL * 2
    assert rig.state.cost_basis == "exact"


# --- A22: lone surrogates -------------------------------------------------------------------------

BROKEN_TEXT = "ok \udc97 \ud83d end \x00\x1b[2J"


def test_a22_text_is_cleaned_once_where_it_enters(tmp_path: Path) -> None:
    breaks = tool("breaks", lambda args, ctx: BROKEN_TEXT, read_only=True)

    def raises(args: dict[str, Any], ctx: ToolContext) -> None:
        ctx.progress(BROKEN_TEXT)
        raise ValueError(BROKEN_TEXT)

    message = asks(
        call("b1", "breaks"),
        call("b2", "raises"),
        call("b3", "add_note", '{"text": "\\ud83d"}'),
    )
    rig = Rig(
        says({**message, "content": BROKEN_TEXT}),
        says(text(BROKEN_TEXT)),
        tools=[breaks, tool("raises", raises)],
        store=tmp_path,
    )
    rig.state = new_run(BROKEN_TEXT, BROKEN_TEXT, "rig")
    rig.run()
    assert rig.state.status == "completed"
    assert rig.told("b1") == "ok � � end [2J"
    assert rig.told("b2") == "Error: ok � � end [2J"
    assert rig.told("b3") == "noted: �"
    assert rig.state.output.startswith("ok �")
    assert rig.state.output.endswith("� end [2J")
    rig.reload()
    rig.follow_up(BROKEN_TEXT)
    rig.run()
    assert rig.state.status == "completed"


# --- A23: a tool returns something that is not a string -------------------------------------------


class Odd:
    def __str__(self) -> str:
        return "an odd thing"


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)

RESULTS: list[tuple[Any, str]] = [
    (None, "(no output)"),
    ("", "(no output)"),
    ("\x00", "(no output)"),
    ([], "[]"),
    ({}, "{}"),
    (0, "0"),
    (False, "false"),
    ({"when": datetime(2026, 1, 2, tzinfo=UTC)}, '{"when":"2026-01-02 00:00:00+00:00"}'),
    (b"caf\xc3\xa9 \xff", "café �"),
    (bytearray(b"x"), "x"),
    (Odd(), '"an odd thing"'),
    (Mute(), "(a Mute that has no text)"),
    (ValueError("an object, not raised"), '"an object, not raised"'),
    ({1, 2}, '"{1, 2}"'),
    ({(1, 2): 3}, "{(1, 2): 3}"),
    (float("nan"), "NaN"),
    (RECURSIVE, "[[...]]"),
    (iter([]), "iterator"),
]


@pytest.mark.parametrize(("result", "said"), RESULTS, ids=lambda value: type(value).__name__)
def test_a23_always_one_string(result: Any, said: str, tmp_path: Path) -> None:
    returns = tool("returns", lambda args, ctx: result)
    rig = Rig(asks(call("r1", "returns")), text("ok"), tools=[returns], store=tmp_path)
    rig.run()
    assert rig.state.status == "completed"
    assert said in rig.told("r1")
    rig.reload()


def test_a23_a_huge_result_is_cut_once_with_a_note() -> None:
    huge = tool("huge", lambda args, ctx: "x" * 250_000)
    rig = Rig(asks(call("h1", "huge")), text("ok"), tools=[huge])
    rig.run()
    assert len(rig.told("h1")) < 101_000
    assert rig.told("h1").endswith("[cut here: 150,000 more characters]")


def test_a23_a_huge_progress_label_is_cut() -> None:
    def talks(args: dict[str, Any], ctx: ToolContext) -> str:
        ctx.progress("x" * 250_000)
        return "ok"

    rig = Rig(asks(call("t1", "talks")), text("ok"), tools=[tool("talks", talks)])
    rig.run()
    (event,) = rig.of_type("tool_progress")
    assert len(event["label"]) < 1000
    assert "250,000 characters" in event["label"]


def test_a23_a_coroutine_from_a_plain_function_is_awaited() -> None:
    async def later() -> str:
        return "later"

    rig = Rig(asks(call("l1", "lazy")), tools=[tool("lazy", lambda args, ctx: later())])
    rig.run()
    assert rig.told("l1") == "later"


# --- A24: crash in the middle of saving; run id as path (more in test_saves.py) -------------------

UNSAFE_IDS = [
    "../x",
    "a/b",
    "/tmp/x",
    "..",
    ".",
    "",
    "a\0b",
    "C:\\x",
    "a\\b",
    "x" * 300,
    ".hidden",
    "a\n",
    "con",
    "NUL.txt",
    "a.",
    "ü",
    "a b",
    "-x",
]


@pytest.mark.parametrize("run_id", [*UNSAFE_IDS, None, 7], ids=repr)
def test_a24_an_unsafe_id_touches_no_file(run_id: Any, tmp_path: Path) -> None:
    inside = tmp_path / "store"
    inside.mkdir()
    state = new_run("", "Do it.", "safe")
    state.run_id = run_id
    with pytest.raises(ValueError, match="not usable as a file name"):
        save(state, inside)
    with pytest.raises(ValueError, match="not usable as a file name"):
        load(inside, run_id)
    with pytest.raises(ValueError, match="not usable as a file name"):
        asyncio.run(run(state, [], client_of(), store=inside, trace=inside / "t.jsonl"))
    if run_id not in ("", None):  # without one, an id is made
        with pytest.raises(ValueError, match="not usable as a file name"):
            new_run("", "Do it.", run_id)
    assert [path for path in tmp_path.rglob("*") if path != inside] == []


# --- A25: two resumes at once (more in test_two_at_once.py) ---------------------------------------


def test_a25_one_wins_and_the_other_changes_nothing(tmp_path: Path) -> None:
    rig = Rig(asks(MAIL), text("ok"), store=tmp_path)
    rig.run()
    rig.approve("m1")
    save(rig.state, tmp_path)

    async def resume() -> RunState:
        return await run(load(tmp_path, "rig"), rig.tools, rig.client, store=tmp_path)

    async def twice() -> list[RunState | BaseException]:
        return list(await asyncio.gather(resume(), resume(), return_exceptions=True))

    outcomes = asyncio.run(twice())
    winner, loser = sorted(outcomes, key=lambda one: isinstance(one, BaseException))
    assert isinstance(winner, RunState)
    assert winner.status == "completed"
    assert isinstance(loser, RunBusyError)
    assert "being continued elsewhere; nothing was changed" in str(loser)
    assert rig.effects == ["send_mail:m1"]
    assert load(tmp_path, "rig") == winner


# --- A26: a memory of results ---------------------------------------------------------------------

READS = asks(call("r1", "read_note", {"id": 1}))


def writes(call_id: str) -> Any:
    return asks(call(call_id, "edit_note", {"text": "new"}))


def edit_note(rig: Rig, fails: bool = False) -> Tool:
    def edit(args: dict[str, Any], ctx: ToolContext) -> str:
        rig.notes[1] = args["text"]
        if fails:
            raise ConnectionError("the answer was lost on the way")
        return "edited"

    return tool("edit_note", edit, TEXT_PARAMETER)


@pytest.mark.parametrize("fails", [True, False])
def test_a26_a_write_between_two_reads(fails: bool) -> None:
    reads = [asks(call(f"r{n}", "read_note", {"id": 1})) for n in range(3)]
    rig = Rig(reads[0], reads[1], writes("w1"), reads[2], text("ok"), dedupe=True)
    rig.tools.append(rig.counted(edit_note(rig, fails)))
    rig.run()
    assert [rig.told(f"r{n}") for n in range(3)] == ["old", "old", "new"]
    assert rig.effects == ["read_note:r0", "edit_note:w1", "read_note:r2"]
    (remembered,) = [event for event in rig.of_type("tool_result") if event.get("cached")]
    assert (remembered["callId"], remembered["executed"]) == ("r1", False)


def test_a26_two_equal_writes_both_run() -> None:
    rig = Rig(writes("w1"), writes("w2"), text("ok"), dedupe=True)
    rig.tools.append(rig.counted(edit_note(rig)))
    rig.run()
    assert rig.effects == ["edit_note:w1", "edit_note:w2"]


def test_a26_an_error_is_not_remembered() -> None:
    asks_9 = [asks(call(f"r{n}", "read_note", {"id": 9})) for n in range(2)]
    rig = Rig(*asks_9, text("ok"), dedupe=True)
    rig.run()
    assert rig.effects == ["read_note:r0", "read_note:r1"]


def test_a26_a_write_in_a_child_run_counts_as_a_write() -> None:
    reads = [asks(call(f"r{n}", "read_note", {"id": 1})) for n in range(2)]
    rig = Rig(reads[0], asks(ASK_CHILD), reads[1], text("ok"), dedupe=True)
    edit = rig.counted(edit_note(rig))
    rig.add_child("ask_child", writes("w1"), text("written"), tools=[edit])
    rig.run()
    assert [rig.told(f"r{n}") for n in range(2)] == ["old", "new"]


# --- A28: errors that nobody sees (the panel's part is tested with the panel) ---------------------


@pytest.mark.parametrize(
    "where", ["trace", "on_progress", "on_delta", "stop_when", "tool_error_text"]
)
def test_a28_a_callback_that_raises_is_a_failed_run(where: str, tmp_path: Path) -> None:
    def raises(*args: Any) -> Any:
        raise ZeroDivisionError("in the callback")

    def talks(args: dict[str, Any], ctx: ToolContext) -> str:
        ctx.progress("one")
        raise ValueError("the tool's own")

    options: dict[str, Any] = {where: [raises] if where == "stop_when" else raises}
    client = client_of(asks(call("t1", "talks")), text("ok"))
    state = new_run("", "Do it.", "r1")
    tools = [tool("talks", talks)]
    asyncio.run(run(state, tools, client, store=tmp_path, **options))
    assert state.status == "failed"
    assert "in the callback" in (state.error or "")
    assert load(tmp_path, "r1") == state
    assert len(journal_of(client)) <= 2


def test_a28_each_executed_call_has_its_answer_even_if_the_words_for_it_fail() -> None:
    def raises(error: BaseException) -> str:
        raise ZeroDivisionError("in the callback")

    rig = Rig(asks(call("r1", "read_note", {"id": 9})), text("ok"), tool_error_text=raises)
    rig.run()
    assert rig.state.status == "failed"
    assert rig.told("r1") == "Error: 9"


def test_a28_a_trace_that_fails_at_its_last_line_leaves_file_and_state_alike(
    tmp_path: Path,
) -> None:
    def trace(event: dict[str, Any]) -> None:
        if event["type"] == "run_stopped":
            raise OSError("disk full")

    state = new_run("", "Do it.", "r1")
    asyncio.run(run(state, [], client_of(text("ok")), store=tmp_path, trace=trace))
    assert (state.status, state.output) == ("failed", "ok")
    assert "disk full" in (state.error or "")
    assert load(tmp_path, "r1") == state


def test_a28_two_tools_of_one_name_are_a_programming_error() -> None:
    same = tool("same", lambda args, ctx: "")
    with pytest.raises(ValueError, match="two tools have the same name"):
        asyncio.run(run(new_run("", "Do it."), [same, same], client_of()))


def test_a28_a_trace_or_store_that_cannot_be_opened_is_said_before_anything_is_done(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    for options in ({"trace": tmp_path}, {"store": tmp_path / "file"}):
        client, state = client_of(text("ok")), new_run("", "Do it.")
        before = deepcopy(state)
        with pytest.raises(OSError, match=str(tmp_path)):
            asyncio.run(run(state, [], client, **options))  # type: ignore[arg-type]
        assert state == before
        assert list(journal_of(client)) == []
        assert asyncio.run(run(state, [], client)).status == "completed"  # and it is not in use


def test_a28_in_a_running_loop_the_coroutine_is_awaited() -> None:
    async def in_a_notebook() -> RunState:
        return await run(new_run("", "Do it."), [], client_of(text("ok")))

    assert asyncio.run(in_a_notebook()).status == "completed"


def test_the_budget_can_be_a_stop_condition_too() -> None:
    rig = Rig(asks(NOTE_1), text("ok"))
    rig.run(stop_when=[budget(0.000001)])
    assert rig.state.status == "budget_exceeded"


def test_a_damaged_file_is_not_a_fresh_run(tmp_path: Path) -> None:
    (tmp_path / "r1.json").write_text("")
    with pytest.raises(RunStoreError, match="damaged"):
        asyncio.run(run(new_run("", "Do it.", "r1"), [], client_of(), store=tmp_path))
    assert (tmp_path / "r1.json").read_text() == ""
    assert run_store.RUN_ID.fullmatch(".tmp") is None
