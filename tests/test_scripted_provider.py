"""The scripted provider: its scripts, its strictness, its faults, its streams, its journal."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chat_client
from chat_client import ChatClient, ProviderError
from scripted_provider import (
    NAMED_FAULTS,
    RETRY_HEADER,
    SCRIPTS,
    Answer,
    Fault,
    Message,
    Provider,
    asks,
    bad_arguments,
    call,
    changed,
    count_tokens,
    cut_body,
    dropped,
    empty_choices,
    finish_reason,
    http_error,
    no_usage,
    says,
    slow,
    text,
    transport,
    whole_body,
)
from tests.provider_requests import (
    ASKED,
    MISSING,
    SECOND,
    TOOL,
    TURNS,
    USER,
    answered,
    ask,
    message_of,
    request,
    streamed_request,
)
from tests.support import go

# --- the scripts ----------------------------------------------------------------------------------


def played(script: str, *results: str, turns: int = 9) -> list[Any]:
    """A script's turns against these tool results: ``(name, arguments)`` of calls, or a text."""
    told, messages = list(results), [USER]
    said: list[Any] = []
    for _ in range(turns):
        status, body = ask(Provider(), request(*messages, model=script))
        assert status == 200
        message = message_of(body)
        messages.append(message)
        if "tool_calls" not in message:
            assert body["choices"][0]["finish_reason"] == "stop"
            said.append(message["content"])
            break
        assert body["choices"][0]["finish_reason"] == "tool_calls"
        assert message["content"] is None
        calls = message["tool_calls"]
        said.append([(c["function"]["name"], c["function"]["arguments"]) for c in calls])
        messages += [answered(c["id"], told.pop(0) if told else "done") for c in calls]
    return said


LIST = [("list_files", "{}")]
READ = [("read_file", '{"path":"errors.log"}')]
DELETE = [("delete_file", '{"path":"access.log"}')]


def test_plan() -> None:
    answer = "errors.log mentions a timeout: worker 7 timed out after 30000 ms."
    assert played("plan") == [LIST, READ, answer]


def test_runaway_asks_in_every_turn() -> None:
    assert played("runaway", turns=9) == [LIST] * 9


def test_recover_corrects_itself_only_when_it_is_told_how() -> None:
    guess = [("read_file", '{"path":"timeout.log"}')]
    vague = "I could not read the file, so I do not know."
    assert played("recover", "Error: the tool failed.") == [guess, vague]
    assert played("recover", MISSING) == [guess, LIST, READ, "errors.log mentions a timeout."]


def test_forbidden_asks_for_the_same_file_for_ever() -> None:
    shadow = [("read_file", '{"path":"/etc/shadow"}')]
    assert played("forbidden", turns=7) == [shadow] * 7


def test_once_and_repeat() -> None:
    answer = "errors.log mentions a timeout."
    assert played("once") == [READ, answer]
    assert played("repeat") == [READ, READ, answer]


@pytest.mark.parametrize(
    ("result", "report"),
    [
        ("deleted access.log", "Deleted access.log to free space."),
        ("The user rejected this call.", "I did not delete anything: you declined the deletion."),
        ("It was not executed.", "I did not delete anything: you declined the deletion."),
    ],
)
def test_destructive_reports_what_it_was_told(result: str, report: str) -> None:
    assert played("destructive", "[]", result) == [LIST, DELETE, report]


def test_scan_repeats_the_result() -> None:
    assert played("scan", "1 of 3") == [[("scan_archive", "{}")], "The scan says: 1 of 3"]


def test_several_asks_for_three_calls_at_once() -> None:
    calls, answer = played("several")
    assert calls == [*LIST, *READ, ("read_file", '{"path":"notes.txt"}')]
    assert answer == "Three files: one has a timeout, one is about rotating logs."


def test_delete_twice() -> None:
    assert played("delete_twice") == [DELETE, DELETE, "Deleted access.log twice."]


def test_every_script_has_a_test_here_and_says_what_it_is() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    for name, script in SCRIPTS.items():
        assert f'played("{name}"' in source
        assert inspect.getdoc(script)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_uses_an_id_twice(name: str) -> None:
    messages, ids = [USER], []
    for _ in range(5):
        message = SCRIPTS[name](sum(m["role"] == "assistant" for m in messages), "")
        messages.append(message)
        ids += [one["id"] for one in message.get("tool_calls", [])]
    assert len(set(ids)) == len(ids)


