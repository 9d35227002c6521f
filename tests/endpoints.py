"""Endpoints for the tests of the client: a list of answers in memory, and raw bytes on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from chat_client import ChatClient

# What an endpoint does with a request: answer it, break, or anything else.
Step = httpx.Response | Exception | Callable[[httpx.Request], Any]

USER = [{"role": "user", "content": "Which file mentions a timeout?"}]


class Endpoint(httpx.AsyncBaseTransport):
    """Takes one step for each request, in order, and remembers requests and waits."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.requests: list[httpx.Request] = []
        self.waits: list[float] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        assert self.steps, "one request more than the test has answers for"
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, httpx.Response):
            return step
        response: httpx.Response = await step(request)
        return response

    def bodies(self) -> list[dict[str, Any]]:
        """The requests as the endpoint read them."""
        return [json.loads(request.content) for request in self.requests]

    async def no_sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def client(self, **options: Any) -> ChatClient:
        """A client of this endpoint that notes its waits in place of waiting."""
        options = {"sleep": self.no_sleep, **options}
        return ChatClient("http://scripted/v1", "a-model", transport=self, **options)


def completion(
    message: dict[str, Any] | None = None, finish: Any = "stop", **more: Any
) -> httpx.Response:
    """A whole answer of status 200."""
    message = {"role": "assistant", "content": "Hello"} if message is None else message
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    return httpx.Response(200, json={"choices": [choice], "usage": usage, **more})


def calling(*calls: dict[str, Any], finish: Any = "tool_calls", **message: Any) -> httpx.Response:
    """A whole answer that holds these entries of ``tool_calls``."""
    return completion(
        {"role": "assistant", "content": None, "tool_calls": [*calls], **message}, finish
    )


def call(arguments: Any = "{}", name: str = "list_files", **more: Any) -> dict[str, Any]:
    """An entry of ``tool_calls``, with whatever arguments; ``id=...`` changes or drops its id."""
    entry = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {key: value for key, value in {**entry, **more}.items() if value is not DROPPED}


DROPPED = object()


def stream(*events: Any, end: str = "data: [DONE]\n\n") -> httpx.Response:
    """A streamed answer of status 200; an event that is a text goes out as it is."""
    lines = [e if isinstance(e, str) else f"data: {json.dumps(e)}\n\n" for e in events]
    raw = ("".join(lines) + end).encode()
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=raw)


def delta(finish: Any = None, **fields: Any) -> dict[str, Any]:
    """One chunk of a stream."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def error(status: int, body: Any = None, **headers: str) -> httpx.Response:
    """An answer of another status than 200."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"error": {"message": "The server had an error."}} if body is None else body
    if isinstance(body, str):
        return httpx.Response(status, text=body, headers=names)
    return httpx.Response(status, json=body, headers=names)


@dataclass
class RawServer:
    """A server on loopback that answers every request with the same bytes."""

    answer: list[bytes]
    stays_open: bool = True
    connections: int = 0
    requests: int = 0
    base_url: str = ""
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                self.requests += 1
                for piece in self.answer:
                    writer.write(piece)
                    await writer.drain()
                self.answered.set()
                if not self.stays_open:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
        finally:
            writer.close()


@asynccontextmanager
async def raw_server(*answer: bytes, stays_open: bool = True) -> AsyncIterator[RawServer]:
    """Serve the bytes; without ``stays_open`` the connection ends after them."""
    raw = RawServer(list(answer), stays_open)
    server = await asyncio.start_server(raw.handle, "127.0.0.1", 0)
    raw.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield raw


def http_bytes(body: bytes, *headers: str) -> bytes:
    """A response of status 200 as it travels."""
    lines = ["HTTP/1.1 200 OK", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body
