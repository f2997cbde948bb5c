"""Talk leaves nothing behind, in virtual time: a minute in any run, an hour in a long one."""

import asyncio
import gc

import psutil
import pytest

from bots.models import Models, Speech
from bots.virtual_call import virtual_call
from duologue.rehearsal import virtual
from tests.conversing import RULES
from tests.fakes import FakeBatcher, FakeEngine, FakeVoice
from tests.test_speech_lm import FAMILY, STORY, TOKENS, VOICE, answer, config, ta4

GROWTH = 20e6
"""Bytes that a process may gain while nothing is kept."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seconds", [60, pytest.param(3600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["text", "speech"])
def test_talk_leaves_nothing_behind(whisper, say, kind, seconds):
    speaks = kind == "speech"
    text = "the ocean is large and deep and many animals live there all year long."
    script = answer(ta4(STORY, TOKENS)) if speaks else [text]
    engine = FakeEngine(*[script] * 2000)
    speech = Speech(FAMILY, FakeBatcher(), VOICE) if speaks else None  # type: ignore[arg-type]
    models = Models(whisper, engine, FakeVoice(0.2), speech)  # type: ignore[arg-type]
    held: list[tuple[float, int, int]] = []

    async def main():
        async with virtual_call(models, config() if speaks else RULES) as call:
            turn = 0
            while call.now_s < seconds:
                turn += 1
                await call.say(say("Tell me about the sea."))
                await call.wait_for("state", state="speaking")
                await asyncio.sleep(1.5)
                if turn % 3 == 0:
                    await call.say(say("Stop, please."))
                await call.wait_for("state", state="listening", within_s=60)
                # What a test keeps of a call, a session does not.
                call.events.clear()
                call.ear.chunks.clear()
                engine.requests.clear()
                if seconds == 60 or turn % 10 == 0:
                    gc.collect()
                    rss = psutil.Process().memory_info().rss
                    held.append((call.now_s, rss, len(asyncio.all_tasks())))
            assert len(call.session.context.messages) < 200
            assert len(call.session.memory.answers) < 100

    virtual.run(main())
    warm = [(rss, tasks) for now, rss, tasks in held if now > seconds / 4]
    assert len(warm) > 3
    assert len({tasks for _, tasks in warm}) <= 2
    few = min(5, len(warm) // 2)
    first, last = (sum(rss for rss, _ in part) / few for part in (warm[:few], warm[-few:]))
    assert last - first < GROWTH, f"{(last - first) / 1e6:.1f} MB in {seconds * 3 // 4} s"
