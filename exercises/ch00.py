"""Checks for chapter 00: one request, and what the provider refuses."""

from __future__ import annotations

import json
from typing import Any

from exercises import number, right, unanswered, wrong
from scripted_provider import Provider, count_messages
from workbook import OPENING


def check_1(answer: Any) -> None:
    """The prompt tokens of the request without its tools."""
    number(
        answer,
        count_messages(OPENING),
        "The rest of the first count was the list of tools: it is sent, and paid, in every turn.",
        {204: "That is the request with its tools. Leave the key 'tools' out and send it again."},
        "Send {'model': 'plan', 'messages': [*OPENING]} and read usage['prompt_tokens'].",
    )


def check_2(answer: Any) -> None:
    """A request that the provider refuses, for another reason than an unanswered call."""
    if unanswered(answer):
        return
    if not isinstance(answer, dict):
        wrong("A request is a dictionary: {'model': 'plan', 'messages': [...]}.")
        return
    try:
        body = json.dumps(answer).encode()
    except (TypeError, ValueError) as problem:
        wrong(f"This cannot be written as JSON, so it never reaches the provider: {problem}")
        return
    reply = Provider().answer(body)
    if reply.status == 200:
        wrong("The provider took it. Break one of its rules: a role, an empty list, a lost answer.")
        return
    said = json.loads(reply.chunks[0])["error"]["message"]
    if "must be followed by tool messages" in said:
        wrong("That is the refusal that you have seen. Find another one.")
    else:
        right(f"The provider says: {said}")
