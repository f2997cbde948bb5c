"""Is what was heard of an answer known? Speech with known word times is cut at random places.

A Piper voice tells the true end of every word. Its speech is made a stream of Step-Audio 2's form
(one text and four audio tokens in turn, the text done long before the speech, one token over and
over in silence), which a `HeardCursor` follows as far as a server would have generated it when the
user cuts in. The text that it keeps is compared with the words that have ended, and with what
Whisper hears in the samples that were played.

    python -m benchmarks.heard [--cuts N] [--ahead X] [--speed X] [--pace X] [--whisper] [--json]
    python -m benchmarks.heard --fit
"""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import count, groupby
from math import ceil
from typing import Any
from unittest.mock import patch

import jiwer
import numpy as np
from num2words import num2words

from duologue.asr.whisper import Whisper, pieces
from duologue.audio.pcm import ASR_RATE_HZ, resample
from duologue.lm.cursor import SILENCE_S, HeardCursor
from duologue.lm.events import EndReason, Event
from duologue.lm.formats import find_family
from duologue.lm.spoken import sounds
from duologue.lm.turn import TurnWriter
from duologue.lm.vocabulary import Vocabulary
from duologue.models import ensure
from duologue.text import ClauseSplitter, Speaker
from duologue.tts.phonemes import Phonemizer
from duologue.tts.piper import PiperVoice

ANSWERS = """
Sure.
Yes, absolutely!
Seven.
My name is Joe.
Sorry about that! Shall we try it once more?
No problem. I have set an alarm for 6:30.
The train leaves at 7:45 from platform 3, and it takes about 20 minutes.
I checked the weather for you: it will rain in the morning, but the sun comes out around noon.
The museum opens at nine, closes at five, and is free on Sundays. You should book early, though, \
because it is often full!
You asked about the tallest mountain. It is Mount Everest, which stands 8,849 meters above the sea.
Let me think. If you mix flour, eggs and a little milk, you get a simple batter; then heat some \
butter in a pan and pour it in.
Your order costs $27.50, and it should arrive on March 3.
That is a difficult question, and honestly nobody knows the answer. Some researchers believe that \
the universe will expand forever, while others think that it might collapse again.
One, two, three, four, five, six, seven, eight, nine, ten.
In 1969, two astronauts walked on the moon for the first time, and about 600 million people \
watched them on television.
Okay, so first you open the settings, then you choose the network, and after that you enter the \
password that is printed on the back of the box.
Unfortunately, I cannot open the door. Is there anything else that I can help you with?
The doctor is available on Monday at ten, Tuesday at two, or Friday morning. Which of these would \
you prefer?
Dogs are loyal, cats are independent, and parrots, strangely enough, can live for over 50 years.
The recipe needs 250 grams of sugar, 4 eggs and a pinch of salt. Beat the eggs until they are \
fluffy, add the sugar slowly, and bake everything for 35 minutes.
Hmm, good point. Then we should probably leave a bit earlier, since the traffic is usually \
terrible on Friday afternoons and parking near the stadium takes forever.
Communication between international organizations requires considerable preparation.
It was a dark and cold night. The wind blew through the trees, and far away a wolf began to howl.
Around 85% of our customers are satisfied, which is 5 points more than last year.
Let me tell you how it works. Every morning the baker gets up at four, lights the oven, and \
prepares the dough for about 300 loaves of bread. While the dough rests he drinks a cup of coffee, \
reads the newspaper and feeds the cat, who has been waiting at the back door since midnight. It is \
hard work, but he says he would never want to do anything else.
The short version is this: plants need light, water and air, and most of them die because we give \
them too much water rather than too little. Put your finger into the soil, and if it feels damp, \
wait another day. Once a month, from April to September, you may add a little fertilizer. And do \
not worry when a leaf turns yellow, that is completely normal.
""".strip().splitlines()

