"""The pipeline, built once for every way to talk to the bot.

input -> ASR -> user's turn -> LM -> side branch -> voice -> playout -> output
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
from pipecat.services.llm_service import LLMService
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from bots.models import Models, opening
from bots.ops_trace import tracing
from bots.tools import room_tools
from duologue.asr.funasr_client import Funasr
from duologue.config import BotConfig, TurnConfig, VadConfig
from duologue.limits import TurnBudget
from duologue.lm.brief import Brief
from duologue.lm.capped import Capped
from duologue.lm.engine import Engine
from duologue.lm.hearing import Hearing
from duologue.lm.rules import RuleRouted
from duologue.memory import Memory
from duologue.particles import renderer_for
from duologue.talker.load import before_text, sampling
from duologue.tools import ToolRegistry
from processors.metrics import ConversationMetrics
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
from services.speech_lm import SpeechLM
from services.talker import Talker
from services.text_lm import TextLM
from services.token2wav import Token2wav
from services.voice import Voice

IN_RATE_HZ = 16_000
OUT_RATE_HZ = 24_000


@dataclass(frozen=True, slots=True)
class Channel:
    """What carries the sound of a way to talk.

    Attributes:
        in_rate_hz: Of the user's audio; models that want another rate resample.
        out_rate_hz: Of the bot's.
        lead_s: See `Playout`.
        words: Whether it brings the user's words with their sound: no recogniser listens.
        kind: What sessions over it count as.
    """

    in_rate_hz: int = IN_RATE_HZ
    out_rate_hz: int = OUT_RATE_HZ
    lead_s: float = 0.08
    words: bool = False
    kind: str = "room"


WIDEBAND = Channel()


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
    channel: Channel = WIDEBAND,
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
        channel: How they carry it.
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
    budget = tools.budget = TurnBudget(config.limits.lm_tokens, config.limits.tool_calls)
    interject = config.voice.particles == "interject"
    renderer = renderer_for(config.voice.engine, words=config.lang if interject else None)
    branch = SideBranch(memory, tools, renderer)
    asr = FunasrASR(models.asr) if isinstance(models.asr, Funasr) else WhisperASR(models.asr)
    asr.gives_sound = _hears(config)
    aggregator = LLMUserAggregator(context, params=_user_params(listening, memory, clock))

    @aggregator.event_handler("on_user_turn_started")
    async def on_user_turn_started(*_: Any) -> None:
        budget.renew()

    pipeline = Pipeline(
        [
            *inputs,
            *([] if channel.words else [asr]),
            aggregator,
            _lm(models, config, memory, tools, budget),
            branch,
            *_voices(models, config, memory),
            Playout(memory, lead_s=channel.lead_s, real_time=real_time, clock=clock),
            *outputs,
        ]
    )
    speaker = config.talker.family if config.talker else config.voice.engine
    figures = ConversationMetrics(channel.kind, send, voice=speaker, clock=clock)
    traced = tracing()
    worker = PipelineWorker(
        pipeline,
        params=PipelineParams(
            audio_in_sample_rate=channel.in_rate_hz,
            audio_out_sample_rate=channel.out_rate_hz,
            enable_metrics=True,
        ),
        observers=[figures],
        idle_timeout_secs=config.limits.idle_s,
        enable_rtvi=False,
        enable_tracing=traced,
        enable_turn_tracking=traced,
    )
    figures.turns = worker.turn_trace_observer
    return Session(worker, context, memory, tools)


def _hears(config: BotConfig) -> bool:
    """Whether the model is given the user's sound besides the recogniser's words."""
    return config.speech_lm is not None and config.speech_lm.mode.audio_in


def _lm(
    models: Models, config: BotConfig, memory: Memory, tools: ToolRegistry, budget: TurnBudget
) -> LLMService:
    lm: Engine = Capped(models.lm, budget)
    request = replace(sampling(config.speech_lm or config.lm), tools=tools.schemas())
    if models.speech and config.speech_lm and not models.speech.talker:
        return SpeechLM(
            lm,
            models.speech.vocabulary,
            config.speech_lm.mode,
            request,
            memory,
            memory.trim,
            decoded=models.speech.batcher is not None,
            budget=config.speech_lm.budget,
            hearing=Hearing(config.speech_lm.longest_turn_s) if _hears(config) else None,
            past_sound=config.speech_lm.history == "sound",
            max_thought=config.speech_lm.max_thought,
        )
    if config.lm.max_sentences:
        lm = Brief(lm, config.lm.max_sentences, lang=config.lang)
    if config.lm.tool_choice == "rules":
        lm = RuleRouted(lm, tools)
    return TextLM(lm, request, memory.trim)


def _voices(models: Models, config: BotConfig, memory: Memory) -> list[FrameProcessor]:
    """What says text, and what says speech tokens; announcements are text in any case."""
    speech, voice = models.speech, models.voice
    says_text: list[FrameProcessor] = [Voice(voice, lang=config.lang)] if voice else []
    if speech is None or speech.batcher is None or speech.voice is None:
        return says_text
    decoder = Token2wav(speech.batcher, speech.voice)
    if speech.talker is None or config.talker is None:
        return [*says_text, decoder]
    talker = Talker(
        speech.talker,
        speech.vocabulary,
        sampling(config.talker),
        memory,
        speaker=before_text(config.talker, speech.voice),
        lang=config.lang,
    )
    return [talker, decoder]


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
