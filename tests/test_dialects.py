"""What endpoints answer in their several ways, and what must leave the client: one shape.

Each test plays an endpoint of which such answers are known, and looks at the reply, or at what a
whole run makes of it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogue import catalogue
from chat_client import ProviderError, Reply, calls_in, normalise
from harness import RunState, new_run, run
from scripted_provider import Provider
from tests.endpoints import (
    DROPPED,
    USER,
    Endpoint,
    call,
    calling,
    completion,
    delta,
    error,
    stream,
)
from tests.support import go

SPECS = [tool.spec for tool in catalogue()]


def whole(answer: httpx.Response, **options: Any) -> Reply:
    """The reply to one request that was not streamed."""
    return go(Endpoint(answer).client(**options).complete(USER, SPECS))


def streamed(*events: Any, end: str = "data: [DONE]\n\n", **options: Any) -> tuple[Reply, str]:
    """The reply that a stream gives, and the text that was handed over on the way."""
    pieces: list[str] = []
    client = Endpoint(stream(*events, end=end)).client(**options)
    reply = go(client.complete(USER, SPECS, on_delta=pieces.append))
    return reply, "".join(pieces)


def calls_of(reply: Reply) -> list[tuple[str, str, str]]:
    """The calls of a reply: id, name, arguments."""
    return [
        (one["id"], one["function"]["name"], one["function"]["arguments"])
        for one in reply.message.get("tool_calls", [])
    ]


def piece(arguments: Any = DROPPED, name: Any = DROPPED, **more: Any) -> dict[str, Any]:
    """A piece of a call, as streams carry them."""
    function = {"name": name, "arguments": arguments}
    function = {key: value for key, value in function.items() if value is not DROPPED}
    return {**more, "function": function}


def finished_run(endpoint: Endpoint, **options: Any) -> RunState:
    state = new_run("Be brief.", "Which file mentions a timeout?")
    return go(run(state, catalogue(), endpoint.client(**options)))


# --- the ordinary shape ---------------------------------------------------------------------------


def test_a_text() -> None:
    reply = whole(completion())
    assert reply == Reply(
        message={"role": "assistant", "content": "Hello"},
        finish_reason="stop",
        refusal=None,
        usage={"prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 0},
        price=None,
    )


def test_a_call() -> None:
    reply = whole(calling(call('{"path":"errors.log"}', name="read_file")))
    assert reply.finish_reason == "tool_calls"
    assert list(reply.message) == ["role", "content", "tool_calls"]
    assert reply.message["content"] is None
    assert reply.message["tool_calls"] == [call('{"path":"errors.log"}', name="read_file")]


def test_what_an_endpoint_adds_is_left_out() -> None:
    """So that the transcript stays what every endpoint takes back."""
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm", "audio": None}
    assert whole(completion(message)).message == {"role": "assistant", "content": "Hi"}
    extra = call(index=0, extra_content={"google": "x"})
    assert whole(calling(extra)).message["tool_calls"] == [call()]


@pytest.mark.parametrize("tool_calls", [[], None, DROPPED])
def test_no_calls_leave_no_field(tool_calls: Any) -> None:
    message = {"role": "assistant", "content": "Hello", "tool_calls": tool_calls}
    message = {key: value for key, value in message.items() if value is not DROPPED}
    assert whole(completion(message)).message == {"role": "assistant", "content": "Hello"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "He"}, {"type": "text", "text": "llo"}], "Hello"),
        (["He", "llo"], "Hello"),
        ([{"type": "image_url"}, {"type": "text", "text": "Hello"}, 7], "Hello"),
        (None, ""),
        (7, ""),
    ],
)
def test_content_in_parts_is_put_together(content: Any, text: str) -> None:
    assert whole(completion({"role": "assistant", "content": content})).message["content"] == text


def test_a_refusal_is_kept_and_is_the_text_where_there_is_no_other() -> None:
    message = {"role": "assistant", "content": None, "refusal": "I can't help with that."}
    reply = whole(completion(message))
    assert reply.refusal == reply.message["content"] == "I can't help with that."


def test_the_form_before_tool_calls_is_a_call_too() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "read_file", "arguments": '{"path":"notes.txt"}'},
    }
    reply = whole(completion(message, finish="function_call"))
    assert reply.finish_reason == "tool_calls"
    assert calls_of(reply) == [("", "read_file", '{"path":"notes.txt"}')]


# --- a call in the prose --------------------------------------------------------------------------

BARE = '{"name": "read_file", "arguments": {"path": "notes.txt"}}'


@pytest.mark.parametrize(
    "text",
    [
        BARE,
        f"<tool_call>\n{BARE}\n</tool_call>",
        f"I will read it.\n```json\n{BARE}\n```\nThen I answer.",
        f"[{BARE}]",
        '{"name": "read_file", "parameters": {"path": "notes.txt"}}',
        '{"type": "function", "function": ' + BARE + "}",
        '{"name": "read_file", "arguments": "{\\"path\\": \\"notes.txt\\"}"}',
        'a {brace} and {"another": 1} before ' + BARE,
    ],
)
def test_a_call_in_the_prose_is_one_only_when_the_caller_says_so(text: str) -> None:
    message = {"role": "assistant", "content": text}
    reply = whole(completion(message))
    assert reply.message == message
    assert reply.finish_reason == "stop"
    reply = whole(completion(message), calls_in_text=True)
    assert reply.finish_reason == "tool_calls"
    assert reply.message["content"] is None
    assert calls_of(reply) == [("", "read_file", '{"path": "notes.txt"}')]


@pytest.mark.parametrize(
    "text",
    [
        "There are three files.",
        '{"name": "search_web", "arguments": {}}',
        '{"name": ["read_file"], "arguments": {}}',
        '{"name": null}',
        '{"path": "notes.txt"}',
        "{" * 5000,
        BARE[:-20],
    ],
)
def test_other_prose_is_no_call(text: str) -> None:
    message = {"role": "assistant", "content": text}
    assert whole(completion(message), calls_in_text=True).message == message


def test_several_calls_in_the_prose_and_none_inside_the_arguments_of_another() -> None:
    inner = {"name": "delete_file", "arguments": {"path": "errors.log"}}
    text = json.dumps({"name": "read_file", "arguments": {"path": "a", "why": inner}}) + BARE
    names = [one["function"]["name"] for one in calls_in(text, {"read_file", "delete_file"})]
    assert names == ["read_file", "read_file"]


def test_structured_calls_leave_the_prose_alone() -> None:
    reply = whole(calling(call(), content=BARE), calls_in_text=True)
    assert reply.message["content"] == BARE
    assert calls_of(reply) == [("c1", "list_files", "{}")]


def test_a_call_in_the_prose_of_a_stream() -> None:
    reply, text = streamed(
        delta(content=BARE[:20]), delta("stop", content=BARE[20:]), calls_in_text=True
    )
    assert calls_of(reply) == [("", "read_file", '{"path": "notes.txt"}')]
    assert text == BARE


def test_a_run_over_calls_in_the_prose() -> None:
    prose = completion({"role": "assistant", "content": BARE})
    endpoint = Endpoint(prose, completion({"role": "assistant", "content": "It is about logs."}))
    state = finished_run(endpoint, calls_in_text=True)
    assert (state.status, state.output) == ("completed", "It is about logs.")
    _, second = endpoint.bodies()
    assert second["messages"][-1]["content"] == "Remember to rotate your logs.\n"


# --- output that the server itself could not parse ------------------------------------------------


def test_a_500_for_output_that_the_server_could_not_parse() -> None:
    """At temperature 0 each retry gives the same: a few, and then the server's own words."""
    words = "Failed to parse input at pos 23: <tool_call>"
    body = {"error": {"code": 500, "message": words, "type": "server_error"}}
    endpoint = Endpoint(*[error(500, body) for _ in range(4)])
    state = finished_run(endpoint)
    assert state.status == "failed"
    assert state.error == f"HTTP 500: {words} (4 attempts)"
    assert state.turns == 0
    assert state.cost_usd == 0