def test_the_turn_is_the_number_of_assistant_messages() -> None:
    """So the provider remembers nothing, and a resumed run continues against it."""
    provider = Provider()
    first = ask(provider, request(USER))
    messages = [USER, asks(call("x", "list_files")), answered("x")]
    assert message_of(ask(provider, request(*messages))[1])["tool_calls"][0]["id"] == "c2"
    assert ask(provider, request(USER)) == first
    chat = [USER, text("Hello"), USER, text("Yes?"), USER]
    assert message_of(ask(provider, request(*chat))[1])["content"].startswith("errors.log")


def test_a_script_of_ones_own_is_a_function() -> None:
    def echo(turn: int, tool_text: str) -> Message:
        return asks(call("c", "now")) if turn == 0 else text(tool_text.upper())

    carrier = transport({"echo": echo})
    assert set(SCRIPTS) < set(carrier.provider.scripts)
    messages = [USER, asks(call("c", "now")), answered("c", "noon")]
    body = ask(carrier.provider, request(*messages, model="echo"))[1]
    assert message_of(body) == {"role": "assistant", "content": "NOON"}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (lambda turn, tool_text: 1 / 0, "The script 'mine' raised ZeroDivisionError: division"),
        (
            lambda turn, tool_text: None,
            "The script 'mine' raised TypeError: it must return text(...) or asks(...), not None",
        ),
        (
            lambda turn, tool_text: "Hello",
            "The script 'mine' raised TypeError: it must return text(...) or asks(...), not 'Hel",
        ),
        (lambda turn, tool_text: {"tool_calls": object()}, "The script 'mine' raised TypeError"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_script_with_a_mistake_is_named(script: Any, words: str, stream: bool) -> None:
    provider = Provider(scripts={"mine": script})
    status, body = ask(provider, request(model="mine", stream=stream))
    assert status == 500
    assert body["error"]["message"].startswith(words)


# --- strictness -----------------------------------------------------------------------------------


def refusal(body: Any) -> str:
    """The words of a 400."""
    status, answer = ask(Provider(), body)
    assert status == 400, answer
    assert answer["error"]["type"] == "invalid_request_error"
    return str(answer["error"]["message"])


def with_call(**changes: Any) -> Message:
    """An assistant message whose only call has these fields changed (None drops one)."""
    one = {**call("c1", "list_files"), **changes}
    return asks({key: value for key, value in one.items() if value is not None})


def with_arguments(arguments: Any) -> Message:
    return with_call(function={"name": "read_file", "arguments": arguments})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "The request body must be a JSON object."),
        (b"{", "The request body must be a JSON object."),
        (b"\xff", "The request body must be a JSON object."),
        (b"[" * 100_000, "The request body must be a JSON object."),
        ([], "The request body must be a JSON object."),
        (request(model="gpt"), "Unknown script 'gpt'. The scripts are: delete_twice, destructive"),
        (request(model=None), "Unknown script None."),
        (request(model=["plan"]), "Unknown script ['plan']."),
        ({"model": "plan"}, "'messages' must be a non-empty array."),
        ({"model": "plan", "messages": []}, "'messages' must be a non-empty array."),
        ({"model": "plan", "messages": {}}, "'messages' must be a non-empty array."),
    ],
)
def test_a_request_that_is_none(body: Any, words: str) -> None:
    assert refusal(body).startswith(words)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "robot", "content": ""}, "messages[0]: unknown role 'robot'. Use one of: assi"),
        ({"content": ""}, "messages[0]: unknown role None."),
        ({"role": ["user"], "content": ""}, "messages[0]: unknown role ['user']."),
        ("hello", "messages[0]: unknown role 'hello'."),
        ({"role": "user"}, "messages[0].content must be a string"),
        ({"role": "user", "content": None}, "messages[0].content must be a string"),
        ({"role": "user", "content": 7}, "messages[0].content must be a string"),
        ({"role": "assistant", "content": None}, "messages[0].content must be a string"),
        ({"role": "user", "content": "", "tool_calls": [call("c1", "x")]}, "messages[0]: only an"),
        ({**ASKED, "tool_calls": []}, "messages[0].tool_calls must not be empty"),
        ({**ASKED, "tool_calls": None}, "messages[0].tool_calls must not be empty"),
        ({**ASKED, "tool_calls": {}}, "messages[0].tool_calls must not be empty"),
        (asks("c1"), "messages[0].tool_calls: each call needs an id and function.name."),  # type: ignore[arg-type]
        (with_call(function={}), "messages[0].tool_calls: each call needs an id and function"),
        (with_call(id=None), "messages[0].tool_calls: each call needs an id and type"),
        (with_call(id=""), "messages[0].tool_calls: each call needs an id and type"),
        (with_call(id=7), "messages[0].tool_calls: each call needs an id and type"),
        (with_call(type=None), "messages[0].tool_calls: each call needs an id and type"),
        (with_call(type="tool"), "messages[0].tool_calls: each call needs an id and type"),
        (
            asks(call("c1", "list_files"), call("c1", "read_file")),
            "messages[0].tool_calls: two calls of one message have the same id.",
        ),
    ],
)
def test_a_message_that_is_none(message: Any, words: str) -> None:
    assert refusal(request(message)).startswith(words)


