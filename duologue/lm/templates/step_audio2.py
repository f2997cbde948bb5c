"""Step-Audio 2 mini, Base and Think (github.com/stepfun-ai/Step-Audio2).

Roles, prefixes and the history of token ids are those of its stepaudio2.py and examples; tools and
results those of its vLLM tokenizer, except that a system message is required beside tools, because
that tokenizer leaves the message open without one. The Think model's two requests follow
github.com/weedge/Step-Audio2, examples-think.py.
"""

from itertools import zip_longest

from duologue.errors import UsageError
from duologue.lm.conversation import Answer, CallResult, Item, System, User
from duologue.lm.prompt import AudioPart
from duologue.lm.templates.checks import Asked, check_chat
from duologue.lm.templates.writer import Writer, literal

END = "<|EOT|>"
PADS = ("<tts_pad>", "<audio_6561>")
SPEECH = ("<tts_start>", "<tts_end>")
ALOUD = "\n\n\nTell the user aloud, briefly and in the user's language, what was found."
"""Behind the last result: without such a request the model reads results out as they are."""


def write_chat(prompt: Writer, asked: Asked) -> None:
    """Write the prompt of the instructed models."""
    check_chat(asked)
    check_tools(asked)
    for place, (item, following) in enumerate(zip_longest(asked.items, asked.items[1:])):
        match item:
            case System():
                _message(prompt, "system", item.text)
            case User():
                prompt.framing("<|BOT|>human\n")
                _said(prompt, item)
                prompt.framing(END)
            case Answer():
                _answer(prompt, item)
            case CallResult():
                _message(prompt, "input", item.content + aloud(asked, following))
        if place == 0 and asked.tools:
            prompt.framing("<|BOT|>tool_json_schemas\n")
            prompt.value(list(asked.tools))
            prompt.framing(END)
    prompt.framing("<|BOT|>assistant\n")
    prompt.framing(opening(asked))


def opening(asked: Asked) -> str:
    """How the answer begins that the model goes on with."""
    speech = SPEECH[0] if asked.mode.audio_out else ""
    if not asked.profile.thinks:
        return speech
    thought = "" if asked.thought is None else f"{literal(asked.thought)}</think>\n\n{speech}"
    return f"\n<think>\n{thought}"


def check_tools(asked: Asked) -> None:
    """Refuse tools without a system message.

    Raises:
        UsageError: there is none.
    """
    if asked.tools and not isinstance(asked.items[0], System):
        raise UsageError("step-audio2 with tools needs a System as the first item")


def aloud(asked: Asked, following: Item | None) -> str:
    """What stands behind a result: the last one of a spoken answer is to be told aloud."""
    return ALOUD if asked.mode.audio_out and not isinstance(following, CallResult) else ""


def write_base(prompt: Writer, asked: Asked) -> None:
    """Write the prompt of the Base model: what was said, one after the other, and no roles."""
    check_chat(asked)
    for item in asked.items:
        match item:
            case System():
                prompt.content(item.text)
            case User():
                _said(prompt, item)
            case Answer():
                _spoken(prompt, item)
    prompt.framing(opening(asked))


def _message(prompt: Writer, role: str, text: str) -> None:
    prompt.framing(f"<|BOT|>{role}\n")
    prompt.content(text)
    prompt.framing(END)


def _said(prompt: Writer, user: User) -> None:
    if isinstance(user.audio, AudioPart):
        prompt.sound(user.audio)
    else:
        prompt.content(user.text)


def _answer(prompt: Writer, answer: Answer) -> None:
    prompt.framing("<|BOT|>assistant\n")
    _spoken(prompt, answer)
    for call in answer.calls:
        prompt.framing(f"<tool_call>function\n{call.name}\n")
        prompt.json(call.arguments)
        prompt.framing("</tool_call>")
    prompt.framing(END)


def _spoken(prompt: Writer, answer: Answer) -> None:
    if answer.audio:
        prompt.voiced(answer.text, answer.audio, PADS, SPEECH)
    else:
        prompt.content(answer.text)