# --- an error inside a good answer ----------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"code": 500, "message": "slot unavailable", "type": "server_error"}},
        {"error": {"code": "502", "message": "slot unavailable"}},
        {"object": "error", "message": "slot unavailable", "code": 503},
    ],
)
def test_an_error_as_the_last_event_of_a_stream_that_may_pass(event: Any) -> None:
    pieces: list[str] = []
    endpoint = Endpoint(
        stream(delta(content="The "), event), stream(delta("stop", content="Which?"))
    )
    reply = go(endpoint.client().complete(USER, on_delta=pieces.append))
    assert reply.message["content"] == "Which?"
    assert pieces == ["The ", "", "Which?"]  # the empty piece: the text begins again


@pytest.mark.parametrize("code", [400, None, "invalid_request"])
def test_an_error_as_the_last_event_of_a_stream_that_will_not_pass(code: Any) -> None:
    event = {"error": {"message": "no such slot", "code": code}}
    with pytest.raises(ProviderError, match="no such slot"):
        streamed(delta(content="The "), event)


def test_an_error_body_where_a_stream_was_asked_for() -> None:
    answer = httpx.Response(200, json={"error": {"message": "no such model", "code": 404}})
    with pytest.raises(ProviderError, match=r"^HTTP 404: no such model$"):
        go(Endpoint(answer).client().complete(USER, on_delta=lambda text: None))


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ("", "{}"),
        ("  \n", "{}"),
        ("null", "{}"),
        (None, "{}"),
        (DROPPED, "{}"),
        ({}, "{}"),
        ({"path": "Größe.log"}, '{"path": "Größe.log"}'),
        ([1], "[1]"),
        (7, "7"),
        ('{"path": ', '{"path": '),
    ],
)
def test_arguments_are_a_string_whatever_came(given: Any, arguments: str) -> None:
    entry = call(given)
    if given is DROPPED:
        del entry["function"]["arguments"]
    assert calls_of(whole(calling(entry))) == [("c1", "list_files", arguments)]


