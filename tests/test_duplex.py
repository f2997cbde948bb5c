"""Hold first, then commit or resume (reports A3, G2)."""

import pytest

from duologue.duplex import BargeIn, Decision, takes_floor, tokens

HOLD, COMMIT, RESUME, NONE = Decision.HOLD, Decision.COMMIT, Decision.RESUME, Decision.NONE


def holding() -> BargeIn:
    state = BargeIn()
    state.bot(floor=True)
    assert state.onset() is HOLD
    return state


@pytest.mark.parametrize(
    "text",
    ["Mm-hmm.", "Uh-huh.", "Mhm.", "Yeah.", "Yeah, yeah.", "Okay.", "Right.", "I see.", "Got it.",
     "Oh, wow!", "Hmm.", "That's right.", "嗯。", "嗯嗯", "对，对。", "好的", "", "..."],
)  # fmt: skip
def test_backchannels_resume(text):
    state = holding()
    assert state.words(text, final=False) is NONE
    assert state.words(text, final=True) is RESUME
    assert not state.held


@pytest.mark.parametrize(
    "text",
    ["Stop.", "Wait, wait.", "No.", "Yeah, but wait.", "Okay, so what about Rome?", "Hold on.",
     "What time is it?", "Excuse me.", "等一下", "不对", "I see a problem"],
)  # fmt: skip
def test_real_words_commit(text):
    state = holding()
    assert state.words(text, final=True) is COMMIT


def test_a_backchannel_that_goes_on_commits_when_it_does():
    state = holding()
    assert state.words("Yeah", final=False) is NONE
    assert state.words("Yeah but", final=False) is COMMIT
    assert state.words("Yeah but wait", final=True) is NONE


def test_a_single_unfinished_word_waits_unless_it_is_a_known_interrupter():
    assert holding().words("Ham", final=False) is NONE
    assert holding().words("Stop", final=False) is COMMIT


def test_the_same_word_to_a_silent_bot_is_an_answer():
    state = BargeIn()
    assert state.onset() is COMMIT
    assert state.words("Okay.", final=True) is NONE


def test_a_long_sound_without_words_does_not_hold_for_ever():
    state = holding()
    assert state.time_out() is RESUME
    assert state.words("turn the music down", final=False) is COMMIT


def test_a_word_without_conviction_is_a_hum_unless_it_is_an_interrupter():
    assert holding().words("Run.", final=True, confidence=-1.9) is RESUME
    assert holding().words("Run.", final=True, confidence=-0.3) is COMMIT
    assert holding().words("Stop.", final=True, confidence=-1.9) is COMMIT


BOT = "Would you like a Coke or a Sprite with your meal?"


def test_the_bots_own_echo_resumes_and_does_not_hold_again():
    state = holding()
    assert state.words("coke or a sprite", final=False, bot_text=BOT) is NONE
    assert state.words("Coke or a Sprite", final=True, bot_text=BOT) is RESUME
    assert state.onset() is NONE
    assert state.words("no I want water", final=False, bot_text=BOT) is COMMIT


def test_echo_is_forgotten_with_the_next_answer():
    state = holding()
    state.words("with your meal", final=True, bot_text=BOT)
    state.bot(floor=False)
    state.bot(floor=True)
    assert state.onset() is HOLD


def test_a_second_sound_on_hold_does_not_restart_the_hold():
    state = holding()
    assert state.onset() is NONE
    assert state.time_out() is RESUME


def test_tokens_keep_letters_and_hanzi():
    assert tokens("Mm-hmm, I'm OK. 好的!") == ["mmhmm", "i'm", "ok", "好", "的"]
    assert not takes_floor("?!", final=True)
