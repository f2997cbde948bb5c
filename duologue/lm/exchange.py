"""What an engine has with its server: every request is seen to its end, or its abort to that."""

import uuid
from collections.abc import AsyncGenerator

from duologue.errors import EngineError
from duologue.lm.abort import AbortWatch
from duologue.lm.chunks import ChunkReader, CompletionReader
from duologue.lm.engine import Ids, Request, Step
from duologue.lm.http_client import Answer, HttpClient
from duologue.lm.server import Call, Traffic
from duologue.lm.servers import server_of


class Exchange:
    """The requests of one engine.

    Args:
        http: The connection pool, closed with the exchange.
        kind: What kind of server it is, a key of `servers.SERVERS`.

    Attributes:
        server: How such a server is asked and stopped.
        watch: What became of aborts.

    Raises:
        ConfigError: no such kind.
    """

    def __init__(self, http: HttpClient, kind: str):
        self._http = http
        self._traffic = Traffic()
        self.server = server_of(kind, http, self._traffic)
        self.watch = AbortWatch()

    async def steps(
        self, call: Call, answer: Answer, reader: ChunkReader | CompletionReader
    ) -> AsyncGenerator[Step, None]:
        """What the reader makes of an answer; leaving early aborts it.

        Raises:
            EngineError: the server failed, went silent, or lost a part of the answer.
        """
        received = 0
        self._traffic.open += 1
        try:
            with self._http.explained():
                while (chunk := await self._http.soon(answer)) is not None:
                    for step in reader.read(chunk):
                        count = len(step.ids) if isinstance(step, Ids) else 1
                        received += count
                        self._traffic.received += count
                        yield step
                reader.check()
        except EngineError as error:
            # What the server has ended itself needs no abort; a server that went silent does.
            if not isinstance(error.__cause__, TimeoutError):
                await answer.close()
            raise
        finally:
            self._traffic.open -= 1
            if not answer.ended:
                at_most = max(0, call.limit - received)
                self.watch.follow(self.server.stop(answer, call), at_most)

    async def close(self) -> None:
        """See the last aborts through and close the connections."""
        await self.watch.settle()
        await self._http.close()


def wire_name(request: Request) -> str:
    """A name that no other request has, and none begins with."""
    return f"{request.request_id or 'duologue'}-{uuid.uuid4().hex}"