FIT = """
The garden behind the house is full of roses, tulips and old apple trees.
I looked at your calendar, and the afternoon is free.
Put the chicken in the oven at 180 degrees for about forty minutes.
She lived in Paris until 1998, then she moved back home.
That sounds great! What kind of music do you usually listen to?
Water boils at one hundred degrees, but on a high mountain it boils sooner.
Turn left at the church, walk past the library, and the station is right in front of you.
The meeting has been moved to 3:30 on Thursday.
Well, that depends on how much time you have and what you would like to see.
There are 24 hours in a day and 60 minutes in an hour.
The bill comes to $45.20, tip included.
Please hold the line while I check whether the doctor is available today.
Photosynthesis turns sunlight, water and carbon dioxide into sugar and oxygen.
It happened a long time ago; nobody really remembers the details.
The population of the town is about 12,500, I believe.
Good question. I am not entirely sure, so let me look that up for you.
Your package was delivered on May 14 at 10:15.
I would recommend the blue jacket: it is lighter, cheaper and waterproof.
The flight takes 2 hours and 50 minutes, including the stop in Denver.
Democracy literally means rule by the people, and it began in ancient Greece.
Around 70% of the planet is covered by oceans.
Sorry, I did not catch that. Could you say it again, a little more slowly?
Honestly, the film was too long, and the music was terrible.
A violin has four strings, a guitar usually has six, and a piano has more than two hundred.
They sold 375 tickets for $12 each, 47 more than in 2019.
Write down 3,400 and 1,048, and add 249.
He was born in 1984 and left school at 17, with 3.5% interest on a loan of $1,999.
""".strip().splitlines()

RATE_HZ = 25
SILENT, AUDIBLE = 6486, 10 ** (-46 / 20)
WHISPER_S = 10.0
PAUSE = ceil(SILENCE_S * RATE_HZ)
LOOKAHEAD = 28
"""Tokens that token2wav needs before it can speak the first one."""
_STRESS = re.compile(r"[\Wˈˌː]")


@dataclass(frozen=True, slots=True)
class Recording:
    """An answer as spoken.

    Attributes:
        text: As written.
        samples: float32 [n] at 16 kHz, behind some silence.
        ends: (characters, seconds) of each word's end.
    """

    text: str
    samples: np.ndarray
    ends: list[tuple[int, float]]

    @property
    def seconds(self) -> float:
        """Length."""
        return len(self.samples) / ASR_RATE_HZ

    def words_at(self, chars: int) -> int:
        """Whole words among the first `chars` characters."""
        return sum(end <= chars for end, _ in self.ends)

    def words_by(self, seconds: float) -> int:
        """Words that have been said by then."""
        return sum(end_s <= seconds for _, end_s in self.ends)


class Studio:
    """A voice whose every word is timed by its own phonemes, numbers and merged words included."""

    def __init__(self, voice: PiperVoice):
        self._voice = voice
        self._phonemizer = Phonemizer("en-us")

    def close(self) -> None:
        """Ends the phonemiser's process."""
        self._phonemizer.close()

    def answers(self) -> list[Recording]:
        """All of `ANSWERS`, each behind another silence of up to 0.7 s."""
        return [self.record(text, 0.1 * (n % 8)) for n, text in enumerate(ANSWERS)]

    def record(self, text: str, lead_in_s: float = 0.0) -> Recording:
        """Speaks sentence by sentence, behind `lead_in_s` of silence."""
        # Sentences are long enough for one breath.
        splitter, speaker = ClauseSplitter(first_min_chars=220, first_max_chars=220), Speaker()
        rate_hz = self._voice.rate_hz
        parts, ends = [np.zeros(round(lead_in_s * rate_hz), np.float32)], []
        for clause in [*splitter.feed(text), *splitter.flush()]:
            samples, word_ends = self._sentence(clause.text, speaker.say(clause.text))
            before = sum(map(len, parts))
            ends += [(clause.start + at, (before + end) / rate_hz) for at, end in word_ends]
            parts.append(samples)
        return Recording(text, resample(np.concatenate(parts), rate_hz, ASR_RATE_HZ), ends)

    def _sentence(self, written: str, spoken: str) -> tuple[np.ndarray, list[tuple[int, float]]]:
        """Samples, and (characters, sample) of each written word's end.

        The phonemiser makes one word of "of the" and three of "7:45"; phonemes tell them apart.
        """
        with patch("duologue.tts.piper.spread", lambda text, end_samples: end_samples):
            speech = self._voice.synthesize(spoken)
        unit_ends: Any = speech.words
        units = [unit for ipa, _ in self._phonemizer.clauses(spoken) for unit in ipa.split()]
        edges = np.cumsum([0, *(len(_STRESS.sub("", unit)) for unit in units)])
        words = list(re.finditer(r"\S+", written))
        alone = [self._phonemes(Speaker().say(word[0])) for word in words]
        whole = _STRESS.sub("", "".join(units))
        matcher = SequenceMatcher(None, "".join(alone), whole, autojunk=False)
        places = [(0, 0)]
        for at, at_whole, size in matcher.get_matching_blocks():
            places += [(at, at_whole), (at + size, at_whole + size)]
        ends = np.interp(np.cumsum([len(word) for word in alone]), *np.array(places).T)
        # A phoneme may be dropped where words meet.
        near = edges[np.abs(edges[:, None] - ends).argmin(axis=0)]
        ends = np.where(np.abs(near - ends) <= 1, near, ends)
        at = np.interp(ends, edges, [0, *unit_ends])
        return speech.samples, [(word.end(), end) for word, end in zip(words, at, strict=True)]

    def _phonemes(self, word: str) -> str:
        return _STRESS.sub("", "".join(ipa for ipa, _ in self._phonemizer.clauses(word)))


