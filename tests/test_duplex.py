"""Hold first, then commit or resume (reports A3, G2)."""

import pytest

from duologue.duplex import BargeIn, Decision, Heard, takes_floor, tokens

HOLD, COMMIT, RESUME, NONE = Decision.HOLD, Decision.COMMIT, Decision.RESUME, Decision.NONE


def holding() -> BargeIn:
    state = BargeIn()
    state.bot(floor=True)
    assert state.onset(0.0) is HOLD
    return state


@pytest.mark.parametrize(
    "text",
    ["Mm-hmm.", "Uh-huh.", "Mhm.", "Yeah.", "Yeah, yeah.", "Okay.", "Right.", "I see.", "Got it.",
     "Oh, wow!", "Hmm.", "That's right.", "嗯。", "嗯嗯", "对，对。", "好的", "", "..."],
)  # fmt: skip
def test_backchannels_resume(text):
    state = holding()
    assert state.words(0.6, Heard(text, False)) is NONE
    assert state.words(0.6, Heard(text, True)) is RESUME
    assert not state.held


@pytest.mark.parametrize(
    "text",
    ["Stop.", "Wait, wait.", "No.", "Yeah, but wait.", "Okay, so what about Rome?", "Hold on.",
     "What time is it?", "Excuse me.", "等一下", "不对", "I see a problem"],
)  # fmt: skip
def test_real_words_commit(text):
    state = holding()
    assert state.words(0.6, Heard(text, True)) is COMMIT


def test_a_backchannel_that_goes_on_commits_when_it_does():
    state = holding()
    assert state.words(0.6, Heard("Yeah", False)) is NONE
    assert state.words(0.6, Heard("Yeah but", False)) is COMMIT
    assert state.words(0.6, Heard("Yeah but wait", True)) is NONE


def test_a_single_unfinished_word_waits_unless_it_is_a_known_interrupter():
    assert holding().words(0.5, Heard("Ham", False)) is NONE
    assert holding().words(0.5, Heard("Stop", False)) is COMMIT


def test_a_long_sound_with_any_words_takes_the_floor():
    assert holding().words(0.9, Heard("cancelled", False, -2.6)) is COMMIT
    assert holding().words(0.9, Heard("okay okay", False, -2.6)) is NONE
    assert holding().words(0.9, Heard("cancelled", False, -2.6, 0.9)) is NONE


def test_the_same_word_to_a_silent_bot_is_an_answer():
    state = BargeIn()
    assert state.onset(0.0) is COMMIT
    assert state.words(0.6, Heard("Okay.", True)) is NONE


def test_a_long_sound_without_words_does_not_hold_for_ever():
    state = holding()
    assert state.time_out() is RESUME
    assert state.words(0.6, Heard("turn the music down", False)) is COMMIT


def test_a_word_without_conviction_is_a_hum_unless_it_is_an_interrupter():
    assert holding().words(0.6, Heard("Run.", True, -1.9)) is RESUME
    assert holding().words(0.2, Heard("Run.", True, -0.3)) is RESUME
    assert holding().words(0.6, Heard("Run.", True, -0.3)) is COMMIT
    assert holding().words(0.6, Heard("Stop.", True, -1.4)) is COMMIT


def test_how_a_question_or_an_objection_begins_is_enough():
    assert holding().words(0.2, Heard("Where", False, -1.4)) is COMMIT
    assert holding().words(0.2, Heard("But that", False, -1.4)) is COMMIT
    assert holding().words(0.2, Heard("There it", False, -1.4)) is NONE


BOT = "Would you like a Coke or a Sprite with your meal?"


def test_the_bots_own_echo_dies_with_the_hold_and_does_not_hold_again():
    state = holding()
    assert state.words(0.2, Heard("coke or a sprite", False), bot_text=BOT) is NONE
    state.offset(0.3)
    assert state.words(0.7, Heard("a Coke or Sprite", True), bot_text=BOT) is RESUME
    assert state.onset(2.0) is NONE
    assert state.words(3.0, Heard("a sprite with your meal", False), bot_text=BOT) is NONE
    assert state.words(3.3, Heard("with your meal no I want", False), bot_text=BOT) is COMMIT


def test_a_person_who_repeats_the_bots_words_speaks_on_through_the_hold():
    state = holding()
    assert state.words(0.3, Heard("a Sprite", False), bot_text=BOT) is NONE
    state.offset(0.9)
    assert state.words(1.2, Heard("a Sprite", True), bot_text=BOT) is COMMIT


def test_a_second_sound_on_hold_does_not_restart_the_hold():
    state = holding()
    assert state.onset(0.0) is NONE
    assert state.time_out() is RESUME


def test_tokens_keep_letters_and_hanzi():
    assert tokens("Mm-hmm, I'm OK. 好的!") == ["mmhmm", "i'm", "ok", "好", "的"]
    assert not takes_floor(Heard("?!", True), 2.0)
