"""The context keeps what was heard, and stays valid for a chat template (reports B1, B3, A11)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.memory import Memory, merge_turns

PROMPT = {"role": "system", "content": "Be brief."}


def fresh(**options) -> tuple[Memory, list[dict]]:
    messages = [dict(PROMPT), {"role": "user", "content": "Count to twenty."}]
    return Memory(messages, **options), messages


def test_interruption_keeps_the_heard_prefix():
    memory, messages = fresh()
    turn = memory.begin()
    memory.add(turn, "One, two, three, ")
    memory.add(turn, "four, five, six, seven.")
    memory.heard(turn, len("One, two, three, four, five,"))
    assert memory.cut() == {turn: 28}
    assert messages[-1] == {"role": "assistant", "content": "One, two, three, four, five,"}
    memory.add(turn, " late text of the old turn")
    assert messages[2]["content"] == "One, two, three, four, five,"


def test_interruption_before_any_sound_leaves_no_assistant_message():
    memory, messages = fresh()
    memory.add(memory.begin(), "One, two")
    memory.cut()
    assert [m["role"] for m in messages] == ["system", "user"]


def test_answer_heard_to_its_end_is_not_cut_later():
    memory, messages = fresh()
    turn = memory.begin()
    memory.add(turn, "Done.")
    memory.close(turn)
    memory.cut()
    assert messages[-1]["content"] == "Done."


def test_two_answers_on_their_way_are_cut_each_at_its_own_place():
    memory, messages = fresh()
    first = memory.begin()
    memory.add(first, "Let me look.")
    memory.add_call(first, "c1", "current_time", "{}")
    memory.add_result("c1", "noon")
    second = memory.begin()
    memory.add(second, "It is noon.")
    memory.heard(first, 7)
    assert memory.cut() == {first: 6, second: 0}
    assert messages[2]["content"] == "Let me"
    assert messages[3] == {"role": "tool", "tool_call_id": "c1", "content": "noon"}
    assert len(messages) == 4


def test_results_of_parallel_calls_stand_behind_their_answer_in_order():
    memory, messages = fresh()
    turn = memory.begin()
    memory.add_call(turn, "a", "x", "{}")
    memory.add_call(turn, "b", "y", "{}")
    messages.append({"role": "user", "content": "And?"})
    memory.add_result("a", "1")
    memory.add_result("b", "2")
    memory.add_result("unknown", "3")
    assert [m.get("tool_call_id", m["role"]) for m in messages] == [
        "system", "user", "assistant", "a", "b", "user",
    ]  # fmt: skip


def test_user_messages_in_a_row_are_one_for_the_model():
    messages = [
        dict(PROMPT),
        {"role": "user", "content": "My name is John"},
        {"role": "user", "content": "Doe."},
    ]
    assert merge_turns(messages)[1:] == [{"role": "user", "content": "My name is John Doe."}]
    assert len(messages) == 3


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80))
def test_size_stays_bounded_and_the_prompt_stays(lengths):
    memory, messages = fresh(max_chars=200)
    for length in lengths:
        messages.append({"role": "user", "content": "u" * length})
        memory.trim()
        turn = memory.begin()
        memory.add(turn, "a" * length)
        memory.close(turn)
    assert messages[0] == PROMPT
    assert messages[1]["content"] == "Count to twenty."
    assert sum(len(m["content"]) for m in messages[2:]) <= 200 + 4 * 60
    assert messages[2]["role"] in ("user", "assistant")


@pytest.mark.parametrize("behind", [[], [{"role": "tool", "content": "r" * 900}]])
def test_what_is_being_answered_is_never_dropped(behind):
    memory, messages = fresh(max_chars=200)
    newest = {"role": "user", "content": "u" * 900}
    messages += [{"role": "user", "content": "old"}, newest, *behind]
    memory.trim()
    assert messages[2:] == [newest, *behind]


def test_chinese_counts_as_many_tokens_as_it_has_characters():
    memory, messages = fresh(max_chars=100)
    messages += [{"role": "user", "content": "你好" * 10}, {"role": "user", "content": "好" * 10}]
    memory.trim()
    assert [len(m["content"]) for m in messages[2:]] == [10]


@pytest.mark.parametrize("heard", range(0, 12))
def test_heard_never_shrinks(heard):
    memory, messages = fresh()
    turn = memory.begin()
    memory.add(turn, "Hello there")
    memory.heard(turn, 11)
    memory.heard(turn, heard)
    memory.cut()
    assert messages[-1]["content"] == "Hello there"
