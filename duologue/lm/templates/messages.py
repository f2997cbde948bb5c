"""Chat messages for servers that write the prompt themselves, as those that take sound do."""

import json
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from duologue.errors import UsageError
from duologue.lm.conversation import Answer, CallResult, Item, System, User
from duologue.lm.engine import Message
from duologue.lm.formats import Profile
from duologue.lm.modes import Mode
from duologue.lm.prompt import AudioPart, TextPart
from duologue.lm.templates.checks import Asked, check_chat, checked
from duologue.lm.templates.step_audio2 import aloud, check_tools, opening
from duologue.lm.templates.writer import Writer, literal
from duologue.lm.vocabulary import Vocabulary

STEP_AUDIO2 = ("step-audio2", "step-audio2-think")
OTHERS = ("qwen2.5-omni", "qwen3-omni")
HEARD_BY = {
    # Only the publisher's fork knows the family's roles, its speech apart and its sound.
    **dict.fromkeys(STEP_AUDIO2, ("vllm",)),
    "qwen2.5-omni": ("vllm", "llamacpp", "openai"),
    "qwen3-omni": ("vllm", "openai"),
}
"""Which servers take a family's sound in chat messages, as their documentation tells."""


def check_hearing(profile: Profile, mode: Mode, server: str) -> None:
    """Refuse a mode that hears where no sound can be given to the model.

    Raises:
        UsageError: naming what hears and what does not.
    """
    servers = HEARD_BY.get(profile.family, ())
    if not mode.audio_in or server in servers:
        return
    if servers:
        why = f"with {profile.family} only {', '.join(servers)} does"
    elif profile.heard and not profile.heard.sound:
        why = f"{profile.family} hears tokens of its own encoder, and none is built in"
    else:
        why = f"{profile.family} is given no chat messages, and a raw prompt holds no sound"
    pairs = "; ".join(f"{family} on {', '.join(names)}" for family, names in HEARD_BY.items())
    raise UsageError(
        f"{mode} needs a server that takes sound, not {server!r}: {why}. What hears: {pairs}. Or "
        f"choose a mode that reads the recogniser's words, such as {mode.read}"
    )


def render_messages(
    vocabulary: Vocabulary,
    conversation: Iterable[Item],
    mode: Mode,
    tools: Sequence[dict[str, Any]] = (),
    *,
    thought: str | None = None,
) -> list[Message]:
    """The conversation as chat messages; arguments as for `render`.

    For Step-Audio 2 those of its vLLM (github.com/stepfun-ai/vllm, tokenizers/step_audio_2.py):
    spoken answers apart in `tts_content`, arguments of calls as an object because it encodes them
    itself, and at the end an open answer that the server must go on with
    (`continue_final_message`, no `add_generation_prompt`). Otherwise OpenAI's.

    Raises:
        UsageError: the family cannot do this, or its servers take no sound.
        InputError: audio tokens beyond the codebook.
    """
    profile = vocabulary.profile
    asked = checked(profile, conversation, mode, tools, thought)
    if profile.family not in (*STEP_AUDIO2, *OTHERS):
        raise UsageError(f"{profile.family} is given a raw prompt, not messages: see `render`")
    check_chat(asked)
    longest_s = profile.heard.longest_s if profile.heard else 0
    if profile.family in OTHERS:
        return [_message(item, longest_s) for item in asked.items]
    check_tools(asked)
    messages = [
        _step_audio2(vocabulary, asked, _message(item, longest_s), item, following)
        for item, following in zip_longest(asked.items, asked.items[1:])
    ]
    if start := opening(asked):
        messages.append({"role": "assistant", "content": start, "eot": False})
    return messages


def _message(item: Item, longest_s: float) -> Message:
    match item:
        case System(text=text):
            return {"role": "system", "content": literal(text)}
        case User(audio=AudioPart() as audio):
            return {"role": "user", "content": list(audio.pieces(longest_s))}
        case User(text=text):
            return {"role": "user", "content": literal(text)}
        case CallResult(call_id=call_id, content=text):
            return {"role": "tool", "tool_call_id": call_id, "content": literal(text)}
        case Answer(text=text, calls=calls):
            message: Message = {"role": "assistant", "content": literal(text)}
            functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
            if calls:
                message["tool_calls"] = [
                    {"id": call.call_id, "type": "function", "function": function}
                    for call, function in zip(calls, functions, strict=True)
                ]
            return message
    raise UsageError(f"no message holds a {type(item).__name__}")


def _step_audio2(
    vocabulary: Vocabulary, asked: Asked, message: Message, item: Item, following: Item | None
) -> Message:
    if isinstance(item, CallResult):
        message["role"] = "input"
        message["content"] += aloud(asked, following)
    if isinstance(item, Answer) and item.audio:
        names = Writer(vocabulary)
        names.spelled(item.audio)
        audio = "".join(part.text for part in names.parts() if isinstance(part, TextPart))
        message["tts_content"] = {"tts_text": message["content"], "tts_audio": audio}
        message["content"] = ""
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return message