def tokens_of(recording: Recording) -> list[int]:
    """One token for each 40 ms: one and the same in silence, else all different."""
    hop, numbers = ASR_RATE_HZ // RATE_HZ, count()
    frames = [recording.samples[at : at + hop] for at in range(0, len(recording.samples), hop)]
    return [
        SILENT if np.sqrt(np.mean(frame**2)) < AUDIBLE else next(numbers) % 6000 for frame in frames
    ]


def ta4(recording: Recording) -> list[Event]:
    """The events of a stream of this speech: four characters of text, four tokens, and so on."""
    turn = TurnWriter(1, Vocabulary(find_family("step-audio2")).books)
    tokens = tokens_of(recording)
    text = iter(re.findall(r"(?s).{1,4}", recording.text))
    for at in range(0, len(tokens), 4):
        if piece := next(text, None):
            turn.text(piece, (), True)
        turn.audio(0, tokens[at : at + 4])
    turn.end(EndReason.STOP)
    return turn.take()


def generated(events: Sequence[Event], position: float, ahead: float) -> Iterator[Event]:
    """What has been generated when `position` is played.

    Args:
        events: The whole turn.
        position: Tokens played.
        ahead: Speed of generation, 1 is real time; the tokens that token2wav needs come on top.
    """
    known = ahead * position + LOOKAHEAD
    return (event for event in events if event.audio_index < known)


@dataclass(frozen=True, slots=True)
class Cut:
    """One interruption.

    Attributes:
        recording: The answer.
        seconds: When the user cuts in.
        chars: What is kept of the text.
    """

    recording: Recording
    seconds: float
    chars: int

    @property
    def words_off(self) -> int:
        """Words kept too many by the clock; negative if too few."""
        return self.recording.words_at(self.chars) - self.recording.words_by(self.seconds)

    def words_off_for(self, whisper: Whisper) -> int:
        """Words kept too many by what Whisper hears in the samples that were played."""
        played = self.recording.samples[: round(self.seconds * ASR_RATE_HZ)]
        # Whisper drops the end of long audio that breaks off.
        texts = [whisper.transcribe(piece).text for piece in pieces(played, WHISPER_S)]
        heard = _letters("".join(texts))
        prefixes = ["", *(_letters(self.recording.text[:end]) for end, _ in self.recording.ends)]
        return self.recording.words_at(self.chars) - min(
            range(len(prefixes)), key=lambda words: _distance(prefixes[words], heard)
        )


def _letters(text: str) -> str:
    """Lower-case letters alone, numbers spelled out as Whisper may do or not."""
    text = re.sub(r"(?<=\d),(?=\d)", "", text)
    text = re.sub(r"\d+", lambda number: num2words(int(number[0])), text)
    return re.sub(r"[\W_]", "", text).lower()


