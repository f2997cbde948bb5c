"""Each family's prompt: its framing, the sound in it, and how it ends."""

import json

import pytest

from duologue.errors import UsageError
from duologue.lm.conversation import Answer, Reference, Style, System, User
from duologue.lm.demux import Demux
from duologue.lm.events import TextDelta, ToolCallReady
from duologue.lm.formats import FAMILIES
from duologue.lm.modes import Mode
from duologue.lm.prompt import AudioPart, IdsPart, TextPart
from duologue.lm.templates import prompt_ids, prompt_prefix, render, render_messages
from duologue.lm.templates.step_audio2 import ALOUD
from tests.lm.prompt_cases import (
    CALLS,
    CASES,
    FRAME,
    GLOBALS,
    GOLDEN,
    RESULTS,
    TASK,
    parts_of,
    plain,
    sound,
    spelled_out,
    tool,
    vocabulary_of,
)
from tests.lm.streams import audio_of, demuxed, numeric, of, text_of

GOLDENS = json.loads(GOLDEN.read_text())


def text(family, *items, mode, **options) -> str:
    """The prompt as one text, its ids by their names."""
    vocabulary = vocabulary_of(family)
    return spelled_out(vocabulary, render(vocabulary, items, mode, **options))


# Framing


def test_step_audio2_chat():
    head = "<|BOT|>system\nBe kind.<|EOT|>"
    asked = "<|BOT|>human\nHi<|EOT|><|BOT|>assistant\n"
    items = (TASK, User("Hi"))
    assert plain("step-audio2", *items, mode=Mode.T1_T2) == head + asked
    assert plain("step-audio2", *items, mode=Mode.T1_T2A2) == f"{head}{asked}<tts_start>"
    assert plain("step-audio2", *items, mode=Mode.T1_A1) == f"{head}{asked}<tts_start>"
    more = (*items, Answer("Hello."), User("Bye"))
    again = f"{head}{asked}Hello.<|EOT|><|BOT|>human\nBye<|EOT|><|BOT|>assistant\n"
    assert plain("step-audio2", *more, mode=Mode.T1_T2) == again


def test_step_audio2_speech_in_the_history_stands_in_groups_of_one_and_four():
    audio = (0, 6560, 2, 3, 4, 5, 6, 7, 8)
    items = (User("Hi"), Answer("the clock", (audio,)), User("time"))
    shown = text("step-audio2", *items, mode=Mode.T1_T2)
    spoken = shown.split("<|BOT|>assistant\n")[1]
    assert spoken == (
        "<tts_start>the<audio_0><audio_6560><audio_2><audio_3>"
        " clock<audio_4><audio_5><audio_6><audio_7>"
        "<tts_pad><audio_8><audio_6561><audio_6561><audio_6561>"
        "<tts_end><|EOT|><|BOT|>human\ntime<|EOT|>"
    )


def test_step_audio2_tools_and_results():
    tools = [tool("clock")]
    items = (TASK, User("Hi"), Answer("Well.", calls=CALLS), *RESULTS)
    shown = plain("step-audio2", *items, mode=Mode.T1_T2A2, tools=tools)
    assert shown == (
        "<|BOT|>system\nBe kind.<|EOT|>"
        f"<|BOT|>tool_json_schemas\n{json.dumps(tools, ensure_ascii=False)}<|EOT|>"
        "<|BOT|>human\nHi<|EOT|>"
        '<|BOT|>assistant\nWell.<tool_call>function\nclock\n{"zone": "时"}</tool_call>'
        "<tool_call>function\nlaugh\n{}</tool_call><|EOT|>"
        f"<|BOT|>input\n12:00<|EOT|><|BOT|>input\nha{ALOUD}<|EOT|>"
        "<|BOT|>assistant\n<tts_start>"
    )
    assert ALOUD not in plain("step-audio2", *items, mode=Mode.T1_T2, tools=tools)


def test_step_audio2_thinks_in_one_request_and_answers_in_the_next():
    family, items = "step-audio2-think", (User("Hi"),)
    head = "<|BOT|>human\nHi<|EOT|><|BOT|>assistant\n\n<think>\n"
    assert plain(family, *items, mode=Mode.T1_T2A2) == head
    after = plain(family, *items, mode=Mode.T1_T2A2, thought="hm\n")
    assert after == f"{head}hm\n</think>\n\n<tts_start>"


