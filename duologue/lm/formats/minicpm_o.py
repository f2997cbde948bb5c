"""MiniCPM-o 2.6 and 4.5 (github.com/OpenBMB/MiniCPM-o), the text stream.

The talker runs on hidden states, and the duplex frames carry when to listen: neither is here.
"""

from duologue.lm.formats.profile import Kind, Profile, Special, ToolFormat
from duologue.lm.modes import Mode

MINICPM_O = Profile(
    family="minicpm-o",
    modes=(Mode.A1_T1, Mode.A1_T2, Mode.T1_T2),
    text_ids=151_643,
    specials=(
        Special("<|im_end|>", Kind.END, (151_645,), required=True),
        Special("<|im_start|>", Kind.END, (151_644,)),
        Special("<|endoftext|>", Kind.END, (151_643,)),
        Special("<|tts_bos|>", Kind.PAD),
        Special("<|tts_eos|>", Kind.END),
        Special("<|turn_eos|>", Kind.END),
        Special("<|listen|>", Kind.PAD, (151_705,)),
        Special("<|speak|>", Kind.PAD, (151_706,)),
        Special("<|chunk_eos|>", Kind.PAD, (151_718,)),
        Special("<unit>", Kind.PAD),
        Special("</unit>", Kind.PAD, (151_684,)),
        Special("<tool_call>", Kind.TOOL_OPEN, (151_657,)),
        Special("</tool_call>", Kind.TOOL_CLOSE, (151_658,)),
    ),
    tools=ToolFormat.JSON,
)
