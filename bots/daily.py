"""A bot in a Daily room: one person at a time, one conversation after another.

The pipeline is the browser room's; the transport is pipecat's, over daily-python. Dialling out is
pipecat's too: `DailyTransport.start_dialout`, and who answers is a participant like any other.
"""

import asyncio
import json
import os
import signal
from collections import deque
from collections.abc import Callable
from typing import Any

from pipecat.frames.frames import InterimTranscriptionFrame, TranscriptionFrame
from pipecat.transports.daily.transport import (
    DailyInputTransport,
    DailyOutputTransportMessageUrgentFrame,
    DailyParams,
    DailyTransport,
)
from pipecat.workers.runner import WorkerRunner

from bots.assembly import IN_RATE_HZ, OUT_RATE_HZ, Channel, Session, build_session, load_listening
from bots.last_words import LastWords
from bots.models import Models, load_models
from bots.room_call import public
from duologue.config import BotConfig, LimitsConfig
from duologue.errors import ConfigError, EngineError
from duologue.limits import Messages

TOKEN = "DUOLOGUE_DAILY_TOKEN"
MAX_UNSENT = 200
KEPT_DONE = 100


class OneCaller(DailyInputTransport):
    """Hears the first person who comes, and nobody else.

    Attributes:
        caller: That person's participant id.
        done: Participants whose conversation has ended while they stayed.
        messages: What is taken of the caller's.
    """

    def __init__(self, *args: Any, limits: LimitsConfig, done: deque[str], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.caller: str | None = None
        self.done = done
        self.messages = Messages(limits.message_bytes, limits.messages_per_s)

    async def capture_participant_audio(
        self, participant_id: str, audio_source: str = "microphone", sample_rate: int = IN_RATE_HZ
    ):
        """Begin to hear a participant, if that is the caller."""
        if self.caller is None and participant_id not in self.done:
            self.caller = participant_id
        if participant_id == self.caller:
            await super().capture_participant_audio(participant_id, audio_source, sample_rate)

    async def push_transcription_frame(self, frame: TranscriptionFrame | InterimTranscriptionFrame):
        """Take the caller's words."""
        if frame.user_id == self.caller:
            await super().push_transcription_frame(frame)

    async def push_app_message(self, message: Any, sender: str):
        """Take the caller's messages within the limits."""
        if sender == self.caller and self.messages.admits(json.dumps(message)):
            await super().push_app_message(message, sender)


class CallerTransport(DailyTransport):
    """pipecat's transport with `OneCaller` as its input."""

    def __init__(self, *args: Any, limits: LimitsConfig, done: deque[str]):
        super().__init__(*args)
        self._limits, self._done = limits, done

    def input(self) -> OneCaller:
        """The input processor."""
        if self._input is None:
            self._input = OneCaller(
                self,
                self._client,
                self._params,
                name=self._input_name,
                limits=self._limits,
                done=self._done,
            )
        assert isinstance(self._input, OneCaller)
        return self._input


class Conversation:
    """From joining the room until the person who came has left, or is to.

    Args:
        models: Shared by conversations.
        config: The set-up.
        token: Opens the room, where that takes one.
        done: See `OneCaller`.
    """

    def __init__(self, models: Models, config: BotConfig, token: str | None, done: deque[str]):
        self._models = models
        self._config = config
        self._words = LastWords()
        self._joined = False
        self._failure: str | None = None
        self._came, self._over = asyncio.Event(), asyncio.Event()
        # Beyond the bound the oldest event is dropped.
        self._unsent: deque[dict[str, Any]] = deque(maxlen=MAX_UNSENT)
        self._news = asyncio.Event()
        daily = config.daily
        self.transport = CallerTransport(
            daily.url,
            token,
            daily.name,
            DailyParams(
                audio_in_enabled=True,
                audio_in_sample_rate=IN_RATE_HZ,
                audio_out_enabled=True,
                audio_out_sample_rate=OUT_RATE_HZ,
                audio_out_10ms_chunks=2,
                camera_out_enabled=False,
                transcription_enabled=daily.transcription,
            ),
            limits=config.limits,
            done=done,
        )
        for event in ("joined", "error", "participant_joined", "participant_left"):
            self.transport.add_event_handler(f"on_{event}", getattr(self, f"_on_{event}"))
        self.transport.add_event_handler("on_call_state_updated", self._on_call_state)

    async def run(self) -> None:
        """Join, converse and leave.

        Raises:
            EngineError: the room cannot be joined.
        """
        session = build_session(
            self._models,
            self._config,
            await load_listening(self._config),
            inputs=[self.transport.input()],
            outputs=[self.transport.output()],
            channel=Channel(words=self._config.daily.transcription, kind="daily"),
            send=self._send,
        )

        async def on_idle(*_: Any) -> None:
            await self.end("Nobody has spoken for a while.")

        session.worker.add_event_handler("on_idle_timeout", on_idle)
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(session.worker)
        helpers = [
            asyncio.create_task(job) for job in (self._end_in_time(session), self._deliver())
        ]
        try:
            await runner.run(auto_end=True)
        finally:
            for helper in helpers:
                helper.cancel()
        if not self._joined or self._failure:
            raise EngineError(
                f"{self._config.daily.url}: {self._failure or 'the room did not answer'}; "
                f"check daily.url and {TOKEN}"
            )
        caller = self.transport.input().caller
        if caller is not None:
            self.transport.input().done.append(caller)

    async def end(self, reason: str) -> None:
        """Let the sentence that is being said end, say why, and leave."""
        await self._words.said(self._config.limits.last_words_s)
        await self._tell({"type": "bye", "turn": 0, "reason": reason})
        self._over.set()

    async def _end_in_time(self, session: Session) -> None:
        limits = self._config.limits
        coming = asyncio.create_task(self._came.wait())
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait((coming, over), return_when=asyncio.FIRST_COMPLETED)
            async with asyncio.timeout(limits.session_s):
                await over
        except TimeoutError:
            await self.end(f"A call may last {limits.session_s / 60:g} minutes.")
        finally:
            coming.cancel()
            over.cancel()
        await session.worker.cancel()

    async def _deliver(self) -> None:
        """Send the caller the page's events, in order and apart from the audio."""
        while True:
            while self._unsent:
                await self._tell(self._unsent.popleft())
            self._news.clear()
            await self._news.wait()

    async def _tell(self, event: dict[str, Any]) -> None:
        if self._came.is_set():
            caller = self.transport.input().caller
            frame = DailyOutputTransportMessageUrgentFrame(message=event, participant_id=caller)
            await self.transport.output().send_message(frame)

    def _send(self, event: dict[str, Any]) -> None:
        self._words.note(event)
        self._unsent.append(public(event))
        self._news.set()

    async def _on_joined(self, _: Any, data: Any) -> None:
        self._joined = True

    async def _on_participant_joined(self, _: Any, participant: Any) -> None:
        if participant["id"] == self.transport.input().caller:
            if self._config.daily.transcription:
                await self.transport.capture_participant_transcription(participant["id"])
            self._came.set()
            self._send({"type": "state", "turn": 0, "state": "listening"})

    async def _on_participant_left(self, _: Any, participant: Any, reason: str) -> None:
        if participant["id"] == self.transport.input().caller:
            self._over.set()

    async def _on_call_state(self, _: Any, state: str) -> None:
        # Ejected, or the room has ended.
        if state == "left" and not self._over.is_set():
            self._failure = "the bot was taken out of the room"
            self._over.set()

    async def _on_error(self, _: Any, error: str) -> None:
        if not self._joined:
            self._failure = error
            self._over.set()


class DailyBot:
    """Conversations in one room until it is told to stop.

    Args:
        models: Shared by conversations.
        config: The set-up.
        token: Opens the room, where that takes one.

    Raises:
        ConfigError: no room is named, or its transcription has no token.
    """

    def __init__(self, models: Models, config: BotConfig, token: str | None):
        check(config, token)
        self._models = models
        self._config = config
        self._token = token
        self._done: deque[str] = deque(maxlen=KEPT_DONE)
        self._closing = False
        self.conversation: Conversation | None = None

    async def run(self) -> None:
        """Hold one conversation after another.

        Raises:
            EngineError: the room cannot be joined, or the bot was taken out of it.
        """
        while not self._closing:
            self.conversation = Conversation(self._models, self._config, self._token, self._done)
            await self.conversation.run()

    async def drain(self) -> None:
        """Let the sentence that is being said end, then leave."""
        self._closing = True
        if self.conversation is not None:
            await self.conversation.end("The bot is leaving.")


def check(config: BotConfig, token: str | None) -> None:
    """Whether a set-up can join a room at all.

    Raises:
        ConfigError: it cannot.
    """
    if not config.daily.url:
        raise ConfigError("daily.url: missing; give the room's address with --url")
    if config.daily.transcription and not token:
        raise ConfigError(f"daily.transcription: needs a token with that right; set {TOKEN}")
    if config.daily.transcription and config.speech_lm and config.speech_lm.mode.audio_in:
        raise ConfigError(
            f"daily.transcription: speech_lm.mode {config.speech_lm.mode} takes the sound itself; "
            "leave one of them out"
        )


async def serve(config: BotConfig, *, loading: Callable[[], None] = lambda: None) -> None:
    """Load the models and hold conversations until SIGTERM or SIGINT.

    Args:
        config: The set-up.
        loading: Called when the set-up is found usable.

    Raises:
        ConfigError, EngineError: as `DailyBot`, or a model is missing.
    """
    token = os.environ.get(TOKEN)
    check(config, token)
    loading()
    models = await load_models(config)
    bot = DailyBot(models, config, token)
    loop, draining = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, lambda: draining.add(asyncio.create_task(bot.drain())))
    try:
        await bot.run()
    finally:
        await models.close()
