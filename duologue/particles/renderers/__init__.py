"""One file per family of speech engines, data only, and their look-up by name."""

from duologue.errors import UsageError
from duologue.particles.render import NotationRenderer, Unknown
from duologue.particles.renderers.cosyvoice import COSYVOICE2, COSYVOICE3
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


__all__ = ["NOTATIONS", "renderer_for"]
