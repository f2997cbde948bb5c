"""Whisper on CTranslate2, without its 30 s padding.

Whisper always encodes 30 s. A window of max(15 s, speech + 4 s) costs a half to a quarter of that
at the same word error rate; shorter windows make it loop, and so does a missing token cap.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duologue.audio.whisper_mel import HOP, RATE_HZ, log_mel
from duologue.errors import ModelError

MIN_WINDOW_S = 15.0
HASTY_WINDOW_S = 8.0
MARGIN_S = 4.0
MAX_SPEECH_S = 26.0
TOKENS_PER_S = 7
SPARE_TOKENS = 10


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was understood.

    Attributes:
        text: The words, without outer spaces.
        confidence: Mean log-probability per token; 0 is certain, below -1 is a guess.
        no_speech: Probability that the window holds no speech at all.
    """

    text: str
    confidence: float
    no_speech: float

    @property
    def credible(self) -> bool:
        """Whether the text is more likely heard than made up from noise."""
        return bool(self.text) and self.confidence > -1.0 and self.no_speech < 0.6


class Whisper:
    """One Whisper model in memory; sessions share it, one transcription at a time.

    Args:
        folder: CTranslate2 files: model.bin, config.json, tokenizer.json, vocabulary.*.
        language: Language code, for multilingual models only.
        threads: CPU threads of one transcription.
    """

    def __init__(self, folder: Path, *, language: str = "en", threads: int = 1):
        import ctranslate2
        from tokenizers import Tokenizer

        try:
            self._model = ctranslate2.models.Whisper(
                str(folder), device="cpu", compute_type="int8", intra_threads=threads
            )
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            raise ModelError(
                f"{folder}: not a CTranslate2 Whisper model ({error}); "
                "run `duologue models verify`, or convert the model with ct2-transformers-converter"
            ) from error
        prompt = ["<|startoftranscript|>"]
        if self._model.is_multilingual:
            prompt += [f"<|{language}|>", "<|transcribe|>"]
        elif language != "en":
            raise ModelError(f"{folder}: an English-only model cannot hear {language!r}")
        self._prompt = [self._token_id(name, folder) for name in [*prompt, "<|notimestamps|>"]]
        self.pool = ThreadPoolExecutor(1, "asr")

    def close(self) -> None:
        """End this model's thread."""
        self.pool.shutdown(wait=False)

    def _token_id(self, name: str, folder: Path) -> int:
        token = self._tokenizer.token_to_id(name)
        if token is None:
            raise ModelError(f"{folder}/tokenizer.json: has no {name}; is the language right?")
        return token

    def transcribe(self, samples: np.ndarray, *, hasty: bool = False) -> Transcript:
        """Transcribe float32 [n] at 16 kHz; audio over 26 s is cut at its quietest places.

        Args:
            samples: The audio.
            hasty: Half the time and more errors, for a first look at speech that goes on.
        """
        parts = [self._window(piece, hasty) for piece in pieces(samples)]
        if not parts:
            return Transcript("", 0.0, 1.0)
        return Transcript(
            " ".join(part.text for part in parts if part.text),
            min(part.confidence for part in parts),
            max(part.no_speech for part in parts),
        )

    def _window(self, samples: np.ndarray, hasty: bool) -> Transcript:
        import ctranslate2

        seconds = len(samples) / RATE_HZ
        window_s = max(HASTY_WINDOW_S if hasty else MIN_WINDOW_S, seconds + MARGIN_S)
        frames = round(window_s * RATE_HZ / HOP)
        features = ctranslate2.StorageView.from_array(log_mel(samples, frames)[None])
        (result,) = self._model.generate(
            features,
            [self._prompt],
            beam_size=1,
            # A short window tempts the model to repeat itself.
            no_repeat_ngram_size=3 if hasty else 0,
            max_length=len(self._prompt) + SPARE_TOKENS + round(TOKENS_PER_S * seconds),
            return_scores=True,
            return_no_speech_prob=True,
        )
        text = self._tokenizer.decode(result.sequences_ids[0], skip_special_tokens=True)
        return Transcript(text.strip(), float(result.scores[0]), float(result.no_speech_prob))


def pieces(samples: np.ndarray, max_s: float = MAX_SPEECH_S) -> Iterator[np.ndarray]:
    """Cut float32 [n] at 16 kHz into parts of at most `max_s`, each at a quiet place."""
    limit, search, hop = int(max_s * RATE_HZ), 6 * RATE_HZ, RATE_HZ // 50
    while len(samples) > limit:
        tail = samples[limit - search : limit].reshape(-1, hop)
        cut = limit - search + int(np.argmin((tail**2).mean(axis=1))) * hop + hop // 2
        yield samples[:cut]
        samples = samples[cut:]
    if len(samples):
        yield samples
