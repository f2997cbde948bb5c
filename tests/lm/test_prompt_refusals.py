"""What a family cannot do, or no public source tells, fails before anything is sent."""

import pytest

from duologue.errors import InputError, ModelError, UsageError
from duologue.lm.conversation import Answer, Reference, Style, User
from duologue.lm.formats import FAMILIES
from duologue.lm.modes import Mode
from duologue.lm.prompt import TextPart
from duologue.lm.templates import prompt_ids, render, render_messages
from duologue.lm.vocabulary import Vocabulary
from tests.lm.prompt_cases import CALLS, FRAME, RESULTS, TASK, sound, tool, vocabulary_of
from tests.lm.streams import numeric


@pytest.mark.parametrize("profile", FAMILIES.values(), ids=list(FAMILIES))
def test_an_unsupported_mode_fails_before_any_work(profile):
    vocabulary = Vocabulary(profile)
    for mode in set(Mode) - set(profile.modes):
        with pytest.raises(UsageError, match=f"cannot do {mode}, only {profile.modes[0]}"):
            render(vocabulary, iter(()), mode)
        with pytest.raises(UsageError, match=f"cannot do {mode}"):
            render_messages(vocabulary, iter(()), mode)


HI, CLIP = User("Hi"), Reference(((0,),), "So.")
HEARD = User(audio=sound(1))
TOOLS = {"tools": [tool("f")]}
WRITTEN = "text alone"
REFUSED = {
    "nothing asked": ("step-audio2", (), Mode.T1_T2, {}, "nothing to answer"),
    "no user": ("step-audio2", (TASK,), Mode.T1_T2, {}, "nothing to answer"),
    "an answer last": ("step-audio2", (HI, Answer("Hi")), Mode.T1_T2, {}, "nothing to answer"),
    "no audio to hear": ("step-audio2", (HI,), Mode.A1_T2, {}, "has no audio"),
    "audio to read": ("step-audio2", (HEARD,), Mode.T1_T2, {}, "has audio"),
    "empty text": ("step-audio2", (User(" "),), Mode.T1_T2, {}, "has no text"),
    "empty sound": ("step-audio2", (User(audio=sound(0)),), Mode.A1_T2, {}, "empty"),
    "tokens for sound": ("step-audio2", (User(audio=((1,),)),), Mode.A1_T2, {}, "hears sound"),
    "sound for tokens": ("step-audio1", (HEARD,), Mode.A1_T2, {}, "hears audio tokens"),
    "no task to read aloud": ("step-audio2", (HI,), Mode.T1_A1, {}, "System"),
    "no task to recognise": ("qwen3-omni", (HEARD,), Mode.A1_T1, {}, "System"),
    "a clip in a chat": ("step-audio2", (CLIP, HI), Mode.T1_T2, {}, "no Reference"),
    "tools without a system": ("step-audio2", (HI,), Mode.T1_T2, TOOLS, "System"),
    "tools of Think": ("step-audio2-think", (TASK, HI), Mode.T1_T2A2, TOOLS, "calls tools"),
    "tools of Base": ("step-audio2-base", (HI,), Mode.T1_T2A2, TOOLS, "calls tools"),
    "tools of Step-Audio 1": ("step-audio1", (HI,), Mode.T1_T2, TOOLS, "calls tools"),
    "results of GLM": (
        "glm-4-voice",
        (TASK, HI, Answer("x", ((1,),), CALLS), *RESULTS),
        Mode.T1_T2A2,
        {},
        "calls tools",
    ),
    "a thought of another": ("step-audio2", (HI,), Mode.T1_T2, {"thought": "x"}, "think"),
    "speech of a writer": ("step-audio1", (HI, Answer("x", FRAME), HI), Mode.T1_T2, {}, WRITTEN),
    "speech of Qwen": ("qwen2.5-omni", (HI, Answer("x", ((1,),)), HI), Mode.T1_T2, {}, WRITTEN),
    "no system of GLM": ("glm-4-voice", (HI,), Mode.T1_T2A2, {}, "13 text tokens"),
    "text history of GLM": ("glm-4-voice", (TASK, HI, Answer("x"), HI), Mode.T1_T2A2, {}, "public"),
    "no clip": ("step-audio-tts", (TASK, HI), Mode.T1_A1, {}, "Reference"),
    "no words": ("step-audio-tts", (TASK, Reference(FRAME), HI), Mode.T1_A1, {}, "words"),
    "no slots": ("step-audio-editx", (TASK, Reference(FRAME, "So."), HI), Mode.T1_A1, {}, "slots"),
    "two texts": ("cosyvoice2", (HI, HI), Mode.T1_A1, {}, "one at a time"),
    "a chat to speak": ("cosyvoice2", (HI, Answer("x"), HI), Mode.T1_A1, {}, "no Answer"),
    "both in CosyVoice 2": ("cosyvoice2", (TASK, CLIP, HI), Mode.T1_A1, {}, "both"),
    "no system of CosyVoice 3": ("cosyvoice3", (CLIP, HI), Mode.T1_A1, {}, "endofprompt"),
    "a clip to speak like": ("cosyvoice2", (Reference(((0,),)), HI), Mode.T1_A1, {}, "decoder"),
    "no voice": ("spark-tts", (HI,), Mode.T1_A1, {}, "Style"),
    "a pitch": ("spark-tts", (Style("male", "shrill"), HI), Mode.T1_A1, {}, "very_low"),
    "a talker": ("qwen2.5-omni-talker", (HI,), Mode.T1_T2A2, {}, "hidden states"),
    "two streams": ("kimi-audio", (User(audio=((1,),)),), Mode.A1_T2, {}, "two streams"),
    "no template": ("minicpm-o", (HI,), Mode.T1_T2, {}, "no template"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=list(REFUSED))
def test_what_no_public_source_tells_is_refused(case):
    family, items, mode, options, reason = case
    with pytest.raises(UsageError, match=reason):
        render(numeric(family), items, mode, **options)


@pytest.mark.parametrize(
    ("family", "items"),
    [
        ("step-audio2", (HI, Answer("x", ((6561,),)), HI)),
        ("step-audio2", (HI, Answer("x", ((-1,),)), HI)),
        ("step-audio2", (HI, Answer("x", ((1,), (1,))), HI)),
        ("cosyvoice2-merged", (Reference(((6561,),), "So."), HI)),
        ("spark-tts", (Reference(((0,) * 32, (8192,)), "So."), HI)),
        ("spark-tts", (Reference(((0,) * 31, (1,)), "So."), HI)),
        ("step-audio-tts", (TASK, Reference(((1024, 1), (1, 1, 1)), "So."), HI)),
    ],
)
def test_audio_tokens_beyond_the_codebook_are_refused(family, items):
    mode = FAMILIES[family].modes[-1] if family == "step-audio2" else Mode.T1_A1
    mode = Mode.T1_T2 if family == "step-audio2" else mode
    with pytest.raises(InputError, match="expected"):
        render(vocabulary_of(family), items, mode)


def test_ids_need_the_familys_tokenizer():
    spoken = (HI, Answer("x", ((1,),)), HI)
    with pytest.raises(UsageError, match="or keep answers as text"):
        render(numeric("step-audio2"), spoken, Mode.T1_T2)
    with pytest.raises(UsageError, match="tokenizer"):
        prompt_ids(numeric("step-audio2"), [TextPart("x")])
    other = vocabulary_of("spark-tts").vocab
    mixed = Vocabulary(FAMILIES["step-audio2"])
    mixed.vocab = other
    with pytest.raises(ModelError, match="<tts_pad>"):
        render(mixed, spoken, Mode.T1_T2)