def test_a_call_without_its_function_object() -> None:
    entry = {"id": "c1", "name": "read_file", "arguments": {"path": "notes.txt"}}
    assert calls_of(whole(calling(entry))) == [("c1", "read_file", '{"path": "notes.txt"}')]


@pytest.mark.parametrize("given", ["", None, {}, {"path": "x"}])
def test_arguments_of_a_call_without_parameters_run_it(given: Any) -> None:
    endpoint = Endpoint(calling(call(given)), completion())
    state = finished_run(endpoint)
    assert state.status == "completed"
    _, second = endpoint.bodies()
    assert second["messages"][-1]["content"] == '["access.log","errors.log","notes.txt"]'


# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call_id", [DROPPED, "", None, 7])
def test_calls_without_ids_are_answered_each_by_its_own(call_id: Any) -> None:
    """The client says that there is no id; the run gives one to each call."""
    two = [call(id=call_id), call('{"path": "notes.txt"}', name="read_file", id=call_id)]
    assert [one[0] for one in calls_of(whole(calling(*two)))] == ["", ""]
    endpoint = Endpoint(calling(*two), calling(*two), completion())
    assert finished_run(endpoint).status == "completed"
    last = endpoint.bodies()[-1]["messages"]
    asked = [one["id"] for message in last for one in message.get("tool_calls", [])]
    answered = [message["tool_call_id"] for message in last if message["role"] == "tool"]
    assert asked == answered
    assert len(set(asked)) == 4
    assert "" not in asked


# --- the calls of a stream ------------------------------------------------------------------------

LIST, READ = ("list_files", "{}"), ("read_file", '{"path": "notes.txt"}')


