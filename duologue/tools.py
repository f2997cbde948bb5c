"""Tools: a plain typed async function with a docstring is one; every call is settled once.

@registry.tool(r"what time is it in (?P<place>.+)")
async def current_time(place: str) -> ToolResult:
    '''Tell the time in a city.'''
"""

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from duologue.errors import DuologueError, UsageError
from duologue.limits import TurnBudget


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool found.

    Attributes:
        data: JSON-able facts for the model.
        say: The answer in words, for set-ups whose model cannot phrase it.
    """

    data: Any
    say: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A registered function and how it is called."""

    name: str
    description: str
    run: Callable[..., Awaitable[ToolResult]]
    arguments: type[BaseModel]
    phrases: tuple[re.Pattern[str], ...]
    cancel_on_barge_in: bool
    timeout_s: float

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI's function form."""
        parameters = self.arguments.model_json_schema()
        parameters.pop("title", None)
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


class ToolRegistry:
    """The tools of one session.

    Attributes:
        budget: What bounds the calls of a turn; None does not.
    """

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self.budget: TurnBudget | None = None

    def tool(
        self, *phrases: str, cancel_on_barge_in: bool = True, timeout_s: float = 10.0
    ) -> Callable[[Callable[..., Awaitable[ToolResult]]], Callable[..., Awaitable[ToolResult]]]:
        """Register a function.

        Args:
            phrases: Patterns of requests that call it without a model's choice; the named groups
                are its arguments.
            cancel_on_barge_in: Whether an interruption ends a running call, or lets it finish.
            timeout_s: Longest run of one call.
        """

        def register(run: Callable[..., Awaitable[ToolResult]]) -> Callable[..., Any]:
            name = getattr(run, "__name__", "")
            if name in self._tools:
                raise UsageError(f"tool {name!r} is registered twice; give one another name")
            fields: dict[str, Any] = {
                p.name: (p.annotation, ... if p.default is p.empty else p.default)
                for p in inspect.signature(run, eval_str=True).parameters.values()
            }
            self._tools[name] = Tool(
                name=name,
                description=inspect.getdoc(run) or name,
                run=run,
                arguments=create_model(name, __config__=ConfigDict(extra="forbid"), **fields),
                phrases=tuple(re.compile(phrase, re.IGNORECASE) for phrase in phrases),
                cancel_on_barge_in=cancel_on_barge_in,
                timeout_s=timeout_s,
            )
            return run

        return register

    def get(self, name: str) -> Tool | None:
        """The tool called `name`, if there is one."""
        return self._tools.get(name)

    def schemas(self) -> list[dict[str, Any]]:
        """All tools in OpenAI's function form."""
        return [tool.schema for tool in self._tools.values()]

    def route(self, text: str) -> tuple[str, str] | None:
        """(name, JSON arguments) of the tool whose phrase stands in `text`, if any."""
        for tool in self._tools.values():
            for phrase in tool.phrases:
                if match := phrase.search(text):
                    return tool.name, json.dumps(
                        {k: v.strip() for k, v in match.groupdict().items() if v}
                    )
        return None


class CallState(Enum):
    """Where a call stands; the last three are final."""

    REQUESTED = "requested"
    RUNNING = "running"
    RESULT = "result"
    ERROR = "error"
    CANCELLED = "cancelled"

    @property
    def settled(self) -> bool:
        """Whether nothing more can happen to the call."""
        return self not in (CallState.REQUESTED, CallState.RUNNING)


_NEXT = {
    CallState.REQUESTED: {CallState.RUNNING, CallState.ERROR, CallState.CANCELLED},
    CallState.RUNNING: {CallState.RESULT, CallState.ERROR, CallState.CANCELLED},
}


@dataclass(slots=True)
class Call:
    """One call in the ledger."""

    call_id: str
    name: str
    arguments: str
    state: CallState = CallState.REQUESTED
    result: ToolResult | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)


Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


