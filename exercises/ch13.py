"""Checks for chapter 13: a run behind a tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from catalogue import catalogue
from exercises import no_script, number, right, unanswered, wrong
from harness import RunState, Tool, new_run, run, run_as_tool, waiting_calls
from scripted_provider import Message, asks, call, count_messages, text
from workbook import SYSTEM, TASK, client_for

MOST_TOKENS = 1000


def delegate(turn: int, tool_text: str) -> Message:
    """As in the chapter: gives the question to the research tool, then repeats its result."""
    if turn == 0:
        return asks(call("p1", "research", {"task": TASK}))
    return text(f"The research says: {tool_text}")


def ask_manager(turn: int, tool_text: str) -> Message:
    if turn == 0:
        return asks(call("m1", "manager", {"task": TASK}))
    return text(tool_text)


def research_tool(script: Any, tools: Sequence[Tool]) -> Tool:
    return run_as_tool("research", "Investigate one question.", SYSTEM, tools, client_for(script))


def check_1(answer: Any) -> None:
    """Requests of a parent and its runaway child."""
    number(
        answer,
        8,
        "Six of the child, one of the parent before and one after. A child at its cap does not "
        "end its parent.",
        {
            6: "These are the child's. Who started it, and who reads what became of it?",
            7: "The parent is asked once before the child, and once after.",
            2: "These are the parent's. The child's model is asked as well.",
            12: "Only the child has a cap of 6, and the parent's script answers after the result.",
        },
        "Count the child's turns, then the turns that the parent takes before and after it.",
    )


async def check_2(answer: Any) -> None:
    """The path of a call that waits two levels down."""
    if unanswered(answer):
        return
    if not isinstance(answer, str):
        wrong(f"An id is a string; this is a {type(answer).__name__}.")
        return
    research = research_tool("destructive", catalogue())
    manager = run_as_tool("manager", "Get it done.", SYSTEM, [research], client_for(delegate))
    state = await run(new_run(SYSTEM, TASK), [manager], client_for(ask_manager))
    path = waiting_calls(state)[0]["call_id"]
    if answer == path:
        right("Each level puts the id of its own call in front. `approve` follows the path down.")
    elif path.endswith(f"/{answer}"):
        wrong(
            f"`approve` would find it by {answer!r}, since only one waiting call ends so. But "
            "that is not the id by which it is listed: each level adds its own."
        )
    elif sorted(answer.split("/")) == sorted(path.split("/")):
        wrong("The right ids in another order: begin at the top.")
    else:
        wrong("Look at the id in the chapter: the parent's call, a slash, the child's call.")


async def check_3(answer: Any) -> None:
    """A research tool that asks a person before its run begins."""
    if unanswered(answer):
        return
    if not isinstance(answer, Tool):
        wrong(f"A Tool is asked for; this is a {type(answer).__name__}.")
        return
    if answer.name != "research":
        wrong(f"The tool is still to be called research; this one is called {answer.name}.")
        return
    state = await run(new_run(SYSTEM, TASK), [answer], client_for(delegate))
    if state.status != "interrupted":
        wrong("The child ran before anyone had agreed. Which field of a Tool asks first?")
    elif waiting_calls(state)[0]["call_id"] != "p1":
        wrong("Something in the child asked. It is the research call itself that shall wait.")
    elif state.children:
        wrong("The child exists already. It must not begin before a person has agreed.")
    else:
        right("Approval belongs to the call, so a run behind the tool changes nothing about it.")


async def check_4(answer: Any, tools: Sequence[Tool]) -> None:
    """A child that floods its parent's transcript."""
    if no_script(answer):
        return
    state = await run(new_run(SYSTEM, TASK), [research_tool(answer, tools)], client_for(delegate))
    _judge_flood(state)


def _judge_flood(state: RunState) -> None:
    child = state.children["p1"]
    result = next((m for m in state.messages if m["role"] == "tool"), None)
    if child.status != "completed" or result is None:
        wrong(f"The child must answer within its 6 turns; it ended as {child.status}.")
        return
    tokens = count_messages([result])
    if tokens <= MOST_TOKENS:
        wrong(
            f"The child's answer takes {tokens:,} tokens of the parent's transcript. What could "
            "it answer with that is longer? A script gets all that the tools returned."
        )
    else:
        right(
            f"{tokens:,} tokens, of a child that was told to answer in one sentence. Nothing "
            "makes a child short: tell it to be, and look at what it returns."
        )