@pytest.mark.parametrize(
    ("pieces", "ids"),
    [
        pytest.param(
            [
                piece("", "list_files", index=0, id="a"),
                piece("{}", index=0),
                piece("", "read_file", index=1, id="b"),
                piece('{"path": ', index=1),
                piece('"notes.txt"}', index=1),
            ],
            ["a", "b"],
            id="as documented",
        ),
        pytest.param(
            [
                piece("", "list_files", index=0, id="a"),
                piece('{"path": ', "read_file", index=1, id="b"),
                piece("{}", index=0),
                piece('"notes.txt"}', index=1),
            ],
            ["a", "b"],
            id="interleaved",
        ),
        pytest.param(
            [
                piece("{}", "list_files", id="a"),
                piece('{"path": ', "read_file", id="b"),
                piece('"notes.txt"}'),
            ],
            ["a", "b"],
            id="without index",
        ),
        pytest.param(
            [
                piece("{}", "list_files", index=0, id="a"),
                piece('{"path": ', "read_file", index=0, id="b"),
                piece('"notes.txt"}', index=0),
            ],
            ["a", "b"],
            id="every index 0",
        ),
        pytest.param(
            [
                piece("{}", "list_files", index=0),
                piece('{"path": ', "read_file", index=1),
                piece('"notes.txt"}', index=1),
            ],
            ["", ""],
            id="without id",
        ),
        pytest.param(
            [
                piece("{}", "list_files"),
                piece('{"path": ', "read_file"),
                piece('"notes.txt"}'),
            ],
            ["", ""],
            id="without index and id",
        ),
        pytest.param(
            [
                piece("{}", "list_files", index=0, id=""),
                piece('{"path": ', "read_file", index=0, id=None),
                piece('"notes.txt"}', "", index=0, id=""),
            ],
            ["", ""],
            id="every index 0 and empty ids",
        ),
        pytest.param(
            [
                piece("{}", "list_files", index=0, id="a"),
                piece('{"path": ', "read_file", index=0, id="b"),
                piece('"notes.txt"}', None, index=0, id="b"),
            ],
            ["a", "b"],
            id="the id with every piece",
        ),
        pytest.param(
            [
                piece("{}", "list_files", index=0, id="same"),
                piece('{"path": ', "read_file", index=1, id="same"),
                piece('"notes.txt"}', index=1),
            ],
            ["same", "same"],
            id="one id for both",
        ),
        pytest.param(
            [
                piece({}, "list_files", index=0, id="a"),
                piece({"path": "notes.txt"}, "read_file", index=1, id="b"),
            ],
            ["a", "b"],
            id="arguments as objects",
        ),
        pytest.param(
            [
                piece("", "list_files", index=0, id="a"),
                piece('{"path": ', "read_file", index=1, id="b"),
                piece('"notes.txt"', index=1),
            ],
            ["a", "b"],
            id="the braces lost",
        ),
        pytest.param(
            [
                piece(None, "list_files", index=0, id="a"),
                piece('{"path": "notes.txt"}', "read_file", index=1, id="b"),
                piece(None, None, index=1),
            ],
            ["a", "b"],
            id="null arguments",
        ),
    ],
)
@pytest.mark.parametrize("at_once", [False, True])
def test_the_pieces_of_a_stream_become_the_calls(
    pieces: list[dict[str, Any]], ids: list[str], at_once: bool
) -> None:
    """``at_once``: all pieces in one chunk."""
    chunks = [pieces] if at_once else [[one] for one in pieces]
    events = [delta(tool_calls=chunk) for chunk in chunks]
    reply, text = streamed(*events, delta("tool_calls"))
    assert calls_of(reply) == [(ids[0], *LIST), (ids[1], *READ)]
    assert reply.finish_reason == "tool_calls"
    assert text == ""


@pytest.mark.parametrize(
    ("arguments", "finish", "mended"),
    [
        ('{"path": "notes.txt"', "tool_calls", '{"path": "notes.txt"}'),
        ('{"a": {"b": 1}', "stop", '{"a": {"b": 1}}'),
        ('{"path": "notes.txt"', "length", '{"path": "notes.txt"'),
        ('{"path": "notes', "tool_calls", '{"path": "notes'),
        ('{"a": {"b": 1', "tool_calls", '{"a": {"b": 1'),
    ],
)
def test_a_lost_last_brace_is_added_and_nothing_else(
    arguments: str, finish: str, mended: str
) -> None:
    """Never to arguments that the token limit cut off: nobody knows what is missing there."""
    event = delta(tool_calls=[piece(arguments, "read_file", index=0, id="a")])
    reply, _ = streamed(event, delta(finish))
    assert calls_of(reply) == [("a", "read_file", mended)]


# --- a stream's text ------------------------------------------------------------------------------


def test_a_stream_gives_the_same_reply_as_the_whole_answer() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    reply, text = streamed(
        delta(role="assistant", content=""),
        delta(content="Hel"),
        delta(content="lo"),
        delta("stop"),
        {"choices": [], "usage": usage},
    )
    assert reply == whole(completion())
    assert text == "Hello"


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c", "\\n", "é", "🙂"])
@pytest.mark.parametrize("size", [1, 7])
def test_a_stream_is_cut_into_events_at_line_feeds_only(sign: str, size: int) -> None:
    """Some servers send such characters as they are; httpx's own lines end at some of them."""
    text = f"before{sign}after"
    event = json.dumps(delta("stop", content=text), ensure_ascii=False)
    raw = f"data: {event}\r\n\r\ndata: [DONE]\r\n\r\n".encode()

    async def pieces() -> Any:
        for start in range(0, len(raw), size):
            yield raw[start : start + size]

    answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=pieces())
    reply = go(Endpoint(answer).client().complete(USER, on_delta=lambda piece: None))
    assert reply.message["content"] == text


