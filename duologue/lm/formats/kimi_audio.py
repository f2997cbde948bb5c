"""Kimi-Audio (github.com/MoonshotAI/Kimi-Audio): a text head and an audio head, one id each a step.

The heads' ids do not overlap, so that a step's two ids, text first, may stand in one stream. The
audio lags six steps behind; until then, and once the text is over, a blank takes the place.
"""

from duologue.lm.formats.profile import Codebook, Kind, Profile, Special
from duologue.lm.modes import Mode

KIMI_AUDIO = Profile(
    family="kimi-audio",
    modes=(Mode.A1_T1, Mode.A1_T2, Mode.A1_T2A2),
    text_ids=151_643,
    # Tokens of GLM-4-Voice's codec, without names in the vocabulary.
    codebooks=(Codebook("glm-4-voice", 16_384, 12.5, None, 152_064),),
    specials=(
        Special("<|im_kimia_text_blank|>", Kind.PAD, (151_666,), required=True),
        # The text head ends before the audio is over.
        Special("<|im_kimia_text_eos|>", Kind.PAD, (151_667,), required=True),
        Special("<|im_media_begin|>", Kind.PAD, (151_661,)),
        Special("<|im_media_end|>", Kind.END, (151_663,), required=True),
        Special("<|im_msg_end|>", Kind.END, (151_645,), required=True),
        Special("[EOS]", Kind.END, (151_644,)),
        Special("<|im_kimia_user_msg_start|>", Kind.END, (151_670,)),
    ),
    speech_from_start=True,
    interleave=(1, 1),
)