@pytest.mark.parametrize(
    "arguments",
    [
        None,
        {},
        {"path": "x"},
        "",
        "null",
        "[1]",
        '"text"',
        '{"{"path": "x"}',
        '{"path": "x"',
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a":' * 100_000,
    ],
)
def test_arguments_must_be_a_json_object_in_a_string(arguments: Any) -> None:
    words = refusal(request(USER, with_arguments(arguments), answered("c1")))
    assert words == (
        "messages[1].tool_calls: the arguments of read_file must be a string that holds a "
        "JSON object."
    )


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([USER, answered("c1")], "messages[1]: a message with role 'tool' must answer a call"),
        ([USER, ASKED, answered("c9")], "'c9' is not waiting"),
        ([USER, ASKED, answered("c1"), answered("c1")], "messages[3]: a message with role 'tool'"),
        ([USER, ASKED, answered(None)], "None is not waiting"),
        ([USER, ASKED, answered(["c1"])], "['c1'] is not waiting"),
        ([USER, ASKED, USER, answered("c1")], "did not have response messages: c1"),
        ([USER, ASKED], "must be followed by tool messages responding to each 'tool_call_id'"),
        ([USER, ASKED, text("Hello")], "did not have response messages: c1"),
        (
            [USER, asks(call("a", "x"), call("b", "x"), call("c", "x")), answered("b")],
            "did not have response messages: a, c",
        ),
    ],
)
def test_each_call_is_answered_once_and_directly_after_it(messages: Any, words: str) -> None:
    assert words in refusal(request(*messages))


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([], "'tools' must not be empty: leave it out when there are none."),
        ({}, "'tools' must not be empty"),
        (["now"], "tools[0]: a tool needs type 'function' and function.name."),
        ([{"function": TOOL["function"]}], "tools[0]: a tool needs type 'function'"),
        ([{**TOOL, "type": "web"}], "tools[0]: a tool needs type 'function'"),
        ([TOOL, {"type": "function", "function": {}}], "tools[1]: a tool needs type 'function'"),
        ([{"type": "function", "function": {"name": "now"}}], "tools[0]: now has no 'parameters'"),
        (
            [{"type": "function", "function": {"name": "now", "parameters": None}}],
            "tools[0]: now has no 'parameters' object.",
        ),
    ],
)
def test_a_tool_that_is_none(tools: Any, words: str) -> None:
    assert refusal(request(tools=tools)).startswith(words)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Be brief."}, USER],
        [{"role": "developer", "content": "Be brief."}, USER],
        [USER, {**ASKED, "content": ""}, answered("c1")],
        [USER, {**ASKED, "content": "I look."}, answered("c1")],
        [USER, asks(call("a", "x"), call("b", "x")), answered("b"), answered("a")],
        [USER, ASKED, answered("c1"), USER],
        [USER, ASKED, answered("c1"), ASKED, answered("c1")],
        [USER, text("Hello"), USER],
    ],
)
def test_what_is_right_is_answered(messages: Any) -> None:
    assert ask(Provider(), request(*messages, tools=[TOOL]))[0] == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def any_of(**fields: Any) -> st.SearchStrategy[Any]:
    """An object with any of these fields, each as it should be or anything else."""
    options = {name: st.sampled_from(values) | JSON for name, values in fields.items()}
    return st.fixed_dictionaries({}, optional=options)


