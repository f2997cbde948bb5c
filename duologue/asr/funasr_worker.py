"""FunASR in a process of its own: JSON lines and raw PCM in, JSON lines out.

Its pins clash with the rest, so it runs on the Python that has it; this file imports nothing of
duologue. The first line is the set-up, answered by {"ready": true} once the models are loaded:
{"segments": MODEL, "interims": MODEL|null, "vad": MODEL|null, "device", "threads", "hub"}.
A request is a line, then `bytes` of 16-bit mono PCM at 16 kHz; its answer is {"text": s}:
{"op": "segment", "bytes": n, "language": s}, {"op": "stream", "bytes": n, "stream": id}; the key
"forget" lists streams that have ended. Anything that fails is answered by {"error": s}.
"""

import json
import os
import sys

STREAM_CHUNK = [0, 8, 4]
"""Streaming Paraformer's chunk in 60 ms units: none before, 480 ms, 240 ms after."""

SHORTEST = 1600
"""Samples (0.1 s) below which the models' front ends have too few frames."""


class Recognizer:
    """The models of one process.

    Args:
        setup: The first line.
    """

    def __init__(self, setup):
        from funasr import AutoModel  # pyright: ignore[reportMissingImports]

        # A model's folder may ask for code of its own and for packages; it gets neither.
        common = {"device": setup["device"], "hub": setup["hub"], "ncpu": setup["threads"]}
        common.update(disable_update=True, disable_pbar=True, trust_remote_code=False)
        vad = {}
        if setup["vad"]:
            vad = {"vad_model": setup["vad"], "vad_kwargs": {"trust_remote_code": False}}
        self._segments = AutoModel(model=setup["segments"], **vad, **common)
        self._interims = setup["interims"] and AutoModel(model=setup["interims"], **common)
        self._caches = {}

    def answer(self, request, samples):
        """The text of a request whose audio is `samples`, float32 [n]."""
        for stream in request.get("forget", []):
            self._caches.pop(stream, None)
        if request["op"] == "stream":
            return self._stream(request["stream"], samples)
        if len(samples) < SHORTEST:
            return ""
        return self._text(
            self._segments.generate(
                input=samples,
                cache={},
                language=request["language"],
                use_itn=True,
                merge_vad=True,
                merge_length_s=15,
            )
        )

    def _stream(self, stream, samples):
        cache = self._caches.setdefault(stream, {})
        return self._text(
            self._interims.generate(
                input=samples,
                cache=cache,
                is_final=False,
                chunk_size=STREAM_CHUNK,
                encoder_chunk_look_back=4,
                decoder_chunk_look_back=1,
            )
        )

    @staticmethod
    def _text(results):
        # Audio without speech gives no result at all.
        return " ".join(result["text"] for result in results)


def serve(requests, answers):
    """Answer requests (binary in, text out) until their pipe closes."""
    import numpy as np

    recognizer = Recognizer(json.loads(requests.readline()))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in requests:
        try:
            request = json.loads(line)
            pcm = np.frombuffer(requests.read(request["bytes"]), "<i2")
            answer = {"text": recognizer.answer(request, pcm.astype(np.float32) / 32768)}
        except Exception as error:
            answer = failure(error)
        print(json.dumps(answer), file=answers, flush=True)


def failure(error):
    """An answer that tells what went wrong, in one line; FunASR lists all it has."""
    return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}


def main():
    """Keep the protocol's pipe from what libraries print, and this folder from their imports."""
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, answers)
    except Exception as error:
        print(json.dumps(failure(error)), file=answers, flush=True)


if __name__ == "__main__":
    main()