class CallLedger:
    """requested -> running -> settled(result | error | cancelled), each call exactly once.

    pipecat 1.14 can leave a call "in progress" for ever when a cancel overtakes its start
    (pipecat-ai/pipecat#5779); here a call's state changes in one place only.

    Args:
        registry: The tools.
        on_change: Told of every state that a call enters.
        spawn: Makes a task that somebody owns.
    """

    KEPT = 64

    def __init__(
        self,
        registry: ToolRegistry,
        on_change: Callable[[Call], Awaitable[None]],
        spawn: Spawn = lambda coroutine, name: asyncio.create_task(coroutine, name=name),
    ):
        self._registry = registry
        self._on_change = on_change
        self._spawn = spawn
        self._calls: dict[str, Call] = {}

    @property
    def open_calls(self) -> list[Call]:
        """Calls that are not settled."""
        return [call for call in self._calls.values() if not call.state.settled]

    async def request(self, call_id: str, name: str, arguments: str) -> Call:
        """Enter a call and start it beside whatever else goes on; a known id is not run again."""
        if known := self._calls.get(call_id):
            return known
        call = self._calls[call_id] = Call(call_id, name, arguments)
        self._forget_old()
        await self._on_change(call)
        if call.state is CallState.REQUESTED:
            call.task = self._spawn(self._run(call), f"tool {name}")
        return call

    async def barge_in(self) -> None:
        """Cancel the open calls of tools that do not outlive an interruption."""
        for call in self.open_calls:
            tool = self._registry.get(call.name)
            if tool is None or tool.cancel_on_barge_in:
                await self.cancel(call)

    async def cancel(self, call: Call) -> None:
        """Settle a call as cancelled, unless it is settled already."""
        await self._enter(call, CallState.CANCELLED, ToolResult("cancelled"))

    async def close(self) -> None:
        """Cancel everything; for the session's end."""
        for call in self.open_calls:
            await self.cancel(call)

    async def _run(self, call: Call) -> None:
        budget = self._registry.budget
        if budget is not None and not budget.take_tool_call():
            await self._fail(call, "no more tools may be called in this turn; answer without")
            return
        tool = self._registry.get(call.name)
        if tool is None:
            names = ", ".join(schema["function"]["name"] for schema in self._registry.schemas())
            await self._fail(call, f"there is no tool {call.name!r}; there are: {names or 'none'}")
            return
        try:
            arguments = tool.arguments.model_validate_json(call.arguments)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors()
            )
            await self._fail(call, f"{call.name} was called with {call.arguments!r}: {problems}")
            return
        if not await self._enter(call, CallState.RUNNING, None):
            return
        try:
            async with asyncio.timeout(tool.timeout_s):
                result = await tool.run(**dict(arguments))
        except TimeoutError:
            await self._fail(call, f"{call.name} took longer than {tool.timeout_s:g} s")
        except DuologueError as error:
            await self._fail(call, str(error))
        except Exception as error:
            await self._fail(call, f"{call.name} failed: {type(error).__name__}: {error}")
        else:
            await self._enter(call, CallState.RESULT, result)

    async def _fail(self, call: Call, reason: str) -> None:
        say = "Sorry, that did not work."
        await self._enter(call, CallState.ERROR, ToolResult({"error": reason}, say))

    async def _enter(self, call: Call, state: CallState, result: ToolResult | None) -> bool:
        """Make the transition if it is one; the loser of a race changes nothing."""
        if state not in _NEXT.get(call.state, ()):
            return False
        call.state, call.result = state, result
        if state is CallState.CANCELLED and call.task is not None:
            call.task.cancel()
        await self._on_change(call)
        return True

    def _forget_old(self) -> None:
        settled = [call_id for call_id, call in self._calls.items() if call.state.settled]
        for call_id in settled[: max(0, len(self._calls) - self.KEPT)]:
            del self._calls[call_id]
