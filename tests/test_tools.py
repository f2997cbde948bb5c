"""Tools and the call ledger (reports C1, C2, C5, C9, C10, C12)."""

import asyncio
import json
from datetime import UTC, datetime

import pytest

from bots.tools import number_of, room_tools, zone_of
from duologue.errors import InputError, UsageError
from duologue.lm.engine import Finish, Request, TextDelta, ToolCall
from duologue.lm.rules import RuleRouted
from duologue.tools import Call, CallLedger, CallState, ToolRegistry, ToolResult
from tests.fakes import FakeEngine


class Desk:
    """A registry with test tools and a ledger that notes every change."""

    def __init__(self):
        self.registry = ToolRegistry()
        self.changes: list[tuple[str, CallState]] = []
        self.runs: list[str] = []
        self.gate = asyncio.Event()
        self.ledger = CallLedger(self.registry, self.note)

        @self.registry.tool(timeout_s=0.01)
        async def slow(n: int = 0) -> ToolResult:
            """Never ends by itself."""
            self.runs.append(f"slow {n}")
            await asyncio.Event().wait()
            return ToolResult(n)

        @self.registry.tool()
        async def gated(n: int) -> ToolResult:
            """Ends when the gate opens."""
            self.runs.append(f"gated {n}")
            await self.gate.wait()
            return ToolResult(n)

        @self.registry.tool(cancel_on_barge_in=False)
        async def keeper() -> ToolResult:
            """Outlives an interruption."""
            await self.gate.wait()
            return ToolResult("kept")

        @self.registry.tool()
        async def broken() -> ToolResult:
            """Fails."""
            raise RuntimeError("no luck")

    async def note(self, call: Call) -> None:
        self.changes.append((call.call_id, call.state))

    async def settled(self, call: Call) -> Call:
        await asyncio.wait([call.task])
        return call

    def states(self, call_id: str) -> list[str]:
        return [state.value for known, state in self.changes if known == call_id]


async def test_a_call_goes_through_its_states_once():
    desk = Desk()
    call = await desk.ledger.request("a", "gated", '{"n": 7}')
    desk.gate.set()
    await desk.settled(call)
    assert call.result == ToolResult(7)
    assert desk.states("a") == ["requested", "running", "result"]


async def test_interruption_after_the_result_changes_nothing_and_the_id_never_runs_again():
    desk = Desk()
    desk.gate.set()
    call = await desk.settled(await desk.ledger.request("a", "gated", '{"n": 1}'))
    await desk.ledger.barge_in()
    assert await desk.ledger.request("a", "gated", '{"n": 1}') is call
    assert desk.runs == ["gated 1"]
    assert call.state is CallState.RESULT


async def test_a_cancel_that_overtakes_the_start_settles_the_call():
    desk = Desk()
    call = await desk.ledger.request("a", "gated", '{"n": 1}')
    assert call.state is CallState.REQUESTED
    await desk.ledger.barge_in()
    await asyncio.sleep(0)
    desk.gate.set()
    await asyncio.sleep(0)
    assert desk.states("a") == ["requested", "cancelled"]
    assert desk.runs == []
    assert not desk.ledger.open_calls


async def test_barge_in_cancels_or_keeps_as_the_tool_says():
    desk = Desk()
    gated = await desk.ledger.request("a", "gated", '{"n": 1}')
    keeper = await desk.ledger.request("b", "keeper", "{}")
    await asyncio.sleep(0.001)
    await desk.ledger.barge_in()
    desk.gate.set()
    await desk.settled(keeper)
    assert (gated.state, keeper.state) == (CallState.CANCELLED, CallState.RESULT)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("nothing", "{}", "there is no tool 'nothing'"),
        ("gated", '{"n": ', "called with"),
        ("gated", '{"n": "many"}', "n: "),
        ("gated", "{}", "n: Field required"),
        ("gated", '{"n": 1, "x": 2}', "x: "),
        ("slow", "{}", "longer than 0.01 s"),
        ("broken", "{}", "RuntimeError: no luck"),
    ],
)
async def test_what_cannot_run_is_settled_as_an_error(name, arguments, said):
    desk = Desk()
    call = await desk.settled(await desk.ledger.request("a", name, arguments))
    assert call.state is CallState.ERROR
    assert said in call.result.data["error"]


