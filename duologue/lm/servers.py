"""The kinds of servers: what each wants to be asked, and how it is seen to have stopped.

Closing the connection is how OpenAI's API aborts, but a server may go on generating
(vllm-project/vllm#54947). So an abort counts only when the server itself shows it.
"""

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from duologue.errors import ConfigError, EngineError
from duologue.lm import llamacpp_api
from duologue.lm.chunks import token_count
from duologue.lm.engine import Capabilities, Request
from duologue.lm.http_client import Answer, Chunk, HttpClient
from duologue.lm.server import Call, Prompt, Server, Traffic, pieces_of

POLL_S = 0.02


class Vllm(Server):
    """vLLM (docs.vllm.ai): stops when the connection closes, seen in /metrics.

    The metrics count all requests together. A server that others use too is therefore never seen
    to have stopped while it works for them.
    """

    capabilities = Capabilities(token_ids=True, prompt_ids=True, verified_abort=True)

    def identity(self, call: Call) -> dict[str, Any]:
        """See `Server.identity`."""
        return {"request_id": call.name}

    def options(self, request: Request) -> dict[str, Any]:
        """See `Server.options`."""
        return {
            "return_token_ids": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "add_special_tokens": False,
        }

    async def stop(self, answer: Answer, call: Call) -> int:
        """See `Server.stop`."""
        await answer.close()
        first: int | None = None
        while True:
            metrics = await self._http.get("/metrics")
            running = _metric(metrics, "num_requests_running")
            running += _metric(metrics, "num_requests_waiting")
            # What other requests brought has arrived; the rest went nowhere.
            lost = _metric(metrics, "generation_tokens_total") - self._traffic.received
            first = lost if first is None else first
            if running <= self._traffic.open:
                return max(0, lost - first)
            await asyncio.sleep(POLL_S)


class Sglang(Server):
    """SGLang (docs.sglang.ai): has an abort endpoint, upon which the stream comes to its end.

    It aborts every request whose name begins with the one given, and all of them for an empty one;
    so no name may begin another. Versions before sgl-project/sglang#30917 give text, no ids.
    """

    capabilities = Capabilities(token_ids=True, prompt_ids=True, verified_abort=True)

    def identity(self, call: Call) -> dict[str, Any]:
        """See `Server.identity`."""
        return {"rid": call.name}

    def options(self, request: Request) -> dict[str, Any]:
        """See `Server.options`."""
        return {"return_token_ids": True, "skip_special_tokens": False}

    async def stop(self, answer: Answer, call: Call) -> int:
        """See `Server.stop`."""
        try:
            await self._http.post("/abort_request", {"rid": call.name})
            with self._http.explained():
                return await _still_coming(answer)
        finally:
            await answer.close()


async def _still_coming(answer: Answer) -> int:
    """Tokens up to the answer's end; one that ends in an error has ended."""
    from openai import APIConnectionError, APIError

    count = 0
    try:
        while (chunk := await answer.next()) is not None:
            count += token_count(chunk)
    except APIConnectionError:
        raise
    except APIError:
        pass
    return count


class TrtllmServe(Server):
    """trtllm-serve (nvidia.github.io/TensorRT-LLM): refuses fields that it does not know.

    It gives ids instead of text when told not to detokenize. Nothing tells of a single request's
    end once its connection is closed.
    """

    capabilities = Capabilities(token_ids=True, prompt_ids=True)

    def options(self, request: Request) -> dict[str, Any]:
        """See `Server.options`."""
        ids = {"detokenize": False, "include_stop_str_in_output": True}
        # To find a stop text it needs the text.
        text = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
        return {"add_special_tokens": False} | (text if request.stop else ids)


class LlamaCppServer(Server):
    """llama.cpp's llama-server: ids in short requests (see `llamacpp_api`), seen in /slots.

    A request that is under way runs to its end; at the 31 tokens/s that speech needs at least, that
    takes 97 ms.
    """

    capabilities = Capabilities(token_ids=True, prompt_ids=True, verified_abort=True)
    always_sliced = 3

    def prompt(self, request: Request) -> Prompt:
        """See `Server.prompt`; ids and texts may alternate."""
        llamacpp_api.check_request(request)
        return pieces_of(request.parts)

    def identity(self, call: Call) -> dict[str, Any]:
        """See `Server.identity`; a seed is all that a slot tells of its request."""
        return {"seed": _seed(call)}

    def open(self, call: Call) -> Answer:
        """See `Server.open`."""
        return Answer(self._whole(call))

    async def _whole(self, call: Call) -> AsyncGenerator[Chunk, None]:
        from openai import BadRequestError

        prompt, limit = list(call.prompt), call.limit
        body = llamacpp_api.completion_body(call.request, prompt, limit, _seed(call))
        try:
            found = await self._http.single("/completion", body)
        except BadRequestError as error:
            if error.type != "exceed_context_size_error" or not call.position:
                raise
            ids, reason = [], "length"
        else:
            ids, reason, _ = llamacpp_api.read_completion(found, call.request.stop_ids)
        choice = {"token_ids": ids, "finish_reason": reason}
        yield {"choices": [choice], "usage": {"completion_tokens": len(ids)}}

    async def stop(self, answer: Answer, call: Call) -> int:
        """See `Server.stop`."""
        await answer.close()
        wasted = call.limit
        while (decoded := _decoded(await self._http.get("/slots"), _seed(call))) is not None:
            wasted = decoded
            await asyncio.sleep(POLL_S)
        return wasted


SERVERS: dict[str, type[Server]] = {
    "openai": Server,
    "vllm": Vllm,
    "sglang": Sglang,
    "trtllm": TrtllmServe,
    "llamacpp": LlamaCppServer,
}


def server_of(kind: str, http: HttpClient, traffic: Traffic) -> Server:
    """The server of a kind.

    Raises:
        ConfigError: no such kind.
    """
    if kind not in SERVERS:
        raise ConfigError(f"server {kind!r} is not known: use one of {', '.join(SERVERS)}")
    return SERVERS[kind](http, traffic)


def _metric(text: str, name: str) -> int:
    """A metric in Prometheus' text format, summed over its labels.

    Raises:
        EngineError: there is none of that name, or no number.
    """
    found = re.findall(rf"^vllm:{name}(?:\{{.*\}})? (\S+)", text, re.MULTILINE)
    if not found:
        raise EngineError(f"/metrics has no vllm:{name}")
    try:
        return round(sum(map(float, found)))
    except (ValueError, OverflowError) as error:
        raise EngineError(f"/metrics has a vllm:{name} of {found[0][:20]!r}") from error


class _Sampling(BaseModel):
    seed: int


class _Next(BaseModel):
    n_decoded: int


class _Slot(BaseModel):
    is_processing: bool
    params: _Sampling | None = None
    next_token: list[_Next] = []


_SLOTS = TypeAdapter(list[_Slot])


def _decoded(text: str, seed: int) -> int | None:
    """Tokens so far of the request at work with this seed; None if there is none.

    A slot at work that tells no seed may be the one.

    Raises:
        EngineError: the text is no list of slots.
    """
    try:
        slots = _SLOTS.validate_json(text)
    except ValidationError as error:
        raise EngineError(f"expected llama.cpp's /slots, got {text[:200]}") from error
    for slot in slots:
        if slot.is_processing and (slot.params is None or slot.params.seed == seed):
            return slot.next_token[0].n_decoded if slot.next_token else 0
    return None


def _seed(call: Call) -> int:
    seed = call.request.seed
    drawn = zlib.crc32(call.name.encode()) if seed is None else seed
    return llamacpp_api.seed_at(drawn, call.position)
