"""The pipeline, built once for every way to talk to the bot.

input -> ASR -> user's turn -> LM -> side branch -> voice -> playout -> output
"""

import asyncio
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipecat.audio.turn.smart_turn.base_smart_turn import SmartTurnParams
from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADAnalyzer, VADParams
from pipecat.frames.frames import TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMUserAggregator,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from bots.tools import room_tools
from duologue.asr.funasr_client import Funasr
from duologue.asr.whisper import Whisper
from duologue.config import BotConfig, LmConfig, TurnConfig, VadConfig
from duologue.lm.brief import Brief
from duologue.lm.engine import Engine, Message, Request
from duologue.lm.llamacpp import LlamaCpp
from duologue.lm.openai_http import OpenAIHttp
from duologue.lm.rules import RuleRouted
from duologue.memory import Memory
from duologue.models import ensure, stderr_progress
from duologue.particles import renderer_for
from duologue.tools import ToolRegistry
from duologue.tts.piper import PiperVoice
from processors.page import PageEvents
from processors.playout import Playout
from processors.side_branch import SideBranch
from processors.turns import (
    PATIENCE_S,
    BargeInTurnStart,
    PatientStop,
    SilenceTurnStop,
    SmartTurnStop,
    SpeculativeTurnStop,
)
from services.asr import WhisperASR
from services.funasr_asr import FunasrASR
from services.text_lm import TextLM
from services.voice import Voice

IN_RATE_HZ = 16_000
OUT_RATE_HZ = 24_000


@dataclass(slots=True)
class Models:
    """What all sessions of a process share."""

    asr: Whisper | Funasr
    lm: Engine
    voice: PiperVoice

    async def close(self) -> None:
        """Release the models."""
        self.asr.close()
        self.voice.close()
        await self.lm.close()


async def load_models(config: BotConfig) -> Models:
    """Fetch what is missing, load everything at once, and warm up what a first answer needs.

    Raises:
        EngineError: a model cannot be found, fetched or loaded.
    """
    refs = [config.voice.model]
    refs += [config.asr.model] if config.asr.engine == "whisper" else []
    refs += [config.lm.model] if config.lm.engine == "llamacpp" else []
    with stderr_progress() as progress:
        for ref in refs:
            ensure(ref, progress=progress)
    asr, lm, voice = await asyncio.gather(
        asyncio.to_thread(_load_asr, config),
        asyncio.to_thread(_load_lm, config.lm, config.room.capacity),
        asyncio.to_thread(_load_voice, config),
    )
    await asyncio.gather(
        lm.prewarm([*opening(config.lm), {"role": "user", "content": "Hello."}]),
        asyncio.to_thread(voice.synthesize, "Hello."),
    )
    # What lives as long as the process need not be looked at when a session's garbage is collected.
    gc.collect()
    gc.freeze()
    return Models(asr, lm, voice)


def _load_asr(config: BotConfig) -> Whisper | Funasr:
    asr = config.asr
    if asr.engine == "funasr":
        return Funasr(
            asr.model,
            interims=asr.interims,
            vad=asr.vad,
            language=config.lang,
            threads=asr.threads,
        )
    return Whisper(ensure(asr.model), language=config.lang, threads=asr.threads)


def _load_voice(config: BotConfig) -> PiperVoice:
    voice = config.voice
    return PiperVoice(ensure(voice.model), threads=voice.threads, speed=voice.speed)


def _load_lm(config: LmConfig, sessions: int) -> Engine:
    if config.engine == "openai":
        key = os.environ.get("DUOLOGUE_LM_API_KEY", "none")
        return OpenAIHttp(config.base_url or "", config.model, api_key=key)
    return LlamaCpp(
        ensure(config.model), threads=config.threads, context=config.context, slots=sessions
    )


def opening(config: LmConfig) -> list[Message]:
    """The system prompt and the example exchanges."""
    messages: list[Message] = [{"role": "system", "content": config.system}]
    for example in config.examples:
        messages.append({"role": "user", "content": example.user})
        messages.append({"role": "assistant", "content": example.assistant})
    return messages


@dataclass(slots=True)
class Session:
    """One conversation, ready to run."""

    worker: PipelineWorker
    context: LLMContext
    memory: Memory
    tools: ToolRegistry = field(repr=False)


@dataclass(frozen=True, slots=True)
class Listening:
    """What hears one session's user; loading it takes a tenth of a second."""

    vad: VADAnalyzer
    turn_stop: PatientStop


