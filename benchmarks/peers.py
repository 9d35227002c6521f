"""The book's scripts, run by agent libraries in place of the harness.

    pip install -r requirements-peers.txt   # best into an environment of its own
    python -m benchmarks.peers              # run all, write data/recorded/peers.json
    python -m benchmarks.peers --compare    # run what is installed, compare with the recording

Each ``run_...`` is what the documentation of its library would have one write for two tools and a
cap on turns. Their imports stand inside, so that this module loads where no library is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.peers_terms import LACKED, TERMS
from chat_client import ChatClient, price_for
from harness import Limits, Tool, new_run, run
from scripted_provider import (
    SCRIPTS,
    Exchange,
    Message,
    Provider,
    asks,
    call,
    plan,
    serving,
    usage_of,
)

ROOT = Path(__file__).resolve().parent.parent
RECORDING = ROOT / "data" / "recorded" / "peers.json"
LOGS = ROOT / "data" / "logs"
SYSTEM = (
    "You answer questions about a directory of log files. Use the tools to look before you answer."
)
TASK = "Which file mentions a timeout?"

# --- the two tools, as plain functions: every library makes its own kind of tool of them ---------


def list_files() -> str:
    """List the names of the files in the directory."""
    names = sorted(file.name for file in LOGS.iterdir())
    return json.dumps(names, separators=(",", ":"))


def read_file(path: str) -> str:
    """Return the whole text of one file, by name.

    Args:
        path: The name of the file.
    """
    file = LOGS / Path(path).name
    if not file.is_file():
        raise FileNotFoundError(f"no such file: {path}. Call list_files to see what exists.")
    return file.read_text("utf-8")


# --- one adapter a library ----------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a run came back to its caller: a status, or an exception; and the words with it."""

    how: str
    text: str


async def ending(result: Awaitable[Any], answer: Callable[[Any], Any]) -> Ended:
    """What the caller of a library sees: the answer that was returned, or what was raised."""
    try:
        return Ended("returned", str(answer(await result)))
    except Exception as problem:
        return Ended(f"raised {type(problem).__name__}", str(problem).partition("\n")[0])


async def run_harness(base_url: str, turns: int, script: str = "runaway") -> Ended:
    """The harness, for comparison."""
    path = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tools = [
        Tool("list_files", "List the files.", None, lambda args, ctx: list_files(), True),
        Tool("read_file", "Read a file.", path, lambda args, ctx: read_file(args["path"]), True),
    ]
    async with ChatClient(base_url, script, price=price_for("book")) as client:
        state = await run(new_run(SYSTEM, TASK), tools, client, limits=Limits(max_turns=turns))
    return Ended(f"status {state.status}", state.output or state.error or "")


async def run_openai_agents(base_url: str, turns: int, script: str = "runaway") -> Ended:
    from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        agent = Agent(
            name="logs",
            instructions=SYSTEM,
            model=OpenAIChatCompletionsModel(script, client),
            tools=[function_tool(list_files), function_tool(read_file)],
        )
        untraced = RunConfig(tracing_disabled=True)  # else it uploads its traces
        result = Runner.run(agent, TASK, max_turns=turns, run_config=untraced)
        return await ending(result, lambda result: result.final_output)


async def run_pydantic_ai(base_url: str, turns: int, script: str = "runaway") -> Ended:
    from pydantic_ai import Agent, UsageLimits
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(script, provider=OpenAIProvider(base_url=base_url, api_key="none"))
    agent = Agent(model, instructions=SYSTEM, tools=[list_files, read_file])
    result = agent.run(TASK, usage_limits=UsageLimits(request_limit=turns))
    return await ending(result, lambda result: result.output)


