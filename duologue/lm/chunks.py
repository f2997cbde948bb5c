"""OpenAI's completion chunks to steps: a reader for chats and one for raw prompts."""

import itertools
import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, Field, StrictInt, ValidationError

from duologue.errors import EngineError
from duologue.lm.engine import Finish, Ids, MalformedCall, Step, TextDelta, ToolCall
from duologue.lm.tool_calls import MOST, Malformed, checked_call

M = TypeVar("M", bound=BaseModel)
Id = Annotated[StrictInt, Field(ge=0)]
_HALVES = re.compile("[\ud800-\udfff]")
Words = Annotated[str, AfterValidator(lambda text: _HALVES.sub("\ufffd", text))]
"""Text; half a surrogate pair, which JSON may hold and no encoding can, is no character in it."""

WHOLE = {"stop", "tool_calls", "function_call"}
"""Finish reasons after which a call has all its arguments; others ("length", "abort") cut it."""

_CUT = "the answer ends in the middle; the server or a proxy cut it off"
_IDS = itertools.count(1)


# What servers add to these fields is of no concern here, so unlike our own files they may.
class _Function(BaseModel):
    name: Words | None = None
    arguments: Words | None = None


class CallPiece(BaseModel):
    """A piece of a call that the server puts apart."""

    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class Spoken(BaseModel):
    """Speech as Step-Audio 2's vLLM puts it apart."""

    tts_text: Words | None = None
    tts_audio: Words | None = None


class _Delta(BaseModel):
    content: Words | None = None
    tts_content: Spoken | None = None
    tool_calls: list[CallPiece] | None = None


class _Choice(BaseModel):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(BaseModel):
    choices: list[_Choice] | None = None


class _RawChoice(BaseModel):
    text: Words | None = None
    token_ids: list[Id] | None = None
    prompt_token_ids: list[Id] | None = None
    finish_reason: str | None = None


class _AnyChoice(_RawChoice):
    delta: _Delta | None = None


class _AnyChunk(BaseModel):
    choices: list[_AnyChoice] | None = None


class _Usage(BaseModel):
    completion_tokens: Id | None = None


class _RawChunk(BaseModel):
    choices: list[_RawChoice] | None = None
    usage: _Usage | None = None


@dataclass(slots=True)
class _Call:
    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class Rejoined:
    """One stream of text from speech that was put apart and text that was not.

    The `<tts_end>` that the server's parser drops is spelled out again as soon as other text
    follows.
    """

    def __init__(self) -> None:
        self._speaks = False

    def texts(self, spoken: Spoken | None, content: str | None) -> Iterator[str]:
        """The texts of one delta, none of them empty."""
        for text in (spoken.tts_text, spoken.tts_audio) if spoken else ():
            if text:
                self._speaks = True
                yield text
        if content:
            if self._speaks:
                self._speaks = False
                yield "<tts_end>"
            yield content


class CallPieces:
    """Collects the pieces of an answer's tool calls.

    Args:
        bare: Names of the tools whose calls may come without arguments; None for all.
    """

    def __init__(self, bare: Container[str] | None = None) -> None:
        self._bare = bare
        self._calls: list[_Call] = []

    def add(self, pieces: Iterable[CallPiece]) -> None:
        """Take the pieces of one delta."""
        for piece in pieces:
            call = self._call(piece.index, piece.id or "")
            function = piece.function or _Function()
            name = function.name or ""
            # Some servers send the whole name again with every piece.
            call.name += "" if name == call.name else name
            call.arguments += function.arguments or ""

    def finish(self, *, whole: bool) -> Iterator[ToolCall | MalformedCall]:
        """The calls, in order; none of an answer that is cut off has its end."""
        calls, self._calls = self._calls, []
        for call in sorted(calls, key=lambda call: call.index):
            try:
                yield self._checked(call, whole)
            except Malformed as error:
                yield MalformedCall(str(error), f"{call.name} {call.arguments}"[:MOST])

    def _checked(self, call: _Call, whole: bool) -> ToolCall:
        if not whole:
            raise Malformed("it has no end")
        if not call.arguments and self._bare is not None and call.name not in self._bare:
            raise Malformed("it comes without arguments; the server may have lost them")
        name, arguments = checked_call(call.name, call.arguments or "{}")
        # Nine letters and digits: what the strictest chat templates take as an id.
        return ToolCall(call.call_id or f"call{next(_IDS):05d}", name, arguments)

    def _call(self, index: int | None, call_id: str) -> _Call:
        """The call that a piece belongs to; servers without indexes tell calls apart by id."""
        newest = self._calls[-1].index if self._calls else 0
        index = newest if index is None else index
        known = [call for call in self._calls if call.index == index]
        if not known or (call_id and known[-1].call_id not in ("", call_id)):
            known = [_Call(index)]
            self._calls += known
        known[-1].call_id = known[-1].call_id or call_id
        return known[-1]


