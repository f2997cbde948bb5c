"""The voice store: one file per voice in one folder, the same for every way in.

Each file is written aside and put in place in one step, so readers need no lock; writers of all
processes take turns.
"""

import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import platformdirs
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from duologue.audio.clip import Clip
from duologue.errors import ModelError, UsageError
from duologue.token2wav.front_end import VoiceFrontEnd, voice_digest
from duologue.token2wav.step import FrontEndId, VoicePrompt

ARRAYS = {"tokens": "int32", "mel": "float32", "embedding": "float32"}
"""What a voice holds, and of which type."""

_SUFFIX = ".safetensors"
_NAME = re.compile(r"[^\W_][\w-]{0,47}")


class VoiceInfo(BaseModel):
    """What is known of a stored voice.

    Attributes:
        name: Its name.
        seconds: Length of the clip without the silence around it.
        source_rate_hz: Sample rate of the clip.
        digest: Hash of the arrays; equal voices share their caches.
        model: Name of the models that made them.
        model_digest: Hash of these; a decoder of others refuses the voice.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    name: str
    seconds: float
    source_rate_hz: int
    digest: str
    model: str
    model_digest: str


@dataclass(frozen=True, slots=True)
class VoiceStore:
    """Voices below one folder, which is made when the first one comes."""

    folder: Path

    @classmethod
    def default(cls) -> "VoiceStore":
        """The voices in DUOLOGUE_VOICES, else in the user's data folder."""
        folder = os.environ.get("DUOLOGUE_VOICES")
        if folder:
            return cls(Path(folder).expanduser())
        return cls(platformdirs.user_data_path("duologue", appauthor=False) / "voices")

    def check_name(self, name: str, *, replace: bool = False) -> str:
        """The form of a name in which a voice can be added now.

        Args:
            name: Letters, digits, - and _, at most 48.
            replace: Whether it may take the place of a voice of that name.

        Raises:
            UsageError: the name cannot be used, or is taken.
            ModelError: the folder cannot be written.
        """
        name = _checked(name)
        self._check_writable()
        if not replace and self._path(name).exists():
            raise UsageError(f"voice {name!r} exists; choose another name, or replace it")
        return name

    def add(
        self, name: str, clip: Clip, front_end: VoiceFrontEnd, *, replace: bool = False
    ) -> VoiceInfo:
        """Learn a voice.

        Args:
            name: As for `check_name`.
            clip: What `read_clip` read.
            front_end: The models to listen with.
            replace: Whether it may take the place of a voice of that name.

        Raises:
            UsageError: the name cannot be used, or is taken.
            EngineError: a model failed, or the folder cannot be written.
        """
        name = self.check_name(name, replace=replace)
        voice = front_end.listen(clip)
        info = VoiceInfo(
            name=name,
            seconds=round(clip.seconds, 3),
            source_rate_hz=clip.rate_hz,
            digest=voice.digest,
            model=front_end.id.name,
            model_digest=front_end.id.digest,
        )
        data = save(
            {array: getattr(voice, array) for array in ARRAYS}, {"voice": info.model_dump_json()}
        )
        with self._writing():
            self.check_name(name, replace=replace)
            self._put(name, data)
        return info

    def get(self, name: str) -> VoicePrompt:
        """A voice.

        Raises:
            UsageError: no voice has that name.
            ModelError: its file is damaged.
        """
        info, arrays = self._read(_checked(name), tuple(ARRAYS))
        types = [str(array.dtype) for array in arrays]
        if types != list(ARRAYS.values()):
            expected = ", ".join(map("{} {}".format, ARRAYS, ARRAYS.values()))
            raise _damaged(self._path(name), f"found {', '.join(types)}, expected {expected}")
        front_end = FrontEndId(info.model, info.model_digest)
        voice = VoicePrompt(*arrays, digest=voice_digest(*arrays), front_end=front_end)
        if voice.digest != info.digest:
            raise _damaged(self._path(info.name), "its arrays have changed")
        return voice

    def info(self, name: str) -> VoiceInfo:
        """What is known of a voice.

        Raises:
            UsageError: no voice has that name.
            ModelError: its file is damaged.
        """
        return self._read(_checked(name))[0]

    def names(self) -> list[str]:
        """Names of all voices, sorted.

        Raises:
            ModelError: the store is not a folder.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise self._unusable("not a folder")
        files = (path for path in self.folder.glob(f"*{_SUFFIX}") if path.is_file())
        return sorted(path.stem for path in files if _NAME.fullmatch(path.stem))

    def list(self) -> dict[str, VoiceInfo | ModelError]:
        """All voices by name, sorted; for a damaged one what is wrong with it.

        Raises:
            ModelError: the store is not a folder.
        """
        found: dict[str, VoiceInfo | ModelError] = {}
        for name in self.names():
            try:
                found[name] = self.info(name)
            except UsageError:
                # Somebody deletes it at this moment.
                continue
            except ModelError as error:
                found[name] = error
        return found

    def delete(self, name: str) -> None:
        """Forget a voice, a damaged one too; sessions that have read it keep it.

        Raises:
            UsageError: no voice has that name.
        """
        name = _checked(name)
        if name not in self.names():
            raise self._unknown(name)
        with self._writing():
            # Somebody else may have deleted it at this moment.
            self._path(name).unlink(missing_ok=True)

    def _check_writable(self) -> None:
        """As far as can be told without writing."""
        nearest = self.folder
        while not os.path.lexists(nearest) and nearest != nearest.parent:
            nearest = nearest.parent
        if not nearest.is_dir():
            raise self._unusable(f"{nearest} is not a folder")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise self._unusable(f"{nearest} may not be written to")

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"

    def _unknown(self, name: str) -> UsageError:
        names = self.names()
        near = get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}."
        return UsageError(f"unknown voice {name!r}: {hint}")

    def _read(self, name: str, arrays: tuple[str, ...] = ()) -> tuple[VoiceInfo, tuple]:
        path = self._path(name)
        try:
            with safe_open(path, framework="numpy") as file:
                info = VoiceInfo.model_validate_json((file.metadata() or {}).get("voice", ""))
                # A file that somebody has renamed is a renamed voice.
                info = info.model_copy(update={"name": name})
                return info, tuple(file.get_tensor(array) for array in arrays)
        except (FileNotFoundError, NotADirectoryError):
            raise self._unknown(name) from None
        except (SafetensorError, ValidationError, OSError, TypeError, AttributeError) as error:
            raise _damaged(path, str(error)) from error

    def _put(self, name: str, data: bytes) -> None:
        aside = self.folder / ".new"
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self._path(name))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One writer at a time, over all processes that share the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock"):
                yield
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error

    def _unusable(self, reason: str) -> ModelError:
        return ModelError(
            f"the voice store {self.folder} cannot be used: {reason}. "
            "Set DUOLOGUE_VOICES to a folder that can be written."
        )


def _checked(name: str) -> str:
    """The name in the one form that is stored; it cannot lead out of the folder."""
    name = unicodedata.normalize("NFC", name)
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"voice {name!r}: expected a name of letters, digits, - and _, 48 at most, "
            "that begins with a letter or digit"
        )
    return name


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"{path}: a damaged voice ({what}); delete it and add it again")
