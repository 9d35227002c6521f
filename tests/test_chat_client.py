"""The client: retries where they help and never where they do not, and nothing left behind.

The shapes that endpoints answer with are in test_dialects.py.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chat_client
from chat_client import ChatClient, ProviderError, price_for, retry_after
from scripted_provider import Provider, serving
from tests.endpoints import (
    USER,
    Endpoint,
    completion,
    delta,
    error,
    http_bytes,
    raw_server,
    stream,
)
from tests.support import ROOT, go

NOW = 1_700_000_000.0
KEY = "sk-a-secret-key-of-some-length"

BROKEN = [
    httpx.ReadTimeout(""),
    httpx.ConnectTimeout(""),
    httpx.ConnectError("connection refused"),
    httpx.ReadError(""),
    httpx.WriteError(""),
    httpx.RemoteProtocolError("peer closed connection without sending complete message body"),
    httpx.DecodingError("the body is no gzip"),
]
UNUSABLE = {
    "empty choices": httpx.Response(200, json={"choices": []}),
    "null choices": httpx.Response(200, json={"choices": None}),
    "no choices": httpx.Response(200, json={"id": "x"}),
    "a choice that is no object": httpx.Response(200, json={"choices": ["hello"]}),
    "a choice without a message": httpx.Response(200, json={"choices": [{"index": 0}]}),
    "a list": httpx.Response(200, json=[]),
    "a web page": httpx.Response(200, text="<html>Bad gateway</html>"),
    "nothing": httpx.Response(200, text=""),
    "too deep": httpx.Response(200, text="[" * 100_000),
}


def again(response: httpx.Response) -> httpx.Response:
    """The same answer once more: a response can be read only once."""
    return httpx.Response(response.status_code, headers=response.headers, content=response.content)


def text_of(endpoint: Endpoint, **options: Any) -> str:
    """What one call of the client gives: the text, or the error's words."""

    async def ask() -> str:
        async with endpoint.client(**options) as client:
            return str((await client.complete(USER)).message["content"])

    try:
        return go(ask())
    except ProviderError as problem:
        return f"ProviderError {problem.status}: {problem}"


# --- the request ----------------------------------------------------------------------------------


def test_one_post_with_model_messages_and_tools() -> None:
    endpoint = Endpoint(completion())
    tool = {
        "type": "function",
        "function": {"name": "now", "description": "", "parameters": {"type": "object"}},
    }
    go(endpoint.client(options={"temperature": 0}).complete(USER, [tool]))
    (request,) = endpoint.requests
    assert request.method == "POST"
    assert str(request.url) == "http://scripted/v1/chat/completions"
    assert request.headers["content-type"] == "application/json"
    assert endpoint.bodies() == [
        {"model": "a-model", "messages": USER, "tools": [tool], "temperature": 0}
    ]


def test_without_tools_there_is_no_tools_field() -> None:
    endpoint = Endpoint(completion())
    go(endpoint.client().complete(USER, []))
    assert endpoint.bodies() == [{"model": "a-model", "messages": USER}]


def test_a_stream_is_asked_for_with_its_usage_and_an_option_can_leave_that_out() -> None:
    endpoint = Endpoint(stream(delta("stop", content="a")), stream(delta("stop", content="a")))
    go(endpoint.client().complete(USER, on_delta=lambda text: None))
    plain = endpoint.client(options={"stream_options": None})
    go(plain.complete(USER, on_delta=lambda text: None))
    with_usage, without = endpoint.bodies()
    assert with_usage["stream"] is without["stream"] is True
    assert with_usage["stream_options"] == {"include_usage": True}
    assert "stream_options" not in without


def test_half_a_surrogate_pair_does_not_end_the_request() -> None:
    endpoint = Endpoint(completion())
    go(endpoint.client().complete([{"role": "user", "content": "ok \udc97 \ud83d end"}]))
    (body,) = endpoint.bodies()
    assert body["messages"][0]["content"] == "ok ? ? end"


def test_the_key_travels_in_its_header_only() -> None:
    endpoint = Endpoint(completion(), completion())
    go(endpoint.client(api_key=KEY).complete(USER))
    go(endpoint.client().complete(USER))
    with_key, without = endpoint.requests
    assert with_key.headers["authorization"] == f"Bearer {KEY}"
    assert KEY.encode() not in with_key.content
    assert "authorization" not in without.headers


