"""FunASR (SenseVoice, Paraformer, FSMN-VAD) in a process of its own, restarted when it dies.

Its pins clash with the rest of duologue; funasr_worker.py is the other end.
"""

import os
import re
import shutil
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from duologue.asr.funasr_process import Died, FunasrProcess
from duologue.errors import ConfigError, EngineError, ModelError
from duologue.models import ensure
from duologue.models.environment import Environment

TAG = re.compile(r"<\|([^|]*)\|>")
LANGUAGES = {"zh", "en", "yue", "ja", "ko"}
EMOTIONS = {"neutral", "happy", "sad", "angry", "fearful", "disgusted", "surprised"}
NOT_TOLD = {"nospeech", "emo_unknown", "event_unk", "withitn", "woitn"}
INSTALL = (
    "make an environment for it with `pip install funasr==1.4.16 kaldi-native-fbank torch` (the "
    "extra duologue[funasr]) and set DUOLOGUE_FUNASR_PYTHON to the Python in it"
)
CHECK = (
    "check the models: a folder needs configuration.json or config.yaml with model.pt, and a name "
    "needs the network"
)


@dataclass(frozen=True, slots=True)
class FunasrTranscript:
    """What was understood; what a model does not tell is "".

    Attributes:
        text: The words.
        language: "en", "zh", "yue", "ja", "ko".
        emotion: "neutral", "happy", "sad", "angry", "fearful", "disgusted", "surprised".
        event: "speech", "laughter", "applause", "cough", "bgm", ...
    """

    text: str
    language: str = ""
    emotion: str = ""
    event: str = ""

    @property
    def credible(self) -> bool:
        """Whether there is a word in it; the models do not tell how sure they are."""
        return bool(self.text)


def parse(text: str) -> FunasrTranscript:
    """Take SenseVoice's tags (`<|en|><|HAPPY|><|Laughter|><|withitn|>`) off its text.

    Every part of a longer text has its own; of all parts' tags the most telling ones are kept.
    """
    tags = [tag for tag in TAG.findall(text.lower()) if tag not in NOT_TOLD]
    languages = [tag for tag in tags if tag in LANGUAGES]
    emotions = [tag for tag in tags if tag in EMOTIONS]
    events = [tag for tag in tags if tag not in LANGUAGES | EMOTIONS]
    words = " ".join(TAG.sub(" ", text).split())
    # Noise is answered by a lone full stop.
    words = words if any(map(str.isalnum, words)) else ""
    return FunasrTranscript(words, _telling(languages), _telling(emotions), _telling(events))


def _telling(tags: list[str]) -> str:
    return min(tags, key=lambda tag: tag in ("neutral", "speech"), default="")