def test_step_audio2_base_has_no_roles():
    items = (System("Read.\n"), User("Hi"))
    assert plain("step-audio2-base", *items, mode=Mode.T1_A1) == "Read.\nHi<tts_start>"
    heard = sound(1)
    parts = render(
        numeric("step-audio2-base"),
        (User(audio=heard), Answer("Oh."), User(audio=heard)),
        Mode.A1_T2,
    )
    assert [type(part) for part in parts] == [TextPart, AudioPart] * 2 + [TextPart]
    assert parts[2] == TextPart("<audio_end>Oh.<audio_start>")


def test_step_audio1_hears_whole_frames():
    head = "<|BOT|>human\n<audio_0><audio_1023><audio_1024><audio_1025><audio_5119>"
    tail = "<|EOT|><|BOT|>assistant\n"
    assert plain("step-audio1", User(audio=FRAME), mode=Mode.A1_T2) == head + tail
    for more in [((0, 1023, 5), (0, 1, 4095)), ((0, 1023, 5, 6), (0, 1, 4095, 7, 8))]:
        assert plain("step-audio1", User(audio=more), mode=Mode.A1_T2) == head + tail


def test_step_audio_tts_goes_on_from_a_clip():
    items = (System("Act."), Reference(FRAME, "So."), User("(RAP)Hi"))
    assert plain("step-audio-tts", *items, mode=Mode.T1_A1) == (
        "<s><|BOT|> system\nAct.<|EOT|><|BOT|> human\nSo.<|EOT|>"
        "<|BOT|> assistant\n<audio_0><audio_1023><audio_1024><audio_1025><audio_5119><|EOT|>"
        "<|BOT|> human\n(RAP)Hi<|EOT|><|BOT|> assistant\n"
    )


def test_step_audio_editx_fills_the_slots_of_its_system_prompt():
    system = System("by {speaker}: {prompt_text}\n{prompt_wav_tokens}\n{other}")
    items = (system, Reference(FRAME, "{speaker}", name="Ann"), User("Hi [Sigh]"))
    assert plain("step-audio-editx", *items, mode=Mode.T1_A1) == (
        "<s><|BOT|> system\nby Ann: {speaker}\n"
        "<audio_0><audio_1023><audio_1024><audio_1025><audio_5119>\n{other}<|EOT|>"
        "<|BOT|> human\nHi [Sigh]<|EOT|><|BOT|> assistant\n"
    )


def test_glm_remembers_what_it_gave():
    items = (
        TASK,
        User(audio=((0, 16_383),)),
        Answer("it is time", (tuple(range(30)),)),
        User("Hi"),
    )
    shown = text("glm-4-voice", *items, mode=Mode.T1_T2A2)
    audio = "".join(f"<|audio_{n}|>" for n in range(30))
    assert shown == (
        "[gMASK]<sop><|system|>\nBe kind."
        "<|user|>\n<|begin_of_audio|><|audio_0|><|audio_16383|><|end_of_audio|>"
        f"<|assistant|>streaming_transcription\nit is time{audio}"
        "<|user|>\nHi<|assistant|>streaming_transcription\n"
    )


def test_cosyvoice_numbers_text_and_speech_apart():
    reference = Reference(((0, 6560),), "So. ")
    clone = render(numeric("cosyvoice2"), (reference, User("Hi")), Mode.T1_A1)
    assert clone == (TextPart("So. Hi"), IdsPart((0, 6560)))
    instructed = render(numeric("cosyvoice2"), (System("Fast."), User("Hi")), Mode.T1_A1)
    assert instructed == (TextPart("Fast.<|endofprompt|>Hi"),)
    newer = render(numeric("cosyvoice3"), (TASK, reference, User("Hi")), Mode.T1_A1)
    assert newer == (TextPart("Be kind.<|endofprompt|>So. Hi"), IdsPart((0, 6560)))
    with pytest.raises(UsageError, match="apart"):
        prompt_ids(vocabulary_of("cosyvoice2"), clone)


def test_merged_cosyvoice():
    items = (Reference(((0, 6560),), "So. "), User("Hi <strong>you</strong> [breath]"))
    said = "So. Hi <strong>you</strong> [breath]"
    merged = f"<|sos|>{said}<|task_id|><|s_0|><|s_6560|>"
    assert plain("cosyvoice2-merged", *items, mode=Mode.T1_A1) == merged
    newer = f"<|sos|>Be kind.<|endofprompt|>{said}<|task_id|><|s_0|><|s_6560|>"
    assert plain("cosyvoice3-merged", TASK, *items, mode=Mode.T1_A1) == newer