def test_white_space_around_a_key_is_not_part_of_it() -> None:
    """A key that was read from a file has a line end, which no header carries."""
    endpoint = Endpoint(completion())
    go(endpoint.client(api_key=f" {KEY}\n").complete(USER))
    assert endpoint.requests[0].headers["authorization"] == f"Bearer {KEY}"


# --- retries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_a_status_that_may_pass_is_tried_again(status: int) -> None:
    endpoint = Endpoint(error(status), error(status), completion())
    assert text_of(endpoint) == "Hello"
    assert len(endpoint.waits) == 2


@pytest.mark.parametrize("status", [204, 301, 400, 401, 402, 403, 404, 413, 422])
def test_any_other_status_is_final(status: int) -> None:
    endpoint = Endpoint(error(status, {"error": {"message": "So it is."}}))
    assert text_of(endpoint) == f"ProviderError {status}: HTTP {status}: So it is."
    assert endpoint.waits == []


@pytest.mark.parametrize("problem", BROKEN, ids=lambda problem: type(problem).__name__)
def test_a_broken_connection_is_tried_again(problem: httpx.HTTPError) -> None:
    endpoint = Endpoint(problem, completion())
    assert text_of(endpoint) == "Hello"


@pytest.mark.parametrize("problem", BROKEN, ids=lambda problem: type(problem).__name__)
def test_a_connection_that_stays_broken_is_named_in_words(problem: httpx.HTTPError) -> None:
    """httpx's own text is often empty."""
    endpoint = Endpoint(*[problem] * 4)
    words = str(problem) or type(problem).__name__
    assert text_of(endpoint) == f"ProviderError None: {words} (4 attempts)"
    assert len(endpoint.waits) == 3


@pytest.mark.parametrize("what", UNUSABLE)
def test_an_unusable_answer_is_tried_again_and_then_final(what: str) -> None:
    answer = UNUSABLE[what]
    assert text_of(Endpoint(again(answer), completion())) == "Hello"
    said = text_of(Endpoint(*[again(answer) for _ in range(4)]))
    assert said.startswith("ProviderError None: the provider's answer ")
    assert said.endswith(" (4 attempts)")


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_retries_are_bounded(retries: int) -> None:
    endpoint = Endpoint(*[error(500) for _ in range(retries + 1)])
    said = text_of(endpoint, max_retries=retries)
    assert said.startswith("ProviderError 500: HTTP 500: The server had an error.")
    assert len(endpoint.requests) == retries + 1


def test_each_retry_says_which_attempt_it_is() -> None:
    endpoint = Endpoint(error(500), httpx.ReadError(""), completion())
    text_of(endpoint)
    counts = [request.headers.get(chat_client.RETRY_HEADER) for request in endpoint.requests]
    assert counts == [None, "1", "2"]


