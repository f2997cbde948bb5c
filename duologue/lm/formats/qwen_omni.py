"""Qwen2.5-Omni and Qwen3-Omni (github.com/QwenLM): a thinker's text, spoken by a second model.

The thinker's stream is Qwen chat. The talker of Qwen2.5-Omni has a stream of its own; that of
Qwen3-Omni gives eight codebooks a frame from a third model, which no serial stream carries.
"""

from duologue.lm.formats.profile import Codebook, Heard, Kind, Profile, Special, ToolFormat
from duologue.lm.modes import Mode

_CHAT = (
    Special("<|im_end|>", Kind.END, (151_645,), required=True),
    Special("<|im_start|>", Kind.END, (151_644,)),
    Special("<|endoftext|>", Kind.END, (151_643,)),
    Special("<tool_call>", Kind.TOOL_OPEN, (151_657,), required=True),
    Special("</tool_call>", Kind.TOOL_CLOSE, (151_658,), required=True),
)

QWEN25_OMNI = Profile(
    family="qwen2.5-omni",
    modes=(Mode.A1_T1, Mode.A1_T2, Mode.A1_T2A2, Mode.T1_T2, Mode.T1_T2A2),
    text_ids=151_643,
    specials=_CHAT,
    tools=ToolFormat.JSON,
    heard=Heard("<|audio_bos|>", "<|audio_eos|>"),
)
QWEN25_OMNI_TALKER = Profile(
    family="qwen2.5-omni-talker",
    modes=(Mode.A1_T2A2, Mode.T1_T2A2),
    text_ids=0,
    codebooks=(Codebook("qwen2.5-omni", 8192, 50, None, 0),),
    specials=(
        Special(None, Kind.PAD, (8292,)),
        Special(None, Kind.PAD, (8293,)),
        Special(None, Kind.END, (8294,)),
    ),
    speech_from_start=True,
)
QWEN3_OMNI = Profile(
    family="qwen3-omni",
    modes=(Mode.A1_T1, Mode.A1_T2, Mode.T1_T2),
    text_ids=151_643,
    specials=(
        *_CHAT,
        Special("<think>", Kind.THINK_OPEN, (151_667,)),
        Special("</think>", Kind.THINK_CLOSE, (151_668,)),
        Special("<tts_pad>", Kind.PAD, (151_671,)),
    ),
    tools=ToolFormat.JSON,
    heard=Heard("<|audio_start|>", "<|audio_end|>"),
)
