"""The scripted provider on loopback: as a process, as a server, and for the official client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from chat_client import ChatClient
from scripted_provider import (
    RETRY_HEADER,
    SCRIPTS,
    Fault,
    Provider,
    cut_body,
    dropped,
    http_error,
    serving,
    transport,
)
from tests.provider_requests import (
    ASKED,
    SECOND,
    TOOL,
    TURNS,
    USER,
    answered,
    ask,
    request,
    streamed_request,
)
from tests.support import ROOT, go

# --- on loopback ----------------------------------------------------------------------------------


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``python -m scripted_provider`` on a free port, once it says that it serves, and its URL."""
    command = [sys.executable, "-m", "scripted_provider", "--port", "0", *arguments]
    # A shell that starts the tests in the background has them ignore Ctrl-C, and so their children.
    listen = None if os.name == "nt" else lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen,
    ) as running:
        try:
            assert running.stdout is not None
            first = running.stdout.readline()
            (url,) = re.findall(r"http://127\.0\.0\.1:\d+/v1", first)
            yield running, url
        finally:
            running.kill()


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT to one process alone")
def test_the_served_form_from_start_to_ctrl_c() -> None:
    with process("--fault", "1:401") as (running, url), httpx.Client() as http:
        models = http.get(f"{url}/models").json()
        assert [one["id"] for one in models["data"]] == sorted(SCRIPTS)
        assert models["object"] == "list"
        first = http.post(f"{url}/chat/completions", json=request())
        assert first.json() == ask(Provider(), request())[1]
        assert http.post(f"{url}/chat/completions", json=request(*SECOND)).status_code == 401
        assert http.post(f"{url}/chat/completions", content=b"{").status_code == 400
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 0
    assert out.splitlines()[-1] == "Stopped."
    assert "Traceback" not in err
    assert "POST /v1/chat/completions 401" in err.splitlines()


def test_a_port_that_is_taken_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        child = run_module("--port", port)
    assert child.returncode == 1
    assert child.stdout == ""
    (line,) = child.stderr.splitlines()
    assert line.startswith(f"Port {port} cannot be used (")
    assert line.endswith("Try another --port.")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--port", "70000"], 1, "Port 70000 cannot be used ("),
        (["--fault", "1:nonsense"], 2, "use TURN:NAME, where NAME is one of: 401, 402"),
        (["--fault", "429"], 2, "use TURN:NAME"),
        (["--latency", "-1"], 2, "--latency"),
    ],
)
def test_settings_that_cannot_work(arguments: list[str], code: int, words: str) -> None:
    child = run_module(*arguments)
    assert child.returncode == code
    assert words in child.stderr.splitlines()[-1]
    assert "Traceback" not in child.stderr


def run_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripted_provider", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(("model", "turn"), TURNS)
@pytest.mark.parametrize("stream", [False, True])
def test_the_socket_carries_what_the_kernel_does(model: str, turn: int, stream: bool) -> None:
    body = {**streamed_request(model, turn), "stream": stream}

    async def in_kernel() -> bytes:
        async with httpx.AsyncClient(transport=transport()) as http:
            return (await http.post("http://scripted/v1/chat/completions", json=body)).content

    with serving(Provider()) as url:
        served = httpx.post(f"{url}/chat/completions", json=body)
    assert served.content == go(in_kernel())
    kind = "text/event-stream" if stream else "application/json"
    assert served.headers["content-type"] == kind


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/models", 200),
        ("GET", "/nothing", 404),
        ("GET", "/chat/completions", 404),
        ("POST", "/nothing", 404),
        ("PUT", "/chat/completions", 501),
    ],
)
def test_paths(method: str, path: str, status: int) -> None:
    with serving(Provider()) as url:
        assert httpx.request(method, f"{url}{path}").status_code == status


