"""What is installed, what can run here, and what to do about the rest."""

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from duologue.errors import EngineError
from duologue.models import Store
from duologue.tts.phonemes import Phonemizer


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: `ok`, what was found, and what to do if it is not."""

    name: str
    ok: bool
    found: str
    advice: str = ""
    optional: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def examine() -> list[Check]:
    """Look at everything; nothing is downloaded or changed."""
    return [_machine(), _phonemizer(), *_packages(), *_models(), _gpu()]


def _machine() -> Check:
    found = f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}"
    return Check("machine", sys.version_info >= (3, 11), found, "Python 3.11 or newer is needed")


def _phonemizer() -> Check:
    phonemizer = Phonemizer("en-us")
    try:
        phonemizer.clauses("hello")
    except EngineError as error:
        return Check("espeak-ng", False, "not usable", str(error))
    finally:
        phonemizer.close()
    return Check("espeak-ng", True, "answers")


def _packages() -> list[Check]:
    # distribution, module, what it is for, whether the room works without it
    wanted = [
        ("ctranslate2", "ctranslate2", "speech recognition", False),
        ("xllamacpp", "xllamacpp", "the embedded LM", False),
        ("onnxruntime", "onnxruntime", "the voices", False),
        ("pipecat-ai", "pipecat", "the bots; pip install -e '.[room]'", False),
        ("webrtcvad-wheels", "webrtcvad", "vad.engine webrtcvad; -e '.[webrtcvad]'", True),
        ("funasr", "funasr", "asr.engine funasr; -e '.[funasr]'", True),
        ("torch", "torch", "GPU engines; not needed here", True),
    ]
    return [_package(*row) for row in wanted]


def _package(distribution: str, module: str, purpose: str, optional: bool) -> Check:
    try:
        found = version(distribution)
    except PackageNotFoundError:
        found = "not installed"
    ok = importlib.util.find_spec(module) is not None
    return Check(distribution, ok, found, f"is for {purpose}", optional)


def _models() -> list[Check]:
    store, checks = Store.default(), []
    for name in store.catalogue.names:
        entry, report = store.catalogue[name], store.inspect(name)
        state = report.state.value
        advice = f"`duologue models fetch {name}`"
        checks.append(Check(f"model {name}", state == "ready", state, advice, not entry.default))
    return checks


def _gpu() -> Check:
    found = shutil.which("nvidia-smi")
    return Check("NVIDIA GPU", found is not None, found or "none", "the CPU set-up runs", True)
