"""Barge-in on labelled recordings, in virtual time: who stops the bot and who does not.

The thresholds were tuned on these recordings; the figures say how well they are told apart, not how
well strangers would be.
"""

import asyncio
import re
from dataclasses import dataclass

import pytest

from benchmarks.duplex_labels import DUPLEX, Label, read
from bots.models import Models
from bots.virtual_call import virtual_call
from duologue.config import BotConfig
from duologue.rehearsal import virtual
from tests.fakes import FakeEngine, FakeVoice

REPLY = " ".join(["the ocean is large and deep and many animals live there all year"] * 6) + "."


@dataclass
class Outcome:
    """What one recording did; seconds count from its onset."""

    label: Label
    held_s: float | None
    cut_s: float | None
    resumed_s: float | None

    @property
    def right(self) -> bool:
        return (self.cut_s is not None) == (self.label.kind == "interruption")


@pytest.fixture
def play(whisper, say, clip):
    """Play a recording over an answer and see what comes of it."""

    async def over_an_answer(label: Label) -> Outcome:
        models = Models(whisper, FakeEngine([REPLY]), FakeVoice(0.25))
        async with virtual_call(models, BotConfig()) as call:
            await asyncio.sleep(0.3)
            await call.say(say("Tell me about the sea."))
            await call.wait_for("state", state="speaking")
            await asyncio.sleep(1.0)
            seen = len(call.events)
            onset_s = await call.say(clip(f"duplex/{label.file}")) + label.onset_ms / 1000
            await asyncio.sleep(2.2)

            def first(**fields) -> float | None:
                times = (at for at, e in call.events[seen:] if fields.items() <= e.items())
                return next((at - onset_s for at in times), None)

            return Outcome(
                label,
                first(type="state", state="held"),
                first(type="bot_end", reason="interrupted"),
                first(type="state", state="speaking"),
            )

    return lambda label: virtual.run(over_an_answer(label))


def english(labels: list[Label]) -> list[Label]:
    """The embedded recogniser knows no other language."""
    return [label for label in labels if not re.search("[\u4e00-\u9fff]", label.text)]


def score(outcomes: list[Outcome]) -> tuple[float, float]:
    """(false stops among what should not stop the bot, recall of what should)."""
    calm = [o for o in outcomes if o.label.kind != "interruption"]
    real = [o for o in outcomes if o.label.kind == "interruption"]
    return sum(not o.right for o in calm) / len(calm), sum(o.right for o in real) / len(real)


@pytest.mark.timeout(600)
def test_a_sample_of_the_recordings(play):
    labels = english(read(DUPLEX, Label))[::5]
    outcomes = [play(label) for label in labels]
    false_stops, recall = score(outcomes)
    wrong = [(o.label.file, o.label.text) for o in outcomes if not o.right]
    assert false_stops <= 0.1, wrong
    assert recall >= 0.85, wrong
    resumed = [o for o in outcomes if o.held_s and not o.cut_s]
    assert all(o.resumed_s and o.resumed_s < 2.0 for o in resumed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_recordings(play):
    outcomes = [play(label) for label in english(read(DUPLEX, Label))]
    false_stops, recall = score(outcomes)
    wrong = [(o.label.file, o.label.text) for o in outcomes if not o.right]
    print(f"false stops {false_stops:.1%}, recall {recall:.1%}, wrong {wrong}")
    assert false_stops <= 0.05, wrong
    assert recall >= 0.95, wrong