@pytest.mark.parametrize("headers", [{RETRY_HEADER: "soon"}, {RETRY_HEADER: ""}])
def test_a_retry_header_that_is_no_number_is_a_first_attempt(headers: dict[str, str]) -> None:
    provider = Provider(faults={0: http_error(500, times=1)})
    with serving(provider) as url:
        served = httpx.post(f"{url}/chat/completions", json=request(), headers=headers)
        assert served.status_code == 500

    async def in_kernel() -> int:
        carrier = transport(faults={0: http_error(500, times=1)})
        async with httpx.AsyncClient(transport=carrier, headers=headers) as http:
            return (await http.post("http://x/v1/chat/completions", json=request())).status_code

    assert go(in_kernel()) == 500


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (dropped(), httpx.RemoteProtocolError),
        (cut_body(), httpx.RemoteProtocolError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_connection_is_broken_on_the_socket_too(
    fault: Fault, error: type[Exception], stream: bool
) -> None:
    with serving(Provider(faults={0: fault})) as url, pytest.raises(error):
        httpx.post(f"{url}/chat/completions", json=request(stream=stream))


def test_the_headers_of_a_fault_travel_too() -> None:
    with serving(Provider(faults={0: http_error(429, retry_after=7)})) as url:
        served = httpx.post(f"{url}/chat/completions", json=request())
    assert (served.status_code, served.headers["retry-after"]) == (429, "7")


def test_a_client_that_hangs_up_is_no_error_of_the_server(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with serving(Provider(latency_s=0.05)) as url:
        host, port = re.findall(r"//([\d.]+):(\d+)", url)[0]
        body = json.dumps(request()).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n"
        for _ in range(3):
            with socket.create_connection((host, int(port))) as hasty:
                hasty.sendall(head.encode() + body)
                # So that the server's write meets a reset, not a polite end.
                hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        assert httpx.post(f"{url}/chat/completions", json=request()).status_code == 200
    assert capfd.readouterr().err == ""


# --- the official client --------------------------------------------------------------------------


@pytest.fixture
def official() -> Iterator[Any]:
    """Any, because its types want each message built by a class of its own."""
    with serving(Provider()) as url, openai.OpenAI(base_url=url, api_key="none") as client:
        yield client


def test_the_official_client_lists_the_scripts(official: Any) -> None:
    assert [model.id for model in official.models.list()] == sorted(SCRIPTS)


def test_the_official_client_gets_typed_replies(official: Any) -> None:
    """A whole run of the script with it: calls, results, answer, usage."""
    messages: list[Any] = [USER]
    asked = []
    while True:
        reply = official.chat.completions.create(model="plan", messages=messages, tools=[TOOL])
        assert isinstance(reply, openai.types.chat.ChatCompletion)
        assert reply.usage is not None
        assert reply.usage.prompt_tokens > 0
        choice = reply.choices[0]
        if not choice.message.tool_calls:
            break
        assert choice.finish_reason == "tool_calls"
        messages.append(choice.message.model_dump(exclude_none=True) | {"content": None})
        for one in choice.message.tool_calls:
            assert one.type == "function"
            asked.append((one.function.name, json.loads(one.function.arguments)))
            messages.append(answered(one.id))
    assert asked == [("list_files", {}), ("read_file", {"path": "errors.log"})]
    assert choice.finish_reason == "stop"
    assert choice.message.content == SCRIPTS["plan"](2, "")["content"]


def test_the_official_client_streams_a_text(official: Any) -> None:
    with official.chat.completions.create(
        model="once",
        messages=SECOND,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    assert all(isinstance(chunk, openai.types.chat.ChatCompletionChunk) for chunk in chunks)
    words = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(words) == "errors.log mentions a timeout."
    assert len([word for word in words if word]) > 1
    assert chunks[-1].usage is not None
    assert (
        chunks[-1].usage.model_dump(exclude_none=True)
        == ask(Provider(), request(*SECOND, model="once"))[1]["usage"]
    )


def test_the_official_client_puts_streamed_calls_together(official: Any) -> None:
    with official.chat.completions.stream(
        model="several",
        messages=[USER],
        tools=[TOOL],
    ) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    got = [(one.id, one.function.name, one.function.arguments) for one in calls]
    expected = SCRIPTS["several"](0, "")["tool_calls"]
    assert got == [
        (one["id"], one["function"]["name"], one["function"]["arguments"]) for one in expected
    ]


def test_the_official_client_raises_its_own_errors(official: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="Unknown script 'gpt'"):
        official.chat.completions.create(model="gpt", messages=[USER])
    with pytest.raises(openai.BadRequestError, match="must be followed by tool messages"):
        official.chat.completions.create(model="plan", messages=[USER, ASKED])


def test_the_official_clients_retries_are_told_apart() -> None:
    provider = Provider(faults={0: http_error(429, retry_after=0, times=2)})
    with serving(provider) as url, openai.OpenAI(base_url=url, api_key="none") as client:
        official: Any = client
        official.chat.completions.create(model="plan", messages=[USER])
    assert [(one.status, one.attempt) for one in provider.journal] == [(429, 0), (429, 1), (200, 2)]


def test_many_clients_at_once() -> None:
    async def check(url: str) -> None:
        async with ChatClient(url, "plan") as client:
            replies = await asyncio.gather(*[client.complete([USER]) for _ in range(30)])
        assert {reply.message["tool_calls"][0]["id"] for reply in replies} == {"c1"}

    with serving(Provider()) as url:
        go(check(url))
