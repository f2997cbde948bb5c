"""Text as it comes to sound: clauses that a voice can say, spoken one at a time."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import monotonic

import numpy as np

from duologue.errors import EngineError
from duologue.metrics import QUEUE_WAIT
from duologue.particles import Scanner, Text
from duologue.text import ClauseSplitter, Speaker
from duologue.tts.piper import PiperVoice, Speech


async def speakable_clauses(
    texts: AsyncGenerator[str, None], lang: str
) -> AsyncGenerator[str, None]:
    """What is to be said of a text, clause by clause; marks, thoughts and particles are not."""
    scanner, splitter, speaker = Scanner(), ClauseSplitter(lang), Speaker(lang)

    def spoken(clauses):
        return filter(None, (speaker.say(clause.text) for clause in clauses))

    async with aclosing(texts):
        async for text in texts:
            for clause in spoken(splitter.feed(_plain(scanner.feed(text)))):
                yield clause
    for clause in spoken([*splitter.feed(_plain(scanner.flush())), *splitter.flush()]):
        yield clause


def _plain(events) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


async def piper_speech(
    voice: PiperVoice, clauses: AsyncGenerator[str, None]
) -> AsyncGenerator[np.ndarray, None]:
    """Samples float32 [n] at `voice.rate_hz` of each clause, made when they are asked for.

    Calls share the voice's one thread clause by clause, first come, first served. Closing it drops
    a clause that waits; one that is being spoken is spoken to its end for nobody.

    Raises:
        EngineError: the phonemiser or the model failed.
    """
    loop = asyncio.get_running_loop()

    def synthesize(clause: str, since_s: float) -> Speech:
        QUEUE_WAIT.labels("piper").observe(monotonic() - since_s)
        return voice.synthesize(clause)

    async with aclosing(clauses):
        async for clause in clauses:
            try:
                speech = await loop.run_in_executor(voice.pool, synthesize, clause, monotonic())
            except EngineError as error:
                # Its message quotes the clause, and what callers say is no business of the log.
                what = f"the voice failed on a clause of {len(clause)} characters"
                raise EngineError(what) from error.__cause__
            if len(speech.samples):
                yield speech.samples
