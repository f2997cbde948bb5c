"""A speech-text LM that is interrupted at every moment, or gives what it should not.

Reports B1, B3, C1, C2 and C5.
"""

import asyncio
import gc

import pytest
from pipecat.frames.frames import LLMThoughtEndFrame, LLMThoughtStartFrame, TTSSpeakFrame

from duologue.errors import EngineError
from duologue.lm.engine import Finish, Ids
from duologue.lm.formats import Kind
from duologue.lm.prompt import IdsPart
from duologue.tools import ToolRegistry, ToolResult
from tests.lm.streams import decoding, ids_of
from tests.speech_line import Line, on_the_line
from tests.test_speech_lm import FAMILY, answer, ids, ta4

SAID, BEHIND, TOLD = "let me look at it", "it is late.", "yes"
SPEECH = ta4(SAID, 100)
CALL = [*ids("<tool_call>"), *ids('function\nclock_of\n{"place": "Tokyo"}'), *ids("</tool_call>")]
STREAM = [*SPEECH, *ids(BEHIND), *CALL, *ids("<|EOT|>")]
INSIDE = len(STREAM) - len(CALL) // 2
CODES = set(ids(*range(1, 101)))


def prompt(line: Line, number: int) -> list[int]:
    (part,) = line.engine.requests[number].parts
    assert isinstance(part, IdsPart)
    return list(part.ids)


@pytest.fixture
def clock():
    """A tool, and the places that it was asked for."""
    tools, asked = ToolRegistry(), list[str]()

    @tools.tool()
    async def clock_of(place: str) -> ToolResult:
        """Tell the time in a place."""
        asked.append(place)
        await asyncio.sleep(1)
        return ToolResult("late")

    return tools, asked


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice in a row"])
@pytest.mark.parametrize(
    ("given", "wait_s", "called"),
    [
        (0, 0.2, 0),
        (1, 0.2, 0),
        (40, 0.2, 0),
        (len(SPEECH), 1.5, 0),
        (len(SPEECH) + 3, 0.3, 0),
        (INSIDE, 0.3, 0),
        (INSIDE, 3, 0),
        (len(STREAM) - 1, 0.3, 1),
        (len(STREAM) - 1, 3, 1),
        (len(STREAM), 0.3, 1),
        (len(STREAM), 4.5, 1),
    ],
)
def test_who_cuts_in_at_any_moment_is_answered(clock, given, wait_s, called, times):
    async def scenario(line: Line):
        await line.ask()
        await asyncio.sleep(wait_s)
        for _ in range(times):
            await line.interrupt()
        played = len(line.batcher.tokens)
        await line.ask("Stop.")
        await asyncio.sleep(10)
        assert line.batcher.tokens[played:] == [1, 2, 3, 4]
        *kept, last = line.answers
        assert last == TOLD and line.errors == []
        assert SAID.startswith((kept or [""])[0])
        assert all(BEHIND.startswith(text) or text == TOLD for text in kept[1:])
        assert len(clock[1]) == called
        assert bool(kept) == bool(CODES & set(prompt(line, -1)))

    stream = [Ids((token,)) for token in STREAM[:given]]
    later = [answer(ta4(TOLD, 4))] * 2
    on_the_line(scenario, [*stream, asyncio.Event()], *later, tools=clock[0])


def test_what_is_said_behind_the_speech_of_a_call_does_not_lose_its_result(clock):
    async def scenario(line: Line):
        await line.ask()
        await asyncio.sleep(20)
        assert line.errors == []
        assert line.answers == [SAID, BEHIND, TOLD]
        asked = prompt(line, 1)
        start, end = (asked.index(ids(name)[0]) for name in ("<tts_end>", "<tool_call>"))
        assert FAMILY.vocab
        between = b"".join(FAMILY.vocab.pieces[token] for token in asked[start + 1 : end])
        assert BEHIND.encode() in between
        assert len(line.engine.requests) == 2

    on_the_line(scenario, answer(STREAM[:-1]), answer(ta4(TOLD, 4)), tools=clock[0])


def test_an_announcement_does_not_hide_a_result(clock):
    async def scenario(line: Line):
        await line.ask()
        await asyncio.sleep(0.3)
        await line.worker.queue_frame(TTSSpeakFrame("Time is up."))
        await asyncio.sleep(10)
        assert line.errors == []
        assert sorted(line.answers) == sorted([SAID, "Time is up.", TOLD])

    on_the_line(scenario, answer(SPEECH, CALL), answer(ta4(TOLD, 4)), tools=clock[0])


@pytest.mark.parametrize(
    "stream",
    [
        answer(ids(BEHIND)),
        [Ids(tuple(ids(BEHIND)))],
        answer(ids(BEHIND), ids("<tts_end>")),
        answer(ids("it is"), ids("<tts_end>"), ids(" late.")),
    ],
    ids=["ended", "cut", "closed", "with text behind"],
)
def test_an_answer_that_no_speech_token_says_is_said_all_the_same(stream):
    async def scenario(line: Line):
        await line.ask()
        await asyncio.sleep(5)
        assert (line.voice.said, line.answers, line.errors) == ([BEHIND], [BEHIND], [])

    on_the_line(scenario, stream)


