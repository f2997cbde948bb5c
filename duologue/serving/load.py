"""Loads what a set-up names for the server."""

import asyncio
from pathlib import Path

from duologue.config import BotConfig
from duologue.embedded.package import Package
from duologue.errors import ConfigError
from duologue.lm.formats import find_family
from duologue.lm.modes import Mode
from duologue.lm.tokenizer import Vocab
from duologue.lm.vocabulary import Vocabulary
from duologue.models import ensure, stderr_progress
from duologue.serving.speaker import Engines, Speaker
from duologue.serving.talker import Talker
from duologue.serving.voices import Voices
from duologue.talker.load import load_talker
from duologue.token2wav import pipeline
from duologue.token2wav.front_end import VoiceFrontEnd
from duologue.token2wav.layout import SPEAKER, TOKENIZER
from duologue.token2wav.pipeline import EngineSettings, Token2wav
from duologue.tts.piper import PiperVoice
from duologue.voices import VoiceStore


async def load_speaker(config: BotConfig, store: VoiceStore | None = None) -> Speaker:
    """Fetch what is missing, load everything at once, and speak a word.

    Args:
        config: The set-up; of it `voice`, `token2wav`, `talker`, `lang` and `serve` count.
        store: The voices; the default store without one.

    Raises:
        ConfigError: nothing to speak with is named, or parts do not fit together.
        EngineError: a model cannot be found, fetched or loaded.
    """
    serve, section = config.serve, config.token2wav
    if not serve.piper and section is None:
        raise ConfigError("serve.piper is false and there is no token2wav: nothing can speak")
    package = Package(section.model) if section and section.engine == "embedded" else None
    talker = _talker(config)
    piper, decoder, front_end = await asyncio.gather(
        asyncio.to_thread(_piper, config),
        asyncio.to_thread(_token2wav, config),
        asyncio.to_thread(_front_end, config),
    )
    if talker and decoder:
        takes = decoder.config
        profile = talker.vocabulary.profile
        profile.check_decoder(takes.codebook, takes.flow.vocab_size, takes.token_rate_hz)
    name = config.voice.model if piper else ""
    engines = Engines(
        lang=config.lang,
        piper=piper,
        piper_name=name,
        batcher=decoder.batcher() if decoder else None,
        talker=talker,
        default_voice=section.voice if section else "",
    )
    voices = Voices(
        store or VoiceStore.default(),
        builtin=name,
        own={section.voice: package.voice()} if section and package else {},
        front_end=front_end,
        decodes=decoder is not None,
        takes=decoder.front_end if decoder else None,
        talks=talker is not None,
        queue=serve.queue,
    )
    return Speaker(engines, voices, serve)


def _piper(config: BotConfig) -> PiperVoice | None:
    if not config.serve.piper:
        return None
    voice = config.voice
    with stderr_progress() as progress:
        folder = ensure(voice.model, progress=progress)
    piper = PiperVoice(folder, threads=voice.threads, speed=voice.speed)
    piper.synthesize("Hello.")
    return piper


def _token2wav(config: BotConfig) -> Token2wav | None:
    section = config.token2wav
    if section is None:
        return None
    settings = EngineSettings(sessions=section.sessions)
    return pipeline.load(section.model, section.engine, settings)


def _front_end(config: BotConfig) -> VoiceFrontEnd | None:
    """The named one, else the one that lies with token2wav's model, if one does."""
    if folder := config.serve.front_end:
        return VoiceFrontEnd.load(folder)
    folder = config.token2wav.model if config.token2wav else Path()
    whole = config.token2wav and all((folder / name).is_file() for name in (TOKENIZER, SPEAKER))
    return VoiceFrontEnd.load(folder) if whole else None


def _talker(config: BotConfig) -> Talker | None:
    model, section = config.talker, config.token2wav
    if model is None or section is None:
        return None
    profile = find_family(model.family)
    profile.check_mode(Mode.T1_A1)
    vocabulary = Vocabulary(profile, Vocab(model.tokenizer) if model.tokenizer else None)
    engine = load_talker(model, section, sessions=config.serve.sessions)
    return Talker(engine, vocabulary, model, section.voice)
