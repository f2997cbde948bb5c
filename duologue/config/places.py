"""Sections of where people and programs call, and of what a call may take."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from duologue.config.section import Section

IceUrl = Annotated[str, Field(pattern=r"^(stuns?|turns?):[^/\s]+$")]


class RoomConfig(Section):
    """The browser room."""

    host: str = Field(default="127.0.0.1", description="Address to listen on")
    port: int = Field(default=7860, ge=0, le=65535, description="0 for any free one")
    ice_servers: list[IceUrl] = Field(
        default=[], description="STUN and TURN servers; TURN's secret comes from the environment"
    )
    turn_ttl_s: int = Field(
        default=7200, ge=60, description="How long a TURN credential that is handed out works"
    )
    connect_s: float = Field(
        default=10, gt=0, le=30, description="How long a caller may take to connect"
    )
    reconnect_s: float = Field(
        default=15, ge=0, description="How long a conversation waits for a caller whose path broke"
    )


class DailyConfig(Section):
    """A Daily room; its token comes from the environment."""

    url: str | None = Field(
        default=None, pattern="^https://", description="Such as https://DOMAIN.daily.co/ROOM"
    )
    name: str = Field(default="duologue", min_length=1, description="The bot's name in the room")
    transcription: bool = Field(
        default=False, description="Take Daily's transcription in place of the recogniser's"
    )


class LimitsConfig(Section):
    """What a process, a call and a turn may take; docs/limits.md says what happens beyond."""

    sessions: int = Field(default=2, ge=1, description="Calls at once")
    connecting: int = Field(
        default=16, ge=1, description="Callers on their way; beyond, the oldest gives way"
    )
    calls_per_minute: float = Field(default=60, gt=0, description="Attempts of one address")
    session_s: float = Field(default=3600, gt=0, description="Length of a call")
    idle_s: float = Field(
        default=600, gt=0, description="Seconds without speech after which a call ends"
    )
    body_bytes: int = Field(default=128_000, ge=1024, description="An HTTP request's body")
    message_bytes: int = Field(
        default=65_536, ge=256, description="A caller's message, all its fragments together"
    )
    messages_per_s: float = Field(
        default=50, gt=0, description="A caller's messages; twice as many may come at once"
    )
    lm_tokens: int = Field(
        default=8192, ge=1, description="What the model generates in a turn, all answers together"
    )
    tool_calls: int = Field(default=8, ge=0, description="Calls of tools in a turn")
    drain_s: float = Field(
        default=0, ge=0, description="How long calls may go on when the process is told to stop"
    )
    last_words_s: float = Field(
        default=3, ge=0, description="How long the sentence may last that a call ends behind"
    )


class PhoneConfig(Section):
    """Calls over a provider's media stream."""

    host: str = Field(default="127.0.0.1", description="Address to listen on")
    port: int = Field(default=7861, ge=0, le=65535, description="0 for any free one")
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/\s?#]+(/[^\s?#]*)?$",
        description="Where the provider reaches this server; its signatures are made over it",
    )
    auth: bool = Field(default=True, description="Check who calls; off on loopback only")
    greeting: str | None = Field(default=None, description="What the bot says first")


class ServeConfig(Section):
    """The speech server; its token is the variable DUOLOGUE_SERVE_TOKEN."""

    host: str = Field(default="127.0.0.1", description="Address to listen on")
    grpc_port: int = Field(default=50051, ge=0, le=65535, description="0 for any free one")
    http_port: int = Field(default=8080, ge=0, le=65535, description="0 for any free one")
    tls_cert: Path | None = Field(default=None, description="PEM, with the chain")
    tls_key: Path | None = Field(default=None, description="PEM, without a password")
    piper: bool = Field(default=True, description="Whether `voice` is loaded")
    front_end: Path | None = Field(
        default=None, description="Folder of the models that listen; `token2wav.model` by default"
    )
    sessions: int = Field(default=8, ge=1, description="Utterances at once, over all engines")
    queue: int = Field(default=4, ge=1, description="Clips that wait to be listened to")
    ahead_s: float = Field(default=10, gt=0, description="Sound made before a client reads it")
    idle_s: float = Field(default=30, gt=0, description="Longest silence of a client")
    call_s: float = Field(default=600, gt=0, description="Longest utterance from first to last")
    drain_s: float = Field(default=30, ge=0, description="What calls get to end when it stops")
    max_message_bytes: int = Field(
        default=16 << 20, ge=1024, description="A message of gRPC, or a body of HTTP"
    )
    max_chars: int = Field(default=10_000, ge=1, description="Text of an utterance")
    max_tokens: int = Field(default=15_000, ge=1, description="Speech tokens of an utterance")
