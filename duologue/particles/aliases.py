"""What a family of language models writes that means something of its own: data only.

A model is told in its system prompt which tags to write, so that these are marks wherever they
stand in round brackets. The speech engine may know the same thing by another name: both meet in the
taxonomy's name ("（快速）" is `fast`, which Step-Audio-TTS calls "快速1").
"""

from functools import cache

from duologue.particles.lexicon import LEXICON, Lexicon

ALIASES: dict[str, dict[str, str]] = {
    # The chat model's prompt asks for "(RAP)", "(fast)" and the like; the tags are Step-Audio-TTS's
    # (github.com/stepfun-ai/Step-Audio, tts.py), where "哼唱" is a song and no hum.
    "step-audio1": {
        "RAP": "rap",
        "哼唱": "singing",
        "fast": "fast",
        "快速": "fast",
        "slow": "slow",
        "慢速": "slow",
        "高兴": "happy",
        "生气": "angry",
        "悲伤": "sad",
        "撒娇": "coy",
        "中文": "zh",
        "英文": "en",
        "韩语": "ko",
        "日语": "ja",
        "四川话": "sichuan",
        "粤语": "yue",
        "广东话": "yue",
    },
}


@cache
def lexicon_for(family: str) -> Lexicon:
    """The lexicon for a family of language models; most write nothing of their own."""
    return LEXICON.extended(ALIASES[family]) if family in ALIASES else LEXICON
