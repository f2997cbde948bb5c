"""From a clip of speech to the voice that the flow takes: tokens, mel, speaker embedding.

Both models run on their public files as they are, by ONNX Runtime.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duologue.audio.clip import Clip
from duologue.audio.fbank import fbank
from duologue.audio.mel import FLOW_RATE_HZ, flow_mel
from duologue.audio.pcm import ASR_RATE_HZ, resample
from duologue.audio.whisper_mel import log_mel
from duologue.engines.graph import Graph
from duologue.engines.onnx import OnnxGraph
from duologue.errors import ModelError
from duologue.token2wav.layout import SPEAKER, TOKENIZER, check_files, name_front_end
from duologue.token2wav.step import FrontEndId, VoicePrompt

TOKEN_RATE_HZ = 25
FRAMES_PER_TOKEN = 4
"""Frames of the tokenizer's mel, 100 a second."""

WINDOW = 3000
OVERLAP = 400
SEAM = OVERLAP // 2 // FRAMES_PER_TOKEN


@dataclass(frozen=True, slots=True)
class VoiceFrontEnd:
    """The models that listen to a clip.

    Attributes:
        tokenizer: S3 speech tokenizer: log-mel [1, 128, T] and its length [1] to codes.
        speaker: CAM++: filter banks [1, T, 80] to an embedding.
        id: Names the two.
    """

    tokenizer: Graph
    speaker: Graph
    id: FrontEndId

    @classmethod
    def load(cls, folder: Path, *, threads: int = 1) -> "VoiceFrontEnd":
        """The two models in a folder of the public layout (stepfun-ai/Step-Audio-2-mini).

        Raises:
            ModelError: a file is missing, or is another model.
            EngineError: ONNX Runtime cannot load one.
        """
        names = TOKENIZER, SPEAKER
        check_files(folder, names, "the folder token2wav of a Step-Audio 2 model")
        tokenizer, speaker = (OnnxGraph(folder / name, threads=threads) for name in names)
        for name, graph, count in ((TOKENIZER, tokenizer, 2), (SPEAKER, speaker, 1)):
            if len(graph.inputs) != count:
                raise ModelError(
                    f"{folder / name} takes {len(graph.inputs)} inputs, expected {count}; "
                    "it is another model"
                )
        return cls(tokenizer, speaker, name_front_end(folder))

    def listen(self, clip: Clip) -> VoicePrompt:
        """The voice of a clip; what is left over of a last token (40 ms) is cut off.

        Raises:
            EngineError: a model failed.
        """
        n_tokens = len(clip.samples) * TOKEN_RATE_HZ // clip.rate_hz

        def at(rate_hz: int) -> np.ndarray:
            samples = resample(clip.samples, clip.rate_hz, rate_hz)
            return samples[: n_tokens * rate_hz // TOKEN_RATE_HZ]

        speech = at(ASR_RATE_HZ)
        tokens = tokenize(self.tokenizer, log_mel(speech, n_mels=128))
        mel = flow_mel(at(FLOW_RATE_HZ))
        embedding = embed(self.speaker, fbank(speech))
        digest = voice_digest(tokens, mel, embedding)
        return VoicePrompt(tokens, mel, embedding, digest, self.id)


def voice_digest(*arrays: np.ndarray) -> str:
    """Hash of arrays with their types and shapes, in hexadecimal."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def tokenize(tokenizer: Graph, mel: np.ndarray) -> np.ndarray:
    """Speech tokens of a log-mel float32 [128, T], int32 [ceil(T / 4)].

    What is longer than 30 s goes in windows that overlap by 4 s and meet in the middle of that
    (xingchensong/S3Tokenizer).

    Raises:
        EngineError: the tokenizer failed.
    """
    feats, feats_length = tokenizer.inputs
    starts = range(0, max(1, mel.shape[1] - OVERLAP), WINDOW - OVERLAP)
    parts = []
    for start in starts:
        window = mel[:, start : start + WINDOW]
        length = np.array([window.shape[1]], feats_length.dtype)
        (codes,) = tokenizer.run({feats.name: window[None], feats_length.name: length}).values()
        first = 0 if start == starts[0] else SEAM
        last = codes.size if start == starts[-1] else codes.size - SEAM
        parts.append(codes.reshape(-1)[first:last])
    return np.concatenate(parts).astype(np.int32)


def embed(speaker: Graph, banks: np.ndarray) -> np.ndarray:
    """Speaker embedding float32 [n] of log filter banks float32 [T, 80].

    Raises:
        EngineError: the model failed.
    """
    (port,) = speaker.inputs
    (embedding,) = speaker.run({port.name: (banks - banks.mean(axis=0))[None]}).values()
    return embedding.reshape(-1).astype(np.float32)