async def load_listening(config: BotConfig) -> Listening:
    """Make a session's analyzers in a thread: other sessions' audio must not wait for them.

    Raises:
        EngineError: an engine of the set-up is not installed.
    """
    return await asyncio.to_thread(
        lambda: Listening(vad=_vad(config.vad), turn_stop=_turn_stop(config.turn))
    )


def build_session(
    models: Models,
    config: BotConfig,
    listening: Listening,
    *,
    inputs: list[FrameProcessor],
    outputs: list[FrameProcessor],
    send: Callable[[dict[str, Any]], None] | None = None,
    real_time: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Session:
    """Build the pipeline of one conversation.

    Args:
        models: The shared models.
        config: The set-up.
        listening: The session's own analyzers.
        inputs: What brings the user's audio.
        outputs: What takes the bot's audio.
        send: Takes the page's events.
        real_time: False for work on files: nothing is paced.
        clock: Monotonic seconds.
    """
    context = LLMContext(messages=opening(config.lm))  # type: ignore[arg-type]
    # About half of the model's window: four characters make a token.
    max_chars = 2 * config.lm.context
    memory = Memory(context.messages, max_chars=max_chars)  # type: ignore[arg-type]

    async def announce(text: str) -> None:
        await worker.queue_frame(TTSSpeakFrame(text))

    # The side branch owns the timers' tasks, so that they end with the session.
    tools = room_tools(announce, lambda job, name: branch.create_task(job, name))
    if config.lm.tool_choice == "none":
        tools = ToolRegistry()
    interject = config.voice.particles == "interject"
    renderer = renderer_for(config.voice.engine, words=config.lang if interject else None)
    branch = SideBranch(memory, tools, renderer)
    lm = models.lm
    if config.lm.max_sentences:
        lm = Brief(lm, config.lm.max_sentences, lang=config.lang)
    if config.lm.tool_choice == "rules":
        lm = RuleRouted(lm, tools)
    request = Request(
        [],
        tools=tools.schemas(),
        max_tokens=config.lm.max_tokens,
        temperature=config.lm.temperature,
        repeat_penalty=config.lm.repeat_penalty,
    )
    pipeline = Pipeline(
        [
            *inputs,
            FunasrASR(models.asr) if isinstance(models.asr, Funasr) else WhisperASR(models.asr),
            LLMUserAggregator(context, params=_user_params(listening, memory, clock)),
            TextLM(lm, request, memory.trim),
            branch,
            Voice(models.voice, lang=config.lang),
            Playout(memory, real_time=real_time, clock=clock),
            *outputs,
        ]
    )
    worker = PipelineWorker(
        pipeline,
        params=PipelineParams(
            audio_in_sample_rate=IN_RATE_HZ,
            audio_out_sample_rate=OUT_RATE_HZ,
            enable_metrics=True,
        ),
        observers=[PageEvents(send, clock=clock)] if send else [],
        idle_timeout_secs=config.room.idle_s,
        enable_rtvi=False,
        enable_turn_tracking=False,
    )
    return Session(worker, context, memory, tools)


def _user_params(
    listening: Listening, memory: Memory, clock: Callable[[], float]
) -> LLMUserAggregatorParams:
    return LLMUserAggregatorParams(
        vad_analyzer=listening.vad,
        user_turn_strategies=UserTurnStrategies(
            start=[BargeInTurnStart(lambda: memory.newest_text, clock=clock)],
            stop=[listening.turn_stop],
        ),
        # A cough that interrupted nothing needs no answer.
        empty_user_turn=None,
        # The last resort for a turn that no strategy ends; patience comes first.
        user_turn_stop_timeout=PATIENCE_S + 2.5,
    )


def _vad(config: VadConfig) -> VADAnalyzer:
    params = VADParams(
        confidence=config.confidence,
        start_secs=config.start_s,
        stop_secs=config.stop_s,
        # The loudness gate needs 400 ms to open; Silero's confidence alone is faster and as good.
        min_volume=0.0,
    )
    if config.engine == "webrtcvad":
        from services.webrtc_vad import WebRTCVADAnalyzer

        return WebRTCVADAnalyzer(params=params)
    return SileroVADAnalyzer(params=params)


def _turn_stop(config: TurnConfig) -> PatientStop:
    if config.end == "speech-timeout":
        return SilenceTurnStop(user_speech_timeout=config.silence_s)
    analyzer = LocalSmartTurnAnalyzerV3(params=SmartTurnParams(stop_secs=config.silence_s))
    kind = SpeculativeTurnStop if config.speculate else SmartTurnStop
    return kind(turn_analyzer=analyzer)
