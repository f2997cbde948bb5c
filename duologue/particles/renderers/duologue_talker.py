"""The embedded voice's talker (`duologue.talker`): two sounds, which it has as speech tokens."""

from duologue.particles.render import Notation

DUOLOGUE_TALKER = Notation(
    engine="duologue-talker",
    points={
        "laugh": "[laugh]",
        "chuckle": "[laugh]",
        "giggle": "[laugh]",
        "haha": "[laugh]",
        "sigh": "[sigh]",
        "breath_out": "[sigh]",
    },
    reserved=[(r"\[", "("), (r"\]", ")")],
)
