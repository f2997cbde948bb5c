"""The speech server as a Ray Serve deployment: speech.proto's calls, answered by many replicas.

    serve run deploy.ray.app:app setup=set-up.yaml

`cluster.yaml` has the whole of it. An utterance is one stream, which stays on one replica.
"""

import asyncio
import hmac
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import grpc
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.grpc_util import RayServegRPCContext, gRPCInputStream

from deploy.ray.scaling import QUEUED
from duologue.config import BotConfig, load_config
from duologue.errors import EngineError
from duologue.serving import speech_pb2 as pb
from duologue.serving.grpc_server import SpeechServicer
from duologue.serving.load import load_speaker
from duologue.serving.server import TOKEN

GRPC_SERVICES = ["duologue.serving.speech_pb2_grpc.add_SpeechServicer_to_server"]
"""What Ray's gRPC proxy is told to pass on."""

PLACES_TAKEN = 0.75
"""Share of a replica's places beyond which another one is started."""


class Refused(Exception):
    """Ends a call whose status is already set."""


class Relay:
    """The part of grpc.aio's context that the servicer uses, over Ray's.

    Args:
        context: Carries the status back.
        requests: What the client sends, if it sends a stream.
    """

    def __init__(self, context: RayServegRPCContext, requests: gRPCInputStream | None = None):
        self._context, self._requests = context, requests
        # Of one place: what the client does not take is not made.
        self._answers: asyncio.Queue[pb.SynthesizeResponse | None] = asyncio.Queue(1)

    async def read(self) -> Any:
        """The next message; EOF behind the last one."""
        assert self._requests is not None
        async for message in self._requests:
            return message
        if self._requests.is_cancelled():
            raise asyncio.CancelledError
        return grpc.aio.EOF  # type: ignore[attr-defined]

    async def write(self, answer: pb.SynthesizeResponse) -> None:
        """Send an answer once the one before it has been taken."""
        await self._answers.put(answer)

    async def send_initial_metadata(self, _: object) -> None:
        """Say that the call has a place. Ray sends metadata with the first answer: an empty one."""
        await self.write(pb.SynthesizeResponse())

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """End the call with a status."""
        self._context.set_code(code)
        self._context.set_details(details)
        raise Refused(details)

    async def answers(self, work: Any) -> AsyncIterator[pb.SynthesizeResponse]:
        """What `work` writes, to its end; leaving early cancels it."""

        async def run() -> None:
            try:
                await work
            finally:
                await self._answers.put(None)

        task = asyncio.create_task(run(), name="call")
        try:
            while (answer := await self._answers.get()) is not None:
                yield answer
            await task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, Refused):
                await task


class Speech:
    """One replica: the models of a set-up, and the calls on them.

    Args:
        config: The same set-up as for `duologue serve`.
    """

    async def __init__(self, config: BotConfig):
        self._speaker = await load_speaker(config)
        self._servicer: Any = SpeechServicer(self._speaker)
        self._wanted = os.environ.get(TOKEN, "")

    async def Synthesize(self, requests: gRPCInputStream, grpc_context: RayServegRPCContext):
        """Text or speech tokens to sound, both as they come."""
        relay = await self._relay(grpc_context, requests)
        async for answer in relay.answers(self._servicer.Synthesize(requests, relay)):
            yield answer

    async def ListVoices(self, request: pb.ListVoicesRequest, grpc_context: RayServegRPCContext):
        """All voices."""
        return await self._servicer.ListVoices(request, await self._relay(grpc_context))

    async def AddVoice(self, request: pb.AddVoiceRequest, grpc_context: RayServegRPCContext):
        """Learn a voice from a clip; replicas share the folder of voices."""
        return await self._servicer.AddVoice(request, await self._relay(grpc_context))

    async def DeleteVoice(self, request: pb.DeleteVoiceRequest, grpc_context: RayServegRPCContext):
        """Forget a voice."""
        return await self._servicer.DeleteVoice(request, await self._relay(grpc_context))

    async def Tokenize(self, request: pb.TokenizeRequest, grpc_context: RayServegRPCContext):
        """Sound to speech tokens."""
        return await self._servicer.Tokenize(request, await self._relay(grpc_context))

    async def check_health(self) -> None:
        """Ray replaces a replica for which this fails.

        Raises:
            EngineError: an engine has ended.
        """
        batcher = self._speaker.engines.batcher
        if batcher and not batcher.is_running:
            raise EngineError("token2wav has ended")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `QueuedAudio` decides by."""
        batcher = self._speaker.engines.batcher
        return {QUEUED: batcher.queued_audio_s if batcher else 0.0}

    async def _relay(
        self, context: RayServegRPCContext, requests: gRPCInputStream | None = None
    ) -> Relay:
        relay = Relay(context, requests)
        given = dict(context.invocation_metadata()).get("authorization", "")
        if self._wanted and not hmac.compare_digest(given, f"Bearer {self._wanted}"):
            await relay.abort(
                grpc.StatusCode.UNAUTHENTICATED, "send the metadata `authorization: Bearer TOKEN`"
            )
        return relay


class Arguments(BaseModel):
    """What the application is told.

    Attributes:
        setup: The YAML file of a set-up.
        min_replicas: Kept however little there is to do.
        max_replicas: Started at most.
        gpus: Of each replica; parts of one, if several replicas share it.
    """

    model_config = ConfigDict(extra="forbid")

    setup: Path
    min_replicas: int = 1
    max_replicas: int = 1
    gpus: float = 0


def app(arguments: Arguments) -> Application:
    """The application, as Ray builds it from a file or a command line.

    Raises:
        ConfigError: the set-up cannot be used.
    """
    config = load_config(arguments.setup)
    deployment = serve.deployment(
        Speech,
        name="Speech",
        ray_actor_options={"num_gpus": arguments.gpus},
        # A replica takes as many calls as its set-up has places; Ray asks another one beyond it.
        max_ongoing_requests=config.serve.sessions,
        # All that one replica loses when it dies come at once; whoever comes behind is refused.
        max_queued_requests=config.serve.sessions,
        graceful_shutdown_timeout_s=config.serve.drain_s,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=2,
        autoscaling_config=AutoscalingConfig(
            min_replicas=arguments.min_replicas,
            max_replicas=arguments.max_replicas,
            # Callers wait for what is added; what is taken away was loaded for minutes.
            upscale_delay_s=2,
            downscale_delay_s=120,
            look_back_period_s=12,
            policy=AutoscalingPolicy(
                policy_function="deploy.ray.scaling:QueuedAudio",
                policy_kwargs={"places": PLACES_TAKEN * config.serve.sessions},
            ),
        ),
    )
    return deployment.bind(config)
