"""Answers of a few sentences, for models that do not stop by themselves."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from duologue.lm.engine import Capabilities, Engine, Finish, Message, Request, Step, TextDelta
from duologue.text import ClauseSplitter


class Brief:
    """Ends an engine's answer behind its n-th sentence, and with it the request.

    Args:
        engine: The model.
        sentences: How many an answer may have.
        lang: Language of the text, "en" or "zh".
    """

    def __init__(self, engine: Engine, sentences: int, *, lang: str = "en"):
        self._engine = engine
        self._sentences = sentences
        self._lang = lang

    @property
    def capabilities(self) -> Capabilities:
        """See `Engine.capabilities`."""
        return self._engine.capabilities

    async def stream(self, request: Request) -> AsyncIterator[Step]:
        """See `Engine.stream`."""
        splitter = ClauseSplitter(self._lang, first_min_chars=1, min_chars=1)
        text, ended = "", 0
        async with aclosing(self._engine.stream(request)) as steps:  # type: ignore[type-var]
            async for step in steps:
                if not isinstance(step, TextDelta):
                    yield step
                    continue
                said, text = len(text), text + step.text
                for clause in splitter.feed(step.text):
                    ended += clause.final_in_sentence
                    if ended == self._sentences:
                        yield TextDelta(text[said : max(said, clause.end)])
                        yield Finish("length")
                        return
                yield step

    async def prewarm(self, messages: list[Message]) -> None:
        """See `Engine.prewarm`."""
        await self._engine.prewarm(messages)

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._engine.close()
