"""Voices that read words only, such as Piper and Kokoro: a sound is a word or nothing.

Kokoro's phonemiser takes "[word](/phonemes/)" for a pronunciation (github.com/hexgrad/misaki).
"""

from duologue.errors import UsageError
from duologue.particles.render import Notation

PIPER = Notation(engine="piper")
KOKORO = Notation(engine="kokoro", reserved=[(r"\[", "("), (r"\]", ")")])

INTERJECTIONS: dict[str, dict[str, str]] = {
    "en": {
        "laugh": "haha",
        "chuckle": "heh heh",
        "giggle": "hee hee",
        "sigh": "ah",
        "clear_throat": "ahem",
        "cough": "ahem",
        "gasp": "oh!",
        "hum": "hmm",
        "groan": "ugh",
        "uhm": "um",
        "oh": "oh",
        "ah": "ah",
        "wa": "wow",
        "confirm": "mm-hmm",
        "question": "eh?",
        "dissatisfied": "hmph",
        "haha": "haha",
        "pause": "…",
    },
    "zh": {
        "laugh": "哈哈",
        "chuckle": "呵呵",
        "giggle": "嘻嘻",
        "sigh": "唉",
        "clear_throat": "咳",
        "cough": "咳咳",
        "gasp": "啊！",
        "sob": "呜呜",
        "cry": "呜呜",
        "hum": "嗯",
        "groan": "呃",
        "uhm": "嗯",
        "oh": "哦",
        "ah": "啊",
        "wa": "哇",
        "confirm": "嗯",
        "question": "诶？",
        "dissatisfied": "哼",
        "haha": "哈哈",
        "pause": "……",
    },
}
"""Words for sounds, by language and taxonomy name."""


def interjections(lang: str) -> dict[str, str]:
    """Words for sounds in a language.

    Raises:
        UsageError: a language that is not in `INTERJECTIONS`.
    """
    if lang not in INTERJECTIONS:
        known = ", ".join(INTERJECTIONS)
        raise UsageError(f"language {lang!r} has no interjections: use one of {known}")
    return INTERJECTIONS[lang]