CALLS = st.lists(
    any_of(id=["a", "b"], type=["function"], function=[{"name": "x", "arguments": "{}"}]) | JSON,
    max_size=2,
)
MESSAGES = st.lists(
    any_of(
        role=["user", "assistant", "tool"],
        content=["", "hello", None],
        tool_call_id=["a", "b"],
        tool_calls=[[call("a", "x")], [call("a", "x"), call("b", "x")], []],
    )
    | CALLS.map(lambda calls: {"role": "assistant", "content": None, "tool_calls": calls}),
    max_size=4,
)


@settings(max_examples=300)
@given(
    st.fixed_dictionaries(
        {"model": st.sampled_from(["plan", "several"]) | JSON, "messages": MESSAGES | JSON},
        optional={
            "tools": st.just([TOOL]) | JSON,
            "stream": st.booleans() | JSON,
            "stream_options": st.just({"include_usage": True}) | JSON,
        },
    )
    | JSON
)
def test_no_request_makes_it_raise(body: Any) -> None:
    provider = Provider()
    answer = provider.answer(json.dumps(body).encode())
    assert answer.status in (200, 400)
    assert provider.journal[0].status == answer.status


# --- faults ---------------------------------------------------------------------------------------


def test_a_fault_is_of_its_turn_alone() -> None:
    provider = Provider(faults={1: http_error(500)})
    assert [ask(provider, request(*m))[0] for m in ([USER], SECOND, [USER])] == [200, 500, 200]


def test_a_fault_is_over_after_so_many_attempts() -> None:
    provider = Provider(faults={0: http_error(429, times=2)})
    assert [ask(provider, request(), n)[0] for n in (0, 1, 2, 3, 0)] == [429, 429, 200, 200, 429]


def test_a_request_that_is_wrong_is_refused_whatever_the_fault() -> None:
    provider = Provider(faults={0: http_error(500)})
    assert ask(provider, request(tools=[]))[0] == 400


@pytest.mark.parametrize(
    ("fault", "status", "message", "headers"),
    [
        (http_error(401), 401, "Incorrect API key provided.", {}),
        (http_error(402), 402, "The account has no credit left.", {}),
        (http_error(429, retry_after=2), 429, "Rate limit reached.", {"retry-after": "2"}),
        (http_error(503, "Busy."), 503, "Busy.", {}),
    ],
)
def test_http_errors(fault: Fault, status: int, message: str, headers: dict[str, str]) -> None:
    answer = Provider(faults={0: fault}).answer(json.dumps(request()).encode())
    body = json.loads(answer.chunks[0])
    assert (answer.status, body["error"]["message"], answer.headers) == (status, message, headers)


def test_a_code_tells_an_exhausted_quota_from_a_busy_server() -> None:
    fault = http_error(429, code="insufficient_quota")
    assert ask(Provider(faults={0: fault}), request())[1]["error"]["code"] == "insufficient_quota"


def test_whole_bodies_of_any_kind() -> None:
    bodies: list[Any] = [{"error": {"message": "no", "code": 502}}, [], None, {"choices": None}]
    for body in bodies:
        assert ask(Provider(faults={0: whole_body(body)}), request()) == (200, body)
    page = Provider(faults={0: whole_body("<html>")}).answer(json.dumps(request()).encode())
    assert page.chunks == [b"<html>"]


def faulty(fault: Fault, model: str = "several") -> Any:
    return ask(Provider(faults={0: fault}), request(model=model))[1]


def test_faults_of_the_completion() -> None:
    good = ask(Provider(), request(model="several"))[1]
    assert faulty(empty_choices()) == {**good, "choices": []}
    assert faulty(no_usage()) == {key: good[key] for key in good if key != "usage"}
    (choice,) = good["choices"]
    assert faulty(finish_reason("length"))["choices"] == [{**choice, "finish_reason": "length"}]
    filtered = faulty(finish_reason("content_filter"))["choices"][0]
    assert filtered["finish_reason"] == "content_filter"
    assert filtered["message"] == {"role": "assistant", "content": None}
    said = faulty(finish_reason("length", content="Once upon"), "plan")
    assert message_of(said)["content"] == "Once upon"
    assert faulty(changed(lambda body: {**body, "id": "mine"})) == {**good, "id": "mine"}


@pytest.mark.parametrize("raw", ['{"{"path": "errors.log"}', "", None, {"path": "x"}])
def test_bad_arguments_stand_in_every_call_and_spoil_no_later_answer(raw: Any) -> None:
    calls = message_of(faulty(bad_arguments(raw)))["tool_calls"]
    assert [one["function"]["arguments"] for one in calls] == [raw] * 3
    assert (
        message_of(ask(Provider(), request(model="several"))[1])["tool_calls"][0]["function"][
            "arguments"
        ]
        == "{}"
    )


