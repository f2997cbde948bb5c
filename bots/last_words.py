"""When the sentence that the bot is saying has been heard, from the events that the page gets."""

import asyncio
import re
from typing import Any

SPEAKING = ("speaking", "held")
_SENTENCE_END = re.compile(r"[.!?\u2026][\"'\u201d\u2019)]*(?=\s|$)|[\u3002\uff01\uff1f]")


class LastWords:
    """Follows one conversation's events (docs/page.md)."""

    def __init__(self) -> None:
        self.state = "listening"
        self._turn = 0
        self._text = ""
        self._heard = 0
        self._news = asyncio.Event()

    def note(self, event: dict[str, Any]) -> None:
        """Take an event on its way to the page."""
        turn = event.get("turn", 0)
        match event["type"]:
            case "state":
                self.state = event["state"]
            case "bot_text":
                if turn != self._turn:
                    self._turn, self._heard = turn, 0
                self._text = event["text"]
            case "bot_heard" if turn == self._turn:
                self._heard = event["chars"]
            case "bot_end" if turn == self._turn:
                self._heard = len(self._text)
        self._news.set()

    async def said(self, within_s: float) -> bool:
        """Wait until the sentence of this moment has been heard; returns whether it was in time.

        A bot that is silent has nothing to finish.
        """
        turn, start = self._turn, self._heard
        try:
            async with asyncio.timeout(within_s):
                while not self._over(turn, start):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _over(self, turn: int, start: int) -> bool:
        if self.state not in SPEAKING or self._turn != turn:
            return True
        end = _SENTENCE_END.search(self._text, start)
        # What is left may be the full stop alone, which has no sound.
        rest = self._text[self._heard : end.end() if end else None]
        return end is not None and not any(char.isalnum() for char in rest)