class ChunkReader:
    """Collects the pieces of tool calls; text passes at once.

    A call is given out when its answer finishes: an answer that is cut off never yields a call
    with half its arguments (pipecat-ai/pipecat#4203).

    Where Step-Audio 2's vLLM puts speech apart (`tts_content`), its text and its audio tokens pass
    as the model wrote them.

    Args:
        bare: See `CallPieces`.

    Attributes:
        finished: Whether the answer's last step has been given out; what follows is ignored.
    """

    def __init__(self, bare: Container[str] | None = None) -> None:
        self.finished = False
        self._calls = CallPieces(bare)
        self._spoken = Rejoined()

    def read(self, chunk: dict[str, Any]) -> Iterator[Step]:
        """Steps of one chunk (a plain dict in the wire's form).

        Raises:
            EngineError: the chunk reports an error, or is no chat-completion chunk.
        """
        for choice in _parsed(_Chunk, chunk, "chat-completion chunk").choices or ():
            if self.finished:
                return
            delta = choice.delta or _Delta()
            for text in self._spoken.texts(delta.tts_content, delta.content):
                yield TextDelta(text)
            self._calls.add(delta.tool_calls or ())
            if choice.finish_reason:
                self.finished = True
                yield from self._calls.finish(whole=choice.finish_reason in WHOLE)
                yield Finish(choice.finish_reason)

    def check(self) -> None:
        """See that the answer is whole.

        Raises:
            EngineError: it has no end.
        """
        if not self.finished:
            raise EngineError(_CUT)


class CompletionReader:
    """The answer to a raw prompt, as ids, or as text where the server gives no ids.

    Attributes:
        ids: All ids so far.
        gives_ids: Whether the server gives ids; its text is ignored then.
        prompt_ids: The prompt as the server has tokenized it, empty if it does not tell.
        reason: Why the answer ended, None before that.
        usage: Generated tokens as the server counts them, None if it does not tell.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.gives_ids = False
        self.prompt_ids: list[int] = []
        self.reason: str | None = None
        self.usage: int | None = None

    def read(self, chunk: dict[str, Any]) -> Iterator[Step]:
        """Steps of one chunk (a plain dict in the wire's form); `Finish` is the caller's.

        Raises:
            EngineError: the chunk reports an error, or is no completion chunk.
        """
        parsed = _parsed(_RawChunk, chunk, "completion chunk")
        for choice in parsed.choices or ():
            self.prompt_ids = choice.prompt_token_ids or self.prompt_ids
            self.reason = choice.finish_reason or self.reason
            self.gives_ids |= choice.token_ids is not None
            if choice.token_ids:
                self.ids += choice.token_ids
                yield Ids(tuple(choice.token_ids))
            elif choice.text and not self.gives_ids:
                yield TextDelta(choice.text)
        if parsed.usage:
            self.usage = parsed.usage.completion_tokens

    def check(self) -> None:
        """See that the answer is whole.

        Servers have lost tokens of a stream (vllm-project/vllm#23335, #28635, #30099). What has
        been spoken by then stays spoken, but the turn must not be remembered as if it were whole.

        Raises:
            EngineError: it has no end, or not as many ids as the server counts.
        """
        if self.reason is None:
            raise EngineError(_CUT)
        if self.usage is None or not self.gives_ids or self.reason == "abort":
            return
        # Some servers count the token that ended the answer and keep it.
        kept = self.reason == "stop" and self.usage == len(self.ids) + 1
        if self.usage != len(self.ids) and not kept:
            raise EngineError(
                f"the server counts {self.usage} generated tokens but {len(self.ids)} arrived"
            )


def token_count(chunk: dict[str, Any]) -> int:
    """Tokens in a chunk of either kind; text without ids counts as one.

    Raises:
        EngineError: the chunk reports an error, or is none.
    """
    choices = _parsed(_AnyChunk, chunk, "chunk").choices or ()
    return sum(len(c.token_ids or ()) or bool(c.text or c.delta) for c in choices)


def _parsed(kind: type[M], chunk: dict[str, Any], name: str) -> M:
    if problem := problem_in(chunk):
        raise EngineError(f"the server broke the answer off: {problem}")
    try:
        return kind.model_validate(chunk)
    except ValidationError as error:
        raise EngineError(
            f"expected a {name}, got {str(chunk)[:200]}; is this an OpenAI-compatible server?"
        ) from error


def problem_in(chunk: dict[str, Any]) -> str:
    """The message of an error that stands where a chunk should; "" for a chunk."""
    error = chunk.get("error") or (chunk if chunk.get("object") == "error" else None)
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error or "")