@pytest.mark.parametrize(
    "fault",
    [
        finish_reason("length", content="Once upon"),
        finish_reason("content_filter"),
        bad_arguments("{"),
        changed(lambda body: message_of(body)["tool_calls"].clear()),
    ],
)
def test_a_fault_does_not_change_the_scripts_own_message(fault: Fault) -> None:
    """A script may return the same object again and again."""
    same = asks(call("c1", "list_files"))
    provider = Provider(scripts={"mine": lambda turn, tool_text: same}, faults={0: fault})
    assert message_of(ask(provider, request(model="mine"))[1]) != asks(call("c1", "list_files"))
    assert same == asks(call("c1", "list_files"))


@pytest.mark.parametrize(
    ("fault", "words"), [(finish_reason("content_filter"), ""), (says(text("Hm.")), "Hm.")]
)
def test_what_is_counted_is_what_leaves(fault: Fault, words: str) -> None:
    usage = faulty(fault)["usage"]
    assert usage["completion_tokens"] == count_tokens(words) + count_tokens('""')


@pytest.mark.parametrize(
    ("message", "finish"),
    [(text("Nothing."), "stop"), (asks(call("u1", "search_web")), "tool_calls")],
)
def test_another_message_in_place_of_the_scripts(message: Message, finish: str) -> None:
    body = faulty(says(message))
    assert body["choices"] == [{"index": 0, "message": message, "finish_reason": finish}]


async def _reply(fault: Fault, **options: Any) -> Any:
    async def no_sleep(seconds: float) -> None:
        waits.append(seconds)

    waits: list[float] = []
    carrier = transport(faults={0: fault})
    client = ChatClient("http://scripted/v1", "plan", transport=carrier, sleep=no_sleep, **options)
    try:
        return await client.complete([USER], [TOOL]), waits
    except ProviderError as problem:
        return str(problem), waits


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (dropped(), "ReadError (4 attempts)"),
        (cut_body(), "peer closed connection in the middle of the body (4 attempts)"),
        (empty_choices(), "the provider's answer holds no choice (4 attempts)"),
        (http_error(401), "HTTP 401: Incorrect API key provided."),
        (http_error(429, retry_after=7), "HTTP 429: Rate limit reached. (4 attempts)"),
    ],
)
def test_what_the_client_makes_of_a_fault_that_stays(fault: Fault, words: str) -> None:
    said, _ = go(_reply(fault))
    assert said == words


@pytest.mark.parametrize(
    "fault",
    [dropped(times=1), cut_body(times=1), empty_choices(times=1), http_error(500, times=1)],
)
def test_a_fault_that_passes_costs_one_retry(fault: Fault) -> None:
    """The client's header says which attempt it is."""
    reply, waits = go(_reply(fault))
    assert reply.finish_reason == "tool_calls"
    assert len(waits) == 1


def test_the_clients_header_is_the_providers() -> None:
    assert chat_client.RETRY_HEADER == RETRY_HEADER


@pytest.mark.parametrize("name", NAMED_FAULTS)
@pytest.mark.parametrize("stream", [False, True])
def test_every_named_fault_differs_from_a_good_answer(name: str, stream: bool) -> None:
    body = request(model="once", tools=[TOOL], stream=stream)
    raw = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()
    good, bad = Provider().answer(raw), Provider(faults={0: NAMED_FAULTS[name]()}).answer(raw)
    assert good != bad
    assert good == Provider().answer(raw)


# --- latency --------------------------------------------------------------------------------------


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of the transport, noted in place of waited."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("scripted_provider.asyncio.sleep", sleep)
    return waits


def test_latency_passes_before_each_answer_and_a_slow_fault_adds_to_it(slept: list[float]) -> None:
    async def check() -> None:
        carrier = transport(faults={0: slow(5.0, times=1)}, latency_s=0.25)
        client = ChatClient("http://scripted/v1", "plan", transport=carrier)
        await client.complete([USER])
        await client.complete(SECOND)

    go(check())
    assert slept == [5.25, 0.25]


