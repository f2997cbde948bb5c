"""How fast is the embedded voice? First sound of a clause and real-time factors, quiet and busy.

Busy is beside a recogniser and a language model that never rest, as two more processes. Run
`python -m benchmarks.embedded_speed [--count N] [--json]`.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from benchmarks.embedded_voice import HELD, read_held
from duologue.asr.whisper import Whisper
from duologue.audio.pcm import ASR_RATE_HZ
from duologue.embedded.package import Package
from duologue.embedded.speak import speak
from duologue.lm.engine import Ids, Request
from duologue.lm.llamacpp import LlamaCpp
from duologue.lm.prompt import TextPart
from duologue.models import ensure
from duologue.talker.config import END, FIRST_CODE, TEMPERATURE
from duologue.talker.engine import TalkerEngine
from duologue.token2wav.pipeline import Token2wav
from duologue.token2wav.step import VoicePrompt

READY = b"ready"


async def first_sound_s(
    talker: TalkerEngine, decoder: Token2wav, voice: VoicePrompt, text: str, seed: int
) -> float:
    """Seconds from a clause's text to its first samples."""
    request = Request(parts=(TextPart(text),), max_tokens=1000, temperature=TEMPERATURE, seed=seed)
    began = time.perf_counter()
    with decoder.utterance(voice, seed) as utterance:
        async for step in talker.stream(request):
            codes = [token - FIRST_CODE for token in getattr(step, "ids", ()) if token != END]
            if isinstance(step, Ids) and len(utterance.push(np.array(codes, np.int32))):
                break
        else:
            utterance.finish()
        return time.perf_counter() - began


async def measure(package: Package, texts: Sequence[str]) -> dict[str, float]:
    """First sound in ms, and the real-time factor of each stage."""
    talker, decoder, voice = package.talker(), package.token2wav(), package.voice()
    await first_sound_s(talker, decoder, voice, "Hello.", 0)
    waits = [
        1000 * await first_sound_s(talker, decoder, voice, text, seed)
        for seed, text in enumerate(texts)
    ]
    await talker.close()
    facts = [(await speak(package, text, seed=seed)).facts() for seed, text in enumerate(texts)]
    found = {
        "first_sound_ms_p50": float(np.percentile(waits, 50)),
        "first_sound_ms_p95": float(np.percentile(waits, 95)),
    }
    for stage in ("talker", "flow", "hift"):
        found[f"rtf_{stage}"] = float(np.mean([fact["rtf"][stage] for fact in facts]))
    found["rtf"] = sum(value for name, value in found.items() if name.startswith("rtf_"))
    return found


@contextmanager
def neighbours() -> Iterator[None]:
    """A recogniser and a language model at work in processes of their own."""
    command = [sys.executable, "-m", "benchmarks.embedded_speed", "--be"]
    running = [subprocess.Popen([*command, kind], stdout=subprocess.PIPE) for kind in ("asr", "lm")]
    try:
        for process in running:
            assert process.stdout and process.stdout.readline().strip() == READY
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def recognise() -> None:
    """Recognise noise for ever."""
    ears = Whisper(ensure("whisper-tiny.en"), language="en")
    sound = np.random.default_rng(0).normal(0, 0.05, 3 * ASR_RATE_HZ).astype(np.float32)
    print(READY.decode(), flush=True)
    while True:
        ears.transcribe(sound)


async def generate() -> None:
    """Tell stories for ever."""
    model = LlamaCpp(ensure("smollm2-135m-instruct"), threads=1, context=2048, slots=1)
    asked = Request(messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=200)
    print(READY.decode(), flush=True)
    while True:
        async for _ in model.stream(asked):
            pass


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="sentences")
    parser.add_argument("--be", choices=("asr", "lm"), help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.be:
        recognise() if args.be == "asr" else asyncio.run(generate())
        return
    sentences = read_held(HELD, "test", None)
    texts = [each.text for each in sentences[:: max(1, len(sentences) // args.count)]]
    package = Package()
    figures = {"quiet": asyncio.run(measure(package, texts))}
    with neighbours():
        figures["busy"] = asyncio.run(measure(package, texts))
    if args.json:
        print(json.dumps(figures, indent=1))
        return
    for name, found in figures.items():
        print(name, *(f"{key} {value:.3g}" for key, value in found.items()), sep="  ")


if __name__ == "__main__":
    main()
