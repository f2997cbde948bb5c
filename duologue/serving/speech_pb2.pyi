from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Voice(_message.Message):
    __slots__ = ("name", "builtin", "takes_text", "takes_tokens", "seconds", "digest", "model", "problem")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUILTIN_FIELD_NUMBER: _ClassVar[int]
    TAKES_TEXT_FIELD_NUMBER: _ClassVar[int]
    TAKES_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    builtin: bool
    takes_text: bool
    takes_tokens: bool
    seconds: float
    digest: str
    model: str
    problem: str
    def __init__(self, name: _Optional[str] = ..., builtin: _Optional[bool] = ..., takes_text: _Optional[bool] = ..., takes_tokens: _Optional[bool] = ..., seconds: _Optional[float] = ..., digest: _Optional[str] = ..., model: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class ListVoicesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVoicesResponse(_message.Message):
    __slots__ = ("voices",)
    VOICES_FIELD_NUMBER: _ClassVar[int]
    voices: _containers.RepeatedCompositeFieldContainer[Voice]
    def __init__(self, voices: _Optional[_Iterable[_Union[Voice, _Mapping]]] = ...) -> None: ...

class AddVoiceRequest(_message.Message):
    __slots__ = ("name", "clip", "replace")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    clip: bytes
    replace: bool
    def __init__(self, name: _Optional[str] = ..., clip: _Optional[bytes] = ..., replace: _Optional[bool] = ...) -> None: ...

class DeleteVoiceRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteVoiceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SynthesizeRequest(_message.Message):
    __slots__ = ("start", "text", "tokens")
    START_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    start: SynthesizeStart
    text: str
    tokens: Tokens
    def __init__(self, start: _Optional[_Union[SynthesizeStart, _Mapping]] = ..., text: _Optional[str] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ...) -> None: ...

class SynthesizeStart(_message.Message):
    __slots__ = ("voice", "seed", "rate_hz", "schedule", "lang")
    VOICE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    LANG_FIELD_NUMBER: _ClassVar[int]
    voice: str
    seed: int
    rate_hz: int
    schedule: _containers.RepeatedScalarFieldContainer[int]
    lang: str
    def __init__(self, voice: _Optional[str] = ..., seed: _Optional[int] = ..., rate_hz: _Optional[int] = ..., schedule: _Optional[_Iterable[int]] = ..., lang: _Optional[str] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SynthesizeResponse(_message.Message):
    __slots__ = ("started", "pcm")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PCM_FIELD_NUMBER: _ClassVar[int]
    started: SynthesizeStarted
    pcm: bytes
    def __init__(self, started: _Optional[_Union[SynthesizeStarted, _Mapping]] = ..., pcm: _Optional[bytes] = ...) -> None: ...

class SynthesizeStarted(_message.Message):
    __slots__ = ("rate_hz", "engine", "voice", "seed", "voice_digest", "schedule")
    RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    VOICE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    rate_hz: int
    engine: str
    voice: str
    seed: int
    voice_digest: str
    schedule: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rate_hz: _Optional[int] = ..., engine: _Optional[str] = ..., voice: _Optional[str] = ..., seed: _Optional[int] = ..., voice_digest: _Optional[str] = ..., schedule: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("audio",)
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    audio: bytes
    def __init__(self, audio: _Optional[bytes] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("ids", "rate_hz")
    IDS_FIELD_NUMBER: _ClassVar[int]
    RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    rate_hz: int
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., rate_hz: _Optional[int] = ...) -> None: ...