def test_chunks_of_a_stream_come_with_their_own_delay(slept: list[float]) -> None:
    async def check() -> None:
        carrier = transport(chunk_delay_s=0.1)
        client = ChatClient("http://scripted/v1", "plan", transport=carrier)
        await client.complete([USER], on_delta=lambda piece: None)

    go(check())
    provider = Provider()
    chunks = len(provider.answer(json.dumps(streamed_request("plan", 0)).encode()).chunks)
    assert slept == [0.1] * (chunks - 1)


# --- streaming ------------------------------------------------------------------------------------


def events(answer: Answer) -> list[Any]:
    """The events of a stream, read by the rules of server-sent events; the last must be [DONE]."""
    raw = b"".join(answer.chunks).decode()
    *data, done, rest = [line.removeprefix("data: ") for line in raw.split("\n\n")]
    assert (done, rest) == ("[DONE]", "")
    return [json.loads(line) for line in data]


def put_together(chunks: list[Any]) -> tuple[Message, str, Any]:
    """Message, finish reason and usage of a stream, as any client would build them."""
    message: Message = {"role": "assistant", "content": None}
    finish, usage = "", None
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            delta = choice["delta"]
            if delta.get("content") is not None:
                message["content"] = (message["content"] or "") + delta["content"]
            for piece in delta.get("tool_calls", []):
                calls = message.setdefault("tool_calls", [])
                if piece["index"] == len(calls):
                    calls.append({key: piece[key] for key in ("id", "type", "function")})
                else:
                    calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    return message, finish, usage


@pytest.mark.parametrize(("model", "turn"), TURNS)
def test_a_stream_equals_the_whole_answer(model: str, turn: int) -> None:
    body = streamed_request(model, turn)
    whole = ask(Provider(), {**body, "stream": False})[1]
    chunks = events(Provider().answer(json.dumps(body).encode()))
    message, finish, usage = put_together(chunks)
    assert message == message_of(whole)
    assert finish == whole["choices"][0]["finish_reason"]
    assert usage == whole["usage"]
    assert len(chunks) > 3  # it is a stream, not a whole answer in one event
    # Usage comes last, in a chunk of its own without a choice.
    assert [bool(chunk.get("usage")) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"] == []


@given(st.text(), st.booleans())
def test_any_text_streams_to_its_last_character(content: str, crlf: bool) -> None:
    content = content.replace("\n", "\r\n") if crlf else content
    provider = Provider(scripts={"say": lambda turn, tool_text: text(content)})
    chunks = events(provider.answer(json.dumps(request(model="say", stream=True)).encode()))
    assert (put_together(chunks)[0]["content"] or "") == content


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_usage_is_streamed_only_when_asked_for(options: Any) -> None:
    body = {**streamed_request("plan", 0), "stream_options": options}
    assert put_together(events(Provider().answer(json.dumps(body).encode())))[2] is None


@pytest.mark.parametrize("raw", ["", None, {"path": "errors.log"}, [1]])
def test_arguments_of_any_kind_can_be_streamed(raw: Any) -> None:
    provider = Provider(faults={0: bad_arguments(raw)})
    chunks = events(provider.answer(json.dumps(streamed_request("once", 0)).encode()))
    pieces = [p for c in chunks for o in c["choices"] for p in o["delta"].get("tool_calls", [])]
    arguments = [piece["function"]["arguments"] for piece in pieces]
    assert raw in arguments or not raw


# --- the journal ----------------------------------------------------------------------------------


def test_the_journal_holds_every_request_with_its_status_and_attempt() -> None:
    carrier = transport(faults={0: http_error(500, times=1)})

    async def no_sleep(seconds: float) -> None:
        pass

    client = ChatClient("http://scripted/v1", "plan", transport=carrier, sleep=no_sleep)
    go(client.complete([USER]))
    with pytest.raises(ProviderError):
        go(client.complete([USER, answered("c1")]))
    assert [(one.status, one.attempt) for one in carrier.journal] == [(500, 0), (200, 1), (400, 0)]
    assert carrier.journal[0].request == {"model": "plan", "messages": [USER]}


def test_the_journal_does_not_grow_for_ever() -> None:
    provider = Provider(count=False)
    for _ in range(1100):
        provider.answer(b"{}")
    assert len(provider.journal) == 1000


def test_the_journal_holds_no_key() -> None:
    carrier = transport()
    go(
        ChatClient("http://scripted/v1", "plan", "sk-secret-key", transport=carrier).complete(
            [USER]
        )
    )
    assert "sk-secret" not in repr(carrier.journal)
