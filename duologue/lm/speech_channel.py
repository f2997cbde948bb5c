"""The audio of one turn: whole frames only, and an end to loops."""

from itertools import groupby
from math import ceil

from duologue.lm.events import DropReason
from duologue.lm.formats import Profile
from duologue.lm.guards import FrameAligner, LoopGuard
from duologue.lm.turn import TurnWriter

LOOP_S = 10.0
"""How long a loop lasts until it is one: a pause of a second or more repeats one token, too."""
PERIOD = 16
"""The most tokens that a loop repeats: about half a second."""


class SpeechChannel:
    """Takes the tokens of all codebooks in the order of the stream.

    Args:
        profile: Its codebooks and its frame.
        turn: Where events go.
    """

    def __init__(self, profile: Profile, turn: TurnWriter):
        self._turn = turn
        rate_hz = sum(book.rate_hz for book in profile.codebooks)
        self._guard = LoopGuard(max(64, ceil(LOOP_S * rate_hz)), PERIOD)
        self._aligner = FrameAligner(profile.frame) if profile.frame else None

    def feed(self, book: int, tokens: list[int]) -> bool:
        """Takes tokens of one codebook; whether they are a loop by now."""
        admitted, looping = self._guard.admit(tokens)
        tokens = tokens[:admitted]
        if self._aligner is None:
            self._turn.audio(book, tokens)
        else:
            self._align(self._aligner, book, tokens)
        return looping

    def flush(self) -> None:
        """Drops the frame that is not whole."""
        if self._aligner:
            self._turn.drop_audio(DropReason.MISALIGNED, self._aligner.flush())

    def _align(self, aligner: FrameAligner, book: int, tokens: list[int]) -> None:
        for token in tokens:
            if self._turn.idle:
                return
            frame, dropped = aligner.add(book, token)
            self._turn.drop_audio(DropReason.MISALIGNED, dropped)
            for part, run in groupby(frame, lambda pair: pair[0]):
                self._turn.audio(part, [token for _, token in run])
