"""One file per family of speech engines, data only, and their look-up by name."""

from collections.abc import Container

from duologue.errors import UsageError
from duologue.particles.render import Notation, NotationRenderer, Unknown
from duologue.particles.renderers.cosyvoice import COSYVOICE2, COSYVOICE3
from duologue.particles.renderers.duologue_talker import DUOLOGUE_TALKER
from duologue.particles.renderers.index_tts import INDEX_TTS2, INDEX_TTS25
from duologue.particles.renderers.plain import KOKORO, PIPER, interjections
from duologue.particles.renderers.spark import SPARK_TTS
from duologue.particles.renderers.step_audio import STEP_AUDIO_EDITX, STEP_AUDIO_TTS

NOTATIONS = {
    notation.engine: notation
    for notation in (
        STEP_AUDIO_TTS,
        STEP_AUDIO_EDITX,
        COSYVOICE2,
        COSYVOICE3,
        INDEX_TTS2,
        INDEX_TTS25,
        SPARK_TTS,
        DUOLOGUE_TALKER,
        PIPER,
        KOKORO,
    )
}


def renderer_for(
    engine: str, *, words: str | None = None, unknown: Unknown = Unknown.STRIP
) -> NotationRenderer:
    """The renderer of a speech engine.

    Args:
        engine: a key of `NOTATIONS`.
        words: the language in which a sound without a mark is said as a word; None strips it.
        unknown: what to do with what remains.

    Raises:
        UsageError: no such engine or language.
    """
    if engine not in NOTATIONS:
        raise UsageError(f"engine {engine!r} has no renderer: use one of {', '.join(NOTATIONS)}")
    said = interjections(words) if words is not None else None
    return NotationRenderer(NOTATIONS[engine], words=said, unknown=unknown)


def talker_renderer(family: str, accepted: Container[str] = ()) -> NotationRenderer:
    """The renderer of a family of language models that speak text (`duologue lm modes`, T1-A1).

    Of an export with a vocabulary of its own ("-merged") it is the original's; of a family that
    publishes no marks it knows none.

    Args:
        family: its name.
        accepted: the parameters that its prompt can say.
    """
    notation = NOTATIONS.get(family.removesuffix("-merged"), Notation(engine=family))
    return NotationRenderer(notation.within(accepted))


__all__ = ["NOTATIONS", "renderer_for", "talker_renderer"]
