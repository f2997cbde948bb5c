"""A stand-in for the tensorrt_llm package, with the semantics that its sources document.

tensorrt_llm/llmapi/llm.py, executor/result.py, sampling_params.py: the output object is one and the
same at every step and holds all ids so far; the default of max_tokens is 32; without a tokenizer an
end id must be given; without top_k and top_p it is greedy; a stop id is taken off unless asked for;
an abort lets the step in work end, with reason "cancelled".
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from tests.lm.fake_servers import PACE_S, ids_after


@dataclass
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True

    @property
    def greedy(self) -> bool:
        return self.top_k in (None, 1) and self.top_p in (None, 0.0)


@dataclass
class CompletionOutput:
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class RequestOutput:
    """One answer; iterating goes on with it."""

    def __init__(self, llm: "LLM", prompt: Sequence[int], params: SamplingParams):
        self.outputs = [CompletionOutput()]
        self._llm, self._prompt, self._params = llm, prompt, params
        self._aborted = asyncio.Event()
        self._done = False

    def abort(self) -> None:
        self._aborted.set()
        self._llm.aborted += 1

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self._done:
            raise StopAsyncIteration
        await asyncio.sleep(PACE_S)
        if self._llm.silent:
            await self._aborted.wait()
        if self._llm.deaf and self._aborted.is_set():
            await asyncio.Event().wait()
        output = self.outputs[0]
        if len(output.token_ids) == self._llm.broken_at:
            self._done = True
            raise RuntimeError("CUDA error: an illegal memory access")
        self._step(output)
        self._done = output.finish_reason is not None
        if self._llm.says_no_reason:
            output.finish_reason = None
        return self

    def _step(self, output: CompletionOutput) -> None:
        ids, params = output.token_ids, self._params
        for _ in range(min(self._llm.per_step, params.max_tokens - len(ids))):
            ids += ids_after([*self._prompt, *ids], 1)
            if ids[-1] in (params.stop_token_ids or ()):
                output.finish_reason = "stop"
                if not params.include_stop_str_in_output:
                    ids.pop()
                return
        if len(ids) == params.max_tokens:
            output.finish_reason = "length"
        elif self._aborted.is_set():
            output.finish_reason = "cancelled"


class LLM:
    """The model; settings of the class are the script."""

    per_step = 1
    broken_at = -1
    silent = deaf = says_no_reason = False

    def __init__(self, model: str, *, skip_tokenizer_init: bool = False, **options: Any):
        if model == "missing":
            raise ValueError("no such checkpoint")
        assert skip_tokenizer_init
        self.model, self.options = model, options
        self.asked: list[SamplingParams] = []
        self.called = asyncio.Event()
        self.aborted = 0
        self.shut = False

    def generate_async(
        self, inputs: Sequence[int], sampling_params: SamplingParams, *, streaming: bool
    ) -> RequestOutput:
        assert streaming and type(inputs) is list
        if sampling_params.end_id is None:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        if len(inputs) > 1000:
            raise ValueError("the prompt is longer than max_seq_len")
        self.asked.append(sampling_params)
        self.called.set()
        return RequestOutput(self, inputs, sampling_params)

    def shutdown(self) -> None:
        self.shut = True


def package() -> ModuleType:
    module = ModuleType("tensorrt_llm")
    module.LLM, module.SamplingParams = LLM, SamplingParams  # type: ignore[attr-defined]
    return module
