"""Sound in the forms that HTTP clients ask for, each piece as soon as it can be had."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from duologue.audio.pcm import to_int16_bytes

RATE_HZ = 24_000
"""Of every form: what OpenAI's clients expect of pcm, and a rate of Opus."""

UNKNOWN = 0xFFFFFFFF


class Encoder(Protocol):
    """Samples to bytes."""

    def push(self, samples: np.ndarray) -> bytes:
        """Encode float32 [n]; what can be sent so far, often nothing."""
        ...

    def finish(self) -> bytes:
        """The rest."""
        ...


class Pcm:
    """Little-endian 16-bit mono."""

    def push(self, samples: np.ndarray) -> bytes:
        """See `Encoder`."""
        return to_int16_bytes(samples)

    def finish(self) -> bytes:
        """See `Encoder`."""
        return b""


class Wav(Pcm):
    """The same behind a header that says no length, since nobody knows it yet."""

    def __init__(self):
        fields = (16, 1, 1, RATE_HZ, 2 * RATE_HZ, 2, 16)
        self._header = b"RIFF%bWAVEfmt %bdata%b" % (
            struct.pack("<I", UNKNOWN),
            struct.pack("<IHHIIHH", *fields),
            struct.pack("<I", UNKNOWN),
        )

    def push(self, samples: np.ndarray) -> bytes:
        """See `Encoder`."""
        header, self._header = self._header, b""
        return header + super().push(samples)


class _Sink:
    """A file that only grows: what libsndfile rewrites at its end has been sent long before."""

    def __init__(self):
        self.data = bytearray()
        self._at = self._end = 0

    def write(self, data: bytes) -> int:
        if self._at == self._end:
            self.data += data
            self._end += len(data)
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self._end)[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def take(self) -> bytes:
        data = bytes(self.data)
        self.data.clear()
        return data


class Compressed:
    """Opus in Ogg, or MP3, by libsndfile.

    Args:
        container: As libsndfile names it.
        codec: As libsndfile names it.
    """

    def __init__(self, container: str, codec: str):
        import soundfile

        self._sink = _Sink()
        self._file = soundfile.SoundFile(
            self._sink, "w", RATE_HZ, 1, format=container, subtype=codec
        )

    def push(self, samples: np.ndarray) -> bytes:
        """See `Encoder`."""
        self._file.write(np.clip(samples, -1, 1))
        self._file.flush()
        return self._sink.take()

    def finish(self) -> bytes:
        """See `Encoder`."""
        self._file.close()
        return self._sink.take()


class Mp3(Compressed):
    """MP3 without the index that libsndfile puts first and fills at the end.

    A player would believe the index, which says that nothing follows.
    """

    def __init__(self):
        super().__init__("MP3", "MPEG_LAYER_III")
        self._first = bytearray()
        self._begun = False

    def push(self, samples: np.ndarray) -> bytes:
        """See `Encoder`."""
        return self._without_index(super().push(samples))

    def finish(self) -> bytes:
        """See `Encoder`."""
        return self._without_index(super().finish())

    def _without_index(self, data: bytes) -> bytes:
        if self._begun:
            return data
        self._first += data
        if len(self._first) < 4 or len(self._first) < (size := _frame_bytes(self._first)):
            return b""
        self._begun = True
        return bytes(self._first[size:])


def _frame_bytes(header: bytes | bytearray) -> int:
    """Length of a frame of MPEG 2 layer III at RATE_HZ (ISO 13818-3)."""
    kbit = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0)[header[2] >> 4]
    padding = header[2] >> 1 & 1
    return 72_000 * kbit // RATE_HZ + padding


@dataclass(frozen=True, slots=True)
class Form:
    """A form of sound: its media type, and what makes it."""

    media_type: str
    encoder: Callable[[], Encoder]


FORMS = {
    "pcm": Form("audio/pcm", Pcm),
    "wav": Form("audio/wav", Wav),
    "mp3": Form("audio/mpeg", Mp3),
    "opus": Form("audio/ogg", lambda: Compressed("OGG", "OPUS")),
}
"""By OpenAI's names."""
