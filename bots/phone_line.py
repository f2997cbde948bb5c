"""A phone line: a provider's media stream as a pipecat transport.

8 kHz both ways. The playout stage paces the audio, so what it releases is sent at once; the
provider plays it, and its marks tell when. A hold or an interruption clears what it has not played.
"""

import asyncio
import binascii
import time
from collections.abc import Callable
from math import ceil
from typing import Any

from fastapi import WebSocket
from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    Frame,
    InputTransportMessageFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    OutputTransportMessageUrgentFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.serializers.base_serializer import FrameSerializer
from pipecat.serializers.plivo import PlivoFrameSerializer
from pipecat.serializers.telnyx import TelnyxFrameSerializer
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.transports.websocket.fastapi import (
    FastAPIWebsocketClient,
    FastAPIWebsocketOutputTransport,
    FastAPIWebsocketParams,
    FastAPIWebsocketTransport,
)
from pydantic import BaseModel, Field, ValidationError

from bots.phone_start import Start
from duologue.errors import InputError
from processors.frames import HoldFrame

RATE_HZ = 8_000
LEAD_S = 0.2
"""Audio ahead of the ear: it rides out the network's delays, and a clear takes it back."""
MARK_EVERY_S = 0.2
MAX_MARKS = 50
FIRST_DELAY_S, MAX_DELAY_S = 0.1, 2.0
"""Between the sending of a sound and its playing: until a mark tells, and what is believed."""
SLACK_S = 5.0
"""So much more audio than time may come, after a stall of the network."""
LEAK = 1.1
"""Clocks differ; nobody sends faster than this for long."""
MAX_PAYLOAD_CHARS = 16_000
MESSAGE_S = 0.002
NONSENSE_S = 0.5


class Playback:
    """What the provider has been sent and has not played.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._ends_s = 0.0
        self._marked_s = 0.0
        self._marks: dict[str, float] = {}
        self._count = 0
        self._delay_s: float | None = None
        self._dirty = False

    @property
    def delay_s(self) -> float:
        """How much later than it was due sound is played, by the marks that came, or are late."""
        if self._delay_s is None:
            return FIRST_DELAY_S
        now_s = self._clock()
        late_s = now_s - next(iter(self._marks.values()), now_s)
        return min(max(self._delay_s, late_s), MAX_DELAY_S)

    @property
    def unplayed_s(self) -> float:
        """Until all that was sent has been played."""
        return max(0.0, self._ends_s + self.delay_s - self._clock())

    def sent(self, seconds: float) -> str | None:
        """So much audio was sent; the name of the mark to send behind it, if one is due."""
        now_s = self._clock()
        begins = self._ends_s <= now_s
        self._ends_s = max(self._ends_s, now_s) + seconds
        self._dirty = True
        if not begins and self._ends_s - self._marked_s < MARK_EVERY_S - MESSAGE_S:
            return None
        self._marked_s = self._ends_s
        self._count += 1
        name = f"heard-{self._count}"
        self._marks[name] = self._ends_s
        # A provider that sends no marks back must not fill the memory.
        while len(self._marks) > MAX_MARKS:
            del self._marks[next(iter(self._marks))]
        return name

    def echoed(self, name: str) -> None:
        """The provider has played all before the mark."""
        if name not in self._marks:
            return
        self._delay_s = max(0.0, self._clock() - self._marks[name])
        for earlier in list(self._marks):
            del self._marks[earlier]
            if earlier == name:
                break

    def clear(self) -> bool:
        """Forget what was sent; whether there may be anything to take back."""
        dirty, self._dirty = self._dirty, False
        # The provider sends the marks of what it drops, too: they tell nothing.
        self._marks.clear()
        self._ends_s = self._marked_s = 0.0
        return dirty


class _Media(BaseModel):
    payload: str = Field(max_length=MAX_PAYLOAD_CHARS)


class _Mark(BaseModel):
    name: str = Field(max_length=100)


class _Digit(BaseModel):
    digit: str = Field(max_length=8)


class Message(BaseModel):
    """What providers send; they add fields as they please."""

    event: str = Field(max_length=100)
    media: _Media | None = None
    mark: _Mark | None = None
    dtmf: _Digit | None = None
    name: str = Field(default="", max_length=100)

    @property
    def cost_s(self) -> float:
        """What it takes of the time that a stream has: its audio's length."""
        payload = self.media.payload if self.media else ""
        return max(MESSAGE_S, len(payload) * 3 / 4 / RATE_HZ)


