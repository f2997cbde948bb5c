"""The room and the phone on Modal, on CPUs: `modal deploy -m deploy.modal.bot`.

A door sends every caller to a container of their own, over that container's tunnel. So signalling,
trickled candidates, a new path and the media stream all reach the process that holds the call.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import modal

from bots.assembly import load_listening
from bots.models import Models, load_models
from bots.ops_log import log_to
from bots.phone import Gate, Phone, check
from bots.phone import create_app as phone_app
from bots.room import create_app as room_app
from deploy.modal import settings
from deploy.modal.door import make_door
from deploy.modal.images import Volumes, bot_image, store
from deploy.modal.visit import OnePlace, listening, serve_while, stay
from duologue.errors import CapacityError

DEPLOYMENT = settings.read()
START_S = 600
"""A container's first breath: its image, the models from the Volume, their warm-up."""
PAGE_WAIT_S = 60
RING_WAIT_S = 12
"""A provider waits 15 s for what it is to do with a call."""
FULL = "All places are taken. Please try again in a minute."

app = modal.App("duologue-bot", include_source=False)
image = bot_image(DEPLOYMENT)
secret = modal.Secret.from_name("duologue-bot")
volumes: Volumes = {str(settings.STORE): store}


@app.cls(
    image=image,
    cpu=2.0,
    memory=4096,
    volumes=volumes,
    secrets=[secret],
    region=DEPLOYMENT.region,
    min_containers=DEPLOYMENT.warm,
    buffer_containers=DEPLOYMENT.warm,
    max_containers=DEPLOYMENT.most,
    scaledown_window=300,
    timeout=DEPLOYMENT.visit_s,
    startup_timeout=START_S,
)
class Bot:
    """A container of one caller at a time; its models outlast callers."""

    @modal.enter()
    async def load(self) -> None:
        """Load the models before anybody comes."""
        log_to(verbose=False)
        self.config = DEPLOYMENT.bot()
        await load_listening(self.config)
        self.models: Models = await load_models(self.config)

    @modal.exit()
    async def close(self) -> None:
        """Release the models."""
        await self.models.close()

    @modal.method()
    async def room(self, answers: modal.Queue) -> None:
        """Open a room for one caller, tell where, and stay until they have gone."""
        place = OnePlace()
        web = room_app(self.models, self.config)
        web.state.room.places = place
        with listening() as sock:
            async with modal.forward(sock.getsockname()[1]) as tunnel:
                await answers.put.aio(tunnel.url)
                await self._serve(web, sock, place, web.state.room.drain)

    @modal.method()
    async def phone(self, call_id: str, answers: modal.Queue) -> None:
        """Take one call of a provider, tell where its stream is to come, and stay until it ends."""
        place = OnePlace()
        phone = Phone(self.models, self.config)
        phone.lines = place
        with listening() as sock:
            async with modal.forward(sock.getsockname()[1]) as tunnel:
                config = self.config.phone.model_copy(update={"public_url": tunnel.url})
                gate = Gate(config, check(config))
                await answers.put.aio(gate.stream_url(call_id))
                await self._serve(phone_app(phone, gate), sock, place, phone.close)

    async def _serve(self, web, sock, place: OnePlace, drain) -> None:
        stays = stay(place, arrive_s=DEPLOYMENT.arrive_s, again_s=DEPLOYMENT.call_s)
        limit = self.config.limits.message_bytes
        await serve_while(web, sock, stays, drain, max_message=limit)


@app.function(
    image=image,
    secrets=[secret],
    region=DEPLOYMENT.region,
    min_containers=1,
    scaledown_window=300,
    timeout=PAGE_WAIT_S + 30,
)
@modal.concurrent(max_inputs=200)
@modal.asgi_app(label="duologue")
def door():
    """The address that people and providers know."""
    log_to(verbose=False)
    config = DEPLOYMENT.bot()
    gate = None
    if config.phone.public_url:
        gate = Gate(config.phone, check(config.phone))
    return make_door(open_room, open_line, gate, body_bytes=config.limits.body_bytes)


async def open_room() -> str:
    """A room's address.

    Raises:
        CapacityError: no container is free in time.
    """
    async with _answers() as answers:
        return await _address(Bot().room.spawn.aio(answers), answers, PAGE_WAIT_S)


async def open_line(call_id: str) -> str:
    """The address of a call's stream; raises as `open_room`."""
    async with _answers() as answers:
        return await _address(Bot().phone.spawn.aio(call_id, answers), answers, RING_WAIT_S)


@asynccontextmanager
async def _answers() -> AsyncIterator[modal.Queue]:
    async with modal.Queue.ephemeral() as queue:
        yield queue


async def _address(spawned, answers: modal.Queue, wait_s: float) -> str:
    visit = await spawned
    try:
        async with asyncio.timeout(wait_s):
            return str(await answers.get.aio())
    except TimeoutError as error:
        # Nobody will come to a container that is ready too late.
        await visit.cancel.aio()
        raise CapacityError(FULL) from error


@app.function(image=image, volumes=volumes, secrets=[secret], timeout=3600)
async def fetch() -> None:
    """Put the set-up's models into the Volume, and load them once."""
    models = await load_models(DEPLOYMENT.bot())
    await models.close()
    await store.commit.aio()