def test_the_wait_doubles_up_to_a_longest_one() -> None:
    endpoint = Endpoint(*[error(500) for _ in range(8)])
    text_of(endpoint, max_retries=7)
    longest = [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    for waited, most in zip(endpoint.waits, longest, strict=True):
        assert 0.75 * most <= waited <= most


def test_a_retry_after_is_honoured_in_both_its_forms() -> None:
    date = format_datetime(datetime.fromtimestamp(NOW + 3, UTC), usegmt=True)
    endpoint = Endpoint(error(429, retry_after="2"), error(503, retry_after=date), completion())
    assert text_of(endpoint, clock=lambda: NOW) == "Hello"
    assert endpoint.waits == [2.0, 3.0]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("2", 2.0),
        ("1.5", 1.5),
        ("0", 0.0),
        ("-7", 0.0),
        ("Tue, 14 Nov 2023 22:13:22 GMT", 2.0),
        ("Tuesday, 14-Nov-23 22:13:22 GMT", 2.0),
        ("Tue Nov 14 22:13:22 2023", 2.0),
        ("Tue, 14 Nov 2023 23:13:22 +0100", 2.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("1e999", None),
        ("Mon, 99 Foo 2023 99:99:99 GMT", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_what_a_retry_after_says(
    header: str | None, seconds: float | None, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same in every time zone; a date that has passed, or a negative number, is now."""
    if not hasattr(time, "tzset"):
        pytest.skip("this system cannot change its time zone for a process")
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert retry_after(header, NOW) == seconds
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.text())
def test_no_retry_after_raises_or_turns_time_back(header: str) -> None:
    seconds = retry_after(header, NOW)
    assert seconds is None or 0 <= seconds < float("inf")


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    endpoint = Endpoint(error(429, retry_after="3600"))
    said = text_of(endpoint, deadline_s=60)
    assert said.endswith("it asks to wait 3600 s, more than the deadline")
    assert endpoint.waits == []


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": "insufficient_quota", "message": "You exceeded your quota."}},
        {"error": {"type": "insufficient_quota", "message": "You exceeded your quota."}},
    ],
)
def test_an_exhausted_quota_is_final(body: Any) -> None:
    endpoint = Endpoint(error(429, body, retry_after="1"))
    assert text_of(endpoint) == "ProviderError 429: HTTP 429: You exceeded your quota."


@pytest.mark.parametrize(
    ("code", "retried"),
    [
        (502, True),
        (429, True),
        ("503", True),
        (400, False),
        ("401", False),
        ("no_such_code", False),
    ],
)
def test_an_error_body_of_status_200_counts_by_its_code(code: object, retried: bool) -> None:
    body = {"error": {"message": "The upstream failed.", "code": code}}
    steps = [httpx.Response(200, json=body), completion()]
    endpoint = Endpoint(*steps)
    said = text_of(endpoint)
    assert len(endpoint.requests) == 1 + retried
    assert ("The upstream failed." in said) is not retried


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": "out of memory"}, "out of memory"),
        ({"error": {"message": "out of memory"}}, "out of memory"),
        ({"object": "error", "message": "out of memory", "code": 400}, "out of memory"),
        ({"detail": "out of memory"}, "{'detail': 'out of memory'}"),
        ({"error": {"message": None, "code": ["a", "list"]}}, "{'message': None"),
        ("<html>out of memory</html>", "<html>out of memory</html>"),
        ("   ", "Bad Request"),
        ("[" * 100_000, "[[["),
    ],
)
def test_the_providers_own_words_are_in_the_error(body: Any, words: str) -> None:
    said = text_of(Endpoint(error(400, body)))
    assert said.startswith(f"ProviderError 400: HTTP 400: {words}")
    assert len(said) < 600


# --- the deadline, and being cancelled ------------------------------------------------------------


class Dripping(httpx.AsyncByteStream):
    """A body that never ends: every byte arrives well within the timeout of a read."""

    def __init__(self, piece: bytes) -> None:
        self.piece = piece
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield self.piece
            await asyncio.sleep(0.001)

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.parametrize("streamed", [False, True])
def test_the_deadline_ends_a_dripping_body(streamed: bool) -> None:
    body = Dripping(b"data: " + json.dumps(delta(content="a")).encode() + b"\n\n")
    endpoint = Endpoint(httpx.Response(200, stream=body))
    pieces: list[str] = []

    async def ask() -> None:
        client = endpoint.client(deadline_s=0.05)
        await client.complete(USER, on_delta=pieces.append if streamed else None)

    with pytest.raises(ProviderError, match=r"^no answer within 0\.05 s$"):
        go(ask())
    assert body.closed
    assert bool(pieces) is streamed


def test_the_deadline_holds_for_all_retries_together() -> None:
    endpoint = Endpoint(*[error(429, retry_after="0.001") for _ in range(10_000)])
    said = text_of(endpoint, deadline_s=0.05, max_retries=100_000, sleep=asyncio.sleep)
    assert said == "ProviderError None: no answer within 0.05 s"


def test_a_time_out_of_the_callers_own_is_not_taken_for_the_deadline() -> None:
    def interrupts(piece: str) -> None:
        raise TimeoutError("mine")

    endpoint = Endpoint(stream(delta("stop", content="a")))
    with pytest.raises(TimeoutError, match="mine"):
        go(endpoint.client().complete(USER, on_delta=interrupts))


def test_cancelling_ends_the_request() -> None:
    async def check() -> None:
        arrived, gone = asyncio.Event(), asyncio.Event()

        async def hangs(request: httpx.Request) -> httpx.Response:
            arrived.set()
            try:
                await asyncio.Event().wait()
            finally:
                gone.set()
            raise AssertionError

        task = asyncio.create_task(Endpoint(hangs).client().complete(USER))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gone.is_set()

    go(check())


def test_cancelling_ends_the_wait_for_a_retry() -> None:
    async def check() -> None:
        waiting = asyncio.Event()

        async def long_sleep(seconds: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

        endpoint = Endpoint(error(429, retry_after="30"))
        task = asyncio.create_task(endpoint.client(sleep=long_sleep).complete(USER))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(endpoint.requests) == 1

    go(check())


def test_cancelling_hangs_up_on_a_real_server() -> None:
    async def check() -> None:
        half = http_bytes(b"x" * 1000)[:-500]
        async with (
            raw_server(half) as server,
            ChatClient(server.base_url, "m") as client,
        ):
            task = asyncio.create_task(client.complete(USER))
            await server.answered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.hung_up.wait()  # hangs here if the connection stays open

    go(check())


# --- over real connections ------------------------------------------------------------------------


WHOLE = http_bytes(completion().content, "content-type: application/json")


def test_a_connection_is_used_again() -> None:
    async def check() -> None:
        async with raw_server(WHOLE) as server, ChatClient(server.base_url, "m") as client:
            for _ in range(5):
                await client.complete(USER)
            assert (server.requests, server.connections) == (5, 1)

    go(check())


def test_a_client_that_was_closed_opens_new_connections() -> None:
    async def check() -> None:
        async with raw_server(WHOLE) as server, ChatClient(server.base_url, "m") as client:
            await client.complete(USER)
            await client.aclose()
            await client.aclose()
            await client.complete(USER)
            assert server.connections == 2

    go(check())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_one_client_serves_one_event_loop_after_another() -> None:
    """As in a script that calls asyncio.run twice; the first loop takes its socket with it."""
    with serving(Provider()) as base_url:
        client = ChatClient(base_url, "once")
        assert go(client.complete(USER)).finish_reason == "tool_calls"
        assert go(client.complete(USER)).finish_reason == "tool_calls"
        go(client.aclose())
        del client
        gc.collect()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([b""], id="nothing"),
        pytest.param([WHOLE[:40]], id="half a head"),
        pytest.param([WHOLE[:-30]], id="half a body"),
    ],
)
def test_a_cut_answer_is_tried_again_and_then_final(answer: list[bytes]) -> None:
    async def check() -> None:
        async with raw_server(*answer, stays_open=False) as server:
            client = ChatClient(server.base_url, "m", sleep=Endpoint().no_sleep)
            with pytest.raises(ProviderError, match=r"\w+.*\(4 attempts\)"):
                await client.complete(USER)
            await client.aclose()
            assert server.requests == 4

    go(check())


def test_nobody_at_the_address_is_said_in_words() -> None:
    async def check() -> None:
        async with raw_server(WHOLE) as server:
            base_url = server.base_url
        client = ChatClient(base_url, "m", sleep=Endpoint().no_sleep)
        with pytest.raises(ProviderError, match=r"connection.*\(4 attempts\)"):
            await client.complete(USER)

    go(check())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_proxy_of_the_environment_is_not_asked_for_loopback(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)

    async def check() -> None:
        async with raw_server(WHOLE) as server:
            base_url = server.base_url.replace("127.0.0.1", host)
            async with ChatClient(base_url, "m", max_retries=0) as client:
                assert (await client.complete(USER)).message["content"] == "Hello"

    go(check())


def test_nothing_is_left_open() -> None:
    """In a process of its own, where a socket that is not closed is an error on stderr."""
    code = """
import asyncio, gc
from chat_client import ChatClient, ProviderError
from scripted_provider import Provider, cut_body, dropped, http_error, serving, slow

async def one(base_url, script, **options):
    messages = [{"role": "user", "content": "hello"}]
    async with ChatClient(base_url, script, max_retries=0, **options) as client:
        for on_delta in (None, lambda text: None):
            try:
                await client.complete(messages, on_delta=on_delta)
            except ProviderError:
                pass
            task = asyncio.create_task(client.complete(messages, on_delta=on_delta))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

for fault in (None, http_error(401), http_error(500), dropped(), cut_body(), slow(0.2)):
    with serving(Provider(faults={0: fault} if fault else {})) as base_url:
        asyncio.run(one(base_url, "once", deadline_s=0.1))
    gc.collect()
"""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]]),
    }
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (child.returncode, child.stderr) == (0, "")


# --- keys, prices, settings -----------------------------------------------------------------------


@pytest.mark.parametrize("key", [KEY, f"{KEY}\n"])
@pytest.mark.parametrize(
    "step",
    [
        error(401, {"error": {"message": f"Incorrect API key provided: {KEY}."}}),
        error(401, f"no such key: {KEY}"),
        # The words are cut at some length; the key must not remain as a half.
        error(401, {"error": {"message": "x" * 490 + KEY}}),
        httpx.LocalProtocolError(f"Illegal header value b'Bearer {KEY}'"),
        LookupError(f"a transport of one's own could not send {KEY}"),
        httpx.Response(200, json={"error": {"message": f"bad key {KEY}", "code": 401}}),
    ],
)
def test_a_key_is_in_no_error_and_no_repr(key: str, step: Any) -> None:
    endpoint = Endpoint(again(step) if isinstance(step, httpx.Response) else step)
    client = endpoint.client(api_key=key, max_retries=0)
    with pytest.raises(ProviderError) as caught:
        go(client.complete(USER))
    for text in (str(caught.value), repr(caught.value), repr(client), str(client)):
        assert "secret" not in text
        assert KEY[:10] not in text


def test_a_dummy_key_does_not_mangle_the_words() -> None:
    said = text_of(Endpoint(error(400, {"error": {"message": "none of it"}})), api_key="none")
    assert said.endswith("none of it")


@pytest.mark.parametrize("key", ["sk-schlüssel", "sk-two\nlines", "sk-\x00"])
def test_a_key_that_no_header_carries_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ValueError, match="API key") as caught:
        ChatClient("http://scripted/v1", "m", key)
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize(
    "base_url",
    [
        "http://user:secret@scripted/v1",
        "https://scripted/v1?key=secret",
        "scripted/v1",
        "localhost:8080/v1",
        "ftp://scripted/v1",
        "http://",
        "http://scripted:secret",
        "",
    ],
)
def test_a_base_url_that_cannot_work_is_refused(base_url: str) -> None:
    with pytest.raises(ValueError, match="base_url") as caught:
        ChatClient(base_url, "m")
    assert "secret" not in str(caught.value)


def test_a_slash_at_the_end_of_the_base_url_changes_nothing() -> None:
    endpoint = Endpoint(completion())
    client = ChatClient("http://scripted/v1/", "m", transport=endpoint)
    go(client.complete(USER))
    assert str(endpoint.requests[0].url) == "http://scripted/v1/chat/completions"


@pytest.mark.parametrize(
    "options",
    [
        {"max_retries": -1},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"deadline_s": -1.0},
    ],
)
def test_a_limit_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        ChatClient("http://scripted/v1", "m", **options)


@pytest.mark.parametrize(
    "price",
    [
        {},
        {"in": 1.0},
        {"in": 1.0, "out": -1.0},
        {"in": float("nan"), "out": 1.0},
        {"in": 1.0, "out": float("inf")},
        {"in": "1", "out": "2"},
        {"in": 1.0, "out": 1.0, "cached": -0.5},
    ],
)
def test_a_price_that_is_none_is_refused(price: Any) -> None:
    with pytest.raises(ValueError, match="price must be"):
        ChatClient("http://scripted/v1", "m", price=price)


def test_the_price_goes_with_each_reply() -> None:
    price = {"in": 1.0, "out": 4.0, "cached": 0.25}
    reply = go(Endpoint(completion()).client(price=price).complete(USER))
    assert reply.price == price
    assert go(Endpoint(completion()).client().complete(USER)).price is None


def test_price_for_a_known_model_is_a_copy() -> None:
    price_for("book")["in"] = 0.0
    assert price_for("book") == {"in": 2.0, "out": 12.0}
    assert price_for("free") == {"in": 0.0, "out": 0.0}
    assert price_for("mine", {"mine": {"in": 1, "out": 2}}) == {"in": 1, "out": 2}


def test_price_for_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no price for model 'gpt-x'; known: book, free\."):
        price_for("gpt-x")


def test_from_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_BASE_URL", "http://127.0.0.1:11434/v1")
    monkeypatch.setenv("LLM_MODEL", "small")
    monkeypatch.setenv("LLM_API_KEY", KEY)
    endpoint = Endpoint(completion())
    client = ChatClient.from_env(price=price_for("free"), transport=endpoint)
    assert (client.base_url, client.model) == ("http://127.0.0.1:11434/v1", "small")
    assert client.price == {"in": 0.0, "out": 0.0}
    go(client.complete(USER))
    assert endpoint.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert repr(client) == "ChatClient('http://127.0.0.1:11434/v1', 'small')"


@pytest.mark.parametrize("missing", ["LLM_BASE_URL", "LLM_MODEL"])
@pytest.mark.parametrize("value", [None, ""])
def test_from_env_says_what_is_missing(
    missing: str, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_BASE_URL", "http://127.0.0.1:8080/v1")
    monkeypatch.setenv("LLM_MODEL", "local")
    monkeypatch.delenv("LLM_API_KEY", raising=False)
    if value is None:
        monkeypatch.delenv(missing)
    else:
        monkeypatch.setenv(missing, value)
    with pytest.raises(ValueError, match=f"^{missing} not set"):
        ChatClient.from_env()