class Intake:
    """Bounds what a provider may send by the time that passes.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._then_s = clock()
        self._ahead_s = 0.0

    @property
    def silent_s(self) -> float:
        """Since anything came."""
        return self._clock() - self._then_s

    def take(self, seconds: float) -> None:
        """Note what came.

        Raises:
            InputError: more than SLACK_S too much.
        """
        now_s = self._clock()
        self._ahead_s = max(0.0, self._ahead_s - LEAK * (now_s - self._then_s)) + seconds
        self._then_s = now_s
        if self._ahead_s > SLACK_S:
            raise InputError("the stream sends faster than real time; send 20 ms every 20 ms")


class LineSerializer(FrameSerializer):
    """One of pipecat's serializers, with marks, clears where they are needed, and bounds.

    Args:
        start: The stream's own account of itself.
        ended: Set once the provider says that the stream ends.

    Attributes:
        playback: What was sent.
        intake: What came.
        refusal: Why no more is read.
    """

    def __init__(self, start: Start, ended: asyncio.Event):
        super().__init__()
        self._inner = _serializer(start)
        self._provider = start.provider
        self._stream_id = start.stream_id
        self.playback = Playback()
        self.intake = Intake()
        self._ended = ended
        self.refusal: str | None = None

    async def setup(self, setup: FrameProcessorSetup):
        """Take the pipeline's rates."""
        await self._inner.setup(setup)

    async def serialize(self, frame: Frame) -> str | bytes | None:
        """As the provider wants it; a hold is an interruption to it."""
        if isinstance(frame, HoldFrame | InterruptionFrame):
            dirty = self.playback.clear()
            return await self._inner.serialize(InterruptionFrame()) if dirty else None
        if isinstance(frame, EndFrame):
            # The stream's end ends the call: its last words are heard before.
            await asyncio.sleep(self.playback.unplayed_s)
        return await self._inner.serialize(frame)

    async def deserialize(self, data: str | bytes) -> Frame | None:
        """Read a message; what cannot be read is left out, and much of it is too much.

        Raises:
            InputError: more came than a call can have.
        """
        try:
            message = Message.model_validate_json(data)
            self._take(message.cost_s)
            if message.event in ("media", "dtmf"):
                return await self._inner.deserialize(data)
        except (ValidationError, binascii.Error) as error:
            logger.debug(f"a message of the phone's stream cannot be read: {error}")
            self._take(NONSENSE_S)
            return None
        if message.event in ("mark", "playedStream"):
            self.playback.echoed(message.mark.name if message.mark else message.name)
        elif message.event == "stop":
            self._ended.set()
        return None

    def _take(self, seconds: float) -> None:
        try:
            self.intake.take(seconds)
        except InputError as error:
            self.refusal = str(error)
            raise

    def mark(self, name: str) -> dict[str, Any]:
        """The message that asks to be told when all before it has been played."""
        if self._provider == "plivo":
            return {"event": "checkpoint", "streamId": self._stream_id, "name": name}
        mark = {"event": "mark", "mark": {"name": name}}
        return mark | ({"streamSid": self._stream_id} if self._provider == "twilio" else {})


def _serializer(start: Start) -> FrameSerializer:
    # The stream's end hangs up, so that no account's key is needed. A jittery line is one stream:
    # its resampler forgets nothing in a pause.
    params: dict[str, Any] = {"auto_hang_up": False, "resampler_clear_after_secs": None}
    stream_id, call_id = start.stream_id, start.call_id
    if start.provider == "plivo":
        kind = PlivoFrameSerializer
        return kind(stream_id, call_id, params=kind.InputParams(**params))
    if start.provider == "telnyx":
        kind = TelnyxFrameSerializer
        settings = kind.InputParams(**params)
        return kind(stream_id, start.encoding, start.encoding, call_id, params=settings)
    kind = TwilioFrameSerializer
    return kind(stream_id, call_id, params=kind.InputParams(**params))


class LineOutput(FastAPIWebsocketOutputTransport):
    """Sends audio at once, with marks behind it, and tells the playout how late it is heard."""

    def __init__(
        self,
        transport: FastAPIWebsocketTransport,
        client: FastAPIWebsocketClient,
        params: FastAPIWebsocketParams,
        serializer: LineSerializer,
    ):
        super().__init__(transport, client, params)
        self._line = serializer
        self._told_s = FIRST_DELAY_S

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """A hold takes back what is not played yet."""
        await super().process_frame(frame, direction)
        if isinstance(frame, HoldFrame):
            await self._write_frame(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Send audio; the playout's lead bounds what waits at the provider."""
        if not await self._write_frame(frame):
            return False
        playback = self._line.playback
        if name := playback.sent(len(frame.audio) / (2 * RATE_HZ)):
            message = self._line.mark(name)
            await self._write_frame(OutputTransportMessageUrgentFrame(message=message))
            await self._tell(playback.delay_s)
        return True

    async def _tell(self, delay_s: float) -> None:
        if abs(delay_s - self._told_s) < 0.01:
            return
        self._told_s = delay_s
        message = {"type": "playback", "buffer_ms": 1000 * delay_s}
        frame = InputTransportMessageFrame(message=message)
        await self.push_frame(frame, FrameDirection.UPSTREAM)


class LineTransport(FastAPIWebsocketTransport):
    """A provider's stream.

    Args:
        websocket: Accepted, its start message read.
        serializer: Of its provider.
        call_s: After so long `on_session_timeout` fires.
    """

    def __init__(self, websocket: WebSocket, serializer: LineSerializer, *, call_s: float):
        params = FastAPIWebsocketParams(
            audio_in_enabled=True,
            audio_in_sample_rate=RATE_HZ,
            audio_out_enabled=True,
            audio_out_sample_rate=RATE_HZ,
            audio_out_10ms_chunks=2,
            audio_out_end_silence_secs=0,
            serializer=serializer,
            session_timeout=ceil(call_s),
            allowed_origins=[],
        )
        super().__init__(websocket, params)
        self._output = LineOutput(self, self._client, params, serializer)

    def stay_open(self) -> None:
        """Leave it to the caller to close the stream, and to say why: pipecat says nothing."""
        self._client._closing = True
