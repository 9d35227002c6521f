"""The loop of chapters 01 to 04, in each state of its growth.

Each function stands in its chapter with the same text, and here so that the next chapter, the
exercises and the tests can use it. What a step adds is marked ``# new``. From chapter 05 on the
loop is ``harness.run``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from abort_signal import AbortSignal
from chat_client import ProviderError
from harness import Client, Reply
from run_state import Call, Message, RunState, RunStatus, cost, pending
from tool_calls import Tool, ToolContext

# --- 01: the whole idea -------------------------------------------------------------------------


async def run_call(call: Call, tools: Sequence[Tool]) -> Message:
    """Run the tool that a call names, and answer the call with what it returned."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    tool = {tool.name: tool for tool in tools}[name]
    ctx = ToolContext(AbortSignal(), print, "loop", call["id"], call["id"])
    text = await tool.run(json.loads(arguments), ctx)
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": text}


async def bare_loop(client: Client, tools: Sequence[Tool], messages: list[Message]) -> str:
    """Ask the model, run what it asks for, ask again."""
    while True:
        reply = await client.complete(messages, [tool.spec for tool in tools])
        messages.append(reply.message)
        calls = reply.message.get("tool_calls", [])
        if not calls:
            return str(reply.message["content"])  # the only exit
        for call in calls:
            messages.append(await run_call(call, tools))


# --- 02: a cap on turns -------------------------------------------------------------------------


async def capped_loop(
    client: Client, tools: Sequence[Tool], messages: list[Message], max_turns: float
) -> str:
    """The bare loop with a second exit: so many turns and no more."""
    turns = 0  # new
    while True:
        if turns >= max_turns:  # new
            return ""  # new
        reply = await client.complete(messages, [tool.spec for tool in tools])
        turns += 1  # new
        messages.append(reply.message)
        calls = reply.message.get("tool_calls", [])
        if not calls:
            return str(reply.message["content"])
        for call in calls:
            messages.append(await run_call(call, tools))


# --- 03: a cap on money -------------------------------------------------------------------------


def price_of(reply: Reply) -> float:
    """US dollars for one answer. Without counts there is no price, and a budget never ends."""
    if reply.usage is None:
        raise ValueError("the provider did not say how many tokens this answer took")
    return cost(reply.usage)


async def priced_loop(
    client: Client,
    tools: Sequence[Tool],
    messages: list[Message],
    max_turns: float,
    max_budget_usd: float,  # new
    spent: float = 0.0,  # new
) -> str:
    """The capped loop with a third exit: so much money and no more."""
    turns = 0
    while True:
        if turns >= max_turns:
            return ""
        if spent >= max_budget_usd:  # new
            return ""  # new
        reply = await client.complete(messages, [tool.spec for tool in tools])
        turns += 1
        spent += price_of(reply)  # new
        messages.append(reply.message)
        calls = reply.message.get("tool_calls", [])
        if not calls:
            return str(reply.message["content"])
        for call in calls:
            messages.append(await run_call(call, tools))


async def check_after(
    client: Client,
    tools: Sequence[Tool],
    messages: list[Message],
    max_turns: float,
    max_budget_usd: float,
    spent: float = 0.0,
) -> str:
    """The priced loop with its budget checked after the turn: a mistake to measure."""
    turns = 0
    while True:
        if turns >= max_turns:
            return ""
        reply = await client.complete(messages, [tool.spec for tool in tools])
        turns += 1
        spent += price_of(reply)
        messages.append(reply.message)
        calls = reply.message.get("tool_calls", [])
        if not calls:
            return str(reply.message["content"])
        for call in calls:
            messages.append(await run_call(call, tools))
        if spent >= max_budget_usd:  # new
            return ""  # new


# --- 04: five exits -----------------------------------------------------------------------------


def stop(state: RunState, status: RunStatus, **interruption: str | None) -> None:
    """Write the exit into the state: which of the five, and what there is to say about it."""
    state.status, state.interruption = status, interruption or None


async def ask(state: RunState, tools: Sequence[Tool], client: Client) -> None:
    """One turn. No answer is an exit, and an answer in prose is another."""
    try:
        reply = await client.complete(state.messages, [tool.spec for tool in tools])
    except ProviderError as problem:
        state.error = str(problem)
        stop(state, "failed")
    else:
        state.turns += 1
        state.cost_usd += price_of(reply)
        state.messages.append(reply.message)
        if not reply.message.get("tool_calls"):
            state.output = reply.message["content"]
            stop(state, "completed")


async def five_exits(
    state: RunState,
    tools: Sequence[Tool],
    client: Client,
    signal: AbortSignal,
    max_turns: float = 20,
    max_budget_usd: float = math.inf,
) -> RunState:
    """Stop if something says so; settle the calls that are open; only then ask the model."""
    stop(state, "running")
    while state.status == "running":
        if signal.aborted:
            stop(state, "interrupted", type="cancelled", reason=signal.reason)
        elif state.turns >= max_turns:
            stop(state, "max_turns_exceeded", type="max_turns")
        elif state.cost_usd >= max_budget_usd:
            stop(state, "budget_exceeded", type="max_budget")
        elif calls := pending(state):
            for call in calls:
                state.messages.append(await run_call(call, tools))
        else:
            await ask(state, tools, client)
    return state
