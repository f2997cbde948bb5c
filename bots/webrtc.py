"""pipecat's SmallWebRTC transport with less delay: for audio that comes in real time already.

Stock, the output waits until each 20 ms are sent before it hands over the next; whenever the event
loop is late, the track finds its queue empty, sends silence in the middle of a word, and what was
meant for that moment piles up behind. The playout stage paces the audio, so here the track always
holds what is released, and a hold or an interruption empties it.
"""

from pipecat.frames.frames import Frame, InterruptionFrame, OutputAudioRawFrame
from pipecat.processors.frame_processor import FrameDirection
from pipecat.transports.smallwebrtc.connection import SmallWebRTCConnection
from pipecat.transports.smallwebrtc.transport import (
    SmallWebRTCOutputTransport,
    SmallWebRTCTransport,
)

from processors.frames import HoldFrame


def hear_sooner(connection: SmallWebRTCConnection) -> None:
    """Take each packet of the caller's voice as soon as the next one is there.

    aiortc holds back four packets, 80 ms. That protects nothing: a packet that is late or missing
    is waited for all the same, up to the buffer's capacity.
    """
    for receiver in connection.pc.getReceivers():
        if receiver.track.kind == "audio":
            receiver._RTCRtpReceiver__jitter_buffer._prefetch = 1  # type: ignore[attr-defined]


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
