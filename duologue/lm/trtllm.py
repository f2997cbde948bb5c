"""TensorRT-LLM in this process: token ids in, token ids out (nvidia.github.io/TensorRT-LLM)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from duologue.errors import EngineError, UsageError
from duologue.lm.abort import Aborts, AbortWatch
from duologue.lm.engine import Capabilities, Finish, Ids, Request, Step
from duologue.lm.raw import RawEngine, check_raw
from duologue.lm.server import pieces_of


class TrtLlm(RawEngine):
    """One model on this machine's GPUs.

    Args:
        model: A folder with the model's checkpoint, or its name on the Hugging Face hub.
        timeout_s: Longest wait for the next ids.
        options: Further arguments of `tensorrt_llm.LLM`, such as `tensor_parallel_size`.

    Raises:
        EngineError: TensorRT-LLM is not installed, or cannot load the model.
    """

    capabilities = Capabilities(token_ids=True, prompt_ids=True, verified_abort=True)

    def __init__(self, model: Path | str, *, timeout_s: float = 20.0, **options: Any):
        try:
            from tensorrt_llm import LLM, SamplingParams
        except ImportError as error:
            raise EngineError(
                "TensorRT-LLM is not installed: pip install tensorrt-llm, in an environment of its "
                "own because of the versions of torch and numpy that it demands; or run "
                "trtllm-serve there and use Completions(..., server='trtllm')"
            ) from error
        self._sampling, self._timeout_s = SamplingParams, timeout_s
        try:
            self._llm = LLM(model=str(model), skip_tokenizer_init=True, **options)
        except Exception as error:
            raise EngineError(f"TensorRT-LLM cannot load {model}: {error}") from error
        self._watch = AbortWatch()

    @property
    def aborts(self) -> Aborts:
        """What became of aborted requests."""
        return self._watch.aborts

    async def stream(self, request: Request) -> AsyncIterator[Step]:
        """See `Engine.stream`; takes `Request.parts` of ids alone."""
        ids, params = _prompt(request), self._params(request)
        given, reason, ended = 0, None, False
        try:
            result = self._llm.generate_async(ids, params, streaming=True)
        except Exception as error:
            raise EngineError(f"TensorRT-LLM refuses the request: {error}") from error
        try:
            outputs = aiter(result)
            while (output := await self._next(outputs)) is not None:
                completion = output.outputs[0]
                # Each output holds the whole answer so far.
                if new := tuple(completion.token_ids[given:]):
                    given += len(new)
                    yield Ids(new)
                reason = completion.finish_reason or reason
            ended = True
        except EngineError as error:
            # What has failed needs no abort; what went silent does.
            ended = not isinstance(error.__cause__, TimeoutError)
            raise
        finally:
            if not ended:
                result.abort()
                self._watch.follow(_stopped(result, given), request.max_tokens - given)
        if reason is None:
            raise EngineError("TensorRT-LLM ended the answer without saying why")
        yield Finish(reason, given)

    async def close(self) -> None:
        """See the last aborts through and release the GPUs."""
        await self._watch.settle()
        await asyncio.to_thread(self._llm.shutdown)

    async def _next(self, outputs: AsyncIterator[Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await anext(outputs, None)
        except TimeoutError as error:
            raise EngineError(
                f"TensorRT-LLM gave no ids within {self._timeout_s:g} s; is the GPU overloaded?"
            ) from error
        except Exception as error:
            raise EngineError(f"TensorRT-LLM failed: {error}") from error

    def _params(self, request: Request) -> Any:
        # By its own rule, sampling without top_k and top_p is greedy.
        greedy = {"top_k": 1}
        sampled = {"temperature": request.temperature, "top_p": 1.0}
        return self._sampling(
            # Its default is 32.
            max_tokens=request.max_tokens,
            # Without a tokenizer it knows no end token, and must be told that there is none.
            end_id=-1,
            stop_token_ids=list(request.stop_ids) or None,
            include_stop_str_in_output=True,
            detokenize=False,
            repetition_penalty=request.repeat_penalty,
            seed=request.seed,
            **(sampled if request.temperature > 0 else greedy),
        )


def _prompt(request: Request) -> list[int]:
    check_raw(request)
    if request.stop:
        raise UsageError("TensorRT-LLM runs without a tokenizer here: give stop_ids, not stop")
    pieces = pieces_of(request.parts)
    ids = [piece for piece in pieces if isinstance(piece, int)]
    if len(ids) < len(pieces):
        raise UsageError(
            "TensorRT-LLM runs without a tokenizer here: let the family's tokenizer make ids of "
            "the prompt (duologue.lm.templates.prompt_ids)"
        )
    return ids


async def _stopped(result: Any, given: int) -> int:
    """Wait for the aborted answer's end; the ids that came after the abort."""
    count = given
    # An answer that ends in an error has ended.
    with suppress(Exception):
        async for output in result:
            count = len(output.outputs[0].token_ids)
    return max(0, count - given)
