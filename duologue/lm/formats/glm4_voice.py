"""GLM-4-Voice (github.com/zai-org/GLM-4-Voice): 13 text and 26 audio tokens take turns."""

from duologue.lm.formats.profile import Codebook, Heard, Kind, Profile, Special
from duologue.lm.modes import Mode

GLM4_VOICE = Profile(
    family="glm-4-voice",
    modes=(Mode.A1_T2A2, Mode.T1_T2A2),
    text_ids=151_329,
    codebooks=(Codebook("glm-4-voice", 16_384, 12.5, "<|audio_{}|>", 152_353),),
    specials=(
        Special("<|user|>", Kind.END, (151_336,), required=True),
        Special("<|endoftext|>", Kind.END, (151_329,)),
        Special("<|system|>", Kind.END, (151_335,)),
        Special("<|assistant|>", Kind.END, (151_337,)),
        Special("<|observation|>", Kind.END, (151_338,)),
    ),
    speech_from_start=True,
    interleave=(13, 26),
    heard=Heard("<|begin_of_audio|>", "<|end_of_audio|>", sound=False),
    text_history=False,
)
