"""Any text LM engine as a pipecat LLM service."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService

from duologue.errors import DuologueError
from duologue.lm.engine import Engine, MalformedCall, Message, Request, TextDelta, ToolCall
from duologue.memory import merge_turns
from processors.frames import ToolCallFrame
from services.lm_settings import lm_settings


class TextLM(LLMService):
    """Streams an engine's answer; an interruption closes the stream and so aborts the request.

    Args:
        engine: The model, shared by sessions.
        defaults: Sampling and tools of every request; its messages are replaced.
        before: Called before each request is built.
    """

    def __init__(self, engine: Engine, defaults: Request, before: Callable[[], None]):
        super().__init__(settings=lm_settings(type(engine).__name__, defaults))
        self._engine = engine
        self._defaults = defaults
        self._before = before

    def can_generate_metrics(self) -> bool:
        """Time to first token and processing time are reported."""
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """Answer each context; pass everything else."""
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        self._before()
        messages: list[Message] = list(frame.context.messages)  # type: ignore[arg-type]
        try:
            await self.push_frame(LLMFullResponseStartFrame())
            await self._answer(replace(self._defaults, messages=merge_turns(messages)))
        except DuologueError as error:
            await self.push_error(str(error), exception=error)
        finally:
            await self.push_frame(LLMFullResponseEndFrame())

    async def _answer(self, request: Request) -> None:
        await self.start_processing_metrics()
        await self.start_ttfb_metrics()
        async with aclosing(self._engine.stream(request)) as steps:  # type: ignore[type-var]
            async for step in steps:
                await self.stop_ttfb_metrics()
                if isinstance(step, TextDelta):
                    await self._push_llm_text(step.text)
                elif isinstance(step, ToolCall):
                    await self.push_frame(ToolCallFrame(step))
                elif isinstance(step, MalformedCall):
                    await self.push_error(str(step))
        await self.stop_processing_metrics()
