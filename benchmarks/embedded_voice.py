"""How well is the embedded voice understood? Whisper writes down what it says of held-out text.

Rows: the teacher's own voice, the teacher's speech as codes through flow and vocoder, and text
through the whole chain; what no stage has seen in training.

    python -m benchmarks.embedded_voice [--split test] [--limit N] [--rows teacher,codec,voice]
                                        [--package FOLDER] [--held FILE] [--wavs FOLDER] [--json]
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jiwer
import numpy as np
import soundfile

from duologue.asr.whisper import Whisper
from duologue.audio.pcm import ASR_RATE_HZ, resample
from duologue.embedded import FOLDER
from duologue.embedded.package import Package
from duologue.embedded.speak import speak
from duologue.models import ensure
from duologue.text.numerals import spell_digits
from duologue.text.speakable import speakable
from duologue.tts.offline import speak as speak_piper
from duologue.tts.piper import PiperVoice

HELD = Path(__file__).parents[1] / "tests" / "data" / "embedded" / "held.json"
SILENCE_S = 0.3
CLIPPED = 0.985


@dataclass(frozen=True, slots=True)
class Sentence:
    """Held-out text, and the tokens of the teacher's speech of it."""

    text: str
    codes: list[int]


@dataclass(slots=True)
class Row:
    """What a way of speaking did.

    Attributes:
        pairs: What was to be said, and what was heard.
        clipped: Samples at the limit.
        cut: Clauses that did not end by themselves.
        audio_s: Of all sentences.
        rtf: Mean real-time factor of each stage.
    """

    pairs: list[tuple[str, str]] = field(default_factory=list)
    clipped: int = 0
    cut: int = 0
    audio_s: float = 0.0
    rtf: dict[str, list[float]] = field(default_factory=dict)

    def figures(self) -> dict[str, object]:
        """For people and programs."""
        said, heard = (
            [plain(text) or "-" for text in side] for side in zip(*self.pairs, strict=True)
        )
        right = sum(one == other for one, other in zip(said, heard, strict=True))
        return {
            "sentences": len(said),
            "wer": round(jiwer.wer(said, heard), 4),
            "cer": round(jiwer.cer(said, heard), 4),
            "exact": round(right / len(said), 3),
            "audio_s": round(self.audio_s, 1),
            "clipped_samples": self.clipped,
            "cut_clauses": self.cut,
            "rtf": {stage: round(float(np.mean(values)), 3) for stage, values in self.rtf.items()},
        }


def plain(text: str) -> str:
    """Small letters and words only, numbers in words."""
    words = spell_digits(speakable(text)).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return " ".join(re.sub(r"[^a-z' ]", " ", words).replace("'", "").split())


def read_held(path: Path, split: str, limit: int | None) -> list[Sentence]:
    """The sentences of a split."""
    rows = json.loads(path.read_text(encoding="utf-8"))[split]
    return [Sentence(row["text"], row["codes"]) for row in rows][:limit]


def teacher(row: Row) -> Callable[[Sentence, int], tuple[np.ndarray, int]]:
    """The voice that the data set was made with."""
    voice = PiperVoice(ensure("piper-en_US-joe-medium"))

    def say(sentence: Sentence, seed: int) -> tuple[np.ndarray, int]:
        return speak_piper(voice, sentence.text), voice.rate_hz

    return say


def codec(package: Package, row: Row) -> Callable[[Sentence, int], tuple[np.ndarray, int]]:
    """The teacher's codes, streamed as in a call."""
    model, voice = package.token2wav(), package.voice()

    def say(sentence: Sentence, seed: int) -> tuple[np.ndarray, int]:
        with model.utterance(voice, seed) as utterance:
            codes = np.array(sentence.codes, np.int32)
            parts = [utterance.push(codes), utterance.finish()]
        return np.concatenate(parts), model.config.hift.sample_rate_hz

    return say


def whole(package: Package, row: Row) -> Callable[[Sentence, int], tuple[np.ndarray, int]]:
    """Text through talker, flow and vocoder."""

    def say(sentence: Sentence, seed: int) -> tuple[np.ndarray, int]:
        spoken = asyncio.run(speak(package, sentence.text, seed=seed))
        row.cut += spoken.cut
        for stage, rtf in spoken.facts()["rtf"].items():
            row.rtf.setdefault(stage, []).append(rtf)
        return spoken.samples, spoken.rate_hz

    return say


def measure(names: Sequence[str], sentences: list[Sentence], package: Path, wavs: Path | None):
    """The figures of each row."""
    ears = Whisper(ensure("whisper-base"), language="en")
    opened = Package(package) if set(names) & {"codec", "voice"} else None
    figures = {}
    for name in names:
        row = Row()
        if name == "teacher":
            say = teacher(row)
        else:
            assert opened
            say = (codec if name == "codec" else whole)(opened, row)
        for place, sentence in enumerate(sentences):
            samples, rate_hz = say(sentence, place)
            row.audio_s += len(samples) / rate_hz
            row.clipped += int((np.abs(samples) >= CLIPPED).sum())
            if wavs:
                wavs.mkdir(parents=True, exist_ok=True)
                soundfile.write(wavs / f"{name}_{place:03d}.wav", samples, rate_hz)
            quiet = np.zeros(int(SILENCE_S * ASR_RATE_HZ), np.float32)
            heard = np.concatenate([quiet, resample(samples, rate_hz, ASR_RATE_HZ), quiet])
            row.pairs.append((sentence.text, ears.transcribe(heard).text))
            print(f"\r{name} {place + 1}/{len(sentences)}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        figures[name] = row.figures() | {
            "mistakes": [pair for pair in row.pairs if plain(pair[0]) != plain(pair[1])]
        }
    return figures


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", choices=("dev", "test", "short"), default="test")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--rows", default="teacher,codec,voice")
    parser.add_argument("--package", type=Path, default=FOLDER)
    parser.add_argument("--held", type=Path, default=HELD)
    parser.add_argument("--wavs", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    sentences = read_held(args.held, args.split, args.limit)
    figures = measure(args.rows.split(","), sentences, args.package, args.wavs)
    if args.json:
        print(json.dumps(figures, indent=1))
        return
    for name, row in figures.items():
        for said, heard in row.pop("mistakes"):
            print(f"{name}: {said!r} heard as {heard!r}")
    for name, row in figures.items():
        print(name, *(f"{key} {value}" for key, value in row.items()), sep="  ")


if __name__ == "__main__":
    main()
