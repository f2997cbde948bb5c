"""The talker of the embedded voice: a clause as it is, which its engine turns into ids."""

from duologue.lm.templates.checks import Asked, spoken_text
from duologue.lm.templates.writer import Writer


def write(prompt: Writer, asked: Asked) -> None:
    """Write the text; the one voice that the model has needs no clip."""
    prompt.content(spoken_text(asked))
