"""The scripted caller's data and analysis, on sound whose figures are known."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.audio.pcm import write_wav
from duologue.errors import ConfigError, InputError
from duologue.rehearsal.levels import (
    first_sound,
    gaps,
    levels_db,
    quiet_after,
    spans,
    speech_span,
)
from duologue.rehearsal.plot import svg
from duologue.rehearsal.report import exchanges, lacks_end, percentiles, summary, table
from duologue.rehearsal.script import Utterance, happened, load_script, perform, read_labels
from duologue.rehearsal.timeline import RATE_HZ, Clip, Recording, Said, Timeline

RATE = 16_000


def voice(seconds: float, db: float = -20.0, rate: int = RATE) -> np.ndarray:
    """Noise of this level."""
    noise = np.random.default_rng(7).standard_normal(round(seconds * rate))
    return (noise * 10 ** (db / 20)).astype(np.float32)


def silence(seconds: float, rate: int = RATE) -> np.ndarray:
    return np.zeros(round(seconds * rate), np.float32)


def test_levels_are_dbfs_of_10_ms() -> None:
    levels = levels_db(np.concatenate([silence(0.1), voice(0.5, -30)]), RATE)
    assert levels.shape == (60,)
    assert levels[:10] == pytest.approx(-100)
    assert levels[10:].mean() == pytest.approx(-30, abs=0.5)


def test_the_first_sound_is_found_to_the_sample() -> None:
    samples = silence(1)
    samples[3000] = 10 ** (-46 / 20)
    samples[5000] = -(10 ** (-44 / 20))
    assert first_sound(samples, RATE) == 5000 / RATE
    assert first_sound(samples, RATE, after_s=5001 / RATE) is None
    assert first_sound(samples, RATE, after_s=-3) == 5000 / RATE


def test_speech_is_told_from_room_noise() -> None:
    room = voice(2, -70)
    room[RATE // 2 : RATE] += voice(0.5)
    assert speech_span(room, RATE) == pytest.approx((0.5, 1.0))
    assert speech_span(voice(1, -70), RATE) is None


def test_gaps_are_between_sounds() -> None:
    parts = [silence(0.5), voice(0.3), silence(0.2), voice(0.3), silence(0.05), voice(0.3)]
    found = gaps(np.concatenate([*parts, silence(1)]), RATE)
    assert found == [pytest.approx((0.8, 1.0))]


@given(st.lists(st.booleans()), st.integers(0, 5))
def test_spans_are_the_long_runs(mask: list[bool], frames: int) -> None:
    rebuilt = np.zeros(len(mask), bool)
    for start, end in spans(np.array(mask, bool), frames / 100):
        assert end - start >= frames / 100 - 1e-9
        rebuilt[round(start * 100) : round(end * 100)] = True
    text = "".join("x" if one else " " for one in mask)
    kept = "".join(run if len(run) >= frames else " " * len(run) for run in _runs(text))
    assert "".join("x" if one else " " for one in rebuilt) == kept


def _runs(text: str) -> list[str]:
    runs: list[str] = []
    for char in text:
        if runs and runs[-1][0] == char:
            runs[-1] += char
        else:
            runs.append(char)
    return runs


def test_a_voice_gives_way_when_it_falls_by_20_db_and_stays_there() -> None:
    heard = np.concatenate(
        [voice(1.5), voice(0.05, -60), voice(0.25), voice(0.4, -60), voice(0.5), silence(0.3)]
    )
    # A dip of 50 ms is a pause between words; one of 15 dB would not count either.
    assert quiet_after(heard, RATE, 1.5) == pytest.approx((1.8, 2.2))
    assert quiet_after(heard, RATE, 2.25) == pytest.approx((2.7, 3.0))
    assert quiet_after(heard, RATE, 1.5, hold_s=0.05) == pytest.approx((1.5, 1.55))
    assert quiet_after(heard, RATE, 1.5, hold_s=0.5) is None
    assert quiet_after(np.concatenate([voice(1), voice(1, -35)]), RATE, 0.9) is None
    # The voice's level is that of its sound, not of the pauses between.
    paused = np.concatenate([voice(0.4), silence(0.6), voice(0.1), voice(0.4, -42)])
    assert quiet_after(paused, RATE, 1.05) == pytest.approx((1.1, 1.5))


def test_a_silent_voice_cannot_give_way() -> None:
    assert quiet_after(silence(3), RATE, 1.5) is None


@given(st.lists(st.integers(0, 900), max_size=20), st.floats(0, 100))
def test_a_recording_is_the_same_in_any_chunks(sizes: list[int], start_s: float) -> None:
    whole = np.arange(sum(sizes), dtype=np.float32)
    recording, at = Recording(), 0
    for size in sizes:
        recording.add(start_s + at / RATE_HZ, whole[at : at + size])
        at += size
    assert np.array_equal(recording.samples, whole)


def test_a_recording_fills_what_is_missing_and_grows() -> None:
    recording = Recording()
    recording.add(5.0, voice(1, rate=RATE_HZ))
    recording.add(50.0, voice(1, rate=RATE_HZ))
    assert (recording.start_s, recording.end_s) == (5.0, 51.0)
    assert not recording.between(6.0, 50.0).any()
    assert np.array_equal(recording.between(5.0, 6.0), voice(1, rate=RATE_HZ))
    assert recording.first_sound(7.0) == pytest.approx(50.0, abs=0.01)
    recording.add(4000.0, voice(1, rate=RATE_HZ))
    assert recording.end_s == 51.0


def call(*events: tuple[float, str, dict], sound: tuple[float, ...] = ()) -> Timeline:
    """A call of 20 s from second 1 on: an utterance at 2 to 4 s, the bot sounding for 1 s each."""
    timeline = Timeline()
    clip = Clip(silence(3, RATE_HZ), 0.5, 2.5, "ask", "What is the capital of France?")
    timeline.said.append(Said(clip, 1.5))
    bot = silence(20, RATE_HZ)
    for at_s in sound:
        start = round((at_s - 1) * RATE_HZ)
        bot[start : start + RATE_HZ] = 0.3
    timeline.bot.add(1.0, bot)
    for at_s, kind, fields in events:
        timeline.add_event(at_s, {"type": kind, **fields})
    return timeline


HEARD = (4.5, "user", {"turn": 1, "text": "What is the capital of France", "final": True})
INTERIM = (3.0, "user", {"turn": 1, "text": "What is the", "final": False})
LATENCY = (5.0, "latency", {"turn": 1, "end_of_turn_ms": 500, "asr_ms": None, "total_ms": 950})


def test_an_exchange_holds_its_figures() -> None:
    texts = [(4.6 + n / 10, "bot_text", {"turn": 1, "text": "Paris."[: n + 1]}) for n in range(6)]
    timeline = call(INTERIM, HEARD, *texts, LATENCY, sound=(4.96,))
    (found,) = exchanges(timeline)
    assert found.voice_to_voice_ms == pytest.approx(960, abs=0.1)
    assert (found.heard, found.reply) == ("What is the capital of France", "Paris.")
    assert (found.cut_off, found.stages["total_ms"], found.stages["asr_ms"]) == (False, 950, None)
    assert found.longest_gap_ms == 0
    assert found.stages["outside_ms"] == pytest.approx(10, abs=0.1)
    figures = json.loads(json.dumps(summary([found, found])))
    assert figures["voice_to_voice_ms"]["p95"] == pytest.approx(960, abs=0.1)
    assert (figures["cut_off"], figures["unanswered"]) == (0, 0)
    assert [len(line) > 20 for line in table([found]).splitlines()] == [True] * 4


@pytest.mark.parametrize(
    ("events", "sound"),
    [
        ([HEARD], (3.5,)),
        ([(3.5, "user", {"turn": 1, "text": "What is", "final": True}), HEARD], (5.0,)),
        ([(4.5, "user", {"turn": 1, "text": "What is the", "final": True})], (5.0,)),
    ],
)
def test_a_cut_off_is_seen(events: list, sound: tuple[float, ...]) -> None:
    assert exchanges(call(*events, sound=sound))[0].cut_off


def test_a_stutter_is_seen() -> None:
    assert exchanges(call(HEARD, sound=(5.0, 6.4)))[0].longest_gap_ms == pytest.approx(400)
    # What was still to be heard of the last answer is none.
    assert exchanges(call(HEARD, sound=(1.5, 5.0)))[0].longest_gap_ms == 0


def test_a_bot_that_was_already_talking_cuts_nobody_off() -> None:
    assert not exchanges(call(HEARD, sound=(1.5, 5.0)))[0].cut_off


def test_no_answer_is_no_figure() -> None:
    timeline = call(HEARD, sound=(12.0,))
    timeline.said.append(Said(Clip(silence(1, RATE_HZ), 0, 1), 10.0))
    first, second = exchanges(timeline)
    assert first.voice_to_voice_ms is None
    assert second.voice_to_voice_ms == pytest.approx(1000, abs=0.1)
    assert summary([first])["unanswered"] == 1
    assert percentiles([None]) is None


@pytest.mark.parametrize(
    ("heard", "missing"),
    [
        ("is it my turn yet", False),
        ("is it my turn", False),
        ("is it my", True),
        ("it's my turned yet", False),
        ("", True),
    ],
)
def test_a_missing_end_is_told_from_a_misheard_word(heard: str, missing: bool) -> None:
    assert lacks_end("Is it my turn yet?", heard) is missing


def test_the_plot_is_well_formed_whatever_was_said() -> None:
    hostile = {"turn": 1, "text": "</text><script>&", "final": True}
    timeline = call(
        (1.2, "state", {"state": "listening"}),
        (4.5, "user", hostile),
        (4.6, "state", {"state": "<new>"}),
        (7.0, "bot_end", {"turn": 1, "reason": "done", "chars": 6}),
        sound=(5.0,),
    )
    root = ElementTree.fromstring(svg(timeline))
    text = " ".join(root.itertext())
    assert "</text><script>&" in text
    assert "<new> 16.40 s" in text
    assert "script" not in {element.tag.rpartition("}")[2] for element in root.iter()}


class FakeCaller:
    """Hears what the test's `react` makes of every utterance."""

    def __init__(self, react: Callable[[Timeline, Said], None]):
        self.timeline = Timeline()
        self.timeline.bot.add(1.0, silence(1, RATE_HZ))
        self._react = react

    async def say(self, clip: Clip, *, at_s: float = 0.0) -> Said:
        said = Said(clip, at_s)
        self.timeline.said.append(said)
        self._react(self.timeline, said)
        return said

    async def until(self, condition, timeout_s: float = 20.0):
        await asyncio.sleep(0)
        if (value := condition(self.timeline)) is None:
            raise TimeoutError
        return value