def test_spark_clones_or_makes_up_a_voice():
    globals_ = "".join(f"<|bicodec_global_{n}|>" for n in GLOBALS)
    voice = f"<|start_global_token|>{globals_}<|end_global_token|>"
    codes = (GLOBALS, (0, 8191))
    semantic = "<|start_semantic_token|><|bicodec_semantic_0|><|bicodec_semantic_8191|>"
    known = plain("spark-tts", Reference(codes, "So. "), User("Hi"), mode=Mode.T1_A1)
    assert known == f"<|task_tts|><|start_content|>So. Hi<|end_content|>{voice}{semantic}"
    silent = plain("spark-tts", Reference(codes), User("Hi"), mode=Mode.T1_A1)
    assert silent == f"<|task_tts|><|start_content|>Hi<|end_content|>{voice}"
    styled = plain("spark-tts", Style("male", "very_low", "high"), User("Hi"), mode=Mode.T1_A1)
    assert styled == (
        "<|task_controllable_tts|><|start_content|>Hi<|end_content|><|start_style_label|>"
        "<|gender_1|><|pitch_label_0|><|speed_label_3|><|end_style_label|>"
    )


def test_qwen_puts_the_results_of_parallel_calls_in_one_message():
    items = (TASK, User("Hi"), Answer(calls=CALLS), *RESULTS)
    shown = plain("qwen3-omni", *items, mode=Mode.T1_T2)
    assert shown == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "clock", "arguments": {"zone": "时"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "laugh", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n12:00\n</tool_response>\n"
        "<tool_response>\nha\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("system", [(), (TASK,)], ids=["no system", "system"])
def test_qwen_lists_its_tools_in_the_system_message(system):
    tools = [tool("clock"), tool("laugh")]
    shown = plain("qwen2.5-omni", *system, User("Hi"), mode=Mode.T1_T2, tools=tools)
    listed = shown.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line) for line in listed] == tools
    begins = "<|im_start|>system\n" + ("Be kind.\n\n# Tools" if system else "# Tools")
    assert shown.startswith(begins)
    assert shown.count("<|im_start|>system") == 1


@pytest.mark.parametrize("name", CASES)
def test_ids_are_golden(name):
    vocabulary = vocabulary_of(CASES[name][0])
    assert prompt_ids(vocabulary, parts_of(CASES[name])) == GOLDENS[name]
    assert vocabulary.vocab
    framing = [vocabulary.vocab.framing.get(token) for token in GOLDENS[name]]
    assert None not in framing[:1] or "base" in name


# The answers that a prompt holds, and the prefix that it ends with, as the demultiplexer has them


@pytest.mark.parametrize("family", ["step-audio2", "glm-4-voice"])
@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ("it is 时间, the clock says.", 200),
        ("the clock says it is time to laugh and sigh 函数 你好 🙂", 8),
        ("no", 1),
    ],
    ids=["speech is longer", "text is longer", "short"],
)
def test_a_remembered_answer_reads_as_it_was_given(family, said, tokens):
    audio = tuple(range(tokens))
    vocabulary, items = vocabulary_of(family), (TASK, User("Hi"), Answer(said, (audio,)))
    parts = render(vocabulary, (*items, User("time")), Mode.T1_T2A2)
    (ids,) = [part.ids for part in parts if isinstance(part, IdsPart)]
    events = demuxed(vocabulary, ids)
    assert (text_of(events), audio_of(events)) == (said, list(audio))
    assert all(event.voiced for event in of(TextDelta, events))


@pytest.mark.parametrize("family", ["step-audio2", "qwen3-omni"])
def test_a_remembered_call_reads_as_it_was_given(family):
    shown = plain(family, User("Hi"), Answer(calls=CALLS), *RESULTS, mode=Mode.T1_T2)
    start = shown.index("<tool_call>")
    calls = of(
        ToolCallReady, demuxed(numeric(family), shown[start : shown.rindex("</tool_call>") + 12])
    )
    assert [(call.name, call.arguments) for call in calls] == [
        (call.name, call.arguments) for call in CALLS
    ]


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("family", ["step-audio2", "step-audio2-think", "glm-4-voice"])
def test_the_demultiplexer_is_told_how_the_prompt_ends(family, mode):
    profile = FAMILIES[family]
    if mode in profile.modes and not mode.audio_in:
        prefix = prompt_prefix(profile, mode)
        shown = plain(family, TASK, User("Hi"), mode=mode).rstrip("\n")
        assert shown.endswith(
            prefix or ("assistant" if family != "glm-4-voice" else "transcription")
        )
        Demux(numeric(family), prefix=prefix)
    thinking = prompt_prefix(FAMILIES["step-audio2-think"], Mode.T1_T2A2, thought="")
    assert thinking == "<tts_start>"


