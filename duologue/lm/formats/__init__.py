"""One file per model family, data only, and their look-up by name."""

from duologue.errors import UsageError
from duologue.lm.formats.cosyvoice import (
    COSYVOICE2,
    COSYVOICE2_MERGED,
    COSYVOICE3,
    COSYVOICE3_MERGED,
)
from duologue.lm.formats.duologue_talker import DUOLOGUE_TALKER
from duologue.lm.formats.glm4_voice import GLM4_VOICE
from duologue.lm.formats.kimi_audio import KIMI_AUDIO
from duologue.lm.formats.minicpm_o import MINICPM_O
from duologue.lm.formats.profile import Codebook, Heard, Kind, Profile, Special, ToolFormat
from duologue.lm.formats.qwen_omni import QWEN3_OMNI, QWEN25_OMNI, QWEN25_OMNI_TALKER
from duologue.lm.formats.spark import SPARK_TTS
from duologue.lm.formats.step_audio1 import STEP_AUDIO1, STEP_AUDIO_EDITX, STEP_AUDIO_TTS
from duologue.lm.formats.step_audio2 import STEP_AUDIO2, STEP_AUDIO2_BASE, STEP_AUDIO2_THINK
from duologue.lm.formats.vita_audio import VITA_AUDIO

FAMILIES = {
    profile.family: profile
    for profile in (
        STEP_AUDIO2,
        STEP_AUDIO2_BASE,
        STEP_AUDIO2_THINK,
        STEP_AUDIO1,
        STEP_AUDIO_TTS,
        STEP_AUDIO_EDITX,
        GLM4_VOICE,
        COSYVOICE2,
        COSYVOICE3,
        COSYVOICE2_MERGED,
        COSYVOICE3_MERGED,
        SPARK_TTS,
        QWEN25_OMNI,
        QWEN25_OMNI_TALKER,
        QWEN3_OMNI,
        KIMI_AUDIO,
        VITA_AUDIO,
        MINICPM_O,
        DUOLOGUE_TALKER,
    )
}


def find_family(name: str) -> Profile:
    """The profile of a family.

    Raises:
        UsageError: no such family.
    """
    if name not in FAMILIES:
        raise UsageError(f"family {name!r} is not known: use one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


__all__ = [
    "FAMILIES",
    "Codebook",
    "Heard",
    "Kind",
    "Profile",
    "Special",
    "ToolFormat",
    "find_family",
]