def _distance(expected: str, heard: str) -> int:
    if not expected:
        return len(heard)
    edits = jiwer.process_characters(expected, heard)
    return edits.substitutions + edits.deletions + edits.insertions


def cuts(
    recordings: Sequence[Recording],
    number: int,
    *,
    ahead: float = 1.0,
    pace: float = 1.0,
    seed: int = 0,
) -> list[Cut]:
    """Cuts each answer in turn, at a time that is equally likely anywhere in it.

    Args:
        recordings: The answers.
        number: How many cuts.
        ahead: Speed of generation, as for `generated`.
        pace: The voice's expected pace.
        seed: Of the times.
    """
    draw = np.random.default_rng(seed)
    book = find_family("step-audio2").codebooks[-1]
    found = []
    for n in range(number):
        recording = recordings[n % len(recordings)]
        seconds = draw.uniform(0, recording.seconds)
        position = seconds * RATE_HZ
        cursor = HeardCursor(book, pace=pace)
        for event in generated(ta4(recording), position, ahead):
            cursor.feed(event)
        found.append(Cut(recording, seconds, cursor.chars_at(position)))
    return found


def summary(words_off: Sequence[int]) -> dict:
    """The share of cuts within one word and two, and how many are off by how much."""
    off = np.abs(words_off)
    return {
        "cuts": len(off),
        "within_1": round(float(np.mean(off <= 1)), 4),
        "within_2": round(float(np.mean(off <= 2)), 4),
        "words_off": {str(n): words_off.count(n) for n in sorted(set(words_off))},
    }


def fit(studio: Studio) -> dict[str, float]:
    """Seconds of what `sounds` counts, and of a mark, by least squares over `FIT`."""
    counts, lengths_s = [], []
    for text in FIT:
        recording = studio.record(text)
        runs = [list(run) for _, run in groupby(tokens_of(recording))]
        audible = [len(run) < PAUSE for run in runs for _ in run]
        sound_s = np.cumsum([0, *audible]) / RATE_HZ
        before = 0.0
        for word, (_, end_s) in zip(text.split(), recording.ends, strict=True):
            end = np.interp(end_s * RATE_HZ, range(len(sound_s)), sound_s)
            counts.append([*sounds(word)[:4], not word[-1].isalnum()])
            lengths_s.append(end - before)
            before = end
    found, *_ = np.linalg.lstsq(np.array(counts, float), np.array(lengths_s), rcond=None)
    names = ("letter", "digit", "zero", "sign", "mark")
    return {name: round(float(value), 3) for name, value in zip(names, found, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--ahead", type=float, action="append", help="may be repeated")
    parser.add_argument("--speed", type=float, default=1.0, help="of the voice")
    parser.add_argument("--pace", type=float, default=1.0, help="that the cursor expects")
    parser.add_argument("--whisper", action="store_true", help="also ask Whisper")
    parser.add_argument("--fit", action="store_true", help="only fit the lengths of sounds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    voice = PiperVoice(ensure("piper-en_US-joe-medium"), speed=options.speed, lively=False)
    studio = Studio(voice)
    try:
        rows = [fit(studio)] if options.fit else list(measure(studio, options))
    finally:
        studio.close()
        voice.close()
    for row in rows:
        print(json.dumps(row) if options.json else "  ".join(f"{k} {v}" for k, v in row.items()))


def measure(studio: Studio, options: argparse.Namespace) -> Iterator[dict]:
    """Yields one row for each speed of generation and each judge."""
    recordings = studio.answers()
    whisper = Whisper(ensure("whisper-tiny.en")) if options.whisper else None
    for ahead in options.ahead or (1.0, 2.0, 100.0):
        made = cuts(recordings, options.cuts, pace=options.pace, ahead=ahead)
        clock = [cut.words_off for cut in made]
        yield {"ahead": ahead, "against": "clock", **summary(clock)}
        if whisper:
            off = [cut.words_off_for(whisper) for cut in made]
            yield {"ahead": ahead, "against": "Whisper", **summary(off)}


if __name__ == "__main__":
    main()
