"""Step-Audio 1 chat, Step-Audio-TTS-3B and Step-Audio-EditX's cloning.

Chat: stepaudio.py of github.com/stepfun-ai/Step-Audio, TTS: its tts.py, EditX: tts.py of
github.com/stepfun-ai/Step-Audio-EditX. The two speech models were trained with role names that a
SentencePiece model has encoded by themselves, hence the blank before them. The system prompts are
the publishers' own texts (tts.py, config/prompts.py): whoever sets up a bot gives them.
"""

import re

from duologue.errors import UsageError
from duologue.lm.conversation import Answer, Reference, System, User
from duologue.lm.templates.checks import Asked, check_chat, one, spoken_text
from duologue.lm.templates.writer import Writer

END = "<|EOT|>"
_SLOT = re.compile(r"\{(speaker|prompt_text|prompt_wav_tokens)\}")
_AUDIO = "prompt_wav_tokens"


def write_chat(prompt: Writer, asked: Asked) -> None:
    """Write the prompt of the chat model, which hears audio tokens and writes."""
    check_chat(asked)
    for item in asked.items:
        match item:
            case System():
                _message(prompt, "system", item.text)
            case User() if isinstance(item.audio, tuple):
                prompt.framing("<|BOT|>human\n")
                prompt.spelled(item.audio)
                prompt.framing(END)
            case User():
                _message(prompt, "human", item.text)
            case Answer():
                _message(prompt, "assistant", item.text)
    prompt.framing("<|BOT|>assistant\n")


def write_tts(prompt: Writer, asked: Asked) -> None:
    """Write the speech model's prompt: a task, a clip as a turn that went well, then the text."""
    text = spoken_text(asked, System, Reference)
    system, reference = one(asked, System), one(asked, Reference)
    if system is None or reference is None or not reference.text:
        raise UsageError(
            "step-audio-tts needs a System (see tts.py of Step-Audio) and a Reference with its "
            "words: nothing public shows it without"
        )
    prompt.framing("<s>")
    _message(prompt, " system", system.text)
    _message(prompt, " human", reference.text)
    prompt.framing("<|BOT|> assistant\n")
    prompt.spelled(reference.codes)
    prompt.framing(END)
    _message(prompt, " human", text)
    prompt.framing("<|BOT|> assistant\n")


def write_editx(prompt: Writer, asked: Asked) -> None:
    """Write EditX's prompt: a task with slots for the clip, then the text."""
    text = spoken_text(asked, System, Reference)
    system, reference = one(asked, System), one(asked, Reference)
    if system is None or reference is None or f"{{{_AUDIO}}}" not in system.text:
        raise UsageError(
            "step-audio-editx needs a Reference and a System with the slots {speaker}, "
            "{prompt_text} and {prompt_wav_tokens} (see AUDIO_EDIT_CLONE_SYSTEM_PROMPT_TPL of "
            "Step-Audio-EditX)"
        )
    values = {"speaker": reference.name, "prompt_text": reference.text}
    prompt.framing("<s><|BOT|> system\n")
    for place, piece in enumerate(_SLOT.split(system.text)):
        if place % 2 and piece == _AUDIO:
            prompt.spelled(reference.codes)
        else:
            prompt.content(values[piece] if place % 2 else piece)
    prompt.framing(END)
    _message(prompt, " human", text)
    prompt.framing("<|BOT|> assistant\n")


def _message(prompt: Writer, role: str, text: str) -> None:
    prompt.framing(f"<|BOT|>{role}\n")
    prompt.content(text)
    prompt.framing(END)
