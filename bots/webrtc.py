"""pipecat's SmallWebRTC transport with less delay: for audio that comes in real time already.

Stock, the output waits until each 20 ms are sent before it hands over the next; whenever the event
loop is late, the track finds its queue empty, sends silence in the middle of a word, and what was
meant for that moment piles up behind. The playout stage paces the audio, so here the track always
holds what is released, and a hold or an interruption empties it.
"""

from collections.abc import Callable

from aiortc import RTCRtpReceiver
from aiortc.jitterbuffer import JitterFrame
from aiortc.rtp import RtpPacket
from pipecat.frames.frames import Frame, InterruptionFrame, OutputAudioRawFrame
from pipecat.processors.frame_processor import FrameDirection
from pipecat.transports.smallwebrtc.connection import SmallWebRTCConnection
from pipecat.transports.smallwebrtc.transport import (
    SmallWebRTCOutputTransport,
    SmallWebRTCTransport,
)

from processors.frames import HoldFrame

PATIENCE = 4
"""So many later packets (80 ms) may wait for a missing one before it is given up."""
SEQUENCE = 1 << 16
# A number so far back starts a new stream; one less far back is late.
RESTART = 100


class VoiceBuffer:
    """Puts a voice's packets in order and hands each on at once; in place of aiortc's JitterBuffer.

    aiortc's waits for four packets more, and once a packet is lost for a dozen, for the rest of the
    call (aiortc issue 543): its `add` returns one frame for one packet, so a backlog stays. Each
    packet of audio is a frame of its own, and nothing after the buffer needs an even flow.
    """

    def __init__(self, hand_on: Callable[[RtpPacket, JitterFrame], None]):
        """Make an empty buffer.

        Args:
            hand_on: Takes the frames, with their packets, that come before the one `add` returns.
        """
        self._hand_on = hand_on
        self._waiting: dict[int, RtpPacket] = {}
        self._next: int | None = None

    def add(self, packet: RtpPacket) -> tuple[bool, JitterFrame | None]:
        """Take a packet; returns False (no picture is lost) and the newest frame in order."""
        ahead = self._ahead(packet.sequence_number)
        if ahead > SEQUENCE - RESTART:
            return False, None
        if self._next is None or ahead >= SEQUENCE // 2:
            self._waiting.clear()
            self._next = packet.sequence_number
        self._waiting[packet.sequence_number] = packet
        if len(self._waiting) > PATIENCE:
            self._next = min(self._waiting, key=self._ahead)
        newest = None
        while ready := self._waiting.pop(self._next, None):
            if newest is not None:
                self._hand_on(*newest)
            newest = ready, JitterFrame(vars(ready)["_data"], ready.timestamp)
            self._next = (self._next + 1) % SEQUENCE
        return False, newest and newest[1]

    def _ahead(self, number: int) -> int:
        return 0 if self._next is None else (number - self._next) % SEQUENCE


def hear_sooner(connection: SmallWebRTCConnection) -> None:
    """Give every receiver of a voice a VoiceBuffer."""
    for receiver in connection.pc.getReceivers():
        if receiver.track.kind == "audio":
            _replace_buffer(receiver)


def _replace_buffer(receiver: RTCRtpReceiver) -> None:
    # The receiver has no seam for this.
    parts = vars(receiver)

    def decode(packet: RtpPacket, frame: JitterFrame) -> None:
        frame.timestamp = parts["_RTCRtpReceiver__timestamp_mapper"].map(frame.timestamp)
        codec = parts["_RTCRtpReceiver__codecs"][packet.payload_type]
        parts["_RTCRtpReceiver__decoder_queue"].put((codec, frame))

    parts["_RTCRtpReceiver__jitter_buffer"] = VoiceBuffer(decode)


class PacedOutput(SmallWebRTCOutputTransport):
    """Hands audio to the track at once."""

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Queue audio on the track; the playout's lead bounds the queue."""
        track = self._client._audio_output_track
        if track is None or not self._client._can_send():
            return False
        track.add_audio_bytes(frame.audio)
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """Drop what is not sent yet on a hold or an interruption."""
        track = self._client._audio_output_track
        if isinstance(frame, HoldFrame | InterruptionFrame) and track is not None:
            track._chunk_queue.clear()
        await super().process_frame(frame, direction)


class RoomTransport(SmallWebRTCTransport):
    """A SmallWebRTC transport with the paced output."""

    def output(self) -> SmallWebRTCOutputTransport:
        """The output processor."""
        if self._output is None:
            self._output = PacedOutput(self._client, self._params, name=self._output_name)
        return self._output
