"""How a server is asked to go on from a raw prompt, and made to stop: what all kinds share."""

from dataclasses import dataclass
from typing import Any

from duologue.errors import EngineError, UsageError
from duologue.lm.engine import Capabilities, Request
from duologue.lm.http_client import Answer, HttpClient
from duologue.lm.prompt import AudioPart, IdsPart, Part

Prompt = str | list[int] | list[int | str]


@dataclass(slots=True)
class Call:
    """One request on the wire; an answer may take several.

    Attributes:
        request: What is asked.
        prompt: What the model goes on from.
        name: Its name on the wire, which no other request has.
        position: Tokens of the answer that came before.
        limit: Most tokens to generate.
    """

    request: Request
    prompt: Prompt = ""
    name: str = ""
    position: int = 0
    limit: int = 0


@dataclass(slots=True)
class Traffic:
    """What an engine has with its server.

    Attributes:
        open: Requests under way.
        received: Tokens that have arrived, of all requests.
    """

    open: int = 0
    received: int = 0


class Server:
    """A server of which nothing but OpenAI's API is known.

    Attributes:
        capabilities: What it can do.
        always_sliced: Most tokens of a request, if long answers always take several.
    """

    capabilities = Capabilities(prompt_ids=True)
    always_sliced: int | None = None

    def __init__(self, http: HttpClient, traffic: Traffic):
        self._http = http
        self._traffic = traffic

    def prompt(self, request: Request) -> Prompt:
        """The raw prompt of a request.

        Raises:
            UsageError: it has none, or one that this server cannot take.
        """
        pieces = pieces_of(request.parts)
        ids = [piece for piece in pieces if isinstance(piece, int)]
        if ids and len(ids) < len(pieces):
            raise UsageError(
                "this server takes a raw prompt as ids or as text, not both in turns: "
                "let the family's tokenizer make ids of it (duologue.lm.templates.prompt_ids)"
            )
        return ids or str(pieces[0])

    def identity(self, call: Call) -> dict[str, Any]:
        """Fields by which the server tells a request apart, in raw prompts and in chats."""
        return {}

    def options(self, request: Request) -> dict[str, Any]:
        """Fields beyond OpenAI's that a raw prompt needs."""
        return {}

    def open(self, call: Call) -> Answer:
        """Send a raw prompt."""
        request = call.request
        extra = self.identity(call) | self.options(request)
        if request.repeat_penalty != 1.0:
            extra["repetition_penalty"] = request.repeat_penalty
        if request.stop_ids:
            extra["stop_token_ids"] = list(request.stop_ids)
        body = {
            "model": self._http.model,
            "prompt": call.prompt,
            "max_tokens": call.limit,
            "temperature": request.temperature,
            "stream_options": {"include_usage": True},
            "extra_body": extra,
        }
        if request.stop:
            body["stop"] = list(request.stop)
        if request.seed is not None:
            body["seed"] = request.seed + call.position
        return self._http.completions(body)

    async def stop(self, answer: Answer, call: Call) -> int:
        """Abort, and return when the server is seen to have stopped.

        Returns:
            Tokens generated since.

        Raises:
            EngineError: it cannot be seen.
        """
        await answer.close()
        raise EngineError("this server does not tell whether it has stopped")


def pieces_of(parts: tuple[Part, ...]) -> list[int | str]:
    """Ids and texts in order; neighbouring texts are one, as a tokenizer must see them.

    Raises:
        UsageError: there is nothing, or sound.
    """
    pieces: list[int | str] = []
    for part in parts:
        if isinstance(part, AudioPart):
            raise UsageError("a raw prompt takes no sound: give it in a chat message")
        if isinstance(part, IdsPart):
            pieces += part.ids
        elif pieces and isinstance(last := pieces[-1], str):
            pieces[-1] = last + part.text
        elif part.text:
            pieces.append(part.text)
    if not pieces:
        raise UsageError("the request has no prompt: this engine takes parts, not messages")
    return pieces
