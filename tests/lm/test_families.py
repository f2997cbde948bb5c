"""Each family's profile: what it means, and that it holds together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.errors import ConfigError, ModelError, UsageError
from duologue.lm.demux import Demux
from duologue.lm.events import AudioTokens, DropReason, EndReason, TextDelta, TurnEnd
from duologue.lm.formats import FAMILIES, Codebook, Kind, Profile, Special, find_family
from duologue.lm.modes import Mode
from duologue.lm.tokenizer import Vocab
from duologue.lm.vocabulary import Vocabulary
from tests.lm.streams import (
    audio_of,
    byte_level,
    cuts,
    decoding,
    demuxed,
    ids_of,
    joined,
    numeric,
    of,
    steady,
    text_of,
)

NAMED = ["step-audio2", "step-audio1", "glm-4-voice", "spark-tts", "qwen3-omni", "vita-audio"]


@pytest.mark.parametrize("profile", FAMILIES.values(), ids=list(FAMILIES))
def test_numbers_agree_with_each_other(profile):
    vocabulary = Vocabulary(profile)
    for n, numbered in enumerate(vocabulary.books):
        if numbered.first is not None:
            last = numbered.first + numbered.book.size - 1
            assert vocabulary.kind_of(numbered.first) == Kind.AUDIO + n
            assert vocabulary.kind_of(last) == Kind.AUDIO + n
    for special in profile.specials:
        for token in special.ids:
            assert vocabulary.kind_of(token) == special.kind
    assert any(special.kind is Kind.END for special in profile.specials)
    if profile.text_ids:
        assert vocabulary.kind_of(0) == Kind.TEXT
    assert vocabulary.kind_of(-1) == vocabulary.kind_of(10**7) == Kind.BEYOND


@pytest.mark.parametrize("family", NAMED)
def test_names_are_resolved_from_the_tokenizer(family):
    vocabulary = decoding(family)
    for special in vocabulary.profile.specials:
        assert special.name and vocabulary.vocab
        token = vocabulary.vocab.id_of(special.name)
        assert token is not None and token < 60_000
        assert vocabulary.kind_of(token) == special.kind
    for n, numbered in enumerate(vocabulary.books):
        assert numbered.book.token and vocabulary.vocab
        name = numbered.book.token.format(numbered.book.first_number + numbered.book.size - 1)
        last = vocabulary.vocab.id_of(name)
        assert last is not None
        assert vocabulary.kind_of(last) == Kind.AUDIO + n
        assert vocabulary.meaning(name) == (Kind.AUDIO + n, numbered.book.size - 1)


def vocab(tmp_path, names) -> Vocab:
    byte_level(names).save(str(tmp_path / "tokenizer.json"))
    return Vocab(tmp_path)


def test_a_tokenizer_of_another_family_is_refused(tmp_path):
    with pytest.raises(ModelError, match="<audio_0> at None"):
        Vocabulary(FAMILIES["step-audio2"], vocab(tmp_path, ["<|user|>"]))
    with pytest.raises(ModelError, match="no <|im_end|>"):
        Vocabulary(FAMILIES["qwen2.5-omni"], vocab(tmp_path, ["<|user|>"]))


def test_audio_tokens_out_of_order_are_refused(tmp_path):
    names = [f"<audio_{n}>" for n in range(6561) if n != 6560]
    with pytest.raises(ModelError, match="6561 ids in a row"):
        Vocabulary(FAMILIES["step-audio2"], vocab(tmp_path, ["<audio_6560>", *names]))


def test_one_id_with_two_meanings_is_refused():
    book = Codebook("x", 10, 25, None, 5)
    profile = Profile("odd", (), 5, (book,), (Special("<end>", Kind.END, (7,)),))
    with pytest.raises(ConfigError, match="7"):
        Vocabulary(profile)


@pytest.mark.parametrize("content", [None, "", "{}", "not json"])
def test_a_folder_without_a_tokenizer_is_a_model_error(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match="tokenizer.json"):
        Vocab(tmp_path)


def test_pieces_of_sentencepiece_make_the_text(tmp_path):
    from tokenizers import Tokenizer, decoders, models

    pieces = ["<unk>", "<s>", "</s>", "<|EOT|>", "<|BOT|>", "▁Hi", "▁you", "<0xE8>", "<0x8C>"]
    tokenizer = Tokenizer(models.BPE({p: n for n, p in enumerate([*pieces, "<0xB6>"])}, []))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<s>", "</s>", "<|EOT|>", "<|BOT|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = Vocabulary(FAMILIES["qwen2.5-omni"].__class__("plain", (), 0), Vocab(tmp_path))
    events = demuxed(vocabulary, [5, 6, 7], [8], [9, 2])
    assert text_of(events) == "Hi you茶"


def test_letters_that_stand_for_no_byte_stand_for_themselves(tmp_path):
    """As in a vocabulary to which somebody has added words by hand."""
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.BPE({"a": 0, "你 好": 1, "Ġb": 2}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = Vocabulary(Profile("plain", (), 0), Vocab(tmp_path))
    assert text_of(demuxed(vocabulary, [0, 1, 2])) == tokenizer.decode([0, 1, 2]) == "a你 好 b"


def test_ids_that_nobody_tells_are_refused_but_text_is_read():
    vocabulary = numeric("vita-audio")
    with pytest.raises(ConfigError, match="tokenizer"):
        Demux(vocabulary).push([1])
    text = "Hi<|begin_of_audio|><|audio_0|><|audio_16383|><|end_of_audio|> you<|im_end|>"
    events = demuxed(vocabulary, text)
    assert (text_of(events), audio_of(events)) == ("Hi you", [0, 16_383])


def test_ids_must_be_whole_numbers():
    for wrong in ("1", 1.0, None):
        with pytest.raises(TypeError):
            Demux(numeric("step-audio2")).push([wrong])  # type: ignore[list-item]


# Step-Audio 1: frames of two codebooks


def frame(n: int) -> list[int]:
    return [65_536 + 2 * n, 65_537 + 2 * n, *(66_560 + 3 * n + k for k in range(3))]


def spoken(ids: list[int]) -> tuple[list[int], list[int], int]:
    events = demuxed(numeric("step-audio-editx"), ids)
    dropped = of(TurnEnd, events)[0].dropped
    assert set(dropped) <= {DropReason.MISALIGNED}
    frames = [(e.codebook, len(e.tokens)) for e in of(AudioTokens, events)]
    assert frames == [("vq02", 2), ("vq06", 3)] * (len(frames) // 2)
    return audio_of(events, "vq02"), audio_of(events, "vq06"), sum(dropped.values())


THREE = [*frame(0), *frame(1), *frame(2)]
EDGES = [65_536, 66_559, 66_560, 70_655, 70_655]


@pytest.mark.parametrize("stray", [0, 1, 2, 3, 5])
def test_stray_tokens_at_the_start_are_dropped(stray):
    """stepfun-ai/Step-Audio-EditX#66: one to three of them made the whole utterance noise."""
    vq02, vq06, dropped = spoken([66_999] * stray + THREE)
    assert (vq02, vq06, dropped) == (list(range(6)), list(range(9)), stray)


