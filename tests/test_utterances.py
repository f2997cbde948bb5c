"""A turn's events as requests to a speech engine."""

import pytest

from duologue.errors import InputError
from duologue.particles import Composer, Text, Unknown, renderer_for
from duologue.text import Speaker
from tests.particle_texts import compose, scanned, texts


def test_a_range_keeps_its_words_between_the_engines_own_tags():
    assert texts(compose("cosyvoice2", "<laughter>too <strong>funny</strong></laughter> no")) == [
        "<laughter>too <strong>funny</strong></laughter> no"
    ]
    assert texts(compose("step-audio-editx", "<laugh>too funny</laugh> no")) == [
        "[Laughter]too funny no"
    ]


def test_half_a_range_is_a_point():
    assert texts(compose("cosyvoice2", "so <laughter> funny")) == ["so [laughter] funny"]
    (utterance,) = compose("cosyvoice2", "so <strong>funny")
    assert (utterance.text, len(utterance.stripped)) == ("so funny", 1)
    assert texts(compose("cosyvoice2", "so funny</laughter>")) == ["so funny"]


def test_a_range_across_two_requests_is_whole_in_both():
    first, second = compose("cosyvoice3", "<laughter>Oh. [sad] No.</laughter> Yes.")
    assert (first.text, second.text) == (
        "<laughter>Oh. </laughter>",
        "<laughter> No.</laughter> Yes.",
    )


def test_a_request_ends_where_the_mood_changes_and_none_begins_where_it_stays():
    utterances = compose("index-tts2", "[happy] A. [happy] B. [sad] C. [shy] D.")
    assert texts(utterances) == ["A.  B.", "C.", "D."]
    assert utterances[0].parameters != utterances[1].parameters
    assert utterances[2].parameters == {}
    assert [particle.name for particle in utterances[2].stripped] == ["shy"]


def test_what_the_engine_cannot_change_makes_no_new_request():
    assert texts(compose("piper", "[happy] A. [sad] B. (whispers) C.")) == ["A. B. C."]


def test_marks_at_the_head_go_with_the_words_behind_them():
    (utterance,) = compose("cosyvoice3", "[laughs] [happy] [四川话] Hi.")
    assert utterance.text == "[laughter]   Hi."
    assert [particle.name for particle in utterance.stripped] == ["happy"]
    assert "四川话" in utterance.parameters["instruct_text"]


@pytest.mark.parametrize("text", ["（高兴1）（四川话）你好", "（四川话）（高兴1）你好"])
def test_of_two_requests_that_exclude_each_other_the_language_counts(text):
    (utterance,) = compose("step-audio-tts", text)
    assert utterance.text == "（四川话）你好"
    assert [particle.name for particle in utterance.stripped] == ["happy"]


def test_a_mood_holds_over_clauses_and_ends_with_its_range():
    composer = Composer(renderer_for("cosyvoice3"))
    moods = [
        bool(utterance.parameters)
        for clause in ("<happy>One.", "Two.", "Three.</happy> Four.", "Five.")
        for utterance in composer.compose(scanned(clause))
    ]
    assert moods == [True, True, True, False, False]


def test_a_lead_is_repeated_for_each_clause():
    composer = Composer(renderer_for("step-audio-tts"))
    clauses = [composer.compose(scanned(text)) for text in ("（高兴2）你好。", "再见。")]
    assert [texts(clause) for clause in clauses] == [["（高兴2）你好。"], ["（高兴2）再见。"]]


def test_a_stripped_mark_leaves_one_blank_and_is_reported():
    (utterance,) = compose("piper", "Well (laughs) I (nods) see.")
    assert (utterance.text, utterance.words) == ("Well I see.", "Well I see.")
    assert [particle.source for particle in utterance.stripped] == ["(laughs)", "(nods)"]


def test_native_marks_are_read_and_words_in_their_place_remembered():
    (utterance,) = compose("cosyvoice3", "Well (laughs) yes.", words="en")
    assert (utterance.text, utterance.words) == ("Well [laughter] yes.", "Well  yes.")
    (utterance,) = compose("piper", "Well (laughs) yes.", words="en")
    assert (utterance.text, utterance.words) == ("Well haha yes.", "Well haha yes.")


@pytest.mark.parametrize("text", ["(nods)", "（快速）", "...", " (laughs) !?", "<think>x"])
def test_nothing_to_say_makes_no_text(text):
    """pipecat-ai/pipecat#5106: a reply without words hangs the synthesis."""
    assert not any(texts(compose("piper", text)))
    assert not any(texts(compose("step-audio-tts", text)))


def test_a_refused_particle_leaves_nothing_for_the_next_call():
    composer = Composer(renderer_for("piper", unknown=Unknown.ERROR))
    with pytest.raises(InputError):
        composer.compose(scanned("Secret (nods) words"))
    assert [utterance.text for utterance in composer.compose(scanned("Hello"))] == ["Hello"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("# Well (laughs), **yes** [sigh] indeed!", "Well [laughter], yes [sigh] indeed!"),
        ("He said\n(laughs)\nnothing", "He said [laughter] nothing"),
        ("<laughter>so **funny**</laughter>.", "<laughter>so funny</laughter>."),
        ("- (laughs) `x` and [b]", "[laughter] x and b"),
        ("真好（笑），走吧", "真好[laughter]，走吧"),
        ("… (laughs) …", "[laughter] …"),
        ("**", ""),
    ],
)
def test_between_marks_text_is_made_speakable(written, said):
    composer = Composer(renderer_for("cosyvoice3"), Speaker("en").say)
    assert "".join(texts(composer.compose(scanned(written)))) == said


def test_what_is_heard_are_the_words_as_written_and_the_sounds():
    (utterance,) = compose("cosyvoice3", "Well (laughs) **yes** <strong>sir</strong>. (nods)")
    heard = [item.text if isinstance(item, Text) else item.name for item in utterance.heard]
    assert heard == ["Well ", "laugh", " **yes** ", "sir", ". "]
    (utterance,) = compose("cosyvoice3", "Well", " ", "yes")
    assert utterance.heard == (Text("Well yes", 0, 8),)
