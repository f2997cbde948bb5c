"""The items of a conversation: what is kept of a cut answer, what they cost, whence they come."""

import pytest

from duologue.errors import InputError
from duologue.lm.conversation import (
    Answer,
    CallResult,
    System,
    User,
    estimate,
    from_messages,
    results_last,
)
from duologue.lm.engine import ToolCall
from duologue.lm.formats import FAMILIES
from duologue.lm.modes import Mode
from duologue.lm.prompt import TextPart
from duologue.lm.templates import render
from duologue.memory import Memory
from tests.lm.prompt_cases import TASK, sound, vocabulary_of

STEP = FAMILIES["step-audio2"]


def spoken(words: str, tokens: int) -> Answer:
    return Answer(words, (tuple(range(tokens)),))


@pytest.mark.parametrize("codes", [((0, 1, 2, 3),), ((0, 1, 2, 3), (0, 1, 2, 3, 4, 5))])
def test_every_codebook_is_cut_at_the_same_time(codes):
    for kept in range(-1, 9):
        left = Answer("Hello", codes).keep(3, kept).audio
        last = min(max(kept, 0), len(codes[-1]))
        assert [len(run) for run in left] == (
            [len(r) * last // len(codes[-1]) for r in codes] if last else []
        )
    assert Answer("Hello", codes).keep(0, 2) == Answer()
    assert Answer(" Hello", codes).keep(1, 2) == Answer()
    assert Answer("Hello", codes).keep(9, 99) == Answer("Hello", codes)


def test_speech_costs_what_it_takes_in_a_prompt():
    """Step-Audio 2: 31.25 tokens a second of its own speech, pads included; 12.5 of the user's."""
    assert estimate(STEP, [spoken("It is time.", 25 * 8)]) == 250
    assert estimate(STEP, [User("x", sound(2))]) == 50
    assert estimate(STEP, [User("one two three four")]) == 5
    assert estimate(STEP, [User("你好")]) == 2
    vocabulary = vocabulary_of("step-audio2")
    answer = spoken("it is time to laugh", 100)
    parts = render(vocabulary, [User("x"), answer, User("x")], Mode.T1_T2)
    ids = next(part for part in parts if not isinstance(part, TextPart))
    assert len(ids.ids) - 2 == estimate(STEP, [answer])  # type: ignore[union-attr]


def test_the_memory_of_a_text_conversation_is_a_conversation():
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    memory = Memory(messages)
    turn = memory.begin()
    memory.add(turn, "Let me look.")
    memory.add_call(turn, "c", "clock", '{"zone": "x"}')
    memory.add_call(turn, "d", "clock", '{"zone')
    memory.add_result("d", "broken")
    memory.add_result("c", "noon")
    memory.heard(turn, 6)
    memory.cut()
    messages.append({"role": "user", "content": "And?"})
    items = from_messages(messages)
    assert items[:3] == (
        TASK,
        User("Hi"),
        Answer(
            "Let me",
            calls=(ToolCall("c", "clock", '{"zone": "x"}'), ToolCall("d", "clock", '{"zone')),
        ),
    )
    (shown,) = render(vocabulary_of("step-audio2"), items, Mode.T1_T2)
    assert isinstance(shown, TextPart)
    assert "noon" in shown.text
    assert "broken" not in shown.text
    assert shown.text.count("<tool_call>") == 1


def test_the_content_of_a_message_may_be_parts():
    heard = sound(1)
    parts = [{"type": "text", "text": "a"}, "b"]
    assert from_messages([{"role": "user", "content": parts}]) == (User("ab"),)
    assert from_messages([{"role": "user", "content": ["a", heard]}]) == (User("a", heard),)
    assert from_messages([{"role": "assistant", "content": None}]) == (Answer(),)
    assert from_messages([{"role": "developer", "content": "x"}]) == (System("x"),)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "narrator", "content": "x"},
        {"content": "x"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
        {"role": "user", "content": [sound(1), sound(1)]},
        {"role": "system", "content": [sound(1)]},
        {"role": "user", "content": [5]},
    ],
    ids=["role", "no role", "image", "two sounds", "sound of the system", "number"],
)
def test_messages_that_are_none_are_refused(message):
    with pytest.raises(InputError):
        from_messages([message])


def test_results_that_are_news_come_last_with_their_calls():
    """Of two tools the first one is late; what the second found has been told."""
    late, soon = ToolCall("a", "clock", "{}"), ToolCall("b", "clock", "{}")
    found = CallResult("a", "noon"), CallResult("b", "rain")
    items = [User("x"), Answer("hm", calls=(late,)), found[0], User("y")]
    assert results_last(items, ()) == items
    items += [Answer(calls=(soon,)), found[1], Answer("rain")]
    assert results_last(items, {"a", "b"}) == items
    assert results_last(items, {"b"}) == [
        User("x"),
        Answer("hm"),
        User("y"),
        Answer(calls=(soon,)),
        found[1],
        Answer("rain", calls=(late,)),
        found[0],
    ]
