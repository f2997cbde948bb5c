"""What a phone's line has played, what it takes, and how providers spell it."""

import asyncio
import base64
import json

import pytest
from pipecat.audio.dtmf.types import KeypadEntry
from pipecat.frames.frames import (
    InputAudioRawFrame,
    InputDTMFFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
)

from bots.phone_line import (
    FIRST_DELAY_S,
    MARK_EVERY_S,
    MAX_DELAY_S,
    MAX_MARKS,
    SLACK_S,
    Intake,
    LineSerializer,
    Playback,
)
from bots.phone_start import Start
from duologue.errors import InputError
from processors.frames import HoldFrame
from tests.fakes import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def playback(clock):
    return Playback(clock)


def test_a_mark_is_due_at_once_and_then_now_and_then(playback, clock):
    names = [playback.sent(0.02) for _ in range(21)]
    assert [n for n, name in enumerate(names) if name] == [0, 10, 20]
    clock.now_s = 5.0
    assert playback.sent(0.02), "a new stretch of speech begins"


def test_a_mark_tells_how_late_the_sound_is(playback, clock):
    assert playback.delay_s == FIRST_DELAY_S
    name = playback.sent(0.2)
    clock.now_s = 0.55
    assert playback.delay_s == FIRST_DELAY_S, "nobody knows yet whether marks come back"
    playback.echoed(name)
    assert playback.delay_s == pytest.approx(0.35)
    # The next one is overdue by more: the line has stalled.
    playback.sent(0.1)
    clock.now_s = 1.65
    assert playback.delay_s == pytest.approx(1.0)
    assert playback.unplayed_s == pytest.approx(0.0)
    clock.now_s = 100.0
    assert playback.delay_s == MAX_DELAY_S


def test_what_is_unplayed(playback, clock):
    assert playback.unplayed_s == FIRST_DELAY_S
    name = playback.sent(1.0)
    assert playback.unplayed_s == pytest.approx(1.0 + FIRST_DELAY_S)
    clock.now_s = 1.25
    playback.echoed(name)
    playback.sent(0.5)
    assert playback.unplayed_s == pytest.approx(0.75)


def test_a_clear_is_sent_only_for_sound_and_its_marks_tell_nothing(playback, clock):
    assert not playback.clear()
    name = playback.sent(1.0)
    assert playback.clear()
    assert not playback.clear()
    clock.now_s = 0.1
    playback.echoed(name)
    assert playback.delay_s == FIRST_DELAY_S
    clock.now_s = 0.2
    fresh = playback.sent(0.02)
    assert fresh != name
    playback.echoed(fresh)
    assert playback.delay_s == 0.0


def test_marks_of_a_provider_that_sends_none_back_are_bounded(playback, clock):
    for _ in range(10_000):
        clock.now_s += MARK_EVERY_S
        playback.sent(MARK_EVERY_S)
    assert len(playback._marks) == MAX_MARKS
    assert playback.delay_s == FIRST_DELAY_S


def test_real_time_with_stalls_is_taken_for_ever_and_more_is_not(clock):
    intake = Intake(clock)
    for n in range(20_000):
        if n % 200:
            clock.now_s += 0.0199
            intake.take(0.02)
        else:
            # The network stalls for 4 s, and brings them all at once.
            clock.now_s += 4.0
            for _ in range(200):
                intake.take(0.02)
    with pytest.raises(InputError, match="faster than real time"):
        for _ in range(round(SLACK_S / 0.02) + 1):
            intake.take(0.02)


PROVIDERS = ("twilio", "telnyx", "plivo")


class Rates:
    audio_in_sample_rate = 8000
    audio_out_sample_rate = 8000


@pytest.fixture
async def serializer(request):
    line = LineSerializer(Start(request.param, "S1", "C1"), asyncio.Event())
    await line.setup(Rates())  # type: ignore[arg-type]
    return line


