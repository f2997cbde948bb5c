"""From a conversation to the prompt of each family: one file per family.

A prompt only grows at its end as the conversation does, so that a server's prefix cache holds; what
a person or a tool says never becomes framing.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from duologue.errors import UsageError
from duologue.lm.conversation import Item
from duologue.lm.formats import Profile
from duologue.lm.modes import Mode
from duologue.lm.prompt import AudioPart, IdsPart, Part
from duologue.lm.templates import (
    cosyvoice,
    duologue_talker,
    glm4_voice,
    qwen_omni,
    spark,
    step_audio1,
    step_audio2,
)
from duologue.lm.templates.checks import Asked, checked
from duologue.lm.templates.messages import check_hearing, render_messages
from duologue.lm.templates.writer import Writer
from duologue.lm.vocabulary import Vocabulary

THOUGHT_END = "</think>"
_TEMPLATES: dict[str, Callable[[Writer, Asked], None]] = {
    "step-audio2": step_audio2.write_chat,
    "step-audio2-base": step_audio2.write_base,
    "step-audio2-think": step_audio2.write_chat,
    "step-audio1": step_audio1.write_chat,
    "step-audio-tts": step_audio1.write_tts,
    "step-audio-editx": step_audio1.write_editx,
    "glm-4-voice": glm4_voice.write,
    "cosyvoice2": cosyvoice.write,
    "cosyvoice3": cosyvoice.write,
    "cosyvoice2-merged": cosyvoice.write_merged,
    "cosyvoice3-merged": cosyvoice.write_merged,
    "spark-tts": spark.write,
    "qwen2.5-omni": qwen_omni.write,
    "qwen3-omni": qwen_omni.write,
    "duologue-talker": duologue_talker.write,
}
_WITHOUT = {
    "qwen2.5-omni-talker": "it is fed with the thinker's hidden states",
    "kimi-audio": "it takes two streams side by side, which no serial prompt holds",
}


def render(
    vocabulary: Vocabulary,
    conversation: Iterable[Item],
    mode: Mode,
    tools: Sequence[dict[str, Any]] = (),
    *,
    thought: str | None = None,
) -> tuple[Part, ...]:
    """The prompt for the next answer, up to where the model goes on.

    It is whole: a server must add no token of its own before it.

    Args:
        vocabulary: The family, with its tokenizer wherever a history holds the model's own speech.
        conversation: Oldest first. Unanswered and malformed calls are left out (see `settled`).
        mode: What goes in and comes out.
        tools: OpenAI function schemas that the model may call.
        thought: What a model that thinks first has thought: its request without it ends at
            `</think>`, the next one with it brings the answer.

    Raises:
        UsageError: the family cannot do this, or nothing public tells how its prompt looks.
        InputError: audio tokens beyond the codebook.
    """
    profile = vocabulary.profile
    profile.check_mode(mode)
    check_template(profile)
    asked = checked(profile, conversation, mode, tools, thought)
    writer = Writer(vocabulary)
    _TEMPLATES[profile.family](writer, asked)
    return writer.parts()


def check_template(profile: Profile) -> None:
    """Refuse a family for which no prompt can be written.

    Raises:
        UsageError: saying why.
    """
    if profile.family not in _TEMPLATES:
        reason = _WITHOUT.get(profile.family, "there is no template for it")
        raise UsageError(f"no prompt can be written for {profile.family}: {reason}")


def prompt_prefix(profile: Profile, mode: Mode, *, thought: str | None = None) -> str | None:
    """Name of the token that such a prompt ends with, for `Demux`; None if it is none."""
    if profile.thinks and thought is None:
        return "<think>"
    return profile.speech_prefix if mode.audio_out else None


def thought_end(vocabulary: Vocabulary) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What ends the first request of a model that thinks: texts and ids, for `Request`."""
    token = vocabulary.vocab.id_of(THOUGHT_END) if vocabulary.vocab else None
    return ((THOUGHT_END,), ()) if token is None else ((), (token,))


def prompt_ids(vocabulary: Vocabulary, parts: Iterable[Part]) -> list[int]:
    """A prompt as ids, for servers that take ids or text but not both in turns.

    Raises:
        UsageError: without a tokenizer; or a prompt of sound, or of two vocabularies.
    """
    profile, vocab = vocabulary.profile, vocabulary.vocab
    if vocab is None:
        raise UsageError(f"ids of a prompt of {profile.family} need its tokenizer")
    if any(book.token is None for book in profile.codebooks):
        raise UsageError(f"{profile.family} numbers text and speech apart: give it the parts")
    ids = []
    for part in parts:
        if isinstance(part, AudioPart):
            raise UsageError("sound has no ids: give it in chat messages (`render_messages`)")
        ids += part.ids if isinstance(part, IdsPart) else vocab.encode(part.text)
    return ids


__all__ = [
    "check_hearing",
    "check_template",
    "prompt_ids",
    "prompt_prefix",
    "render",
    "render_messages",
    "thought_end",
]
