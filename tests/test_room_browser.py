"""A scripted caller talks to the real room on its real page, in a real Chromium.

What the bot says is recorded from the remote track and transcribed back. The questions are
recordings of people where tests/data has them.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import jiwer
import numpy as np
import pytest
import pytest_asyncio
from num2words import num2words
from playwright.async_api import Browser, expect

from bots.rehearse import BrowserCaller, RoomServer, chromium, open_page, room_server
from duologue.asr.whisper import Whisper
from duologue.audio.pcm import ASR_RATE_HZ, resample, write_wav
from duologue.models import ensure
from duologue.rehearsal.levels import speech_span
from duologue.rehearsal.plot import svg
from duologue.rehearsal.report import exchanges
from duologue.rehearsal.script import Utterance, perform, read_labels
from duologue.rehearsal.timeline import RATE_HZ, Clip, Timeline

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

DATA = Path(__file__).with_name("data")
ARTIFACTS = Path(__file__).parents[1] / "artifacts"
FIVE = [
    "This is so boring.",
    "What can you do?",
    "Good day to you, sir.",
    "What starters do you have?",
    "Please try again.",
]
LONG = "Tell me something about the moon."


@pytest.fixture(scope="module")
def server() -> Iterator[RoomServer]:
    with room_server("lm.max_tokens=20") as server:
        yield server
        assert "Traceback" not in server.log()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def clips() -> Callable[[str], Clip]:
    labels = [*read_labels(DATA / "questions"), *read_labels(DATA / "duplex")]
    # Of several clips with the same words the first is a person's, where there is one.
    return lambda text: next(label for label in labels if label.text == text).clip()


@pytest.fixture(scope="module")
def transcribe() -> Callable[[np.ndarray], str]:
    # The larger model: what is in doubt here is the sound, not the ear.
    whisper = Whisper(ensure("whisper-base"), threads=2)
    return lambda samples: whisper.transcribe(resample(samples, RATE_HZ, ASR_RATE_HZ)).text


@asynccontextmanager
async def in_call(
    browser: Browser, server: RoomServer, name: str, *, device: bool = False
) -> AsyncIterator[BrowserCaller]:
    """A connected caller; picture, plot and sound of the call stay in artifacts/."""
    async with open_page(browser, server.url, device=device) as caller:
        await caller.connect()
        try:
            yield caller
        finally:
            ARTIFACTS.mkdir(exist_ok=True)
            await caller.page.screenshot(path=ARTIFACTS / f"room_{name}.png")
            (ARTIFACTS / f"room_{name}.svg").write_text(svg(caller.timeline), encoding="utf-8")
            write_wav(ARTIFACTS / f"room_{name}.wav", caller.timeline.bot.samples, RATE_HZ)


def plain(text: str) -> str:
    """Words as they are said: no case, no punctuation, numbers in words."""
    text = re.sub(r"\b([ap])\.m\b\.?", r"\1m", text.lower())
    text = re.sub(r"\d+", lambda number: num2words(int(number[0])), text)
    return " ".join(re.findall(r"[a-z']+", text))


def answers(timeline: Timeline) -> Iterator[np.ndarray]:
    """The bot's sound after each utterance, until the next one."""
    starts_s = [said.end_s for said in timeline.said]
    ends_s = [said.at_s for said in timeline.said[1:]] + [timeline.bot.end_s]
    for start_s, end_s in zip(starts_s, ends_s, strict=True):
        yield timeline.bot.between(start_s, end_s)


async def test_five_answers_are_spoken_as_they_are_written(browser, server, clips, transcribe):
    async with in_call(browser, server, "questions") as caller:
        await perform([Utterance(clips(text)) for text in FIVE], caller)
        turns = await caller.page.evaluate("duologue.turns")
    assert [turn["bot"]["end"] for turn in turns] == ["done"] * 5
    written = [plain(turn["bot"]["text"]) for turn in turns]
    spoken = [plain(transcribe(sound)) for sound in answers(caller.timeline)]
    assert jiwer.wer(written, spoken) < 0.15, (written, spoken)
    assert [one.cut_off for one in exchanges(caller.timeline)] == [False] * 5


