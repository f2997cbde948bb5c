"""The language models of CosyVoice 2 and 3 (github.com/FunAudioLLM/CosyVoice): text in, audio out.

Their own ids number the speech tokens from 0. With text streamed in they take 5 text tokens and
give 15 speech tokens in turn, then a fill token that asks for more text. The exports for
Hugging Face and TensorRT-LLM put the speech tokens behind the text vocabulary.
"""

from duologue.lm.formats.profile import Codebook, Kind, Profile, Special
from duologue.lm.modes import Mode

SIZE = 6561


def _own_ids(family: str, codec: str, reserved: int, fill: int) -> Profile:
    ends = (Special(None, Kind.END, (SIZE + n,)) for n in range(reserved) if n != fill)
    return Profile(
        family=family,
        modes=(Mode.T1_A1,),
        text_ids=0,
        codebooks=(Codebook(codec, SIZE, 25, None, 0),),
        specials=(Special(None, Kind.PAD, (SIZE + fill,)), *ends),
        speech_from_start=True,
        interleave=(5, 15),
    )


def _merged(family: str, codec: str, first_id: int | None) -> Profile:
    return Profile(
        family=family,
        modes=(Mode.T1_A1,),
        text_ids=151_643,
        codebooks=(Codebook(codec, SIZE, 25, "<|s_{}|>", first_id),),
        specials=(
            Special("<|fill|>", Kind.PAD),
            Special("<|sos|>", Kind.END),
            Special("<|eos1|>", Kind.END),
            Special("<|eos|>", Kind.END),
            Special("<|task_id|>", Kind.END),
            Special("<|endoftext|>", Kind.END, (151_643,)),
            Special("<|im_end|>", Kind.END, (151_645,)),
        ),
        speech_from_start=True,
        interleave=(5, 15),
    )


COSYVOICE2 = _own_ids("cosyvoice2", "s3-v2", reserved=3, fill=2)
COSYVOICE3 = _own_ids("cosyvoice3", "s3-v3", reserved=200, fill=3)
COSYVOICE2_MERGED = _merged("cosyvoice2-merged", "s3-v2", 151_663)
COSYVOICE3_MERGED = _merged("cosyvoice3-merged", "s3-v3", None)