async def run_langgraph(base_url: str, turns: int, script: str = "runaway") -> Ended:
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    tools = [list_files, read_file]
    model = ChatOpenAI(model=script, base_url=base_url, api_key="none").bind_tools(tools)

    async def ask(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([("system", SYSTEM), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    # A step of the graph is a call of the model or the tools after it: two of them a turn.
    steps = {"recursion_limit": 2 * turns}
    result = graph.compile().ainvoke({"messages": [("user", TASK)]}, steps)
    return await ending(result, lambda result: result["messages"][-1].content)


async def run_langchain(base_url: str, turns: int, script: str = "runaway") -> Ended:
    """langgraph with the agent that langchain builds on it, and its cap on calls of the model."""
    from langchain.agents import create_agent
    from langchain.agents.middleware import ModelCallLimitMiddleware
    from langchain_openai import ChatOpenAI

    agent = create_agent(
        ChatOpenAI(model=script, base_url=base_url, api_key="none"),
        [list_files, read_file],
        system_prompt=SYSTEM,
        middleware=[ModelCallLimitMiddleware(run_limit=turns)],
    )
    result = agent.ainvoke({"messages": [("user", TASK)]})
    return await ending(result, lambda result: result["messages"][-1].content)


async def run_smolagents(base_url: str, turns: int, script: str = "runaway") -> Ended:
    from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

    # flatten_messages_as_text: the provider takes content as text only.
    model = OpenAIModel(script, base_url, api_key="none", flatten_messages_as_text=True)
    agent = ToolCallingAgent(
        [tool(list_files), tool(read_file)],
        model,
        instructions=SYSTEM,
        max_steps=turns,
        verbosity_level=LogLevel.OFF,
        return_full_result=True,
    )
    ended = await ending(
        asyncio.to_thread(agent.run, TASK), lambda result: f"{result.output}\0{result.state}"
    )
    text, _, state = ended.text.partition("\0")
    return Ended(f"{ended.how}, state {state}" if state else ended.how, text)


# --- what is run, and what is kept of it --------------------------------------------------------


@dataclass(frozen=True)
class Library:
    """A library: how it is run here, and the distributions whose versions decide what it does."""

    run: Callable[[str, int, str], Awaitable[Ended]]
    distributions: tuple[str, ...]

    @property
    def versions(self) -> dict[str, str] | None:
        """The installed versions; None when one of the distributions is missing."""
        try:
            return {name: metadata.version(name) for name in self.distributions}
        except metadata.PackageNotFoundError:
            return None


LIBRARIES: dict[str, Library] = {
    "openai-agents": Library(run_openai_agents, ("openai-agents", "openai")),
    "pydantic-ai": Library(run_pydantic_ai, ("pydantic-ai-slim", "openai")),
    "langgraph": Library(run_langgraph, ("langgraph", "langgraph-prebuilt", "langchain-openai")),
    "langchain": Library(run_langchain, ("langchain", "langgraph", "langchain-openai")),
    "smolagents": Library(run_smolagents, ("smolagents", "openai")),
}


def plan_by_tool(turn: int, tool_text: str) -> Message:
    """As ``plan``, but the answer is a call: smolagents takes it from its final_answer only."""
    if turn < 2:
        return plan(turn, tool_text)
    answer = plan(turn, tool_text)["content"]
    return asks(call("c3", "final_answer", {"answer": answer}))


ALL_SCRIPTS = {**SCRIPTS, "plan_by_tool": plan_by_tool}
# Script and cap on turns. Those of smolagents differ: see plan_by_tool; and it sends the results
# of tools as words of the user, where `recover` does not look for them.
RUNS: tuple[tuple[str, int], ...] = (("plan", 20), ("runaway", 8), ("recover", 20))
RUNS_OF_SMOLAGENTS = (("plan", 20), ("plan_by_tool", 20), ("runaway", 8))


def runs_of(library: str) -> tuple[tuple[str, int], ...]:
    return RUNS_OF_SMOLAGENTS if library == "smolagents" else RUNS


async def observed(
    runner: Callable[[str, int, str], Awaitable[Ended]], script: str, cap: int
) -> dict[str, Any]:
    """One run against a provider of its own: how it ended, and what the provider saw of it."""
    provider = Provider(scripts=ALL_SCRIPTS)
    with serving(provider) as url:
        ended = await runner(url, cap, script)
    return {
        "script": script,
        "cap": cap,
        **asdict(ended),
        "requests": len(provider.journal),
        "prompt_tokens": sum(_prompt_tokens(exchange) for exchange in provider.journal),
    }


def _prompt_tokens(exchange: Exchange) -> int:
    return usage_of(exchange.request, {})["prompt_tokens"]


async def observe(library: str) -> list[dict[str, Any]]:
    """All runs of one library."""
    return [await observed(LIBRARIES[library].run, script, cap) for script, cap in runs_of(library)]


# --- do the names of the terms exist? -----------------------------------------------------------


def exists(name: str) -> bool:
    """Whether ``module:Name.attribute(parameter)`` is there in the installed packages."""
    module, _, rest = name.partition(":")
    path, _, parameter = rest.partition("(")
    try:
        thing: Any = importlib.import_module(module)
    except ImportError:
        return importlib.util.find_spec(module) is not None  # there, but needs more installed
    for step in path.split(".") if path else ():
        fields = inspect.get_annotations(thing) if inspect.isclass(thing) else {}
        if not hasattr(thing, step) and step not in fields:
            return False
        thing = getattr(thing, step, fields.get(step))
    return not parameter or parameter.rstrip(")") in inspect.signature(thing).parameters


def missing_names() -> list[str]:
    """Names in the tables of terms that the installed packages do not have."""
    cells = [cell for table in (TERMS, LACKED) for row in table.values() for cell in row.values()]
    return [name for cell in cells for name in cell.names if not exists(name)]


# --- the command line ---------------------------------------------------------------------------


async def record() -> int:
    """Run every library and write the recording. Returns the exit status."""
    absent = [name for name, library in LIBRARIES.items() if library.versions is None]
    if absent:
        print(f"not installed: {', '.join(absent)}; pip install -r requirements-peers.txt")
        return 1
    if unknown := missing_names():
        print(f"these names are in no installed package: {', '.join(unknown)}")
        return 1
    recording = {
        name: {"versions": library.versions, "runs": await observe(name)}
        for name, library in LIBRARIES.items()
    }
    RECORDING.parent.mkdir(parents=True, exist_ok=True)
    RECORDING.write_text(json.dumps(recording, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"{len(recording)} libraries recorded in {RECORDING.relative_to(ROOT)}")
    return 0


async def compare() -> int:
    """Run what is installed and print what differs from the recording, a line each."""
    recording = json.loads(RECORDING.read_text("utf-8"))
    differences = 0
    for name, library in LIBRARIES.items():
        if library.versions is None:
            continue
        for before, now in zip(recording[name]["runs"], await observe(name), strict=True):
            if before != now:
                differences += 1
                print(f"{name}, {before['script']}: recorded {before}, now {now}")
    print(f"differences from the recording: {differences}")
    return min(differences, 1)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--compare", action="store_true", help="compare with the recording")
    options = parser.parse_args(argv)
    return asyncio.run(compare() if options.compare else record())


if __name__ == "__main__":
    sys.exit(main())
