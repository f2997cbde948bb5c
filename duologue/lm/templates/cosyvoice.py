"""The language models of CosyVoice 2 and 3 (github.com/FunAudioLLM/CosyVoice).

A cloned voice: the words of the clip and the text in one, then the clip's tokens. An instructed
one: the instruction, `<|endofprompt|>`, the text, and no tokens. CosyVoice 3 always begins as the
latter (cosyvoice/cli/frontend.py, runtime/triton_trtllm/infer_cosyvoice3.py).
"""

from duologue.errors import UsageError
from duologue.lm.conversation import Reference, System
from duologue.lm.templates.checks import Asked, one, spoken_text
from duologue.lm.templates.writer import Writer

SEPARATOR = "<|endofprompt|>"


def write(prompt: Writer, asked: Asked) -> None:
    """Write the text, and the clip's tokens as the model's own ids.

    The two are numbered apart. The model's start and task embeddings go before and between them.
    """
    reference = _write_text(prompt, asked)
    if reference:
        prompt.own_ids(reference.codes)


def write_merged(prompt: Writer, asked: Asked) -> None:
    """Write the prompt of an export whose vocabulary holds text and speech."""
    prompt.framing("<|sos|>")
    reference = _write_text(prompt, asked)
    prompt.framing("<|task_id|>")
    if reference:
        prompt.spelled(reference.codes)


def _write_text(prompt: Writer, asked: Asked) -> Reference | None:
    text, family = spoken_text(asked, System, Reference), asked.profile.family
    system, reference = one(asked, System), one(asked, Reference)
    newer = family.startswith("cosyvoice3")
    if newer and system is None:
        raise UsageError(
            f"{family} needs a System: its text always begins with one and {SEPARATOR}"
        )
    if system and reference and not newer:
        raise UsageError(
            f"{family} takes a System (an instruction) or a Reference (a clip to go on from): "
            "nothing public shows both"
        )
    if reference and not reference.text:
        raise UsageError(
            f"{family} needs the words of a Reference; without them leave it out here, and give "
            "the clip to the decoder alone"
        )
    if system:
        prompt.content(system.text)
        prompt.framing(SEPARATOR)
    prompt.content((reference.text if reference else "") + text)
    return reference