@pytest.mark.parametrize("reason", ["abort", "length", "content_filter"])
def test_what_a_server_broke_off_is_not_taken_for_whole(reason):
    async def scenario(line: Line):
        await line.ask()
        await asyncio.sleep(5)
        assert line.answers[0] != SAID and SAID.startswith(line.answers[0])

    on_the_line(scenario, [Ids(tuple(ta4(SAID, 12)[:-1])), Finish(reason)])


@pytest.mark.parametrize("written", ["<th(laughs)ink>", "<tool_(sighs)call>", "<|(laughs)EOT|>"])
def test_a_mark_inside_framing_does_not_make_it(written):
    async def scenario(line: Line):
        await line.ask()
        await asyncio.sleep(5)
        assert line.answers[0] == "yes" and len(line.answers) == 2

    on_the_line(scenario, answer(ta4("yes", 4), ids(f"a {written} b.")))


@pytest.mark.parametrize("given", [1, 5])
@pytest.mark.parametrize("fails", [True, False], ids=["an error", "an interruption"])
def test_a_thought_that_is_cut_off_has_an_end(given, fails):
    family = decoding("step-audio2-think")
    thought = ids_of(family, "is it so?")[:given]

    async def scenario(line: Line):
        await line.ask()
        await asyncio.sleep(0.3)
        await line.interrupt()
        ends = (line.tap.of(kind) for kind in (LLMThoughtStartFrame, LLMThoughtEndFrame))
        assert [len(frames) for frames in ends] == [1, 1]
        await line.ask("Stop.")
        await asyncio.sleep(5)
        assert line.answers == [TOLD]

    stop = EngineError("the server is gone") if fails else asyncio.Event()
    first = [Ids((token,)) for token in thought]
    on_the_line(scenario, [*first, stop], [], answer(ta4(TOLD, 4)), family=family)


def test_two_hundred_turns_leave_nothing_behind(clock):
    """Every fourth is heard to its end, the others are cut at several places."""
    call = answer(SPEECH[:50], ids("<tts_end>"), CALL)
    kinds = [answer(STREAM[:-1]), [*answer(SPEECH)[:9], asyncio.Event()], call, answer(SPEECH)]
    counts: list[tuple[int, int]] = []

    async def scenario(line: Line):
        for number in range(200):
            line.engine.answers[:] = [kinds[number % 4]]
            await line.ask(f"Question number {number}, and something more to fill the memory?")
            await asyncio.sleep((0, 0.4, 1.1, 9)[number % 4])
            if number % 4 < 3:
                await line.interrupt(0.3)
            if number % 20 == 19:
                gc.collect()
                counts.append((len(asyncio.all_tasks()), len(gc.get_objects())))
            for seen in (line.front.frames, line.tap.frames, line.batcher.tokens, line.voice.said):
                seen.clear()
            line.engine.requests[:] = [line.engine.requests[-1]] * len(line.engine.requests)
        assert max(map(len, (line.messages, line.memory.answers))) < 150

    on_the_line(scenario, tools=clock[0])
    tasks, objects = zip(*counts, strict=True)
    assert len(set(tasks)) == 1
    assert max(objects[5:]) - objects[2] < 3000


@pytest.mark.parametrize(("wait_s", "asked"), [(0.2, 2), (0.9, 3), (6, 3)])
def test_a_result_that_comes_after_an_interruption_is_told_once(wait_s, asked):
    """While the user speaks, while the next answer plays, and behind it."""
    tools, known, runs = ToolRegistry(), asyncio.Event(), list[str]()

    @tools.tool(cancel_on_barge_in=False, timeout_s=60)
    async def clock_of(place: str) -> ToolResult:
        """Tell the time in a place."""
        runs.append(place)
        await known.wait()
        return ToolResult("late")

    async def scenario(line: Line):
        asyncio.get_running_loop().call_later(1 + wait_s, known.set)
        await line.ask()
        await asyncio.sleep(1)
        await line.interrupt()
        await line.ask("Stop.")
        await asyncio.sleep(20)
        assert (line.errors, runs, len(line.engine.requests)) == ([], ["Tokyo"], asked)
        assert line.answers[1:] == ["so it is", TOLD][: asked - 1]
        assert FAMILY.vocab
        words = [token for token in prompt(line, -1) if FAMILY.kind_of(token) == Kind.TEXT]
        text = b"".join(map(FAMILY.vocab.pieces.__getitem__, words))
        end = text.rindex(b"late")
        assert (b"so it is" in text[:end]) == (asked == 3)
        await line.ask("And?")
        await asyncio.sleep(5)
        assert len(line.engine.requests) == asked + 1

    later = [answer(ta4("so it is", 50)), answer(ta4(TOLD, 4)), answer(ta4("yes", 4))]
    on_the_line(scenario, answer(SPEECH, CALL), *later, tools=tools)