def answer(timeline: Timeline, said: Said) -> None:
    """A second after the words a second of sound, then the end of the answer."""
    timeline.bot.add(said.end_s + 1, voice(1, rate=RATE_HZ))
    timeline.add_event(said.end_s + 0.5, {"type": "state", "state": "listening"})
    timeline.add_event(said.end_s + 1, {"type": "state", "state": "speaking"})
    timeline.add_event(said.end_s + 2.25, {"type": "bot_end", "turn": 1})
    timeline.add_event(said.end_s + 2.5, {"type": "state", "state": "listening"})
    timeline.bot.add(said.end_s + 3, silence(1, RATE_HZ))


async def test_utterances_wait_for_what_they_name() -> None:
    clip = Clip(silence(1, RATE_HZ), 0.25, 0.75)
    script = [
        Utterance(clip, "start", 3.0),  # speech from 4.25 to 4.75
        Utterance(clip, "bot_sound", 0.5),  # sound at 5.75
        Utterance(clip, "said", 0.25),  # words until 7.0
        Utterance(clip, "bot_end", 0.0),  # words until 8.0; the second answer ends at 9.25
        Utterance(clip, "listening", 1.0),  # words until 10.0, listening at 12.5
    ]
    caller = FakeCaller(answer)
    await perform(script, caller)
    at_s = [said.at_s for said in caller.timeline.said]
    assert at_s == pytest.approx([4.0, 6.25, 7.25, 9.25, 13.5], abs=0.001)


