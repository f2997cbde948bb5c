"""A model on llama.cpp in process and over HTTP, with what its server tells of itself."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import requests
from xllamacpp import CommonParams, Server

from duologue.lm.engine import Request
from duologue.lm.llamacpp import LlamaCpp

CONTEXT = 512


def load(model: Path) -> Server:
    params = CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.n_parallel = 2 * CONTEXT, 2
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_ram_mib, params.ui, params.verbosity = 0, False, -1
    params.endpoint_metrics = True
    return Server(params)


class Made:
    """A model in both forms."""

    def __init__(self, model: Path):
        self.model = model
        self.server = load(model)
        self.root = self.server.listening_address
        self.in_process = LlamaCpp(model, prefill_threads=1, context=CONTEXT, slots=2)

    def whole(self, prompt: Sequence[int | str], tokens: int) -> list[int]:
        """What the server gives in one piece."""
        return self.post(prompt, tokens)["tokens"]

    def margin(self, request: Request) -> float:
        """How far the choice of every token was from a tie, in nats."""
        ids = [token for part in request.parts for token in part.ids]
        found = self.post(ids, request.max_tokens, n_probs=2)["completion_probabilities"]
        tops = [[top["logprob"] for top in token["top_logprobs"]] for token in found]
        return min(first - second for first, second in tops)

    def post(self, prompt: Sequence[int | str], tokens: int, **options) -> dict[str, Any]:
        body = {"prompt": prompt, "n_predict": tokens, "temperature": 0.0, "return_tokens": True}
        return requests.post(f"{self.root}/completion", json=body | options, timeout=20).json()

    def generated(self) -> int:
        """Tokens that the server has generated so far, by its own counter."""
        text = requests.get(f"{self.root}/metrics", timeout=20).text
        found = re.search(r"^llamacpp:tokens_predicted_total (\d+)", text, re.MULTILINE)
        assert found
        return int(found[1])

    def busy(self) -> int:
        slots = requests.get(f"{self.root}/slots", timeout=20).json()
        return sum(slot["is_processing"] for slot in slots)
