"""What the flow remembers of the frames before a chunk: all of the prompt and the newest W.

Attention caches hold keys and values side by side, [..., frame, channel]. The estimator has no
positional encoding and the encoder is told how far each key lies, so their order is free: rings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


class Window:
    """The newest `size` frames of a cache, in no particular order.

    Args:
        like: An array [..., any, channel] of the cache's shape and type.
        size: Frames that are kept.
    """

    def __init__(self, like: np.ndarray, size: int):
        self.ring = np.zeros((*like.shape[:-2], size, like.shape[-1]), like.dtype)
        self.written = 0

    def append(self, new: np.ndarray) -> None:
        """Add frames [..., n, channel]."""
        size = self.ring.shape[-2]
        self.written += new.shape[-2]
        newest = new[..., -size:, :]
        slots = np.arange(self.written - newest.shape[-2], self.written) % size
        self.ring[..., slots, :] = newest

    @property
    def kept(self) -> np.ndarray:
        """The frames, [..., at most size, channel]."""
        return self.ring[..., : self.written, :]

    def distances(self) -> np.ndarray:
        """How far before the next frame each kept one lies, int [kept]; 1 is the nearest."""
        size = self.ring.shape[-2]
        slots = np.arange(min(self.written, size))
        return 1 + (self.written - 1 - slots) % size

    def copy(self) -> "Window":
        """One that goes its own way."""
        copy = Window(self.ring, 0)
        copy.ring, copy.written = self.ring.copy(), self.written
        return copy


@dataclass(frozen=True, slots=True)
class Advance:
    """What one chunk adds to a `Memory`; the fields are its, attention caches of the chunk only."""

    pre_cache: np.ndarray
    up_cache: np.ndarray
    conv_cache: np.ndarray
    token: np.ndarray
    mel: np.ndarray
    estimator: np.ndarray


@dataclass(slots=True, weakref_slot=True)
class Memory:
    """The past of one sequence of frames: of a session, or of the prompt before it.

    Attributes:
        pre_cache: Left context of the encoder's look-ahead convolution, [channel, 2].
        up_cache: Left context of its upsampling convolution, [channel, 4].
        conv_cache: Left context of the estimator's convolutions at each Euler step, for the
            conditional and the unconditional row, [step, 2, depth, conv, channel, 2].
        token: Encoder layers at token rate, [layer, head, token, channel].
        mel: Encoder layers at mel rate, [layer, head, frame, channel].
        estimator: [step, 2, depth, head, frame, channel].
    """

    pre_cache: np.ndarray
    up_cache: np.ndarray
    conv_cache: np.ndarray
    token: Window
    mel: Window
    estimator: Window

    def extend(self, advance: Advance) -> None:
        """Bring it forward by a chunk."""
        self.pre_cache = advance.pre_cache.copy()
        self.up_cache = advance.up_cache.copy()
        self.conv_cache = advance.conv_cache.copy()
        self.token.append(advance.token)
        self.mel.append(advance.mel)
        self.estimator.append(advance.estimator)

    def copy(self) -> "Memory":
        """One that goes its own way."""
        return replace(
            self, token=self.token.copy(), mel=self.mel.copy(), estimator=self.estimator.copy()
        )

    def arrays(self) -> list[np.ndarray]:
        """Everything that takes memory."""
        windows = self.token.ring, self.mel.ring, self.estimator.ring
        return [self.pre_cache, self.up_cache, self.conv_cache, *windows]

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays())


def collate(rows: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The caches of each row one behind the other, padded to the longest row.

    Args:
        rows: For each row one or more arrays [..., frame, channel].

    Returns:
        The cache [row, ..., frame, channel], and a mask float32 [row, frame], 1 for a frame.
    """
    lengths = [sum(part.shape[-2] for part in row) for row in rows]
    like, longest = rows[0][0], max(lengths)
    stacked = np.empty((len(rows), *like.shape[:-2], longest, like.shape[-1]), like.dtype)
    for target, row, length in zip(stacked, rows, lengths, strict=True):
        np.concatenate(row, axis=-2, out=target[..., :length, :])
        target[..., length:, :] = 0
    return stacked, (np.arange(longest) < np.array(lengths)[:, None]).astype(np.float32)


def distances(rows: Sequence[Sequence[Window]]) -> np.ndarray:
    """How far before the row's next frame each frame of `collate` lies, float32 [row, frame].

    Args:
        rows: For each row its windows, the oldest first.
    """
    columns = []
    for windows in rows:
        total = sum(window.written for window in windows)
        column = []
        for window in windows:
            total -= window.written
            column.append(total + window.distances())
        columns.append(np.concatenate(column).astype(np.float32)[:, None])
    return collate([[column] for column in columns])[0][..., 0]
