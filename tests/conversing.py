"""What tests of conversations share."""

import asyncio

from bots.models import Models
from bots.virtual_call import virtual_call
from duologue.config import BotConfig
from duologue.rehearsal import virtual
from tests.fakes import FakeEngine, FakeVoice

WORD_S = 0.2
COUNT = " ".join(f"word{n}" for n in range(1, 41)) + "."
RULES = BotConfig()


def run_call(scenario, *answers, whisper, config: BotConfig = RULES, voice=None):
    """Run a scenario in virtual time with an engine that gives these answers."""
    engine, voice = FakeEngine(*answers), voice or FakeVoice(WORD_S)

    async def main():
        models = Models(whisper, engine, voice)
        async with virtual_call(models, config) as call:
            call.engine, call.voice = engine, voice
            await asyncio.sleep(0.3)
            return await scenario(call)

    return virtual.run(main())


def dialogue(call) -> list[tuple[str, str]]:
    opening = 1 + 2 * len(RULES.lm.examples)
    return [(m["role"], m["content"]) for m in call.session.context.messages[opening:]]