def test_a_room_is_listening_only_after_an_answer_and_its_last_state() -> None:
    timeline = call((0.5, "state", {"state": "listening"}), HEARD)
    assert happened(timeline, "listening") is None
    timeline = call((4.5, "state", {"state": "listening"}), sound=(5.0,))
    assert happened(timeline, "listening") is None
    timeline.add_event(6.0, {"type": "state", "state": "listening"})
    timeline.add_event(6.1, {"type": "state", "state": "speaking"})
    assert happened(timeline, "listening") is None
    timeline.add_event(8.0, {"type": "state", "state": "listening"})
    assert happened(timeline, "listening") == 8.0


async def test_a_bot_that_never_answers_is_not_waited_for_for_ever() -> None:
    clip = Clip(silence(1, RATE_HZ), 0, 1)
    with pytest.raises(TimeoutError):
        await perform([Utterance(clip, "start")], FakeCaller(lambda *_: None))


def test_a_script_is_read_with_its_recordings(tmp_path: Path) -> None:
    write_wav(tmp_path / "stop.wav", np.concatenate([silence(0.5), voice(1)]), RATE)
    (tmp_path / "script.yaml").write_text(
        "say:\n"
        "  - {text: Hello there, after: start, delay_s: 1}\n"
        "  - {audio: stop.wav, text: Stop, after: bot_sound}\n"
    )
    hello, stop = load_script(tmp_path / "script.yaml", lambda text: voice(len(text), rate=RATE_HZ))
    assert (hello.after, hello.delay_s, hello.clip.name) == ("start", 1, "Hello there")
    assert len(hello.clip.samples) == 11 * RATE_HZ
    assert (stop.after, stop.clip.name, stop.clip.text) == ("bot_sound", "stop", "Stop")
    assert (stop.clip.start_s, stop.clip.end_s) == pytest.approx((0.5, 1.5), abs=0.02)


