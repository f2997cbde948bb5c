"""Step-Audio 2 mini, Base and Think (github.com/stepfun-ai/Step-Audio2).

Behind `<tts_start>` one text token and four audio tokens take turns ("TA4"); whichever ends first
is padded. `<tts_end>` closes the speech; plain text or tool calls may follow. The Base model knows
no roles; what is listed of it and of Think is what their public examples show.
"""

from dataclasses import replace

from duologue.lm.formats.profile import Codebook, Heard, Kind, Profile, Special, ToolFormat
from duologue.lm.modes import Mode

STEP_AUDIO2 = Profile(
    family="step-audio2",
    modes=tuple(Mode),
    text_ids=151_643,
    codebooks=(Codebook("s3-v2", 6561, 25, "<audio_{}>", 151_696),),
    specials=(
        Special("<tts_start>", Kind.OPEN, (151_693,), required=True),
        Special("<tts_end>", Kind.CLOSE, (151_694,), required=True),
        Special("<audio_6561>", Kind.PAD, (158_257,), required=True),
        # Its id is in no public text; the others of these are unused.
        Special("<tts_pad>", Kind.PAD, (151_689, 151_691, 151_692, 151_695)),
        Special("<tool_call>", Kind.TOOL_OPEN, (151_657,), required=True),
        Special("</tool_call>", Kind.TOOL_CLOSE, (151_658,), required=True),
        Special("<|EOT|>", Kind.END, (151_665,), required=True),
        Special("<|BOT|>", Kind.END),
        Special("<|endoftext|>", Kind.END, (151_643,)),
        Special("<|im_start|>", Kind.END, (151_644,)),
        Special("<|im_end|>", Kind.END, (151_645,)),
    ),
    tools=ToolFormat.LINES,
    interleave=(1, 4),
    speech_prefix="<tts_start>",
    heard=Heard("<audio_start>", "<audio_end>", longest_s=25),
    # The streaming tool parser of its vLLM sends them only in a later delta than the name.
    loses_arguments=True,
)
STEP_AUDIO2_BASE = replace(
    STEP_AUDIO2,
    family="step-audio2-base",
    modes=tuple(mode for mode in Mode if mode is not Mode.T1_T2),
    tools=None,
)
STEP_AUDIO2_THINK = replace(
    STEP_AUDIO2,
    family="step-audio2-think",
    modes=(Mode.A1_T2A2, Mode.T1_T2A2),
    tools=None,
    thinks=True,
)
