"""VITA-Audio (github.com/VITA-MLLM/VITA-Audio): text and runs of GLM-4-Voice's audio tokens.

Its ids are in no public text: the id front needs the tokenizer.
"""

from duologue.lm.formats.profile import Codebook, Kind, Profile, Special
from duologue.lm.modes import Mode

VITA_AUDIO = Profile(
    family="vita-audio",
    modes=(Mode.A1_T1, Mode.A1_T2A2, Mode.T1_A1),
    text_ids=151_643,
    codebooks=(Codebook("glm-4-voice", 16_384, 12.5, "<|audio_{}|>"),),
    specials=(
        Special("<|im_end|>", Kind.END, (151_645,), required=True),
        Special("<|im_start|>", Kind.END, (151_644,)),
        Special("<|endoftext|>", Kind.END, (151_643,)),
        # The text between the runs is spoken, too: they do not close the speech.
        Special("<|begin_of_audio|>", Kind.PAD),
        Special("<|end_of_audio|>", Kind.PAD),
    ),
    speech_from_start=True,
)
