"""The models that all sessions of a process share, loaded as a set-up asks."""

import asyncio
import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from duologue.asr.funasr_client import Funasr
from duologue.asr.whisper import Whisper
from duologue.audio.pcm import ASR_RATE_HZ
from duologue.config import BotConfig, LmConfig, SpeechLmConfig, Token2wavSection
from duologue.embedded.package import Package
from duologue.errors import ConfigError, EngineError
from duologue.lm.conversation import System, User
from duologue.lm.engine import Engine, Message
from duologue.lm.formats import Profile, find_family
from duologue.lm.llamacpp import LlamaCpp
from duologue.lm.modes import Mode
from duologue.lm.openai_http import OpenAIHttp
from duologue.lm.prompt import AudioPart
from duologue.lm.templates import check_hearing, check_template, render_messages, thought_end
from duologue.lm.tokenizer import Vocab
from duologue.lm.vocabulary import Vocabulary
from duologue.models import ensure, stderr_progress
from duologue.talker.load import lm_key, load_completions, load_talker
from duologue.token2wav import pipeline as token2wav
from duologue.token2wav.async_utterance import Opens
from duologue.token2wav.pipeline import EngineSettings
from duologue.token2wav.step import VoicePrompt
from duologue.tts.piper import PiperVoice
from duologue.voices import VoiceStore

if TYPE_CHECKING:
    from duologue.serving.remote import RemoteBatcher


@dataclass(frozen=True, slots=True)
class Speech:
    """What speech tokens need besides the engine that gives them.

    Attributes:
        vocabulary: What the ids mean.
        batcher: Speaks the tokens; None if they are not spoken.
        voice: Who speaks.
        talker: Gives the tokens of another model's text; None if the LM gives its own.
    """

    vocabulary: Vocabulary
    batcher: Opens | None = None
    voice: VoicePrompt | None = None
    talker: Engine | None = None


@dataclass(slots=True)
class Models:
    """What all sessions of a process share; `lm` gives the tokens of `speech` without a talker."""

    asr: Whisper | Funasr
    lm: Engine
    voice: PiperVoice | None
    speech: Speech | None = None

    async def close(self) -> None:
        """Release the models."""
        self.asr.close()
        if self.voice:
            self.voice.close()
        if self.speech and self.speech.batcher:
            await asyncio.to_thread(self.speech.batcher.close)
        if self.speech and self.speech.talker:
            await self.speech.talker.close()
        await self.lm.close()


async def load_models(config: BotConfig) -> Models:
    """Fetch what is missing, load everything at once, and warm up what a first answer needs.

    Raises:
        EngineError: a model cannot be found, fetched or loaded.
    """
    parts = check_speech(config)
    refs = [] if config.talker else [config.voice.model]
    refs += [config.asr.model] if config.asr.engine == "whisper" else []
    refs += [config.lm.model] if config.lm.engine == "llamacpp" and not config.speech_lm else []
    with stderr_progress() as progress:
        for ref in refs:
            ensure(ref, progress=progress)
    asr, lm, voice, speech = await asyncio.gather(
        asyncio.to_thread(_load_asr, config),
        asyncio.to_thread(_load_lm, config),
        asyncio.to_thread(_load_voice, config),
        asyncio.to_thread(_load_speech, config, parts),
    )
    models = Models(asr, lm, voice, speech)
    first = _first_request(config, parts)
    try:
        await asyncio.gather(lm.prewarm(first), _warm_voice(models))
    except BaseException:
        await models.close()
        raise
    # What lives as long as the process need not be looked at when a session's garbage is collected.
    gc.collect()
    gc.freeze()
    return models


async def _warm_voice(models: Models) -> None:
    """Run what says text once: its first run is the slowest."""
    if models.voice:
        await asyncio.to_thread(models.voice.synthesize, "Hello.")
    if models.speech and models.speech.talker:
        await models.speech.talker.prewarm([])


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


def _load_voice(config: BotConfig) -> PiperVoice | None:
    """The decoupled voice; a talker says all texts itself."""
    if config.talker:
        return None
    voice = config.voice
    return PiperVoice(ensure(voice.model), threads=voice.threads, speed=voice.speed)


def _load_lm(config: BotConfig) -> Engine:
    lm = config.lm
    if config.speech_lm:
        return _speech_engine(config.speech_lm)
    if lm.engine == "openai":
        return OpenAIHttp(lm.base_url or "", lm.model, api_key=lm_key())
    return LlamaCpp(
        ensure(lm.model), threads=lm.threads, context=lm.context, slots=config.limits.sessions
    )


def _speech_engine(config: SpeechLmConfig) -> Engine:
    if config.mode.audio_in:
        return OpenAIHttp(config.base_url, config.model, server=config.server, api_key=lm_key())
    return load_completions(config)


