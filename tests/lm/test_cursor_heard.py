"""What counts as heard, against speech: the true times of its words, and Whisper's ears."""

import pytest

from benchmarks.heard import Cut, Recording, Studio, cuts, summary

# The first test also speaks all answers.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def answers(piper) -> list[Recording]:
    studio = Studio(piper)
    yield studio.answers()
    studio.close()


def off(cut: Cut, words: int) -> str:
    """A line for a failed assertion."""
    return f"{words} at {cut.seconds:.2f} s: {cut.recording.text[: cut.chars]!r}"


@pytest.mark.parametrize("ahead", [1.0, 2.0, 100.0], ids=["real time", "twice as fast", "ended"])
def test_a_hundred_cuts_keep_the_words_that_have_ended(answers, ahead: float):
    made = cuts(answers, 100, ahead=ahead)
    result = summary([cut.words_off for cut in made])
    assert result["within_1"] >= 0.95 and result["within_2"] == 1.0, [
        off(cut, cut.words_off) for cut in made if abs(cut.words_off) > 1
    ]


@pytest.mark.parametrize("number", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_whisper_hears_the_words_that_are_kept(answers, whisper, number: int):
    made = cuts(answers, number, ahead=1.0)
    words_off = [cut.words_off_for(whisper) for cut in made]
    result = summary(words_off)
    assert result["within_1"] >= 0.95 and result["within_2"] == 1.0, [
        off(cut, words) for cut, words in zip(made, words_off, strict=True) if abs(words) > 1
    ]
