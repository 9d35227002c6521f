"""What agent libraries call the terms of this book, and what they have that the harness lacks.

``Cell.names`` are the names behind the words: ``python -m benchmarks.peers`` refuses to record
anything while one of them is missing from the installed packages.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """Words for a reader, in Markdown, and the names that must exist for them to be true."""

    words: str
    names: tuple[str, ...] = ()


def cell(words: str, *names: str) -> Cell:
    return Cell(words, names)


NONE = cell("none")

# Our term → library → its term.
TERMS: dict[str, dict[str, Cell]] = {
    "turn cap": {
        "openai-agents": cell(
            "`max_turns=10`, raises `MaxTurnsExceeded`",
            "agents:Runner.run(max_turns)",
            "agents:MaxTurnsExceeded",
        ),
        "pydantic-ai": cell(
            "`request_limit=50`, raises `UsageLimitExceeded`",
            "pydantic_ai:UsageLimits.request_limit",
            "pydantic_ai:UsageLimitExceeded",
        ),
        "langgraph, langchain": cell(
            "`recursion_limit` counts steps of the graph, raises `GraphRecursionError`; "
            "`ModelCallLimitMiddleware`",
            "langchain_core.runnables:RunnableConfig.recursion_limit",
            "langgraph.errors:GraphRecursionError",
            "langchain.agents.middleware:ModelCallLimitMiddleware",
        ),
        "smolagents": cell(
            "`max_steps=20`, then one request more for an answer",
            "smolagents:ToolCallingAgent.run(max_steps)",
            "smolagents:ToolCallingAgent.provide_final_answer",
        ),
    },
    "budget in money": {
        "openai-agents": NONE,
        "pydantic-ai": cell("`cost_limit`", "pydantic_ai:UsageLimits.cost_limit"),
        "langgraph, langchain": NONE,
        "smolagents": NONE,
    },
    "stop condition": {
        "openai-agents": cell(
            "`tool_use_behavior`: `StopAtTools`, or a function",
            "agents:Agent.tool_use_behavior",
            "agents:StopAtTools",
        ),
        "pydantic-ai": cell(
            "your own loop over `Agent.iter`; `timeout`",
            "pydantic_ai:Agent.iter",
            "pydantic_ai:Agent.run(timeout)",
        ),
        "langgraph, langchain": cell(
            "an edge to `END`; `can_jump_to` of a middleware",
            "langgraph.graph:END",
            "langchain.agents.middleware:hook_config(can_jump_to)",
        ),
        "smolagents": cell(
            "`step_callbacks` that call `interrupt()`",
            "smolagents:MultiStepAgent(step_callbacks)",
            "smolagents:MultiStepAgent.interrupt",
        ),
    },
    "Stop (signal)": {
        "openai-agents": cell(
            "`cancel()` of a streamed run", "agents:RunResultStreaming.cancel(mode)"
        ),
        "pydantic-ai": cell(
            "`CancellationToken`, raises `RunCancelled`",
            "pydantic_ai:CancellationToken",
            "pydantic_ai:Agent.run(cancellation_token)",
            "pydantic_ai.exceptions:RunCancelled",
        ),
        "langgraph, langchain": cell(
            "`RunControl.request_drain`: at the next step",
            "langgraph.runtime:RunControl.request_drain",
        ),
        "smolagents": cell(
            "`interrupt()`: at the next step", "smolagents:MultiStepAgent.interrupt"
        ),
    },
    "approval": {
        "openai-agents": cell(
            "`needs_approval`, then `interruptions`",
            "agents:function_tool(needs_approval)",
            "agents:RunResult.interruptions",
        ),
        "pydantic-ai": cell(
            "`requires_approval`, then `DeferredToolRequests`",
            "pydantic_ai:Tool(requires_approval)",
            "pydantic_ai:DeferredToolRequests",
        ),
        "langgraph, langchain": cell(
            "`interrupt()`; `HumanInTheLoopMiddleware`",
            "langgraph.types:interrupt",
            "langchain.agents.middleware:HumanInTheLoopMiddleware",
        ),
        "smolagents": NONE,
    },
    "approve, reject, go on": {
        "openai-agents": cell(
            "`approve`, `reject` of a `RunState`, which is run again",
            "agents:RunState.approve",
            "agents:RunState.reject",
        ),
        "pydantic-ai": cell(
            "`DeferredToolResults`, `ToolDenied`",
            "pydantic_ai:DeferredToolResults",
            "pydantic_ai:ToolDenied",
            "pydantic_ai:Agent.run(deferred_tool_results)",
        ),
        "langgraph, langchain": cell("`Command(resume=...)`", "langgraph.types:Command(resume)"),
        "smolagents": NONE,
    },
    "tool error policy": {
        "openai-agents": cell(
            "one fixed sentence, or your `failure_error_function`",
            "agents:function_tool(failure_error_function)",
        ),
        "pydantic-ai": cell(
            "`ModelRetry` and `ToolFailed` go back; any other error ends the run",
            "pydantic_ai:ModelRetry",
            "pydantic_ai.exceptions:ToolFailed",
        ),
        "langgraph, langchain": cell(
            "`handle_tool_errors`; `ToolErrorMiddleware`",
            "langgraph.prebuilt:ToolNode(handle_tool_errors)",
            "langchain.agents.middleware:ToolErrorMiddleware",
        ),
        "smolagents": cell(
            "`AgentToolExecutionError`: its words go back to the model",
            "smolagents.utils:AgentToolExecutionError",
        ),
    },
    "run state, on disk": {
        "openai-agents": cell(
            "`to_json` of a `RunState`, with a schema version",
            "agents:RunState.to_json",
            "agents:RunState.from_json",
            "agents.run_state:CURRENT_SCHEMA_VERSION",
        ),
        "pydantic-ai": cell(
            "`all_messages_json`, `message_history`",
            "pydantic_ai.run:AgentRunResult.all_messages_json",
            "pydantic_ai:Agent.run(message_history)",
        ),
        "langgraph, langchain": cell(
            "a checkpointer, a `thread_id`, `StateSnapshot`",
            "langgraph.checkpoint.base:BaseCheckpointSaver",
            "langgraph.types:StateSnapshot",
        ),
        "smolagents": cell(
            "`agent.memory`, `run(reset=False)`; in the process only",
            "smolagents:AgentMemory",
            "smolagents:MultiStepAgent.run(reset)",
        ),
    },
    "trace": {
        "openai-agents": cell(
            "`trace`, `Span`, `TracingProcessor`; uploaded unless disabled",
            "agents:trace",
            "agents:Span",
            "agents:TracingProcessor",
            "agents:RunConfig.tracing_disabled",
        ),
        "pydantic-ai": cell(
            "`InstrumentationSettings`: OpenTelemetry spans",
            "pydantic_ai.models.instrumented:InstrumentationSettings",
        ),
        "langgraph, langchain": cell(
            "`BaseCallbackHandler`; LangSmith",
            "langchain_core.callbacks:BaseCallbackHandler",
            "langsmith",
        ),
        "smolagents": cell(
            "`step_callbacks`, `Monitor`, `AgentLogger`",
            "smolagents:MultiStepAgent(step_callbacks)",
            "smolagents:Monitor",
            "smolagents:AgentLogger",
        ),
    },
    "run behind a tool": {
        "openai-agents": cell(
            "`Agent.as_tool`; a `handoff` passes the whole conversation on",
            "agents:Agent.as_tool",
            "agents:handoff",
        ),
        "pydantic-ai": cell(
            "a tool that runs an agent, with `usage=ctx.usage`",
            "pydantic_ai:Agent.run(usage)",
            "pydantic_ai:RunContext.usage",
        ),
        "langgraph, langchain": cell(
            "a subgraph: `add_node` takes a compiled graph",
            "langgraph.graph:StateGraph.add_node",
        ),
        "smolagents": cell("`managed_agents`", "smolagents:MultiStepAgent(managed_agents)"),
    },
}

# What it has → library → where.
LACKED: dict[str, dict[str, Cell]] = {
    "calls of one message at once": {
        "openai-agents": cell(
            "yes; there is a limit to set",
            "agents.run_config:ToolExecutionConfig.max_function_tool_concurrency",
        ),
        "pydantic-ai": cell("yes, unless `sequential`", "pydantic_ai:Tool(sequential)"),
        "langgraph, langchain": cell("yes, and branches: `Send`", "langgraph.types:Send"),
        "smolagents": cell(
            "yes, `max_tool_threads`", "smolagents:ToolCallingAgent(max_tool_threads)"
        ),
    },
    "a transcript that is shortened": {
        "openai-agents": cell(
            "a session that compacts, with OpenAI's Responses",
            "agents.memory:OpenAIResponsesCompactionSession",
        ),
        "pydantic-ai": cell(
            "`ProcessHistory`, a function of yours", "pydantic_ai.capabilities:ProcessHistory"
        ),
        "langgraph, langchain": cell(
            "`SummarizationMiddleware`, `ContextEditingMiddleware`",
            "langchain.agents.middleware:SummarizationMiddleware",
            "langchain.agents.middleware:ContextEditingMiddleware",
        ),
        "smolagents": NONE,
    },
    "answers of a given type": {
        "openai-agents": cell("`output_type`", "agents:Agent.output_type"),
        "pydantic-ai": cell("`output_type`", "pydantic_ai:Agent(output_type)"),
        "langgraph, langchain": cell(
            "`response_format`",
            "langchain.agents:create_agent(response_format)",
        ),
        "smolagents": cell(
            "`final_answer_checks`", "smolagents:MultiStepAgent(final_answer_checks)"
        ),
    },
    "tools from servers (MCP)": {
        "openai-agents": cell("`MCPServerStdio`", "agents.mcp:MCPServerStdio"),
        "pydantic-ai": cell("`pydantic_ai.mcp`", "pydantic_ai.mcp"),
        "langgraph, langchain": cell("in a package of its own"),
        "smolagents": cell("`MCPClient`", "smolagents:MCPClient"),
    },
    "only here": {
        "openai-agents": cell(
            "handoffs, guardrails, hosted tools, voice",
            "agents:handoff",
            "agents:input_guardrail",
            "agents:WebSearchTool",
            "agents.voice",
        ),
        "pydantic-ai": cell(
            "durable execution on Temporal, DBOS or Prefect; `FallbackModel`",
            "pydantic_ai.durable_exec",
            "pydantic_ai.models.fallback:FallbackModel",
        ),
        "langgraph, langchain": cell(
            "any graph as a loop; time travel: `get_state_history`",
            "langgraph.pregel:Pregel.get_state_history",
        ),
        "smolagents": cell(
            "`CodeAgent`: actions are Python code, in a sandbox (`DockerExecutor`)",
            "smolagents:CodeAgent",
            "smolagents.remote_executors:DockerExecutor",
        ),
    },
}
