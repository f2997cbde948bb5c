"""The stage `texts`, from tiny sources in the form of the real ones."""

import gzip
import json
import lzma
import random
import zipfile

import msgpack
import pytest
import yaml

from duologue.errors import InputError
from duologue.text.numerals import spell_digits
from duologue.training.text_cleaner import Cleaner, words_of
from duologue.training.text_corpus import Near
from duologue.training.text_sources import DATA, Sources
from duologue.training.text_templates import expand
from duologue.training.texts import TIMES, Composer, write
from duologue.tts.piper import PhonemeIds

PHONEMES = {p: [i] for i, p in enumerate("_^$ .,!?;:abdefhijklmnoprstuvwzæðŋɐɑɔəɚɛɜɡɪɹɾʃʊʌʒˈˌːθᵻ")}
WORDS = (
    "the cat sat on a mat where is and said yes no hello fbi rarely's quokka zyx badword".split()
)
CHATS = [
    "hello the cat sat on, haha",
    "No, the mat sat on a cat.",
    "Where is the cat?",
    "a badword here",
    "the qqqx sat",
    "The mog sat on the mat.",
]


@pytest.fixture
def sources(tmp_path):
    def wheel(project, member, data):
        path = tmp_path / f"{project}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, data)
        return path

    messages = [[{"text": text} for text in CHATS]]
    pairs = {"conversations": [["Is the mat on the cat?", "yes"]]}
    packed = bytes(msgpack.packb([{"format": "cB"}, *([word] for word in WORDS)]) or b"")
    folder = tmp_path / "wordnet"
    folder.mkdir()
    for part in ("noun", "verb", "adj", "adv"):
        (folder / f"data.{part}").write_text("  1 licence\n")
    (folder / "data.noun").write_text(
        '00001740 03 n 02 cat 0 true_cat 0 001 @ 00001 n 0000 | hello (of mats); "the cat sat"  \n'
        "00001742 03 n 01 mog 0 000 | a cat  \n"
        "00001741 03 n 01 FBI 0 000 | the mat on a cat  \n"
    )
    fortunes = tmp_path / "fortunes"
    fortunes.mkdir()
    for name in yaml.safe_load(DATA.read_text())["fortunes"]:
        (fortunes / name).write_text("The cat sat on the mat and said hello.\n\t\t-- A. Cat\n%\n")
    return Sources(
        {
            "chitchat-dataset": wheel(
                "chat", "chitchat_dataset/dataset.json", json.dumps({"a": {"messages": messages}})
            ),
            "chatterbot-corpus": wheel("bot", "x/english/ai.yml", yaml.dump(pairs)),
            "wordfreq": wheel("freq", "wordfreq/data/large_en.msgpack.gz", gzip.compress(packed)),
            "better-profanity": wheel(
                "bad", "better_profanity/profanity_wordlist.txt", "badword\ngod"
            ),
        },
        folder,
        fortunes,
    )


def test_every_frequent_word_is_in_several_sentences_and_none_is_held_out_twice(sources):
    composer = Composer(sources)
    corpus = composer.compose(2000, held_out=4)
    train = corpus.splits["train"]
    assert not composer.missing()
    assert corpus.counts["quokka"] >= TIMES
    assert "badword" not in corpus.counts and corpus.counts["fbi"] == sum("FBI" in t for t in train)
    held = {text.lower() for split in ("short", "test", "dev") for text in corpus.splits[split]}
    assert not any("mog" in text for text in held)
    assert len(held) > 60 and held.isdisjoint(text.lower() for text in train)
    assert {"Yes!", "Yes?", "Twenty,"} <= set(train) and "Yes." in corpus.splits["short"]
    assert len({text.lower() for text in train}) == len(train)
    assert not any(char.isdigit() for text in train for char in text)
    half = {word for text in train[: len(train) // 2 + 1] for word in words_of(text)}
    assert set(composer.frequent) <= half


def test_a_seed_gives_one_corpus(sources):
    first, again, other = (
        Composer(sources, seed=seed).compose(300, 2).splits for seed in (1, 1, 2)
    )
    assert first == again != other


def test_the_file_has_the_ids_of_the_voice(sources, tmp_path):
    voice = tmp_path / "voice"
    voice.mkdir()
    config = {"phoneme_id_map": PHONEMES, "espeak": {"voice": "en-us"}}
    (voice / "en.onnx.json").write_text(json.dumps(config))
    corpus = Composer(sources).compose(100, held_out=2)
    with lzma.open(write(corpus, tmp_path, voice), "rt") as file:
        rows = [json.loads(line) for line in file]
    assert {row["split"] for row in rows} == {"test", "dev", "short", "train"}
    assert [row["text"] for row in rows if row["split"] == "train"] == corpus.splits["train"]
    no = next(row for row in rows if row["text"] == "No.")
    said = "".join(next(p for p, [i] in PHONEMES.items() if i == id_) for id_ in no["ids"])
    assert said == "^_n_ˈ_o_ʊ_._ _$"


def test_the_ids_of_a_text_hold_nothing_of_the_one_before():
    ids = PhonemeIds({"phoneme_id_map": PHONEMES, "espeak": {"voice": "en-us"}})
    try:
        alone = ids("Good.")
        for before in ("Number. No", "it..", "It is A. B"):
            ids(before)
            assert ids("Good.") == alone, before
    finally:
        ids.close()


def test_what_nobody_would_say_is_left_out():
    known = set("badwords i'm glad it is four dollars ok the day so".split())
    cleaner = Cleaner(known, {"badword"}, {"im": "I'm"}, {"lol"}, random.Random(0))
    assert [*cleaner.clauses("im glad lol")] == ["I'm glad."]
    assert [*cleaner.clauses("It is $4.")] == ["It is four dollars."]
    for text in ("the badwords", "xqzt", "soooo glad", "the " * 23, "IT IS THE DAY!", "日", ""):
        assert not [*cleaner.clauses(text)], text


def test_near_texts():
    near = Near(["The cat sat on the mat again."])
    assert near("the cat sat on the mat") and near("He said the cat sat on the mat.")
    assert not near("The dog sat on the sofa.") and not near("the cat")


def test_templates():
    rng = random.Random(3)
    slots = {"a": lambda: "cat"}
    said = {expand("[{A}|a [big|small] {a}][.|]", slots, rng) for _ in range(60)}
    assert said == {"Cat.", "Cat", "A big cat.", "A big cat", "A small cat.", "A small cat"}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("5 5 5, 0 1", "five five five, zero one"),
        ("117 of 1,250,000", "one hundred seventeen of one million two hundred fifty thousand"),
        ("the 3rd, 21st", "the third, twenty-first"),
        ("3.14 or 25%", "three point one four or twenty-five percent"),
        ("room 12B, v2", "room twelve B, v two"),
        ("007", "zero zero seven"),
        ("9 PM", "nine PM"),
    ],
)
def test_digits_are_spelled(written, said):
    assert spell_digits(written) == said


def test_a_missing_package_is_named(sources, tmp_path):
    broken = Sources(sources.wheels, tmp_path / "nowhere", sources.fortunes)
    with pytest.raises(InputError, match="apt-get install wordnet-base"):
        Composer(broken)