class Funasr:
    """FunASR's models; sessions share them, one call at a time.

    A model is a local folder, a `hub:ORG/REPO`, or a name that FunASR itself fetches.

    Args:
        segments: Recognises stretches of speech: SenseVoice, or an offline Paraformer.
        interims: A streaming Paraformer for speech that goes on, if any.
        vad: FSMN-VAD, to leave out what is no speech, if any.
        language: Of the speech; "auto" lets the model find out.
        device: As torch names it.
        threads: CPU threads of one recognition.
        hub: Where FunASR fetches names from: "ms" (ModelScope) or "hf" (Hugging Face).
        python: The interpreter that has FunASR; None takes DUOLOGUE_FUNASR_PYTHON, then this one.
        answer_s: Longest wait for one recognition.

    Raises:
        ConfigError: there is no such interpreter.
        ModelError: a model is no local folder, and the network is off.
        EngineError: FunASR is not installed there, or cannot load the models.
    """

    def __init__(
        self,
        segments: str,
        *,
        interims: str | None = None,
        vad: str | None = None,
        language: str = "auto",
        device: str = "cpu",
        threads: int = 1,
        hub: str = "ms",
        python: str | None = None,
        answer_s: float = 30.0,
    ):
        self._python = python or os.environ.get("DUOLOGUE_FUNASR_PYTHON") or sys.executable
        if not shutil.which(self._python):
            raise ConfigError(f"DUOLOGUE_FUNASR_PYTHON: {self._python} is no program; {INSTALL}")
        environment = Environment.read()
        self._offline = environment.DUOLOGUE_OFFLINE or not environment.DUOLOGUE_HUB
        self._setup = {"device": device, "threads": threads, "hub": hub}
        for key, ref in {"segments": segments, "interims": interims, "vad": vad}.items():
            self._setup[key] = ref and self._located(ref)
        self._language, self._answer_s = language, answer_s
        self.has_interims = interims is not None
        self.pool = ThreadPoolExecutor(1, "asr")
        self._closed = False
        self._streams = 0
        self._forgotten: deque[int] = deque()
        self._process: FunasrProcess | None = self._start()

    def transcribe(self, pcm: bytes) -> FunasrTranscript:
        """Recognise one stretch of speech, 16-bit mono PCM at 16 kHz.

        Raises:
            EngineError: FunASR failed, took too long, or died twice.
        """
        return parse(self._ask({"op": "segment", "language": self._language}, pcm))

    def stream(self) -> "FunasrStream":
        """A new stretch of speech to follow with the interim model."""
        self._streams += 1
        return FunasrStream(self, self._streams)

    def close(self) -> None:
        """End the process; a running call fails."""
        self._closed = True
        self.pool.shutdown(wait=False, cancel_futures=True)
        if self._process:
            self._process.stop()

    def feed(self, stream: int, pcm: bytes) -> str:
        """What the interim model understood anew; see `FunasrStream`."""
        return self._ask({"op": "stream", "stream": stream}, pcm)

    def forget(self, stream: int) -> None:
        """Free a stream's state, with the next request."""
        self._forgotten.append(stream)

    def _ask(self, request: dict, pcm: bytes) -> str:
        forget = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
        request |= {"bytes": len(pcm), "forget": forget}
        try:
            try:
                return self._once(request, pcm)
            except Died as death:
                if death.late:
                    raise
                return self._once(request, pcm)
        except (Died, EngineError) as error:
            raise EngineError(f"FunASR failed: {error}") from error

    def _once(self, request: dict, pcm: bytes) -> str:
        if self._closed:
            raise EngineError("it has been closed")
        process = self._process = self._process or self._start()
        try:
            return process.ask(request, pcm, self._answer_s)["text"]
        except Died:
            self._process = None
            raise

    def _start(self) -> FunasrProcess:
        try:
            return FunasrProcess(self._python, self._setup, offline=self._offline)
        except EngineError as error:
            missing = "No module named" in str(error)
            raise EngineError(f"{error}; {INSTALL if missing else CHECK}") from error

    def _located(self, ref: str) -> str:
        """A folder, or a name that FunASR may fetch."""
        if ref.startswith("hub:"):
            return str(ensure(ref))
        path = Path(ref).expanduser()
        if path.exists():
            return str(path.resolve())
        if self._offline:
            raise ModelError(
                f"{ref}: no such folder, and DUOLOGUE_OFFLINE or DUOLOGUE_HUB keeps FunASR from "
                "fetching it; name a folder that has it"
            )
        return ref


class FunasrStream:
    """One stretch of speech, followed while it goes on.

    Attributes:
        fed: Bytes taken.
    """

    def __init__(self, model: Funasr, number: int):
        self._model, self._number = model, number
        self._text = ""
        self.fed = 0

    def feed(self, pcm: bytes) -> FunasrTranscript:
        """Take the next audio, any length of 16-bit mono PCM at 16 kHz.

        Returns:
            All that has been understood so far.

        Raises:
            EngineError: see `Funasr.transcribe`.
        """
        text = self._model.feed(self._number, pcm)
        self.fed += len(pcm)
        two_words = self._text and text and (self._text[-1] + text[0]).isascii()
        self._text += f" {text}" if two_words else text
        return parse(self._text)

    def close(self) -> None:
        """Free its state."""
        self._model.forget(self._number)