def test_comments_other_fields_and_empty_events_of_a_stream_are_passed_over() -> None:
    reply, _ = streamed(
        ": keep-alive\n\n",
        "event: message\nid: 7\nretry: 100\n",
        delta(content="Hel"),
        "data:\n\n",
        "data:" + json.dumps(delta("stop", content="lo")) + "\n\n",
    )
    assert reply.message["content"] == "Hello"


def test_bytes_that_are_no_utf8_become_a_replacement_character() -> None:
    raw = completion({"role": "assistant", "content": "a?b"}).content.replace(b"?", b"\xff")
    assert whole(httpx.Response(200, content=raw)).message["content"] == "a\ufffdb"


def test_a_stream_that_ends_early_is_tried_again() -> None:
    endpoint = Endpoint(
        stream(delta(content="Hel"), end=""), stream(delta("stop", content="Hello"))
    )
    pieces: list[str] = []
    reply = go(endpoint.client().complete(USER, on_delta=pieces.append))
    assert reply.message["content"] == "Hello"
    assert pieces == ["Hel", "", "Hello"]


def test_a_stream_that_never_says_why_it_ended_is_whole_once_it_says_done() -> None:
    assert streamed(delta(content="Hello"))[0].finish_reason == "stop"
    event = delta(tool_calls=[piece("{}", "list_files", index=0, id="a")])
    assert streamed(event)[0].finish_reason == "tool_calls"


def test_a_stream_of_nothing_is_no_answer() -> None:
    with pytest.raises(ProviderError, match="the stream ended before the answer did"):
        streamed(max_retries=0)


def test_the_last_event_may_lack_its_line_end() -> None:
    event = json.dumps(delta("stop", content="Hello"))
    assert streamed(end=f"data: {event}")[0].message["content"] == "Hello"


def test_an_answer_that_comes_whole_although_a_stream_was_asked_for() -> None:
    pieces: list[str] = []
    endpoint = Endpoint(completion())
    reply = go(endpoint.client().complete(USER, on_delta=pieces.append))
    assert reply.message["content"] == "Hello"
    assert pieces == ["Hello"]


# --- usage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        [],
        {"total_tokens": 12},
        {"prompt_tokens": 10},
        {"prompt_tokens": None, "completion_tokens": None},
        {"prompt_tokens": "10", "completion_tokens": "2"},
        {"prompt_tokens": -1, "completion_tokens": 2},
        {"prompt_tokens": True, "completion_tokens": 2},
        {"prompt_tokens": 1.5, "completion_tokens": 2},
    ],
)
def test_usage_that_says_nothing_is_none(usage: Any) -> None:
    """Never zero: who sets a budget must not be told that an answer was free."""
    assert whole(completion(usage=usage)).usage is None
    assert streamed(delta("stop", content="a"), {"choices": [], "usage": usage})[0].usage is None


@pytest.mark.parametrize(
    ("details", "cached"),
    [
        (None, 0),
        ({}, 0),
        ({"cached_tokens": None}, 0),
        ({"cached_tokens": 4}, 4),
        ({"cached_tokens": 99}, 10),
        ({"cached_tokens": -4}, 0),
    ],
)
def test_cached_tokens_are_part_of_the_prompt(details: Any, cached: int) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": details}
    assert whole(completion(usage=usage)).usage == {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "cached_tokens": cached,
    }


def test_a_stream_without_usage_makes_the_cost_an_estimate() -> None:
    endpoint = Endpoint(stream(delta("stop", content="Hello")))
    client = endpoint.client(price={"in": 1.0, "out": 1.0})
    state = new_run("", "Hello?")
    go(run(state, [], client, on_delta=lambda piece: None))
    assert state.status == "completed"
    assert state.cost_basis == "estimated"
    assert state.cost_usd > 0


