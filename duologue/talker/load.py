"""The talker that a set-up names, and what each of its requests has in common."""

import os

from duologue.config import FamilyConfig, LmConfig, TalkerSection, Token2wavSection
from duologue.embedded.package import Package
from duologue.lm.completions import Completions
from duologue.lm.conversation import Item, Reference, System
from duologue.lm.engine import Engine, Request
from duologue.token2wav.step import VoicePrompt


def lm_key() -> str:
    """What opens a server's LM: DUOLOGUE_LM_API_KEY; local ones ignore it."""
    return os.environ.get("DUOLOGUE_LM_API_KEY", "none")


def load_completions(config: FamilyConfig) -> Completions:
    """A speech-text model on a server, asked by raw prompts.

    Raises:
        ConfigError: the address or the key cannot be used.
    """
    return Completions(config.base_url, config.model, server=config.server, api_key=lm_key())


def load_talker(config: TalkerSection, decoder: Token2wavSection, *, sessions: int) -> Engine:
    """The model that makes text speech tokens.

    Raises:
        ConfigError: as `load_completions`.
        ModelError, EngineError: the embedded voice is not whole, or cannot be loaded.
    """
    if config.engine == "server":
        return load_completions(config)
    package = Package(decoder.model)
    # A request that is cut off may end beside the one that takes its place.
    capacity = 2 * sessions
    return package.talker(capacity=capacity)


def sampling(config: LmConfig | FamilyConfig) -> Request:
    """A request with a set-up's sampling and without a prompt."""
    return Request(
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        repeat_penalty=config.repeat_penalty,
    )


def before_text(config: TalkerSection, voice: VoicePrompt, *, own_clip: bool = True) -> list[Item]:
    """What stands before each text: how to speak, and the voice's clip where its words are known.

    Args:
        config: The set-up's `talker`.
        voice: Who speaks.
        own_clip: Whether `config.clip_text` are the words of this voice's clip.
    """
    items: list[Item] = []
    if config.instruction:
        items.append(System(config.instruction))
    if config.clip_text and own_clip:
        items.append(Reference((tuple(voice.tokens.tolist()),), config.clip_text))
    return items
