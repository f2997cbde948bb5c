"""A scripted stand-in for FunASR 1.4.16 on the worker's path, as noisy as the original.

A model is a folder. Files in it script it: `streaming` makes it a streaming Paraformer, `fail`
raises, `hang` never answers, `crash` ends the process; the last two act once and are removed.
What the worker asks for is written to `log.jsonl`.
"""

import importlib.util
import json
import os
import sys
import threading
from pathlib import Path

import numpy as np

INIT = {"model", "vad_model", "vad_kwargs", "device", "hub", "ncpu"}
INIT |= {"disable_update", "disable_pbar", "trust_remote_code"}
SEGMENT = {"cache", "language", "use_itn", "merge_vad", "merge_length_s"}
STREAM = {"cache", "is_final", "chunk_size"}
STREAM |= {"encoder_chunk_look_back", "decoder_chunk_look_back"}
ENVIRONMENT = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "PIP_NO_INDEX")


class AutoModel:
    def __init__(self, **kwargs):
        print("funasr version: 1.4.16.", flush=True)
        print("[INFO] ckpt\n" * 20_000, file=sys.stderr, flush=True)
        self.folder, self.vad = Path(kwargs["model"]), "vad_model" in kwargs
        if not self.folder.is_dir():
            print(f"Download: {self.folder} failed!")
            raise RuntimeError(
                f"model '{self.folder}' is not registered.\nRegistered: " + "X, " * 999
            )
        assert set(kwargs) <= INIT, set(kwargs) - INIT
        self.log(
            load=kwargs,
            environment={name: os.environ.get(name) for name in ENVIRONMENT},
            sees_our_folder=importlib.util.find_spec("funasr_client") is not None,
        )

    def log(self, **entry):
        with (self.folder / "log.jsonl").open("a") as file:
            print(json.dumps(entry), file=file)

    def generate(self, input, input_len=None, progress_callback=None, **options):
        print("\x1b[34mrtf_avg: 0.042\x1b[0m", flush=True)
        assert input.dtype == np.float32 and input.ndim == 1
        self.log(samples=len(input), **{k: v for k, v in options.items() if k != "cache"})
        self._misbehave()
        if (self.folder / "streaming").exists():
            assert set(options) <= STREAM, set(options) - STREAM
            return [{"key": "rand_key", "text": self._words(input, **options)}]
        assert set(options) <= SEGMENT, set(options) - SEGMENT
        return self._segment(input)

    def _misbehave(self):
        if (self.folder / "fail").exists():
            raise IndexError("index 0 is out of bounds\n for dimension 0")
        for what in ("crash", "hang"):
            if (script := self.folder / what).exists():
                if not (times := int(script.read_text() or 1) - 1):
                    script.unlink()
                else:
                    script.write_text(str(times))
                print(f"about to {what}", file=sys.stderr, flush=True)
                os._exit(9) if what == "crash" else threading.Event().wait()

    def _segment(self, samples):
        if not samples.any():
            noise = "<|nospeech|><|EMO_UNKNOWN|><|Speech|><|woitn|>."
            return [] if self.vad else [{"key": "rand_key", "text": noise}]
        text = f"{len(samples)} from {samples[0] * 32768:g} to {samples[-1] * 32768:g}"
        return [{"key": "rand_key", "text": f"<|en|><|HAPPY|><|Speech|><|withitn|>{text}"}]

    @staticmethod
    def _words(samples, cache, is_final, chunk_size, **_):
        held = np.concatenate([cache.get("held", samples[:0]), samples])
        stride, said = chunk_size[1] * 960, cache.get("said", 0)
        count = len(held) // stride
        cache.update(held=held[count * stride :], said=said + count)
        return " ".join(f"word{n}" for n in range(said, said + count))