# Sound


@pytest.mark.parametrize(
    ("family", "opens", "closes"),
    [
        ("qwen2.5-omni", "<|audio_bos|>", "<|audio_eos|><|im_end|>\n<|im_start|>assistant\n"),
        ("qwen3-omni", "<|audio_start|>", "<|audio_end|><|im_end|>\n<|im_start|>assistant\n"),
        ("step-audio2", "<audio_start>", "<audio_end><|EOT|><|BOT|>assistant\n"),
    ],
)
def test_sound_stands_between_its_tokens(family, opens, closes):
    heard = sound(1.5)
    before, audio, after = render(numeric(family), [User(audio=heard)], Mode.A1_T2)
    assert isinstance(before, TextPart) and before.text.endswith(opens)
    assert isinstance(audio, AudioPart) and audio.rate_hz == 16_000
    assert len(audio.samples) == 24_000
    assert after == TextPart(closes)


@pytest.mark.parametrize("rate_hz", [16_000, 48_000])
def test_long_sound_is_cut_where_the_model_was_trained_to_have_it_cut(rate_hz):
    long = sound(60, rate_hz)
    long.samples[:] = range(len(long.samples))
    parts = render(numeric("step-audio2"), [User(audio=long)], Mode.A1_T2)
    pieces = [part for part in parts if isinstance(part, AudioPart)]
    assert [len(piece.samples) / rate_hz for piece in pieces] == [25, 25, 10]
    assert [piece.samples[0] for piece in pieces] == [0, 25 * rate_hz, 50 * rate_hz]
    assert parts[2] == TextPart("<audio_end><audio_start>")


def test_sound_has_no_ids():
    vocabulary = vocabulary_of("step-audio2")
    with pytest.raises(UsageError, match="render_messages"):
        prompt_ids(vocabulary, render(vocabulary, [User(audio=sound(1))], Mode.A1_T2))


# Messages


def test_messages_for_a_server_that_knows_openais_form():
    heard = sound(1)
    items = (TASK, User(audio=heard), Answer("Well.", calls=CALLS), *RESULTS)
    assert render_messages(numeric("qwen3-omni"), items, Mode.A1_T2, [tool("clock")]) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [heard]},
        {
            "role": "assistant",
            "content": "Well.",
            "tool_calls": [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in CALLS
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "12:00"},
        {"role": "tool", "tool_call_id": "b", "content": "ha"},
    ]


def test_messages_for_step_audio2s_server():
    heard = sound(1)
    items = (TASK, User(audio=heard), Answer("Well.", ((0, 6560),), CALLS[:1]), RESULTS[1])
    messages = render_messages(numeric("step-audio2"), items, Mode.A1_T2A2, [tool("clock")])
    _, user, answer, result, last = messages
    assert user == {"role": "user", "content": [heard]}
    assert answer["content"] == ""
    assert answer["tts_content"] == {"tts_text": "Well.", "tts_audio": "<audio_0><audio_6560>"}
    assert answer["tool_calls"][0]["function"] == {"name": "clock", "arguments": {"zone": "时"}}
    assert result == {"role": "input", "tool_call_id": "a", "content": f"12:00{ALOUD}"}
    assert last == {"role": "assistant", "content": "<tts_start>", "eot": False}
    thinking = render_messages(numeric("step-audio2-think"), [User(audio=heard)], Mode.A1_T2A2)
    assert thinking[-1] == {"role": "assistant", "content": "\n<think>\n", "eot": False}
    text_only = render_messages(numeric("step-audio2"), items[:2], Mode.A1_T2)
    assert [message["role"] for message in text_only] == ["system", "user"]


def test_families_of_raw_prompts_have_no_messages():
    for family in ("glm-4-voice", "step-audio1", "step-audio2-base"):
        items = (TASK, User("Hi"))
        mode = Mode.T1_T2 if family == "step-audio1" else Mode.T1_T2A2
        with pytest.raises(UsageError, match="render"):
            render_messages(numeric(family), items, mode)
