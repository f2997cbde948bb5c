"""Which text of a turn has been heard, where text runs ahead of the speech that says it.

An interleaved speech LM gives text out at more than twice the pace of its speech, and no token
tells which word it says. In a public stream of Step-Audio 2 (github.com/ai-bot-pro/achatbot, 988
audio tokens) the text is complete at 43 % of the audio, and a character takes 4.1 to 5.4 tokens, so
one pace for the whole answer is off by many words. But a codec repeats a token in silence: in that
stream every run of three equal tokens or more stands at a mark of the text or at an end. So pauses
are paired with marks, by a beam search over all ways to do so in order, and between two pairs words
share the time by their estimated lengths. Of a codec that shows no silence, lengths alone tell.
`python -m benchmarks.heard` measures it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

import numpy as np

from duologue.lm.events import AudioTokens, EndReason, Event, Particle, TextDelta, TurnEnd
from duologue.lm.formats import Codebook
from duologue.lm.spoken import SpokenWord, spoken_words
from duologue.particles.taxonomy import SOUNDS
from duologue.text.breaks import Break

PAUSE_S = {Break.CLAUSE: 0.2, Break.SENTENCE: 0.4}
"""How long a voice pauses at a mark, where its tokens do not show it."""
SOUND_S = 0.7
"""About how long a laugh, a sigh or a cough takes."""

SILENCE_S = 0.1
"""One token over and over for so long is silence."""
UNPAIRED = {Break.CLAUSE: 4.0, Break.SENTENCE: 7.0}
"""Cost of a mark without a pause, in negative log-likelihood as all costs."""
BEAM = 16
REACH = 8
"""Marks in a row that may be without a pause."""
PRIOR_S = 2.0
"""How much measured speech the expected pace outweighs."""
UNHEARD = 1 / 3
"""Part of a word that may be missing when it counts as heard: words are recognised before they end,
by Whisper from a half on."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A mark and the pause that stands for it; the first one of a chain is the beginning.

    Attributes:
        sound_s: Audio before it, less its silence.
        text_s: Length of the text before it.
        words: Number of words before it.
        pace: Seconds of sound for a second of text, up to there.
        before: The last pair.
    """

    sound_s: float
    text_s: float
    words: int
    pace: float
    before: "_Pair | None" = None


class _Stretch:
    """Text, and the audio that says it from its first word on; positions are its own tokens."""

    def __init__(self, offset: int, skipped: int, first_token: int, rate_hz: float, pace: float):
        self.skipped = skipped
        self.first_token = first_token
        self.words: list[SpokenWord] = []
        self.tokens = 0
        self.closed = False
        # Behind the newline that begins a turn.
        self._text, self._offset = "\n", offset - 1
        self._settled = 0
        self._ends_s: list[float] = []
        self._marks: list[int] = []
        self._rate_hz = rate_hz
        self._silence = max(2, ceil(SILENCE_S * rate_hz))
        self._last, self._run = -1, 0
        self._pauses: list[tuple[int, int]] = []
        self._prior = pace
        self._beam = [(0.0, _Pair(0.0, 0.0, 0, pace))]

    @property
    def text_end(self) -> int:
        """Offset behind the text so far."""
        return self._offset + len(self._text)

    @property
    def pace(self) -> float:
        """Of the speech so far."""
        pair = self._best()
        if self.closed and self.words:
            pair = self._next(pair, self._sound_s(self.tokens), self._timeline()[-1])
        return pair.pace

    def add_text(self, text: str) -> None:
        self._text += text
        self._parse(final=False)

    def add_sound(self) -> None:
        """What is heard behind the text so far is no word; it ends where the last word does."""
        self._parse(final=True)
        end = self.words[-1].end if self.words else self._offset + 1
        self._ends_s.append((self._ends_s[-1] if self._ends_s else 0.0) + SOUND_S)
        self.words.append(SpokenWord(end, SOUND_S, Break.NONE))
        self._settled = len(self.words)

    def add_audio(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            if token != self._last:
                if self._run >= self._silence:
                    self._pair(*self._pauses[-1])
                self._last, self._run = token, 0
            self._run += 1
            self.tokens += 1
            if self._run == self._silence:
                self._pauses.append((self.tokens - self._run, self.tokens))
            elif self._run > self._silence:
                self._pauses[-1] = (self._pauses[-1][0], self.tokens)

    def close(self) -> None:
        """The audio so far has said all of the text."""
        self._parse(final=True)
        self.closed = True

    def said(self, position: float, missing: float = 0.0) -> int:
        """Number of words that have been said by `position`, but for such a part of the last."""
        sound_s = self._sound_s(min(position, self.tokens))
        if sound_s <= 0:
            return 0
        text_s, ends_s = np.interp(sound_s, *self._points()) + 1e-6, self._timeline()
        count = bisect_right(ends_s, text_s)
        for index in range(count, len(ends_s)):
            if ends_s[index] - missing * self.words[index].length_s > text_s:
                break
            count += 1
        return count if count and ends_s[count - 1] > 0 else 0

    def _parse(self, final: bool) -> None:
        """Takes the text behind the settled words apart again."""
        del self.words[self._settled :], self._ends_s[self._settled :]
        del self._marks[bisect_left(self._marks, self._settled) :]
        start = self.words[-1].end - self._offset if self.words else 0
        end_s = self._ends_s[-1] if self._ends_s else 0.0
        for word in spoken_words(self._text, start, final=final):
            end_s += word.length_s
            if word.mark:
                self._marks.append(len(self.words))
            self.words.append(SpokenWord(word.end + self._offset, word.length_s, word.mark))
            self._ends_s.append(end_s)
        # The next word may show that a mark ends no sentence, or that a number goes on.
        self._settled = len(self.words) if final else max(self._settled, len(self.words) - 3)

    def _timeline(self) -> list[float]:
        """When each word ends, in seconds of text: with pauses only if the audio shows none."""
        if self._pauses:
            return self._ends_s
        pauses = accumulate((PAUSE_S.get(word.mark, 0.0) for word in self.words), initial=0.0)
        return [end + pause for end, pause in zip(self._ends_s, pauses, strict=False)]

    def _sound_s(self, position: float) -> float:
        silent = sum(max(0, min(position, end) - start) for start, end in self._pauses)
        return (max(0, position) - silent) / self._rate_hz

    def _points(self) -> tuple[list[float], list[float]]:
        """Sound and text, in seconds, that belong together; between points both are even."""
        pair: _Pair | None = self._best()
        if self.closed:
            end = self._sound_s(self.tokens), self._timeline()[-1] if self.words else 0.0
        else:
            hour = 3600.0
            end = pair.sound_s + hour * pair.pace, pair.text_s + hour
        sounds, texts = [end[0]], [end[1]]
        while pair is not None:
            sounds.append(pair.sound_s)
            texts.append(pair.text_s)
            pair = pair.before
        return sounds[::-1], texts[::-1]

    # The search

    def _pair(self, start: int, end: int) -> None:
        """Goes on with each way to pair earlier pauses: leaves this one out, or pairs it."""
        sound_s = self._sound_s(start)
        if sound_s < SILENCE_S:
            # Speech has yet to begin; a codec's first tokens may be any.
            return
        left_out = min(4.0, 0.5 * (end - start - self._silence + 1))
        best: dict[tuple[float, int], tuple[float, _Pair]] = {}
        for cost, pair in self._beam:
            for more, way in [(left_out, pair), *self._ways(pair, sound_s)]:
                place = way.sound_s, way.words
                if place not in best or cost + more < best[place][0]:
                    best[place] = cost + more, way
        self._beam = sorted(best.values(), key=lambda way: way[0])[:BEAM]

    def _ways(self, pair: _Pair, sound_s: float) -> Iterable[tuple[float, _Pair]]:
        """Yields (cost, pair) of each mark behind `pair`."""
        first, unpaired = bisect_left(self._marks, pair.words), 0.0
        for index in self._marks[first : first + REACH]:
            text_s = self._ends_s[index]
            way = self._next(pair, sound_s, text_s, index + 1)
            yield unpaired + self._misfit(pair, sound_s, text_s), way
            unpaired += UNPAIRED[self.words[index].mark]

    def _misfit(self, pair: _Pair, sound_s: float, text_s: float) -> float:
        """Cost of so much sound for so much text behind `pair`."""
        heard_s, expected_s = sound_s - pair.sound_s, (text_s - pair.text_s) * pair.pace
        # A word's length is off by 0.09 s, and the pace of a clause by a fifth.
        variance = 0.003 + 0.02 * expected_s + (0.2 * expected_s) ** 2
        return (heard_s - expected_s) ** 2 / 2 / variance

    def _next(self, pair: _Pair, sound_s: float, text_s: float, words: int = 0) -> _Pair:
        pace = (PRIOR_S * self._prior + sound_s) / (PRIOR_S + text_s)
        return _Pair(sound_s, text_s, words, pace, pair)

    def _best(self) -> _Pair:
        """The last pair of the likeliest way."""
        sound_s = self._sound_s(self.tokens)
        return min(self._beam, key=lambda way: way[0] + self._rest(way[1], sound_s))[1]

    def _rest(self, pair: _Pair, sound_s: float) -> float:
        """Cost of what has come behind `pair`."""
        text_s, cost = pair.text_s + (sound_s - pair.sound_s) / pair.pace, 0.0
        if self.closed and self.words:
            text_s = self._ends_s[-1]
            cost = self._misfit(pair, sound_s, text_s)
        for index in self._marks[bisect_left(self._marks, pair.words) :]:
            # One that has only just been passed may be late.
            if self._ends_s[index] >= text_s - 0.2:
                break
            cost += UNPAIRED[self.words[index].mark]
        return cost


class HeardCursor:
    """Follows the events of one turn and tells which text its audio has said.

    A position is a number of tokens of the codebook that tells the time, from the turn's first one
    on, and may be a fraction: samples played by samples of a token. Each answer rests on all that
    is known by then: it is best at the turn's end, and roughest about audio that has only just been
    generated.

    Args:
        codebook: The profile's last one.
        pace: Of the voice, 1.2 is a fifth slower than usual; `pace` of its last turn.
        aligned: Whether text comes piece by piece, each followed by all of its audio, as from a
            talker that is given clause after clause; its particles are sounds in the audio. Text
            tokens that merely take turns with audio tokens (1:4, 5:15, 13:26) run ahead of it: then
            this is False.
    """

    def __init__(self, codebook: Codebook, *, pace: float = 1.0, aligned: bool = False):
        self._codebook = codebook
        self._pace = pace
        self._aligned = aligned
        self._stretches: list[_Stretch] = []
        self._tokens = self._skipped = 0

    @property
    def pace(self) -> float:
        """The voice's pace as measured so far, with which its next turn should begin."""
        pace = self._stretches[-1].pace if self._stretches else self._pace
        return min(2.0, max(0.5, pace))

    def feed(self, event: Event) -> None:
        """Take the turn's next event, of any kind."""
        if isinstance(event, TextDelta):
            if not event.voiced:
                self._skipped += len(event.text)
            elif event.text:
                self._stretch(event.text_offset).add_text(event.text)
        elif isinstance(event, Particle) and self._aligned:
            if event.mark.kind in SOUNDS:
                self._stretch(event.text_offset).add_sound()
        elif isinstance(event, AudioTokens):
            if event.codebook == self._codebook.name:
                stretch = self._stretches[-1] if self._stretches else self._stretch(self._skipped)
                stretch.add_audio(event.tokens)
                self._tokens += len(event.tokens)
        elif isinstance(event, TurnEnd) and event.reason is EndReason.STOP and self._stretches:
            # After any other end, audio may be missing of the text that ran ahead.
            self._stretches[-1].close()

    def chars_at(self, position: float) -> int:
        """Characters of the turn's voiced text that were heard once `position` has been played.

        Ends behind a word or, where words are not parted, behind a character; the last one may lack
        its end. 0 while nothing has been heard.
        """
        chars = 0
        for stretch in self._stretches:
            if words := stretch.said(position - stretch.first_token, UNHEARD):
                chars = stretch.words[words - 1].end
        return chars

    def _stretch(self, offset: int) -> _Stretch:
        """The stretch of the text at `offset`, which ends the one before if it is a new one."""
        offset -= self._skipped
        last = self._stretches[-1] if self._stretches else None
        goes_on = last and (last.text_end, last.skipped) == (offset, self._skipped)
        if last and goes_on and not (self._aligned and last.tokens):
            return last
        if last:
            last.close()
        new = _Stretch(offset, self._skipped, self._tokens, self._codebook.rate_hz, self.pace)
        self._stretches.append(new)
        return new
