"""llama.cpp's own completion API: the way to exact token ids, over HTTP and in process.

A stream of llama.cpp leaves out every token behind which the text ends within a UTF-8 character,
and audio tokens, which have no text, do not end one: in Step-Audio 2's interleave a character that
is split over two text tokens loses the four audio tokens between them. Only a request that is
answered in one piece has all ids (`return_tokens`, ggml-org/llama.cpp#10853). So an answer is made
of many short requests, each going on behind the ids so far. The prefix cache makes that cheap.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from duologue.errors import EngineError, UsageError
from duologue.lm.chunks import Id
from duologue.lm.engine import Request

_DRAWN = 0xFFFFFFFF
"""The seed that stands for any."""


class _Completion(BaseModel):
    tokens: list[Id]
    tokens_evaluated: Id
    tokens_predicted: Id
    stop_type: str


def check_request(request: Request) -> None:
    """Refuse what short requests cannot do.

    Raises:
        UsageError: stop texts, which may lie across requests.
    """
    if request.stop:
        raise UsageError(
            f"llama.cpp takes stop_ids for a raw prompt, not stop texts such as {request.stop[0]!r}"
        )


def seed_at(seed: int, position: int) -> int:
    """The seed of the request that begins at a token of the answer: each draws anew."""
    return (seed * 0x9E3779B1 + position * 0x85EBCA6B) % _DRAWN


def completion_body(
    request: Request, prompt: Sequence[int | str], limit: int, seed: int
) -> dict[str, Any]:
    """What to post to /completion, or to give to `Server.handle_completions`.

    Args:
        request: Its sampling counts.
        prompt: Ids, and texts with their special tokens spelled out.
        limit: Most tokens to generate.
        seed: Of this request.
    """
    return {
        "prompt": prompt,
        "n_predict": limit,
        "temperature": request.temperature,
        "repeat_penalty": request.repeat_penalty,
        "seed": seed,
        "cache_prompt": True,
        "return_tokens": True,
        "stream": False,
    }


def read_completion(found: Any, stop_ids: Sequence[int]) -> tuple[list[int], str, int]:
    """The answer to such a request.

    Returns:
        The ids up to the first of `stop_ids`, the reason of the end, and the tokens of the prompt.

    Raises:
        EngineError: it is none, or lacks ids.
    """
    try:
        answer = _Completion.model_validate(found)
    except ValidationError as error:
        raise EngineError(f"expected a completion of llama.cpp, got {str(found)[:200]}") from error
    ids, count = answer.tokens, answer.tokens_predicted
    if len(ids) != count:
        raise EngineError(f"llama.cpp counts {count} generated tokens but gave {len(ids)}")
    for place, token in enumerate(ids):
        if token in stop_ids:
            return ids[: place + 1], "stop", answer.tokens_evaluated
    reason = "length" if answer.stop_type == "limit" else "stop"
    return ids, reason, answer.tokens_evaluated
