"""The voices of a server: the store, the Piper voice, and the models that listen to clips."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from duologue.audio.clip import MAX_FILE_S, read_clip
from duologue.audio.pcm import read_audio
from duologue.audio.whisper_mel import log_mel
from duologue.errors import CapacityError, InputError, ModelError, UsageError
from duologue.serving.errors import NotLoaded, UnknownVoice, VoiceExists
from duologue.token2wav.front_end import VoiceFrontEnd, tokenize
from duologue.token2wav.step import FrontEndId, VoicePrompt
from duologue.voices import VoiceInfo, VoiceStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VoiceEntry:
    """A voice as a client sees it.

    Attributes:
        name: Its name.
        builtin: Whether it comes with the server.
        takes_text: Whether it can say text here.
        takes_tokens: Whether it can say speech tokens here.
        seconds: Length of its clip.
        digest: Its hash.
        model: What made it.
        problem: Why it cannot be used; empty if it can.
    """

    name: str
    builtin: bool = False
    takes_text: bool = False
    takes_tokens: bool = False
    seconds: float = 0.0
    digest: str = ""
    model: str = ""
    problem: str = ""


class Voices:
    """Voices by name.

    Args:
        store: Where they lie.
        builtin: The name of the text voice that comes with the server; empty if there is none.
        own: The voices of token2wav that come with the server.
        front_end: The models that listen to clips; None if there are none.
        decodes: Whether token2wav is loaded.
        takes: The models whose voices it takes; None for all.
        talks: Whether it says text, too.
        queue: Clips that may wait.
    """

    def __init__(
        self,
        store: VoiceStore,
        *,
        builtin: str = "",
        own: Mapping[str, VoicePrompt] | None = None,
        front_end: VoiceFrontEnd | None = None,
        decodes: bool = False,
        takes: FrontEndId | None = None,
        talks: bool = False,
        queue: int = 4,
    ):
        self._store, self._builtin, self._front_end = store, builtin, front_end
        self._own = dict(own or {})
        self._decodes, self._takes, self._talks = decodes, takes, talks
        self._queue, self._waiting = queue, 0
        self._pool = ThreadPoolExecutor(1, "listen")

    async def list(self) -> list[VoiceEntry]:
        """All voices, those that come with the server first.

        Raises:
            ModelError: the store cannot be read.
        """
        stored = await asyncio.to_thread(self._store.list)
        entries = [VoiceEntry(self._builtin, True, takes_text=True)] if self._builtin else []
        entries += [
            VoiceEntry(name, True, self._talks, self._decodes, digest=voice.digest)
            for name, voice in self._own.items()
        ]
        others = (name for name in stored if name not in self._own)
        return entries + [self._entry(name, stored[name]) for name in others]

    async def get(self, name: str) -> VoicePrompt:
        """A voice of token2wav.

        Raises:
            UnknownVoice: there is none of that name.
            ModelError: its file is damaged.
        """
        if name in self._own:
            return self._own[name]
        try:
            return await asyncio.to_thread(self._store.get, name)
        except UsageError as error:
            raise UnknownVoice(self._with_builtin(error)) from error

    async def add(self, name: str, clip: bytes, *, replace: bool = False) -> VoiceEntry:
        """Learn a voice from an audio file of 3 to 30 s.

        Raises:
            NotLoaded: no models that listen are loaded.
            VoiceExists: the name is taken.
            UsageError: the name cannot be used.
            InputError: the clip cannot be used.
            CapacityError: too many clips wait.
            EngineError: a model failed, or the store cannot be written.
        """
        front_end = self._listens()
        name = self._store.check_name(name, replace=True)
        if name in (self._builtin, *self._own):
            raise VoiceExists(f"voice {name!r} comes with the server; choose another name")
        if not replace and name in self._store.names():
            raise VoiceExists(f"voice {name!r} exists; choose another name, or replace it")
        info = await self._listen(
            lambda: self._store.add(name, _from_file(clip, read_clip), front_end, replace=replace)
        )
        return self._entry(info.name, info)

    async def delete(self, name: str) -> None:
        """Forget a stored voice; calls that have begun keep it.

        Raises:
            UnknownVoice: there is none of that name.
            UsageError: it comes with the server.
        """
        if name in (self._builtin, *self._own):
            raise UsageError(f"voice {name!r} comes with the server; it cannot be deleted")
        try:
            await asyncio.to_thread(self._store.delete, name)
        except UsageError as error:
            raise UnknownVoice(str(error)) from error

    async def tokenize(self, audio: bytes) -> np.ndarray:
        """Speech tokens of an audio file of at most two minutes, int32 [n], 25 a second.

        Raises:
            NotLoaded: no models that listen are loaded.
            InputError: it is no audio, or too long.
            CapacityError: too many clips wait.
            EngineError: the model failed.
        """
        front_end = self._listens()

        def work() -> np.ndarray:
            samples = _from_file(audio, lambda path: read_audio(path, max_s=MAX_FILE_S))
            return tokenize(front_end.tokenizer, log_mel(samples, n_mels=128))

        return await self._listen(work)

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _listens(self) -> VoiceFrontEnd:
        if self._front_end is None:
            raise NotLoaded(
                "no models that listen are loaded; name their folder in serve.front_end"
            )
        return self._front_end

    async def _listen(self, work: Callable[[], T]) -> T:
        """Do it in the one thread for that, in turn."""
        if self._waiting >= self._queue:
            raise CapacityError(f"{self._waiting} clips wait to be listened to; try again later")
        self._waiting += 1
        doing = self._pool.submit(work)
        # What a client that is gone has begun is still being done.
        loop = asyncio.get_running_loop()
        doing.add_done_callback(lambda _: loop.call_soon_threadsafe(self._done))
        return await asyncio.wrap_future(doing)

    def _done(self) -> None:
        self._waiting -= 1

    def _with_builtin(self, error: Exception) -> str:
        own = ", ".join(filter(None, (self._builtin, *self._own)))
        return f"{error} The server's own: {own}." if own else str(error)

    def _entry(self, name: str, found: VoiceInfo | ModelError) -> VoiceEntry:
        if not isinstance(found, VoiceInfo):
            return VoiceEntry(name, problem="damaged; delete it and add it again")
        fits = self._takes is None or found.model_digest == self._takes.digest
        works = self._decodes and fits
        problem = "" if fits else f"made with {found.model}, other models than the loaded ones"
        return VoiceEntry(
            name,
            takes_text=works and self._talks,
            takes_tokens=works,
            seconds=found.seconds,
            digest=found.digest,
            model=found.model,
            problem=problem,
        )


def _from_file(data: bytes, read: Callable[[Path], T]) -> T:
    """Read bytes by what reads files; the file's name is no business of the client."""
    with TemporaryDirectory(prefix="duologue-") as folder:
        path = Path(folder) / "audio"
        path.write_bytes(data)
        try:
            return read(path)
        except InputError as error:
            raise InputError(str(error).replace(str(path), "audio")) from error