async def test_cutting_in_stops_the_bot_and_keeps_what_was_heard(
    browser, server, clips, transcribe
):
    cut_in = clips("Please try again.")
    script = [Utterance(clips(LONG)), Utterance(cut_in, "bot_sound", 1.5)]
    async with in_call(browser, server, "barge_in") as caller:
        await perform(script, caller)
        await expect(caller.page.locator(".bubble.bot.cut del")).to_have_count(1)
        turns = await caller.page.evaluate("duologue.turns")
    seen, said = caller.timeline, caller.timeline.said[1]
    (end,) = seen.all("bot_end", reason="interrupted")
    assert said.start_s < end.at_s < said.end_s + 2
    # Nothing of the old answer comes after its end, but for the sound already on its way.
    later = [e for kind in ("bot_text", "bot_heard") for e in seen.all(kind, end.at_s + 0.01)]
    assert end.data["turn"] not in {event.data["turn"] for event in later}
    gone_s = end.at_s + 0.6
    next_s = seen.bot.first_sound(gone_s)
    assert next_s is not None
    assert next_s > said.end_s
    heard = plain(transcribe(seen.bot.between(0, gone_s))).split()
    written = seen.bot_text(end.data["turn"])
    kept = plain(written[: end.data["chars"]]).split()
    assert 2 <= len(kept) < len(plain(written).split())
    assert abs(len(kept) - heard_words(plain(written).split(), heard)) <= 2, (kept, heard)
    # The new question gets its answer.
    assert turns[-1]["bot"]["end"] == "done"
    assert exchanges(seen)[1].voice_to_voice_ms is not None
    assert jiwer.wer(plain(cut_in.text), plain(turns[-1]["user"]["text"])) < 0.3


def heard_words(written: list[str], heard: list[str]) -> int:
    """How many words of the text have been heard: the prefix that fits best."""

    def errors(count: int) -> int:
        found = jiwer.process_words(" ".join(written[:count]), " ".join(heard))
        return found.substitutions + found.deletions + found.insertions

    return min(range(1, len(written) + 1), key=errors)


async def test_a_backchannel_only_makes_the_bot_pause(browser, server, clips, transcribe):
    script = [Utterance(clips(LONG)), Utterance(clips("Yeah."), "bot_sound", 1.5)]
    async with in_call(browser, server, "backchannel") as caller:
        await perform(script, caller)
        await expect(caller.page.locator(".bubble.user")).to_have_count(1)
        (turn,) = [t for t in await caller.page.evaluate("duologue.turns") if t["bot"]["text"]]
    seen = caller.timeline
    assert (turn["bot"]["end"], turn["bot"]["heard"]) == ("done", len(turn["bot"]["text"]))
    held = seen.first("state", seen.said[1].start_s, state="held")
    assert held is not None
    assert seen.first("state", held.at_s, state="speaking")
    spoken = plain(transcribe(seen.bot.between(seen.said[0].end_s, seen.bot.end_s)))
    # The word that was cut off is said again, which counts as errors.
    assert jiwer.wer(plain(turn["bot"]["text"]), spoken) < 0.25, (turn["bot"]["text"], spoken)


async def test_a_tool_answers_on_the_page_and_by_voice(browser, server, clips, transcribe):
    async with in_call(browser, server, "tool") as caller:
        await perform([Utterance(clips("What time is it in Tokyo?"))], caller)
        await caller.page.locator(".tool summary").click()
        await expect(caller.page.locator(".tool summary")).to_have_text("current_timedone")
        await expect(caller.page.locator(".tool pre")).to_contain_text("+09:00")
        turns = await caller.page.evaluate("duologue.turns")
    (written,) = [turn["bot"]["text"] for turn in turns if turn["bot"]["text"]]
    assert re.fullmatch(r"It is \d+:\d\d [AP]M in Tokyo\.", written)
    (sound,) = answers(caller.timeline)
    assert jiwer.wer(plain(written), plain(transcribe(sound))) < 0.3


async def test_the_browsers_own_microphone_is_heard(server, clips, tmp_path):
    # The device plays as soon as the page opens it: time for the call to stand comes first.
    clip = clips("Please try again.")
    lead = np.zeros(3 * RATE_HZ, np.float32)
    write_wav(tmp_path / "microphone.wav", np.concatenate([lead, clip.samples]), RATE_HZ)
    async with (
        chromium(microphone=tmp_path / "microphone.wav") as browser,
        in_call(browser, server, "microphone", device=True) as caller,
    ):
        end = await caller.until(lambda seen: seen.first("bot_end", reason="done"), 30)
    seen = caller.timeline
    (heard,) = seen.all("user", final=True)
    assert plain(heard.data["text"]) == plain(clip.text)
    span = speech_span(seen.mic.samples, RATE_HZ)
    assert span is not None
    sound_s = seen.bot.first_sound(seen.mic.start_s)
    assert sound_s is not None
    assert seen.mic.start_s + span[1] < sound_s < end.at_s


async def test_a_killed_room_is_told_to_the_person(browser, server):
    async with in_call(browser, server, "killed") as caller:
        server.kill()
        notice = caller.page.get_by_role("alert")
        await expect(notice).to_contain_text("The room does not answer", timeout=10_000)
        await expect(notice).to_contain_text("Trying again by itself")