def test_usage_in_every_chunk_counts_once_and_the_last_is_right() -> None:
    events = [
        {**delta(content="a"), "usage": {"prompt_tokens": 10, "completion_tokens": 1}},
        {**delta("stop", content="b"), "usage": {"prompt_tokens": 10, "completion_tokens": 2}},
    ]
    expected = {"prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 0}
    assert streamed(*events)[0].usage == expected
    assert streamed(*events, {"choices": [], "usage": None})[0].usage == expected


# --- finish_reason --------------------------------------------------------------------------------


@pytest.mark.parametrize("finish", ["tool_calls", "stop", "tool_call", "function_call", "", None])
def test_beside_calls_the_finish_is_tool_calls(finish: Any) -> None:
    assert whole(calling(call(), finish=finish)).finish_reason == "tool_calls"


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "tool_call", "", None])
def test_beside_text_the_finish_is_stop(finish: Any) -> None:
    assert whole(completion(finish=finish)).finish_reason == "stop"


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_what_cut_an_answer_off_is_kept(finish: str) -> None:
    assert whole(completion(finish=finish)).finish_reason == finish
    assert whole(calling(call(), finish=finish)).finish_reason == finish


# --- what is sent back ----------------------------------------------------------------------------


def transcript(arguments: str, content: Any = None) -> list[dict[str, Any]]:
    entry = call(arguments)
    return [
        *USER,
        {"role": "assistant", "content": content, "tool_calls": [entry]},
        {"role": "tool", "tool_call_id": "c1", "name": "list_files", "content": "[]"},
    ]


@pytest.mark.parametrize("empty", [None, ""])
@pytest.mark.parametrize("stored", [None, ""])
def test_content_beside_calls_is_what_the_endpoint_takes(empty: Any, stored: Any) -> None:
    endpoint = Endpoint(completion())
    go(endpoint.client(empty_content=empty).complete(transcript("{}", stored)))
    assert endpoint.bodies()[0]["messages"][1]["content"] == empty


def test_content_beside_calls_that_says_something_is_sent() -> None:
    endpoint = Endpoint(completion())
    go(endpoint.client(empty_content="").complete(transcript("{}", "I look.")))
    assert endpoint.bodies()[0]["messages"][1]["content"] == "I look."


@pytest.mark.parametrize(
    "broken", ['{"{"path": "x"}', "path = 'x'", "[1]", "7", '{"a": NaN}', '{"a": 1e999}', "x" * 999]
)
def test_broken_arguments_go_back_as_an_object_that_shows_them(broken: str) -> None:
    """Some servers answer 500 to a transcript in which they do not parse."""
    endpoint = Endpoint(completion())
    messages = transcript(broken)
    before = json.dumps(messages)
    go(endpoint.client().complete(messages))
    (entry,) = endpoint.bodies()[0]["messages"][1]["tool_calls"]
    shown = {"malformed_arguments": broken[:200]}
    assert json.loads(entry["function"]["arguments"]) == shown
    assert json.dumps(messages) == before  # the transcript keeps what the model wrote


@pytest.mark.parametrize("empty", ["", "null", None, {}])
def test_empty_arguments_go_back_as_an_empty_object(empty: Any) -> None:
    endpoint = Endpoint(completion())
    go(endpoint.client().complete(transcript(empty)))
    (entry,) = endpoint.bodies()[0]["messages"][1]["tool_calls"]
    assert entry["function"]["arguments"] == "{}"


def test_a_run_goes_on_after_broken_arguments() -> None:
    endpoint = Endpoint(calling(call('{"{"path": "x"}')), completion())
    assert finished_run(endpoint).status == "completed"
    _, second = endpoint.bodies()
    assert "not valid JSON" in second["messages"][-1]["content"]
    arguments = second["messages"][-2]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("parameters", [DROPPED, None, {}])
def test_a_tool_without_parameters_is_sent_with_empty_ones(parameters: Any) -> None:
    function = {"name": "now", "description": "The time.", "parameters": parameters}
    function = {key: value for key, value in function.items() if value is not DROPPED}
    endpoint = Endpoint(completion())
    go(endpoint.client().complete(USER, [{"type": "function", "function": function}]))
    sent = endpoint.bodies()[0]["tools"][0]["function"]
    assert sent["parameters"] == {"type": "object", "properties": {}}


# --- too long -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "details"),
    [
        (400, {"code": "context_length_exceeded", "type": "invalid_request_error"}),
        (400, {"code": 400, "type": "exceed_context_size_error", "n_ctx": 4096}),
        (500, {"code": 500, "type": "exceed_context_size_error"}),
    ],
)
def test_a_prompt_that_is_too_long_is_said_plainly(status: int, details: dict[str, Any]) -> None:
    words = "the request (5000 tokens) exceeds the available context size (4096 tokens)"
    endpoint = Endpoint(error(status, {"error": {"message": words, **details}}))
    state = finished_run(endpoint)
    assert state.status == "failed"
    said = f"HTTP {status}: the prompt is longer than the model's window: {words}"
    assert state.error == said