def _speaker(config: Token2wavSection) -> VoicePrompt:
    if config.engine == "embedded":
        return Package(config.model).voice()
    return VoiceStore.default().get(config.voice)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The small parts of `Speech`, of which it is clear that they fit together."""

    profile: Profile
    vocabulary: Vocabulary
    talker: Engine | None
    voice: VoicePrompt | None


def check_speech(config: BotConfig) -> _Fitting | None:
    """Whether a set-up's speech-text model can do what it is asked, before anything is loaded.

    Raises:
        UsageError, ConfigError: the family cannot do this, or something is not named.
        ModelError: a file is missing or not what it should be.
    """
    lm, decoder = config.speech_lm, config.token2wav
    model = config.talker or lm
    if model is None:
        return None
    mode = lm.mode if lm else Mode.T1_A1
    profile = find_family(model.family)
    profile.check_mode(mode)
    check_template(profile)
    if lm:
        _check_answers(profile, lm, config.lm.tool_choice != "none")
    check_hearing(profile, mode, model.server)
    if lm and lm.tokenizer is None:
        raise ConfigError(
            "speech_lm.tokenizer: missing; give the folder of the model's tokenizer.json, without "
            "which its ids are no text"
        )
    vocabulary = Vocabulary(profile, Vocab(model.tokenizer) if model.tokenizer else None)
    if profile.thinks and model.server == "llamacpp" and thought_end(vocabulary)[0]:
        raise ConfigError(
            "speech_lm.server llamacpp stops at a token, not at a text, but the tokenizer has no "
            "token that ends a thought; use another server"
        )
    talker = None
    if config.talker and decoder:
        talker = load_talker(config.talker, decoder, sessions=config.limits.sessions)
    speaks = config.talker or (lm and lm.speaks_tokens)
    voice = _speaker(decoder) if decoder and speaks else None
    return _Fitting(profile, vocabulary, talker, voice)


def _check_answers(profile: Profile, lm: SpeechLmConfig, tools: bool) -> None:
    """Refuse what gives no answer, and tools where nothing tells how they are called."""
    if not lm.mode.answers:
        answers = ", ".join(mode for mode in profile.modes if mode.answers) or "none"
        raise ConfigError(
            f"speech_lm.mode {lm.mode} gives the user's own content back, and a bot answers: "
            f"choose one of {answers}. The bot's recogniser is set by asr"
        )
    if tools and profile.tools is None:
        raise ConfigError(
            f"lm.tool_choice: nothing public tells how {profile.family} calls tools: set none"
        )


def _load_speech(config: BotConfig, parts: _Fitting | None) -> Speech | None:
    decoder = config.token2wav
    if parts is None:
        return None
    if decoder is None or parts.voice is None:
        return Speech(parts.vocabulary)
    if decoder.engine == "remote":
        batcher = _remote(decoder.urls)
        takes = batcher.config
    else:
        settings = EngineSettings(sessions=decoder.sessions)
        loaded = token2wav.load(decoder.model, decoder.engine, settings)
        loaded.check_voice(parts.voice)
        with loaded.utterance(parts.voice, 0) as utterance:
            # The caches of the voice, which no answer is to wait for.
            utterance.push(parts.voice.tokens)
            utterance.finish()
        batcher, takes = loaded.batcher(), loaded.config
    parts.profile.check_decoder(takes.codebook, takes.flow.vocab_size, takes.token_rate_hz)
    return Speech(parts.vocabulary, batcher, parts.voice, parts.talker)


def _remote(urls: list[str]) -> "RemoteBatcher":
    try:
        from duologue.serving.remote import RemoteBatcher
    except ModuleNotFoundError as error:
        raise EngineError(
            f"the engine 'remote' needs {error.name}; run: pip install -e '.[serve]'"
        ) from error
    return RemoteBatcher(urls)


def _first_request(config: BotConfig, parts: _Fitting | None) -> list[Message]:
    """What a model is asked before its first call: a server that takes no sound shows it now."""
    if not config.speech_lm:
        return [*opening(config.lm), {"role": "user", "content": "Hello."}]
    if not (parts and config.speech_lm.mode.audio_in):
        return []
    silence = AudioPart(np.zeros(ASR_RATE_HZ, np.float32), ASR_RATE_HZ)
    items = [System(config.lm.system), User(audio=silence)]
    return render_messages(parts.vocabulary, items, config.speech_lm.mode)


def opening(config: LmConfig) -> list[Message]:
    """The system prompt and the example exchanges."""
    messages: list[Message] = [{"role": "system", "content": config.system}]
    for example in config.examples:
        messages.append({"role": "user", "content": example.user})
        messages.append({"role": "assistant", "content": example.assistant})
    return messages
