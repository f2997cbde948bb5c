"""A conversation as every family's prompt is written from it: who said what, in text and speech."""

import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from duologue.errors import InputError
from duologue.lm.engine import Message, ToolCall
from duologue.lm.formats import Kind, Profile, ToolFormat
from duologue.lm.prompt import AudioPart
from duologue.lm.tool_calls import Malformed, parse_call

HEARD_HZ = 25
"""Tokens that a second of sound costs at most; the models that hear take 12.5 to 25."""

Codes = tuple[tuple[int, ...], ...]
"""Audio tokens: a run for each codebook, in the profile's order, numbered from 0; () for none."""


@dataclass(frozen=True, slots=True)
class System:
    """What the model is told beforehand."""

    text: str


@dataclass(frozen=True, slots=True)
class User:
    """What the user said.

    Attributes:
        text: As typed, or as a recogniser heard it.
        audio: What the model hears instead of the text: sound, or tokens for a family that takes
            tokens; None if it reads.
    """

    text: str = ""
    audio: AudioPart | Codes | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model answered.

    Attributes:
        text: Its words, those that its audio says if it has any.
        audio: Its speech; () if it was written, or is remembered as text.
        calls: The tools that it called, in order.
    """

    text: str = ""
    audio: Codes = ()
    calls: tuple[ToolCall, ...] = ()

    def keep(self, chars: int, audio_tokens: int) -> "Answer":
        """What is left of it once the user has interrupted.

        Args:
            chars: Characters of the text that were heard.
            audio_tokens: Tokens of the last codebook that were heard; of other codebooks the same
                share is kept. Speech of which no word was heard goes as a whole.
        """
        text = self.text[: max(0, chars)].rstrip()
        audio = self.audio if text else ()
        whole = len(audio[-1]) if audio else 0
        kept = min(max(0, audio_tokens), whole)
        runs = tuple(run[: len(run) * kept // whole] for run in audio) if kept else ()
        return replace(self, text=text, audio=runs)


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a tool has found, for the call of this id."""

    call_id: str
    content: str


@dataclass(frozen=True, slots=True)
class Reference:
    """A clip of the voice to speak with.

    Attributes:
        codes: Its speech.
        text: What is said in it.
        name: What the prompt calls the speaker, where it names one.
    """

    codes: Codes
    text: str = ""
    name: str = "voice"


@dataclass(frozen=True, slots=True)
class Style:
    """A voice made up by its properties.

    Attributes:
        gender: "female" or "male".
        pitch: "very_low", "low", "moderate", "high" or "very_high".
        speed: As `pitch`.
    """

    gender: str
    pitch: str = "moderate"
    speed: str = "moderate"


Item = System | User | Answer | CallResult | Reference | Style


def settled(conversation: Iterable[Item]) -> tuple[Item, ...]:
    """The conversation with calls and results in pairs, as models were trained on it.

    A call stays if it is well formed and has a result. Results follow the answer that called, in
    the order of its calls, because in most families nothing else tells which is whose. A result
    whose call is gone, and an answer that says and calls nothing, are left out.
    """
    conversation = tuple(conversation)
    results: dict[str, CallResult] = {}
    for item in conversation:
        if isinstance(item, CallResult):
            results.setdefault(item.call_id, item)
    out: list[Item] = []
    for item in conversation:
        if isinstance(item, Answer):
            calls = [call for call in well_formed(item).calls if call.call_id in results]
            if item.text or item.audio or calls:
                out.append(replace(item, calls=tuple(calls)))
                out += [results.pop(call.call_id) for call in calls]
        elif not isinstance(item, CallResult):
            out.append(item)
    return tuple(out)


def results_last(items: Sequence[Item], told: Container[str]) -> list[Item]:
    """The conversation with results that are news at its end, where they are to be answered.

    A result stands behind its call, and what was said while the tool ran behind both. Then the
    calls go to the newest answer.

    Args:
        items: Oldest first.
        told: Ids of the calls whose results an earlier prompt has held.
    """
    news = [item for item in items if isinstance(item, CallResult) and item.call_id not in told]
    if not news or not isinstance(items[-1], Answer):
        return list(items)
    late, calls, rest = {item.call_id for item in news}, list[ToolCall](), list[Item]()
    for item in items:
        if isinstance(item, Answer):
            calls += [call for call in item.calls if call.call_id in late]
            kept = tuple(call for call in item.calls if call.call_id not in late)
            rest.append(replace(item, calls=kept))
        elif not isinstance(item, CallResult) or item.call_id in told:
            rest.append(item)
    newest = rest.pop()
    if isinstance(newest, Answer):
        newest = replace(newest, calls=(*newest.calls, *calls))
    return [*rest, newest, *news]