# --- anything at all ------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def sometimes(shape: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly of that shape, and now and then anything else."""
    return st.one_of(shape, shape, shape, JSON)


def shaped(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with any of these fields."""
    options = {name: sometimes(value) for name, value in fields.items()}
    return sometimes(st.fixed_dictionaries({}, optional=options))


FUNCTION = shaped(name=st.sampled_from(["list_files", "read_file", ""]), arguments=st.text())
CALLS = st.lists(
    shaped(id=st.sampled_from(["a", "b", ""]), index=st.integers(0, 2), function=FUNCTION),
    max_size=4,
)
MESSAGE = shaped(content=st.text(), tool_calls=CALLS, refusal=st.text(), function_call=FUNCTION)
FINISH = st.sampled_from(["stop", "length", "tool_calls", "content_filter"])
USAGE = shaped(
    prompt_tokens=st.integers(0, 9),
    completion_tokens=st.integers(0, 9),
    prompt_tokens_details=shaped(cached_tokens=st.integers(0, 9)),
)
ERROR = sometimes(st.none())
BODY = shaped(
    choices=st.lists(shaped(message=MESSAGE, finish_reason=FINISH), max_size=2),
    usage=USAGE,
    error=ERROR,
)
CHUNK = shaped(
    choices=st.lists(shaped(delta=MESSAGE, finish_reason=FINISH), max_size=2),
    usage=USAGE,
    error=ERROR,
)


def check_shape(reply: Reply) -> None:
    """What everything behind the client relies on."""
    message = reply.message
    assert message["role"] == "assistant"
    assert isinstance(reply.finish_reason, str)
    if "tool_calls" in message:
        assert message["tool_calls"]
        assert message["content"] is None or message["content"]
        for one in message["tool_calls"]:
            assert list(one) == ["id", "type", "function"]
            values = [one["id"], one["type"], *one["function"].values()]
            assert all(isinstance(value, str) for value in values)
    else:
        assert isinstance(message["content"], str)
    if reply.usage is not None:
        assert 0 <= reply.usage["cached_tokens"] <= reply.usage["prompt_tokens"]
        assert reply.usage["completion_tokens"] >= 0


@settings(max_examples=300)
@given(BODY)
def test_any_body_becomes_a_reply_or_a_provider_error(body: Any) -> None:
    client = Endpoint(httpx.Response(200, text=json.dumps(body))).client(
        max_retries=0, calls_in_text=True
    )
    with suppress(ProviderError):
        check_shape(go(client.complete(USER, SPECS)))


@settings(max_examples=300)
@given(st.lists(CHUNK, max_size=5))
def test_any_stream_becomes_a_reply_or_a_provider_error(chunks: list[Any]) -> None:
    client = Endpoint(stream(*chunks)).client(max_retries=0)
    with suppress(ProviderError):
        check_shape(go(client.complete(USER, SPECS, on_delta=lambda piece: None)))


@given(st.integers(201, 599), JSON | st.text())
def test_any_other_status_becomes_a_provider_error(status: int, body: Any) -> None:
    answer = httpx.Response(status, text=body if isinstance(body, str) else json.dumps(body))
    client = Endpoint(answer).client(max_retries=0)
    with pytest.raises(ProviderError, match=f"^HTTP {status}: "):
        go(client.complete(USER))


@settings(max_examples=300)
@given(MESSAGE.filter(lambda message: isinstance(message, dict)))
def test_whatever_came_can_be_sent_back_to_a_strict_endpoint(message: Any) -> None:
    """Once the harness has given ids and names to calls that had none."""
    reply = normalise({"choices": [{"message": message}]})
    for number, one in enumerate(reply.message.get("tool_calls", [])):
        one["id"] = f"c{number}"
    answers = [
        {"role": "tool", "tool_call_id": one["id"], "content": "done"}
        for one in reply.message.get("tool_calls", [])
    ]
    endpoint = Endpoint(completion())
    client = endpoint.client()
    client.model = "plan"
    go(client.complete([*USER, reply.message, *answers]))
    answer = Provider().answer(endpoint.requests[0].content)
    assert answer.status == 200, answer.chunks
