"""Requests to the scripted provider, and its answers, as its tests write them."""

from __future__ import annotations

import json
from typing import Any

from scripted_provider import SCRIPTS, Message, Provider, asks, call

USER: Message = {"role": "user", "content": "Which file mentions a timeout?"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "now", "description": "The time.", "parameters": {"type": "object"}},
}


def request(*messages: Any, model: Any = "plan", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": list(messages or [USER]), **more}


def answered(call_id: Any, content: Any = "done") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def ask(provider: Provider, body: Any, attempt: int = 0) -> tuple[int, Any]:
    """Status and body of the provider's answer to a request that is not streamed."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = provider.answer(raw, attempt)
    return answer.status, json.loads(b"".join(answer.chunks))


def message_of(body: Any) -> Message:
    message: Message = body["choices"][0]["message"]
    return message


ASKED = asks(call("c1", "list_files"))
SECOND = [USER, ASKED, answered("c1")]
MISSING = "no such file: timeout.log. Call list_files to see what exists."


def streamed_request(model: str, turn: int) -> dict[str, Any]:
    """The request of a script's turn, streamed, with usage."""
    messages = [USER]
    for number in range(turn):
        message = SCRIPTS[model](number, MISSING)
        messages.append(message)
        messages += [answered(one["id"], MISSING) for one in message["tool_calls"]]
    options = {"include_usage": True}
    return request(*messages, model=model, tools=[TOOL], stream=True, stream_options=options)


# Turns of every kind: one call, a text, several calls, arguments of some length.
TURNS = [
    ("plan", 0),
    ("plan", 2),
    ("recover", 2),
    ("several", 0),
    ("several", 1),
    ("destructive", 1),
]