def in_turns(conversation: Iterable[Item]) -> list[Item]:
    """The conversation with a user's messages in a row as one.

    That is what is left where they went on speaking before anything of an answer was heard. It is
    heard if the model hears all of it, else read.
    """
    out: list[Item] = []
    for item in conversation:
        last = out[-1] if out else None
        if isinstance(last, User) and isinstance(item, User):
            out[-1] = User(f"{last.text} {item.text}", _joined(last.audio, item.audio))
        else:
            out.append(item)
    return out


def _joined(first: AudioPart | Codes | None, then: AudioPart | Codes | None) -> AudioPart | None:
    match first, then:
        case AudioPart(), AudioPart() if first.rate_hz == then.rate_hz:
            return AudioPart(np.concatenate([first.samples, then.samples]), first.rate_hz)
    return None


def well_formed(answer: Answer) -> Answer:
    """The answer without malformed calls, the arguments of the others spelled in one way."""
    calls: dict[str, ToolCall] = {}
    for call in answer.calls:
        try:
            body = json.dumps({"name": call.name, "arguments": call.arguments})
            name, arguments = parse_call(body, ToolFormat.JSON)
        except (Malformed, TypeError):
            continue
        calls.setdefault(call.call_id, ToolCall(call.call_id, name, arguments))
    return replace(answer, calls=tuple(calls.values()))


def from_messages(messages: Sequence[Message]) -> tuple[Item, ...]:
    """A conversation from chat messages in OpenAI's form, such as `duologue.memory` keeps.

    Raises:
        InputError: another role, or content that is neither text nor an `AudioPart` of the user.
    """
    return tuple(map(_item, messages))


def _item(message: Message) -> Item:
    role, (text, audio) = message.get("role"), _content(message)
    if audio and role != "user":
        raise InputError(f"sound in a message of role {role!r}: only the user is heard")
    match role:
        case "system" | "developer":
            return System(text)
        case "user":
            return User(text, audio)
        case "assistant":
            calls = message.get("tool_calls") or ()
            return Answer(text, calls=tuple(map(_call, calls)))
        case "tool":
            return CallResult(str(message.get("tool_call_id")), text)
    raise InputError(f"message of role {role!r}: expected system, user, assistant or tool")


def _content(message: Message) -> tuple[str, AudioPart | None]:
    content = message.get("content") or ""
    text, audio = "", None
    for piece in [content] if isinstance(content, str) else content:
        match piece:
            case str(words) | {"type": "text", "text": str(words)}:
                text += words
            case AudioPart() if audio is None:
                audio = piece
            case _:
                raise InputError(
                    f"content of a message of role {message.get('role')!r}: expected text, or one "
                    f"AudioPart, got {str(piece)[:70]}"
                )
    return text, audio


def _call(call: Message) -> ToolCall:
    function = call.get("function") or {}
    return ToolCall(str(call.get("id")), str(function.get("name")), function.get("arguments", ""))


def estimate(profile: Profile, items: Iterable[Item]) -> int:
    """About how many tokens items take in a prompt: a letter of Latin is a quarter of one."""
    return sum(_tokens(profile, item) for item in items)


def _tokens(profile: Profile, item: Item) -> int:
    match item:
        case System(text=text) | CallResult(content=text):
            return _words(text)
        case User():
            return _words(item.text) if item.audio is None else _heard(item.audio)
        case Answer():
            calls = sum(_words(call.name + call.arguments) for call in item.calls)
            return calls + _spoken(profile, item)
    return 0


def _words(text: str) -> int:
    return ceil(sum(1 if char.isascii() else 4 for char in text) / 4)


def _heard(audio: AudioPart | Codes) -> int:
    if isinstance(audio, AudioPart):
        return ceil(audio.seconds * HEARD_HZ)
    return sum(map(len, audio))


def _spoken(profile: Profile, answer: Answer) -> int:
    """In groups that are padded text has its places, whether it fills them or not."""
    audio, words = sum(map(len, answer.audio)), _words(answer.text)
    if profile.interleave and any(special.kind is Kind.PAD for special in profile.specials):
        texts, audios = profile.interleave
        words = max(words, ceil(audio * texts / audios))
    return audio + words
