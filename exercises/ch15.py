"""Checks for chapter 15: the whole harness."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from catalogue import catalogue
from chat_client import ChatClient, Message, Reply
from exercises import no_script, number, right, unanswered, wrong
from harness import Limits, Tool, new_run, run
from scripted_provider import asks, call, text
from workbook import SYSTEM, TASK, client_for

TURNS_KEPT, TURNS = 3, 20


def check_1(answer: Any) -> None:
    """The first turn of the runaway whose request is longer than 4,000 tokens."""
    number(
        answer,
        61,
        "Each turn adds about 64 tokens to the request. The run has cost about a quarter of a "
        "dollar by then, and the next request is refused: no cap of this book was needed.",
        {
            9: "After 9 turns all requests *together* hold more than 4,000. A window holds one.",
            60: "Turn 60 still fits, with 19 tokens to spare.",
            62: "Turn 61 is too long already: its request is the one that turn 60 left behind.",
            63: "4,000 / 64 forgets that the first request is not empty.",
        },
        "Look at the prompt_tokens of single turns in the trace, not at their sum.",
    )


class _Shortening:
    """A client that sends what ``shorten`` leaves of the transcript."""

    def __init__(self, client: ChatClient, shorten: Callable[[Any], Any]) -> None:
        self.client = client
        self.shorten = shorten
        self.sent: list[Sequence[Message]] = []
        self.problem = ""

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        *,
        on_delta: Callable[[str], None] | None = None,
    ) -> Reply:
        sent = self.shorten([dict(message) for message in messages])
        if not isinstance(sent, list):
            raise TypeError(f"it must return a list of messages, not {type(sent).__name__}")
        self.sent.append(sent)
        return await self.client.complete(sent, tools, on_delta=on_delta)


async def check_2(answer: Any) -> None:
    """A compaction that keeps the opening and the last turns."""
    if unanswered(answer):
        return
    if not callable(answer):
        wrong("A function is asked for: it takes the messages and returns those to send.")
        return
    client = _Shortening(client_for("runaway"), answer)
    limits = Limits(max_turns=TURNS)
    state = await run(new_run(SYSTEM, TASK), catalogue(), client, limits=limits)
    if state.status != "max_turns_exceeded":
        wrong(f"The run ended after {state.turns} turns: {state.error}")
        return
    last = client.sent[-1]
    kept = sum(message["role"] == "assistant" for message in last)
    if last[:2] != state.messages[:2]:
        wrong("The messages before the first turn are the task itself: keep them.")
    elif kept != TURNS_KEPT:
        wrong(f"The last request holds {kept} turns; {TURNS_KEPT} are asked for.")
    elif last[-1] != state.messages[-2]:
        wrong("Those are not the last turns: the newest result is missing.")
    else:
        right(
            f"{state.prompt_tokens:,} prompt tokens for {TURNS} turns; without it they are "
            "16,259. The transcript in the state is whole: only what is sent is short. What the "
            "model forgot by it is the price, and no counter shows that."
        )


async def check_3(answer: Any) -> None:
    """A script that costs a dollar on a budget of one cent."""
    if no_script(answer):
        return
    limits = Limits(max_budget_usd=0.01)
    state = await run(new_run(SYSTEM, TASK), catalogue(), client_for(answer), limits=limits)
    if state.cost_usd >= 1:
        right(
            f"${state.cost_usd:.6f}, on a budget of one cent. The overshoot is one turn, and "
            "nothing here bounds one turn. A real endpoint does, if you send max_tokens: "
            'ChatClient(..., options={"max_tokens": 1000}).'
        )
    else:
        wrong(
            f"It cost ${state.cost_usd:.6f} and ended as {state.status}. The budget is asked "
            "before each turn. What can one turn be, at most?"
        )


async def check_4(answer: Any) -> None:
    """A tool whose approval depends on its arguments."""
    if unanswered(answer):
        return
    if not isinstance(answer, Tool):
        wrong(f"A Tool is asked for; this is a {type(answer).__name__}.")
        return
    for amount, asked in ((100, False), (100.5, True), (5, False), (1_000_000, True)):
        status, said = await _transfer(answer, amount)
        if "Error" in said:
            wrong(f"A transfer of {amount:,} came back as: {said}")
            return
        if (status == "interrupted") != asked:
            how = "was made without asking" if asked else "asked a person"
            wrong(f"A transfer of {amount:,} {how}.")
            return
    if answer.read_only:
        wrong("It moves money, so it is not read_only: a resumed run would move it twice.")
        return
    if "Error" not in (await _transfer(answer, "lots"))[1]:
        wrong('An amount of "lots" was taken. Say in the schema that it is a number.')
        return
    right("The question is asked of the arguments, before the tool has done anything.")


async def _transfer(tool: Tool, amount: Any) -> tuple[str, str]:
    """How a run that asks for one transfer ends, and what the model was told of it."""

    def pays(turn: int, tool_text: str) -> Message:
        if turn == 0:
            return asks(call("t1", "transfer", {"to": "the landlord", "amount": amount}))
        return text("Paid.")

    state = await run(new_run(SYSTEM, "Pay."), [tool], client_for(pays))
    return state.status, "".join(m["content"] for m in state.messages if m["role"] == "tool")
