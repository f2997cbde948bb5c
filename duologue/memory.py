"""What was said and what of it was heard: the messages that the next answer is built on.

The assistant's text enters the messages while it is generated, so that a tool's result finds it
there; an interruption cuts it to the words that were heard.
"""

from collections.abc import Callable
from dataclasses import dataclass

from duologue.lm.engine import Message

MISSING_S = 0.1
"""So much sound may be missing from an answer that counts as heard to its end."""


@dataclass(slots=True)
class _Answer:
    message: Message
    heard: int = 0


@dataclass(slots=True)
class _Sound:
    """What an answer's sound says after so many seconds, and how much of it was played."""

    chars_at: Callable[[float], int]
    length_s: Callable[[], float]
    played_s: float = 0.0


class Memory:
    """The conversation of one session.

    Args:
        messages: The live list, to which the user's messages are also appended. It is changed in
            place and never replaced; what it holds now (prompt, example turns) stays for ever.
        max_chars: Size at which `trim` drops the older half; large steps keep the LM's prefix
            cache useful in between.
    """

    def __init__(self, messages: list[Message], *, max_chars: int = 4000):
        self._messages = messages
        self._fixed = len(messages)
        self._max_chars = max_chars
        self._turn = 0
        self._open: dict[int, _Answer] = {}
        self._answers: dict[int, Message] = {}
        self._sounds: dict[int, _Sound] = {}
        self._newest: Message = {"content": ""}
        self._expects_more = False

    @property
    def turn(self) -> int:
        """Number of the newest answer, from 1."""
        return self._turn

    def begin(self) -> int:
        """Number a new answer; an older one may still be on its way to the ear."""
        self._turn += 1
        self._expects_more = False
        return self._turn

    def add(self, turn: int, text: str) -> None:
        """Append generated text to answer `turn`."""
        self._answer(turn).message["content"] += text

    def text(self, turn: int) -> str:
        """The text of answer `turn` so far; "" once it is closed or cut."""
        return self._open[turn].message["content"] if turn in self._open else ""

    @property
    def answers(self) -> dict[int, Message]:
        """The message of each answer that is remembered, by number."""
        return self._answers

    def unheard(self, turn: int) -> bool:
        """Whether answer `turn` is still on its way and nothing of it has been heard."""
        return turn in self._open and self._open[turn].heard == 0

    @property
    def newest_text(self) -> str:
        """The text of the newest answer, closed or not."""
        return self._newest["content"]

    @property
    def expects_more(self) -> bool:
        """Whether the newest answer has called a tool, so that another answer will follow it."""
        return self._expects_more

    def heard(self, turn: int, chars: int) -> None:
        """Note that the first `chars` characters of answer `turn` have been heard."""
        if answer := self._open.get(turn):
            answer.heard = max(answer.heard, chars)

    def follow(
        self, turn: int, chars_at: Callable[[float], int], length_s: Callable[[], float]
    ) -> None:
        """Let its sound tell what of answer `turn` was heard.

        Args:
            turn: The answer.
            chars_at: Characters that so many seconds of its sound have said.
            length_s: Seconds of sound that say all of it; infinite if no sound will.
        """
        self._sounds[turn] = _Sound(chars_at, length_s)

    def follows(self, turn: int) -> bool:
        """Whether `played` can be told of answer `turn`."""
        return turn in self._sounds

    def played(self, turn: int, seconds: float) -> int:
        """Note that so much of the sound of answer `turn` was played; returns characters heard."""
        sound = self._sounds[turn]
        sound.played_s = max(sound.played_s, seconds)
        self.heard(turn, sound.chars_at(sound.played_s))
        return self._open[turn].heard if turn in self._open else 0

    def played_s(self, turn: int) -> float:
        """Seconds of the sound of answer `turn` that were played."""
        return self._sounds[turn].played_s if turn in self._sounds else 0.0

    def close(self, turn: int) -> int:
        """Nothing more of answer `turn` comes; returns the characters that were heard.

        That is all of it, unless its sound is known not to have said all: then it is cut.
        """
        answer = self._open.pop(turn, None)
        if answer is None:
            return 0
        sound = self._sounds.get(turn)
        if sound and sound.played_s + MISSING_S < sound.length_s():
            return self._keep(turn, answer)
        return len(answer.message["content"])

    def _keep(self, turn: int, answer: _Answer) -> int:
        message = answer.message
        message["content"] = message["content"][: answer.heard].rstrip()
        if not message["content"] and not message.get("tool_calls"):
            self._messages[:] = [m for m in self._messages if m is not message]
            del self._answers[turn]
        return len(message["content"])

    def cut(self) -> dict[int, int]:
        """The user has interrupted: keep of each open answer exactly what was heard.

        An answer of which nothing was heard leaves no message behind.

        Returns:
            Characters kept of each answer that was cut.
        """
        cut = {turn: self._keep(turn, answer) for turn, answer in self._open.items()}
        self._open.clear()
        self._expects_more = False
        return cut

    def add_call(self, turn: int, call_id: str, name: str, arguments: str) -> None:
        """Note that answer `turn` calls a tool."""
        self._expects_more = True
        function = {"name": name, "arguments": arguments}
        self._answer(turn).message.setdefault("tool_calls", []).append(
            {"id": call_id, "type": "function", "function": function}
        )

    def add_result(self, call_id: str, content: str) -> None:
        """Put a tool's result behind its call; nowhere if the call has left the memory."""
        for index, message in enumerate(self._messages, 1):
            if any(call["id"] == call_id for call in message.get("tool_calls", ())):
                while index < len(self._messages) and self._messages[index]["role"] == "tool":
                    index += 1
                result = {"role": "tool", "tool_call_id": call_id, "content": content}
                self._messages.insert(index, result)
                return

    def _answer(self, turn: int) -> _Answer:
        if turn not in self._open:
            self._newest = {"role": "assistant", "content": ""}
            self._open[turn] = _Answer(self._newest)
            self._answers[turn] = self._newest
            self._messages.append(self._newest)
        return self._open[turn]

    def trim(self) -> None:
        """Drop the older half of a past that has grown too long; before an inference.

        What is being answered stays: the newest user message and all behind it.
        """
        past = self._messages[self._fixed :]
        if sum(map(_size, past)) <= self._max_chars:
            return
        users = [index for index, message in enumerate(past) if message["role"] == "user"]
        dropped = 0
        for index in users:
            dropped = index
            if sum(map(_size, past[index:])) <= self._max_chars / 2:
                break
        self._messages[self._fixed :] = past[dropped:]
        kept = set(map(id, past[dropped:]))
        self._answers = {turn: m for turn, m in self._answers.items() if id(m) in kept}
        self._sounds = {
            turn: sound
            for turn, sound in self._sounds.items()
            if turn in self._answers or turn == self._turn
        }


def merge_turns(messages: list[Message]) -> list[Message]:
    """The messages of an inference, with roles in turn.

    A user who goes on speaking before anything was heard has sent several messages in a row; chat
    templates expect one.
    """
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else {}
        if last.get("role") == message["role"] == "user":
            merged[-1] = {"role": "user", "content": f"{last['content']} {message['content']}"}
        else:
            merged.append(message)
    return merged


def _size(message: Message) -> int:
    """Characters, as far as they make tokens: four Latin ones do, or one of most others."""
    calls = "".join(str(call["function"]) for call in message.get("tool_calls", ()))
    text = (message.get("content") or "") + calls
    return sum(1 if char.isascii() else 4 for char in text)
