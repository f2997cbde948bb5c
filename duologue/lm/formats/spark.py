"""Spark-TTS (github.com/SparkAudio/Spark-TTS): 32 tokens of the voice, then semantic tokens.

A cloned voice's global tokens stand in the prompt; only a created one's are in the stream.
"""

from duologue.lm.formats.profile import Codebook, Kind, Profile, Special
from duologue.lm.modes import Mode

SPARK_TTS = Profile(
    family="spark-tts",
    modes=(Mode.T1_A1,),
    text_ids=151_643,
    codebooks=(
        Codebook("bicodec-global", 4096, 0, "<|bicodec_global_{}|>", 151_665, most=32),
        Codebook("bicodec-semantic", 8192, 50, "<|bicodec_semantic_{}|>", 155_761),
    ),
    specials=(
        Special("<|im_end|>", Kind.END, (151_645,), required=True),
        Special("<|endoftext|>", Kind.END, (151_643,)),
        Special("<|end_semantic_token|>", Kind.END, (165_157,)),
        Special("<|start_global_token|>", Kind.PAD, (165_150,)),
        Special("<|end_global_token|>", Kind.PAD, (165_156,)),
        Special("<|start_semantic_token|>", Kind.PAD, (165_151,)),
        Special("<|end_style_label|>", Kind.PAD, (165_153,)),
    ),
    speech_from_start=True,
)