@pytest.mark.parametrize(
    "text",
    [
        "say: []",
        "say: [{}]",
        "say: [{text: a, then: start}]",
        "say: [{text: a, after: lunch}]",
        "]",
    ],
)
def test_a_wrong_script_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"script\.yaml"):
        load_script(path, lambda _: silence(1))
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        load_script(tmp_path / "none.yaml", lambda _: silence(1))


def test_a_missing_recording_is_named(tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text("say: [{audio: gone.wav}]")
    with pytest.raises(InputError, match=r"gone\.wav"):
        load_script(tmp_path / "script.yaml", lambda _: silence(1))


def test_a_labelled_set_has_its_speech_where_the_labels_say(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", voice(2), RATE)
    label = {"file": "a.wav", "kind": "noise", "text": "", "onset_ms": 300, "end_ms": 1100}
    (tmp_path / "labels.json").write_text(json.dumps([label | {"licence": "CC0"}]))
    (found,) = read_labels(tmp_path)
    clip = found.clip()
    assert (found.kind, clip.name, clip.start_s, clip.end_s) == ("noise", "a", 0.3, 1.1)
    assert len(clip.samples) == 2 * RATE_HZ
    (tmp_path / "labels.json").write_text("[{}]")
    with pytest.raises(ConfigError, match=r"labels\.json"):
        read_labels(tmp_path)
