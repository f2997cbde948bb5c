"""A Piper voice (VITS) straight on ONNX Runtime, with the time of every word.

Graph: input [1, T] int64, input_lengths [1], scales [3] -> waveform [1, 1, 1, N]. Ids are
`^ _ p _ p _ ... $`, phonemes by espeak-ng (rhasspy/piper). The graph holds one Ceil node, whose
output is the frames of each id (hop 256): it is made a second output, which times the words.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duologue.errors import EngineError, ModelError
from duologue.tts.phonemes import Phonemizer
from duologue.tts.words import Word, spread

DURATIONS = "/Ceil_output_0"
HOP = 256
MOST_IDS = 500
"""Of one run, some 12 s of speech: ONNX Runtime keeps the memory of the longest one for good."""
NOISE, NOISE_WIDTH = 0.667, 0.8


@dataclass(frozen=True, slots=True)
class Speech:
    """A spoken clause.

    Attributes:
        samples: float32 [n] at the voice's rate.
        words: Each word of the text with its place in text and samples, in order.
    """

    samples: np.ndarray
    words: list[Word]


class PhonemeIds:
    """Text to the ids that a Piper voice reads.

    Args:
        config: The voice's *.onnx.json.

    Raises:
        KeyError: it lacks the phonemes or espeak-ng's voice.
    """

    def __init__(self, config: dict):
        self._ids: dict[str, list[int]] = config["phoneme_id_map"]
        self._phonemizer = Phonemizer(config["espeak"]["voice"])

    def __call__(self, text: str) -> tuple[list[int], list[int]]:
        """Model ids of `text`, and for each phonemised word the index just behind its last id."""
        pad = self._ids["_"]
        ids, ends = [*self._ids["^"], *pad], []
        for ipa, mark in self._phonemizer.clauses(text):
            for word in ipa.split():
                known = [self._ids[p] for p in word if p in self._ids]
                for phoneme in known:
                    ids += [*phoneme, *pad]
                if known:
                    ends.append(len(ids))
                    ids += [*self._ids[" "], *pad]
            if mark in self._ids and ends:
                # The mark belongs to the word before it: replace the space behind that word.
                ids[ends[-1] :] = [*self._ids[mark], *pad, *self._ids[" "], *pad]
        return [*ids, *self._ids["$"]], ends

    def close(self) -> None:
        """End the phonemiser's process."""
        self._phonemizer.close()


class PiperVoice:
    """One voice in memory; sessions share it, one clause at a time.

    Args:
        folder: Holds one *.onnx with its *.onnx.json.
        threads: CPU threads of one synthesis.
        speed: 1.0 is the voice's own pace, 1.2 is faster.
        lively: Whether tone and timing vary from one synthesis to the next; they cannot be seeded.
    """

    def __init__(self, folder: Path, *, threads: int = 1, speed: float = 1.0, lively: bool = True):
        import onnxruntime

        models = sorted(folder.glob("*.onnx"))
        if len(models) != 1:
            raise ModelError(f"{folder}: found {len(models)} *.onnx files, expected one voice")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Patterns are kept for each length of input: they save no time here, and memory climbs.
        options.enable_mem_pattern = False
        try:
            config = json.loads(Path(f"{models[0]}.json").read_text(encoding="utf-8"))
            self.rate_hz: int = config["audio"]["sample_rate"]
            self._phoneme_ids = PhonemeIds(config)
            self._session = onnxruntime.InferenceSession(
                with_output(models[0].read_bytes(), DURATIONS),
                options,
                providers=["CPUExecutionProvider"],
            )
        except Exception as error:
            raise ModelError(
                f"{models[0]}: not a Piper voice ({error}); run `duologue models verify`"
            ) from error
        noise, noise_width = (NOISE, NOISE_WIDTH) if lively else (0.0, 0.0)
        self._scales = np.array([noise, 1.0 / speed, noise_width], np.float32)
        self.pool = ThreadPoolExecutor(1, "voice")

    def synthesize(self, text: str) -> Speech:
        """Speak one clause of plain text.

        Raises:
            EngineError: the phonemiser or the model failed.
        """
        ids, ends = self._phoneme_ids(text)
        if not ends:
            return Speech(np.zeros(0, np.float32), [])
        waves, end_samples, offset = [], [], 0
        for run, run_ends in runs(ids, ends):
            wave, edges = self._run(run, text)
            end_samples += [offset + int(edges[end - 1]) for end in run_ends]
            waves.append(wave)
            offset += len(wave)
        return Speech(np.concatenate(waves), spread(text, end_samples))

    def _run(self, ids: list[int], text: str) -> tuple[np.ndarray, np.ndarray]:
        """Samples, and the sample behind each id."""
        try:
            wave, frames = self._session.run(
                None,
                {
                    "input": np.array([ids], np.int64),
                    "input_lengths": np.array([len(ids)], np.int64),
                    "scales": self._scales,
                },
            )
        except Exception as error:
            raise EngineError(f"the voice failed on {text!r}: {error}") from error
        edges = np.cumsum(np.asarray(frames).ravel()).astype(int) * HOP
        return np.asarray(wave, np.float32).ravel(), edges

    def close(self) -> None:
        """End the phonemiser's process and this voice's thread."""
        self.pool.shutdown(wait=False)
        self._phoneme_ids.close()


def runs(ids: list[int], ends: list[int]) -> Iterator[tuple[list[int], list[int]]]:
    """A clause's ids and words' ends, as `PhonemeIds` gives them, in parts of `MOST_IDS` at most.

    A part ends between words, within a word only where that alone is longer.
    """
    begin, done, close = ids[:2], len(ids) - 1, ids[-1:]
    room = MOST_IDS - len(begin) - len(close)
    at = len(begin)
    while at < done:
        # Behind a word stands its mark or space, with its pad.
        fitting = [end + 2 for end in ends if at < end + 2 <= at + room]
        stop = done if done <= at + room else fitting[-1] if fitting else at + room
        inside = [end - at + len(begin) for end in ends if at < end <= stop]
        yield [*begin, *ids[at:stop], *close], inside
        at = stop


def with_output(model: bytes, tensor: str) -> bytes:
    """An ONNX file with one more graph output.

    Protobuf merges repeated sub-messages, so appending ModelProto{graph{output{name}}} adds the
    output without parsing the 60 MB before it.
    """

    def field(number: int, data: bytes) -> bytes:
        if len(data) > 127:
            raise ValueError(f"{tensor!r} is too long a tensor name")
        return bytes([number << 3 | 2, len(data)]) + data

    return model + field(7, field(12, field(1, tensor.encode())))