async def test_parallel_calls_both_run():
    desk = Desk()
    first = await desk.ledger.request("a", "gated", '{"n": 1}')
    second = await desk.ledger.request("b", "gated", '{"n": 2}')
    await asyncio.sleep(0.001)
    assert desk.runs == ["gated 1", "gated 2"]
    desk.gate.set()
    await desk.settled(first)
    await desk.settled(second)


async def test_the_ledger_stays_small():
    desk = Desk()
    desk.gate.set()
    for n in range(200):
        await desk.settled(await desk.ledger.request(str(n), "gated", '{"n": 1}'))
    assert len(desk.ledger._calls) <= CallLedger.KEPT + 1


async def test_schema_and_double_registration():
    desk = Desk()
    schema = next(s for s in desk.registry.schemas() if s["function"]["name"] == "gated")
    assert schema["function"]["parameters"]["required"] == ["n"]
    with pytest.raises(UsageError, match="registered twice"):

        @desk.registry.tool()
        async def gated() -> ToolResult:
            """Again."""
            return ToolResult(0)


class Bench:
    """The room's tools with a clock that the test moves."""

    def __init__(self):
        self.said: list[str] = []
        self.sleeps: list[float] = []
        self.ring = asyncio.Event()
        self.tools = room_tools(
            self.announce,
            lambda job, name: asyncio.create_task(job, name=name),
            now=lambda: datetime(2026, 11, 30, 12, 5, tzinfo=UTC),
            sleep=self.sleep,
        )

    async def announce(self, text: str) -> None:
        self.said.append(text)

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        await self.ring.wait()

    async def ask(self, text: str) -> ToolResult | None:
        route = self.tools.route(text)
        if route is None:
            return None
        tool = self.tools.get(route[0])
        return await tool.run(**json.loads(route[1]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("What time is it?", "It is 12:05 PM."),
        ("What's the time in Tokyo?", "It is 9:05 PM in Tokyo."),
        ("Tell me, what is the current time in New York?", "It is 7:05 AM in New York."),
        ("What time is it in Paris now?", "It is 1:05 PM in Paris."),
        ("Set a timer for five minutes.", "Okay, a timer for five minutes."),
        ("Set a timer for 1 hour, please.", "Okay, a timer for 1 hour."),
        ("Start a twenty second timer.", "Okay, a timer for twenty seconds."),
        ("Remind me in an hour.", "Okay, a timer for an hour."),
    ],
)
async def test_spoken_requests_find_their_tool(text, said):
    assert (await Bench().ask(text)).say == said


@pytest.mark.parametrize(
    "text", ["Once upon a time there was a king.", "How are you?", "I had a good time in Rome.", ""]
)
async def test_other_talk_finds_none(text):
    assert await Bench().ask(text) is None


async def test_a_timer_speaks_up_when_it_fires():
    bench = Bench()
    await bench.ask("Set a timer for thirty seconds")
    await asyncio.sleep(0)
    assert (bench.sleeps, bench.said) == ([30], [])
    bench.ring.set()
    await asyncio.sleep(0)
    assert bench.said == ["Your timer for thirty seconds is done."]


def test_places_and_numbers_that_do_not_exist_are_named():
    with pytest.raises(InputError, match="Narnia"):
        zone_of("Narnia")
    assert str(zone_of("europe/paris")) == "Europe/Paris"
    with pytest.raises(InputError, match="'zero'"):
        number_of("zero")
    assert [number_of(text) for text in ("a", "12", "twenty-five")] == [1, 12, 25]


async def test_rules_call_the_tool_and_speak_its_words():
    engine = FakeEngine(["Hello!"])
    routed = RuleRouted(engine, Bench().tools)
    ask = [{"role": "user", "content": "What time is it in Tokyo?"}]
    steps = [step async for step in routed.stream(Request(ask))]
    assert isinstance(steps[0], ToolCall)
    assert (steps[0].name, steps[1]) == ("current_time", Finish("tool_calls"))
    result = {"role": "tool", "tool_call_id": "x", "content": '{"say": "It is nine."}'}
    steps = [step async for step in routed.stream(Request([*ask, result]))]
    assert steps[0] == TextDelta("It is nine.")
    calls = {"role": "assistant", "content": "", "tool_calls": []}
    more = [*ask, calls, result, {"role": "user", "content": "Thanks."}]
    assert [s async for s in routed.stream(Request(more, tools=[{}]))][0] == TextDelta("Hello!")
    assert engine.requests[0].messages == [
        {"role": "user", "content": "What time is it in Tokyo? Thanks."}
    ]
    assert engine.requests[0].tools == []
