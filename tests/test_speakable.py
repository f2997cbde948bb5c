import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.errors import UsageError
from duologue.text import Speaker, speakable

ENGLISH = {
    # Markdown
    "## Title": "Title",
    "**bold** and *it* and ~~gone~~ and `code`": "bold and it and gone and code",
    "[the link](http://a.com/b) text": "the link text",
    "![a cat](http://a.com/b.png)": "a cat",
    "| a | b |\n|---|:-:|\n| 1 | 2 |": "a, b. 1, 2",
    "- one\n- two\n  - three": "one. two. three",
    "1. first\n2) second": "1. first. 2. second",
    "> quoted\n\n---\nrest": "quoted. rest",
    "Run:\n```py\nx = 1\n```\nThen stop.": "Run: Then stop.",
    "snake_case and a*b*c and 2*3": "snake case and a times b times c and 2 times 3",
    "<b>bold</b><br/>&amp; <your name>": "bold and your name",
    "[Note]: it rains": "Note: it rains",
    # Addresses
    "Visit example.com.": "Visit example dot com.",
    "(see https://www.a-b.org/x/y?z=1#q), please": "see a-b dot org, please",
    "write to jo.doe@mail.co.uk": "write to jo dot doe at mail dot co dot uk",
    "main.py in Node.js": "main dot py in Node dot js",
    # Signs that are not words
    "✅ done ┌─┐ → next": "done, next",
    "I <3 you :) ❤️ 👍🏽": "I you",
    "1️⃣ ℹ️ first": "1 first",
    "hello\u200b world\ufeff": "hello world",
    # Numbers
    "It is 4.15, 1,000, 5.7% and the 1st": "It is 4.15, 1,000, 5.7% and the 1st",
    "$5.50, $1, $1.00, $0.99": "5 dollars 50 cents, 1 dollar, 1 dollar, 99 cents",
    "$4.5 million, £3.01, ¥500, €2bn": (
        "4.5 million dollars, 3 pounds 1 pence, 500 yen, 2 billion euros"
    ),
    "$5-$10 or 5-10 km": "5 dollars to 10 dollars or 5 to 10 kilometers",
    "10:30, 10:00, 3:05 pm, 07:45:10": "10 30, 10 o'clock, 3 oh 5 pm, 7 45 10",
    "on 2026-11-30": "on November 30th, twenty twenty-six",
    "on 2026-13-30": "on 2026 13 30",
    "in 1990 or the 1990s": "in nineteen ninety or the nineteen nineties",
    "1990 people": "1990 people",
    "+1 555 0100": "plus 1, 5 5 5, 0 1 0 0",
    "4111 1111 1111 1111": "4 1 1 1, 1 1 1 1, 1 1 1 1, 1 1 1 1",
    "192.168.1.1 and v2.0.1": "192 dot 168 dot 1 dot 1 and v2 point 0 point 1",
    "1 km, 2 km, 1 ft, 6 ft, 20°C": "1 kilometer, 2 kilometers, 1 foot, 6 feet, 20 degrees Celsius",
    "100 km/h, 5GB, 3 GHz": "100 kilometers per hour, 5 gigabytes, 3 gigahertz",
    "1/2 or 3/4": "one half or three quarters",
    "-5 and ~10 and 5 - 3": "minus 5 and about 10 and 5 minus 3",
    # Signs that are words
    "5 < 10 and x>=3": "5 less than 10 and x greater than or equal to 3",
    "1 + 1 = 2, x² and 10^6": "1 plus 1 equals 2, x squared and 10 to the power of 6",
    "C++, C#, A+ and R&D": "C++, C sharp, A+ and R and D",
    "SQL is #1": "SQL is number 1",
    "f(x) but (Beijing) here": "f x but, Beijing, here",
    "and/or": "and or",
    "wait - what": "wait, what",
    "Dr. Smith vs. Mr. Lee, e.g. No. 5": ("Doctor Smith versus Mister Lee, for example, number 5"),
    "at 3 p.m. in the U.S.": "at 3 pm in the U.S.",
    "it's \"quoted\" 'so' don’t": "it's quoted so don't",
    "hello 你好 world": "hello 你好 world",
}