@pytest.mark.parametrize("at", range(15))
def test_a_lost_token_costs_one_frame_only(at):
    vq02, vq06, dropped = spoken(THREE[:at] + THREE[at + 1 :])
    kept = [n for n in range(3) if n != at // 5]
    assert vq02 == [2 * n + k for n in kept for k in range(2)]
    assert vq06 == [3 * n + k for n in kept for k in range(3)]
    assert dropped == 4


@steady
@given(ids=st.lists(st.sampled_from([65_536, 66_559, 66_560, 70_655]), max_size=40), data=st.data())
def test_whatever_comes_only_whole_frames_are_spoken(ids, data):
    vq02, vq06, dropped = spoken(ids)
    assert len(vq02) + len(vq06) + dropped == len(ids)
    profile = numeric("step-audio-editx")
    assert joined(demuxed(profile, *data.draw(cuts(ids)))) == joined(demuxed(profile, ids))


def test_both_codebooks_begin_at_zero():
    assert spoken(EDGES) == ([0, 1023], [0, 4095, 4095], 0)


def test_ids_beyond_the_second_codebook_are_out_of_range():
    events = demuxed(numeric("step-audio-editx"), [70_656, 73_727, *frame(0)])
    assert of(TurnEnd, events)[0].dropped == {DropReason.OUT_OF_RANGE: 2}
    assert len(audio_of(events)) == 5


# Others


@pytest.mark.parametrize("count", [13, 5])
def test_glm_takes_turns_and_ends_where_the_user_begins(count):
    vocabulary = numeric("glm-4-voice")
    group = [*range(count), *(152_353 + n for n in range(26))]
    events = joined(demuxed(vocabulary, [*group, *group[-26:], 151_336, 5]))
    assert events[0] == TextDelta(0, 0, 0, 0, "", tuple(range(count)), True)
    assert audio_of(events) == [*range(26)] * 2
    assert events[-1] == TurnEnd(0, 0, count, 52, EndReason.STOP, 0, {})


@pytest.mark.parametrize(
    ("family", "fill", "ends"),
    [("cosyvoice2", 6563, [6561, 6562]), ("cosyvoice3", 6564, [6561, 6562, 6563, 6565, 6760])],
)
def test_cosyvoice_gives_token_0_and_asks_for_text_without_ending(family, fill, ends):
    for end in ends:
        events = demuxed(numeric(family), [0, 6560, fill, 0, end, 1])
        assert audio_of(events) == [0, 6560, 0]
        assert of(TurnEnd, events)[0].reason == EndReason.STOP


def test_merged_cosyvoice_reads_names_and_ids():
    assert audio_of(demuxed(numeric("cosyvoice2-merged"), "<|s_0|><|s_6560|><|s_6561|>")) == [
        0,
        6560,
    ]
    assert audio_of(demuxed(numeric("cosyvoice2-merged"), [151_663, 158_223])) == [0, 6560]


def test_spark_gives_the_voice_once_and_then_speech():
    ids = [165_150, *(151_665 + n for n in range(40)), 165_156, 165_151, 155_761, 163_952, 165_157]
    events = demuxed(numeric("spark-tts"), ids)
    assert audio_of(events, "bicodec-global") == list(range(32))
    assert audio_of(events, "bicodec-semantic") == [0, 8191]
    (end,) = of(TurnEnd, events)
    assert (end.audio_index, end.dropped) == (2, {DropReason.STRAY_AUDIO: 8})


def test_kimis_two_heads_in_one_stream():
    blank, text_end, first = 151_666, 151_667, 152_064
    steps = [(1, blank), (2, blank), (text_end, first), (blank, first + 16_383), (blank, 151_663)]
    events = joined(demuxed(numeric("kimi-audio"), [head for step in steps for head in step]))
    assert events == [
        TextDelta(0, 0, 0, 0, "", (1, 2), True),
        AudioTokens(0, 0, 2, 0, "glm-4-voice", (0, 16_383)),
        TurnEnd(0, 0, 2, 2, EndReason.STOP, 5, {}),
    ]


def test_a_talker_is_a_stream_of_its_own():
    events = demuxed(numeric("qwen2.5-omni-talker"), [8293, 0, 8191, 8192, 8294])
    assert audio_of(events) == [0, 8191]
    assert of(TurnEnd, events)[0].dropped == {DropReason.OUT_OF_RANGE: 1}


def test_another_familys_framing_is_never_said():
    vocabulary = decoding("qwen3-omni")
    text = "a<audio_5>b<tts_start>c<|user|>d<|s_1|>e</s>f<|bicodec_global_3|>g"
    assert text_of(demuxed(vocabulary, text)) == "abcdefg"
    events = demuxed(vocabulary, ids_of(vocabulary, "<think>", "x", "</think>", "y"))
    assert text_of(events) == "y"


# Modes and decoders


@pytest.mark.parametrize("profile", FAMILIES.values(), ids=list(FAMILIES))
@pytest.mark.parametrize("mode", Mode)
def test_an_unsupported_mode_is_refused_and_the_supported_named(profile, mode):
    if mode in profile.modes:
        profile.check_mode(mode)
    else:
        with pytest.raises(UsageError, match=profile.modes[0]):
            profile.check_mode(mode)


def test_modes_say_what_goes_in_and_out():
    assert [m for m in Mode if m.audio_in] == [Mode.A1_T1, Mode.A1_T2, Mode.A1_T2A2]
    assert [m for m in Mode if m.audio_out] == [
        Mode.A1_T2A2,
        Mode.T1_T2A2,
        Mode.T1_A1,
        Mode.T1_A2,
    ]


def test_a_decoder_of_other_tokens_is_refused():
    step2 = find_family("step-audio2")
    step2.check_decoder("s3-v2", 6561, 25)
    for other in [("s3-v3", 6561, 25), ("s3-v2", 4096, 25), ("s3-v2", 6561, 50)]:
        with pytest.raises(ConfigError, match="gives s3-v2 \\(6561 tokens, 25/s\\)"):
            step2.check_decoder(*other)
    with pytest.raises(ConfigError, match="text alone"):
        find_family("qwen3-omni").check_decoder("s3-v2", 6561, 25)


def test_an_unknown_family_or_prefix_names_the_known():
    with pytest.raises(UsageError, match="step-audio2, "):
        find_family("step")
    with pytest.raises(UsageError, match="<tts_start>"):
        Demux(numeric("step-audio2"), prefix="tts_stop")
    with pytest.raises(UsageError, match="<think>"):
        Demux(numeric("glm-4-voice"), prefix="tts_start")