def media(payload: str, **more) -> str:
    return json.dumps({"event": "media", "media": {"payload": payload, **more}, "added": 1})


@pytest.mark.parametrize("serializer", PROVIDERS, indirect=True)
async def test_sound_keys_and_clears_of_every_provider(serializer):
    payload = base64.b64encode(b"\x00\x80\xff" * 50).decode()
    frame = await serializer.deserialize(media(payload, track="inbound"))
    assert isinstance(frame, InputAudioRawFrame)
    assert (len(frame.audio), frame.sample_rate) == (300, 8000)
    frame = await serializer.deserialize(json.dumps({"event": "dtmf", "dtmf": {"digit": "#"}}))
    assert isinstance(frame, InputDTMFFrame) and frame.button is KeypadEntry.POUND
    assert await serializer.serialize(InterruptionFrame()) is None, "nothing was sent yet"
    sent = json.loads(await serializer.serialize(OutputAudioRawFrame(bytes(320), 8000, 1)))
    assert base64.b64decode(sent["media"]["payload"]) == b"\xff" * 160
    serializer.playback.sent(0.02)
    clear = json.loads(await serializer.serialize(HoldFrame()))
    assert clear["event"] in ("clear", "clearAudio")
    assert await serializer.serialize(InterruptionFrame()) is None, "it is clear already"


@pytest.mark.parametrize(
    ("serializer", "mark", "echo"),
    [
        (
            "twilio",
            {"event": "mark", "streamSid": "S1", "mark": {"name": "heard-1"}},
            {"event": "mark", "sequenceNumber": "4", "mark": {"name": "heard-1"}},
        ),
        (
            "telnyx",
            {"event": "mark", "mark": {"name": "heard-1"}},
            {"event": "mark", "sequence_number": "4", "mark": {"name": "heard-1"}},
        ),
        (
            "plivo",
            {"event": "checkpoint", "streamId": "S1", "name": "heard-1"},
            {"event": "playedStream", "streamId": "S1", "name": "heard-1"},
        ),
    ],
    indirect=["serializer"],
)
async def test_marks_of_every_provider(serializer, mark, echo):
    assert serializer.mark(serializer.playback.sent(0.02)) == mark
    assert await serializer.deserialize(json.dumps(echo)) is None
    assert serializer.playback.delay_s != FIRST_DELAY_S


NONSENSE = [
    "",
    "nonsense",
    "[]",
    "7",
    "null",
    "{}",
    b"\x00\xff",
    '{"event": 7}',
    '{"event": "media"}',
    '{"event": "media", "media": {}}',
    '{"event": "media", "media": {"payload": 7}}',
    '{"event": "media", "media": {"payload": "A"}}',
    '{"event": "media", "media": "x"}',
    json.dumps({"event": "media", "media": {"payload": "A" * 100_000}}),
    '{"event": "dtmf"}',
    '{"event": "dtmf", "dtmf": {"digit": "E"}}',
    '{"event": "dtmf", "dtmf": {"digit": ""}}',
    '{"event": "mark"}',
    '{"event": "mark", "mark": {"name": "never sent"}}',
    '{"event": "unheard of", "x": 1}',
]


@pytest.mark.parametrize("serializer", PROVIDERS, indirect=True)
async def test_nonsense_is_left_out_and_much_of_it_is_too_much(serializer):
    for message in NONSENSE:
        serializer.intake = Intake()
        assert await serializer.deserialize(message) is None
    payload = base64.b64encode(bytes(160)).decode()
    assert await serializer.deserialize(media(payload)), "the call goes on"
    with pytest.raises(InputError):
        for _ in range(100):
            await serializer.deserialize("nonsense")
    assert serializer.refusal


@pytest.mark.parametrize("serializer", ["twilio"], indirect=True)
async def test_a_stream_that_says_it_ends_has_ended(serializer):
    assert await serializer.deserialize('{"event": "stop", "stop": {}}') is None
    assert serializer._ended.is_set()
