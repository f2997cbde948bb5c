"""Takes particles, thoughts and tool calls off the voice path; no audio ever enters here."""

import asyncio
import json
from collections import deque
from dataclasses import replace

from pipecat.frames.frames import (
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMRunFrame,
    LLMTextFrame,
    TTSSpeakFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from duologue.memory import Memory
from duologue.particles import Particle, Renderer, Scanner, Text
from duologue.tools import Call, CallLedger, CallState, ToolRegistry
from processors.frames import (
    AnswerTextFrame,
    ParticleFrame,
    StreamFrame,
    ToolCallFrame,
    ToolStateFrame,
)

MAX_ANNOUNCEMENTS = 8
MAX_TOOL_ROUNDS = 4
MAX_RESULT_CHARS = 2000
OWED_S = 0.3


class SideBranch(FrameProcessor):
    """Splits the LM's stream: plain text to the voice, all else to whom it concerns.

    Text of a speech-text LM that its own speech does not say is said behind it by the decoupled
    voice: what is shown is heard, and what was heard is remembered.

    Tools run beside the speech. When the last call of an answer has a result, the LM is asked
    again; an interruption cancels the calls of tools that do not outlive it.

    Args:
        memory: Receives the text as it is generated, the calls and their results.
        tools: What the LM may call.
        renderer: Which particles are replaced by words; the others are left to the voice.
    """

    def __init__(self, memory: Memory, tools: ToolRegistry, renderer: Renderer):
        super().__init__()
        self._memory = memory
        self._renderer = renderer
        self._ledger = CallLedger(tools, self._on_call, self.create_task)
        self._call_turns: dict[str, int] = {}
        self._scanner = Scanner()
        self._turn = 0
        self._user_turn = False
        self._owed = False
        self._rounds = 0
        self._streaming = 0
        self._settled = False
        self._announced = (0, "")
        # What no speech token of an answer says that is heard by its speech tokens.
        self._unsaid: list[str | Particle] = []
        # Oldest first; beyond the bound the oldest is dropped.
        self._announcements: deque[str] = deque(maxlen=MAX_ANNOUNCEMENTS)

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """See the class."""
        await super().process_frame(frame, direction)
        match frame:
            case LLMFullResponseStartFrame():
                await self._begin(frame.metadata.get("turn"))
                self._streaming, self._settled, self._owed = self._turn, False, False
            case StreamFrame(spoken=False) if self._memory.follows(self._turn):
                self._unsaid.append(frame.item)
            case StreamFrame(item=str(text), spoken=spoken):
                await self._push_text(text, spoken=spoken)
            case StreamFrame(item=Particle() as mark, spoken=spoken):
                await self._mark(mark, spoken=spoken)
            case LLMTextFrame():
                await self._forward(self._scanner.feed(frame.text))
            case ToolCallFrame(call=call) if call is not None:
                # Servers use the same ids again in later answers.
                call_id = f"{self._turn}_{call.call_id}"
                self._memory.add_call(self._turn, call_id, call.name, call.arguments)
                self._call_turns[call_id] = self._turn
                await self._ledger.request(call_id, call.name, call.arguments)
            case LLMFullResponseEndFrame():
                await self._forward(self._scanner.flush())
                # A frame of its own: observers see the LM's before the last of the text.
                await self.push_frame(LLMFullResponseEndFrame())
                await self._say_unsaid()
                await self._over()
            case TTSSpeakFrame():
                await self._announce(frame.text)
            case _:
                await self._watch(frame)
                await self.push_frame(frame, direction)

    async def cleanup(self):
        """Settle every open call."""
        await self._ledger.close()
        await super().cleanup()

    async def _begin(self, turn: int | None = None) -> None:
        self._turn = turn or self._memory.begin()
        self._scanner = Scanner()
        self._unsaid.clear()
        start = LLMFullResponseStartFrame()
        start.metadata["turn"] = self._turn
        await self.push_frame(start)

    async def _forward(self, events: list) -> None:
        for event in events:
            if isinstance(event, Text):
                await self._push_text(event.text)
            elif isinstance(event, Particle):
                await self._mark(event)

    async def _mark(self, mark: Particle, *, spoken: bool = False) -> None:
        """Put words in a mark's place, or leave it to the voice, which tells what becomes of it."""
        words = None if spoken else self._renderer.render(mark).text
        if spoken or words:
            await self.push_frame(ParticleFrame(turn=self._turn, particle=mark, rendered=True))
        else:
            await self.push_frame(StreamFrame(mark))
        if words:
            await self._push_text(words)

    async def _push_text(self, text: str, *, spoken: bool = False) -> None:
        self._memory.add(self._turn, text)
        await self.push_frame(AnswerTextFrame(text, turn=self._turn, spoken=spoken))

    async def _say_unsaid(self) -> None:
        """Let the decoupled voice say, as an answer of its own, what no speech token has said."""
        unsaid, self._unsaid = self._unsaid, []
        if not any(map(str.isalnum, "".join(item for item in unsaid if isinstance(item, str)))):
            return
        await self._begin()
        for item in unsaid:
            await (self._push_text(item) if isinstance(item, str) else self._mark(item))
        await self.push_frame(LLMFullResponseEndFrame())

    async def _watch(self, frame: Frame) -> None:
        if isinstance(frame, InterruptionFrame):
            self._scanner = Scanner()
            self._unsaid.clear()
            self._streaming, self._settled = 0, False
            turn, text = self._announced
            if self._memory.unheard(turn):
                self._announcements.append(text)
            await self._ledger.barge_in()
        elif isinstance(frame, UserStartedSpeakingFrame):
            self._user_turn = True
        elif isinstance(frame, UserStoppedSpeakingFrame):
            self._user_turn = False
            self._rounds = 0
            if self._owed:
                self.create_task(self._ask_if_owed(), "owed")
            while self._announcements:
                await self._announce(self._announcements.popleft())

    async def _over(self) -> None:
        """The LM's stream has ended: do what had to wait for it."""
        turn, settled = self._streaming, self._settled
        self._streaming, self._settled = 0, False
        if settled and turn not in self._call_turns.values():
            await self._tell_results()
        while self._announcements and not self._user_turn:
            await self._announce(self._announcements.popleft())

    async def _announce(self, text: str) -> None:
        """Say something of our own accord, but not into the user's turn or another answer."""
        if self._user_turn or self._streaming:
            self._announcements.append(text)
            return
        await self._begin()
        self._announced = (self._turn, text)
        await self._push_text(text)
        await self.push_frame(LLMFullResponseEndFrame())

    async def _on_call(self, call: Call) -> None:
        turn = self._call_turns[call.call_id]
        # A copy: the call may be in another state by the time an observer sees the frame.
        await self.push_frame(ToolStateFrame(turn=turn, call=replace(call)))
        if not call.state.settled:
            return
        del self._call_turns[call.call_id]
        self._memory.add_result(call.call_id, told(call))
        if call.state is CallState.CANCELLED or turn in self._call_turns.values():
            return
        if turn == self._streaming:
            # The stream may bring another call.
            self._settled = True
        else:
            await self._tell_results()

    async def _tell_results(self) -> None:
        if self._user_turn:
            # What the user says now is answered with the result in its context.
            self._owed = True
        else:
            await self._ask_again()

    async def _ask_if_owed(self) -> None:
        """The turn may have been a cough, which nobody answers."""
        await asyncio.sleep(OWED_S)
        if self._owed and not self._user_turn:
            await self._ask_again()

    async def _ask_again(self) -> None:
        """Let the LM tell the results; one that only ever calls tools is stopped."""
        self._owed = False
        self._rounds += 1
        if self._rounds <= MAX_TOOL_ROUNDS:
            await self.push_frame(LLMRunFrame(), FrameDirection.UPSTREAM)
        else:
            await self._announce("Sorry, I could not find that out.")


def told(call: Call) -> str:
    """A settled call's result as the LM is told: JSON with `say` and `data`, of bounded length."""
    if call.result is None:
        return "{}"
    data = call.result.data
    text = json.dumps(data, default=str, ensure_ascii=False)
    if len(text) > MAX_RESULT_CHARS:
        data = text[:MAX_RESULT_CHARS] + " ... (cut)"
    return json.dumps({"say": call.result.say, "data": data}, default=str, ensure_ascii=False)