CHINESE = {
    "融资4.15亿美元，增长5.7%。": "融资四点一五亿美元，增长百分之五点七。",
    "2026年11月30日10:30": "二零二六年十一月三十日十点三十分",
    "2026-11-30 10:00 08:05": "二零二六年十一月三十日 十点 八点零五分",
    "￥100，$5.50，$3亿": "一百元，五点五美元，三亿美元",
    "25℃，100km/h，5 kg": "二十五摄氏度，一百公里每小时，五公斤",
    "第１名，2个人，1/2": "第一名，两个人，二分之一",
    "13800138000": "一三八零零一三八零零零",
    "1,000 和 007 和 12345678901234567890": (
        "一千 和 零零七 和 一二三四五六七八九零一二三四五六七八九零"
    ),
    "5 < 10，5-10，-5": "五小于十，五到十，负五",
    "访问 example.com。": "访问 example点com。",
    "**你好**，`世界`（北京）": "你好，世界，北京",
    "# 标题\n正文": "标题。 正文",
    "🎉！": "",
}


@pytest.mark.parametrize(("text", "said"), ENGLISH.items())
def test_english(text, said):
    assert speakable(text, "en") == said


@pytest.mark.parametrize(("text", "said"), CHINESE.items())
def test_chinese(text, said):
    assert speakable(text, "zh") == said


NOTHING = ["", " ", "...", "？！", "---", "**", "🎉🎉", "ℹ️", "┌─┐", "|---|---|", "()", "```"]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("text", NOTHING)
def test_what_has_no_word_is_not_said(text, lang):
    assert speakable(text, lang) == ""


def said(*clauses: str) -> list[str]:
    speaker = Speaker("en")
    return [speaker.say(clause) for clause in clauses]


def test_markup_may_span_clauses():
    assert said("**Bold,", "still bold**,", "_so", "on_.") == ["Bold,", "still bold,", "so", "on."]
    assert said("see [the page,", "please](http://a.com/b_c).") == ["see the page,", "please."]
    assert said("| a | b |", "|---|---|", "| 1 | 2 |") == ["a, b", "", "1, 2"]


def test_a_code_fence_across_clauses_is_not_said():
    assert said("Run this:\n```python", "import os, sys", "x = 1", "```", "Done.") == [
        "Run this:",
        "",
        "",
        "",
        "Done.",
    ]
    assert said("~~~~", "```", "~~~~", "Done.") == ["", "", "", "Done."]
    assert said("```js\ncode", "more\n```\nDone.") == ["", "Done."]


def test_reset_forgets_an_open_fence():
    speaker = Speaker("en")
    assert speaker.say("```\ncode") == ""
    speaker.reset()
    assert speaker.say("Next turn.") == "Next turn."


def test_an_unknown_language_is_refused():
    with pytest.raises(UsageError, match="'fr'"):
        speakable("bonjour", "fr")


WORDS = st.lists(st.sampled_from(["the", "SQL", "café", "it's", "你好", "x", "I"]), min_size=1)


@given(WORDS.map(" ".join), st.sampled_from(["en", "zh"]))
def test_plain_words_stay_as_they_are(text, lang):
    assert speakable(text, lang) == text


SILENT = ["**", "_", "`", "🎉", "│", "[", "]", "\u200d", "\ufe0f", "«", "~~", "©"]


@given(st.lists(st.sampled_from([*SILENT, "alpha", "beta", "gamma", " "])).map("".join))
def test_words_keep_their_order_whatever_stands_between(text):
    words = re.findall("alpha|beta|gamma", text)
    assert re.findall("alpha|beta|gamma", speakable(f"So {text}", "en")) == words


NO_SPEECH = ("So", "Sk", "Cc", "Cf", "Cs", "Co", "Cn")


@given(st.text(), st.sampled_from(["en", "zh"]))
def test_no_text_breaks_it_and_no_stray_sign_is_said(text, lang):
    spoken = speakable(text, lang)
    assert all(c == "°" or unicodedata.category(c) not in NO_SPEECH for c in spoken)
    assert not set('*_`#|<>[]{}"') & set(spoken)


@given(st.text("0123456789.,:-/%$€°~+<>=* kms年亿"), st.sampled_from(["en", "zh"]))
def test_no_number_breaks_it_or_is_lost(text, lang):
    spoken = speakable(f"x {text}", lang)
    assert spoken.startswith("x")
    assert lang == "en" or not re.search(r"\d", spoken)
