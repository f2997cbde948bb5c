"""Spark-TTS, as cli/SparkTTS.py and token_parser.py of github.com/SparkAudio/Spark-TTS write it."""

from duologue.errors import InputError, UsageError
from duologue.lm.conversation import Reference, Style
from duologue.lm.templates.checks import Asked, one, spoken_text
from duologue.lm.templates.writer import Writer

GENDERS = ("female", "male")
LEVELS = ("very_low", "low", "moderate", "high", "very_high")


def write(prompt: Writer, asked: Asked) -> None:
    """Write the prompt for a cloned voice, or for one made up by its properties."""
    text = spoken_text(asked, Reference, Style)
    reference, style = one(asked, Reference), one(asked, Style)
    if reference and not style:
        _write_cloned(prompt, asked, reference, text)
    elif style and not reference:
        _write_made_up(prompt, style, text)
    else:
        raise UsageError("spark-tts needs a Reference (a cloned voice) or a Style (a new one)")


def _write_cloned(prompt: Writer, asked: Asked, reference: Reference, text: str) -> None:
    book = asked.profile.codebooks[0]
    if len(reference.codes) != 2 or len(reference.codes[0]) != book.most:
        raise InputError(
            f"the Reference has runs of {[len(run) for run in reference.codes]} tokens, expected "
            f"{book.most} of {book.name} and those of {asked.profile.codebooks[1].name}"
        )
    globals_, semantics = reference.codes
    prompt.framing("<|task_tts|><|start_content|>")
    prompt.content(reference.text + text)
    prompt.framing("<|end_content|><|start_global_token|>")
    prompt.spelled((globals_, ()))
    prompt.framing("<|end_global_token|>")
    if reference.text:
        prompt.framing("<|start_semantic_token|>")
        prompt.spelled(((), semantics))


def _write_made_up(prompt: Writer, style: Style, text: str) -> None:
    gender = _number("gender", style.gender, GENDERS)
    pitch = _number("pitch", style.pitch, LEVELS)
    speed = _number("speed", style.speed, LEVELS)
    prompt.framing("<|task_controllable_tts|><|start_content|>")
    prompt.content(text)
    prompt.framing(
        f"<|end_content|><|start_style_label|><|gender_{gender}|><|pitch_label_{pitch}|>"
        f"<|speed_label_{speed}|><|end_style_label|>"
    )


def _number(name: str, value: str, values: tuple[str, ...]) -> int:
    if value not in values:
        raise UsageError(f"{name} {value!r} is not known: use one of {', '.join(values)}")
    return values.index(value)
