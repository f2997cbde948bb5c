"""The Modal apps without an account: definitions, local runs, whole visits through the door."""

import asyncio
import importlib
import os
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from bots.models import Models
from bots.phone_auth import SIGNATURE, Secrets, sign
from duologue.errors import ConfigError
from tests.fakes import FakeEngine, FakeVoice
from tests.phone_calls import FORM, dial, status_of
from tests.room_callers import Browser

modal = pytest.importorskip("modal", reason="needs the extra `modal`")
# What runs in this process has no Volume, and needs none.
pytestmark = pytest.mark.filterwarnings("ignore:The .* function is executing locally:UserWarning")

from deploy.modal import bot, images, settings, speech  # noqa: E402
from deploy.modal.visit import OnePlace, stay  # noqa: E402

DOOR = "https://door.example"
ACCOUNT = Secrets("token of the account")
ARRIVE_S = 1.5
LOGIN = httpx.BasicAuth("ada", "open sesame")


class Answers(asyncio.Queue):
    """A Queue of Modal's, in this process."""

    def __init__(self) -> None:
        super().__init__()
        take, give = self.get, self.put
        self.get, self.put = SimpleNamespace(aio=take), SimpleNamespace(aio=give)  # type: ignore


class Cloud:
    """What Modal does, as far as these apps ask it: spawned calls, tunnels and queues."""

    def __init__(self, container: Any):
        self.visits: list[asyncio.Task] = []
        self.cancelled = 0
        self.full = False
        self._container = container

    @asynccontextmanager
    async def forward(self, port: int):
        yield SimpleNamespace(url=f"http://127.0.0.1:{port}")

    @asynccontextmanager
    async def ephemeral(self):
        yield Answers()

    def bot(self) -> Any:
        def spawns(method: str) -> Any:
            async def spawn(*args: Any) -> Any:
                if not self.full:
                    run = getattr(self._container, method).local
                    self.visits.append(asyncio.create_task(run(*args)))
                return SimpleNamespace(cancel=SimpleNamespace(aio=self._cancel))

            return SimpleNamespace(spawn=SimpleNamespace(aio=spawn))

        return SimpleNamespace(room=spawns("room"), phone=spawns("phone"))

    async def _cancel(self) -> None:
        self.cancelled += 1


def unwrap(partial: Any) -> Any:
    """The function under decorators of Modal's."""
    return next(iter(vars(partial).values())).raw_f


async def hook(container: Any, name: str) -> None:
    """Run what Modal runs at a container's start or end."""
    await unwrap(vars(type(container))[name])(container)


class SharedModels(Models):
    """Closing them would close the session's Whisper."""

    async def close(self) -> None:
        await self.lm.close()


@pytest.fixture
async def cloud(whisper, monkeypatch):
    """The bot app on a cloud of one container, whose models are stand-ins."""
    monkeypatch.setenv("DUOLOGUE_PAGE_PASSWORD", "open sesame")
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", ACCOUNT.auth_token)
    monkeypatch.setenv("DUOLOGUE_PHONE__PUBLIC_URL", DOOR)
    monkeypatch.setenv("DUOLOGUE_PHONE__GREETING", "Good morning to you.")

    async def load_models(config):
        return SharedModels(whisper, FakeEngine(), FakeVoice())

    monkeypatch.setattr(bot, "load_models", load_models)
    monkeypatch.setattr(bot, "log_to", lambda **_: None)
    quick = bot.DEPLOYMENT.model_copy(update={"arrive_s": ARRIVE_S})
    monkeypatch.setattr(bot, "DEPLOYMENT", quick)
    monkeypatch.setattr(bot, "PAGE_WAIT_S", 5)
    monkeypatch.setattr(bot, "RING_WAIT_S", 5)
    container = bot.Bot()
    # `local` runs the hooks of methods that are not asynchronous only.
    inside = container._cached_user_cls_instance()
    await hook(inside, "load")
    cloud = Cloud(container)
    monkeypatch.setattr(modal, "forward", cloud.forward)
    monkeypatch.setattr(modal.Queue, "ephemeral", cloud.ephemeral)
    monkeypatch.setattr(bot, "Bot", cloud.bot)
    yield cloud
    for visit in cloud.visits:
        visit.cancel()
    await asyncio.gather(*cloud.visits, return_exceptions=True)
    await hook(inside, "close")


@asynccontextmanager
async def at_the_door(**options: Any):
    transport = httpx.ASGITransport(app=bot.door.local())
    async with httpx.AsyncClient(transport=transport, base_url=DOOR, **options) as client:
        yield client


async def test_a_visitor_has_a_room_of_their_own(cloud):
    async with at_the_door(auth=LOGIN) as door:
        sent_on = await door.get("/")
    assert sent_on.status_code == 303
    caller = Browser()
    async with httpx.AsyncClient(base_url=sent_on.headers["location"]) as room:
        assert "duologue" in (await room.get("/")).text.lower()
        await caller.call(room)
        await caller.next("state", state="listening")
        # Beyond the wait for an arrival: whoever has come is not sent away.
        await asyncio.sleep(ARRIVE_S + 0.2)
        status = (await room.get("/api/status")).json()
        assert (status["capacity"], status["active"]) == (1, 1)
        await caller.pc.close()
        await asyncio.wait_for(cloud.visits[0], 20)
        with pytest.raises(httpx.ConnectError):
            await room.get("/api/status")


def ring(path: str = "/voice") -> dict[str, Any]:
    signature = sign(ACCOUNT.auth_token, DOOR + path, FORM.items())
    return {"url": path, "data": FORM, "headers": {SIGNATURE: signature}}


async def test_a_ring_is_answered_in_a_container_of_its_own(cloud):
    async with at_the_door() as door:
        answer = await door.post(**ring())
    stream = ElementTree.fromstring(answer.text).find("Connect/Stream")
    assert stream is not None
    url = stream.attrib["url"]
    assert await status_of(url) == 403
    signed = {SIGNATURE: sign(ACCOUNT.auth_token, url)}
    async with dial(url, headers=signed) as call:
        await call.heard(0.7)
    await asyncio.wait_for(cloud.visits[0], 20)


async def test_who_does_not_come_is_not_waited_for(cloud):
    async with at_the_door(auth=LOGIN) as door:
        await door.get("/")
    await asyncio.wait_for(cloud.visits[0], 10)


async def test_a_full_cloud_says_so(cloud, monkeypatch):
    cloud.full = True
    monkeypatch.setattr(bot, "PAGE_WAIT_S", 0.05)
    monkeypatch.setattr(bot, "RING_WAIT_S", 0.05)
    async with at_the_door(auth=LOGIN) as door:
        full = await door.get("/")
        assert (full.status_code, full.json()["detail"]) == (503, bot.FULL)
        assert "All lines are busy" in (await door.post(**ring())).text
    assert cloud.cancelled == 2


async def test_the_door_is_shut_to_others(cloud, monkeypatch):
    async with at_the_door() as door:
        assert (await door.get("/health")).json() == {"status": "ok"}
        assert (await door.get("/")).status_code == 401
        wrong = await door.get("/", auth=httpx.BasicAuth("ada", "guess"))
        assert wrong.status_code == 401
        assert (await door.post("/voice", data=FORM)).status_code == 403
        assert (await door.post("/voice", content=b"x" * 200_000)).status_code == 413
    assert not cloud.visits
    monkeypatch.delenv("DUOLOGUE_PAGE_PASSWORD")
    with pytest.raises(ConfigError, match="DUOLOGUE_PAGE_PASSWORD"):
        bot.door.local()
    monkeypatch.setenv("DUOLOGUE_PAGE_PASSWORD", "x")
    monkeypatch.delenv("DUOLOGUE_PHONE__PUBLIC_URL")
    async with at_the_door() as door:
        assert (await door.post(**ring())).status_code == 403


async def test_a_caller_may_call_again_for_a_while():
    place = OnePlace()
    staying = asyncio.create_task(stay(place, arrive_s=0.2, again_s=0.5))
    for _ in range(2):
        with place.take():
            await asyncio.sleep(0.25)
            assert not staying.done()
    await asyncio.wait_for(staying, 5)
    assert place.closing


@pytest.fixture
def defined(monkeypatch) -> dict[str, dict[str, Any]]:
    """What each function, class and server is declared with."""
    found: dict[str, dict[str, Any]] = {}

    def noting(declare: Any) -> Any:
        def noted(self: Any, **options: Any) -> Any:
            wrap = declare(self, **options)

            def named(what: Any) -> Any:
                made = wrap(what)
                bare = what if hasattr(what, "__name__") else unwrap(what)
                found[bare.__name__] = options
                return made

            return named

        return noted

    for kind in ("function", "cls", "server"):
        monkeypatch.setattr(modal.App, kind, noting(getattr(modal.App, kind)))
    importlib.reload(bot)
    importlib.reload(speech)
    return found


def test_no_time_out_of_modals_own_cuts_a_call(defined):
    """Modal ends what runs for 300 s unless it is told otherwise."""
    assert set(defined) == {"Bot", "door", "fetch", "build", "Speech", "lm"}
    servers = {"Speech"}
    for name, options in defined.items():
        named = "exit_grace_period" if name in servers else "timeout"
        assert named in options, f"{name}: {named} is left to Modal's default"
    deployment = bot.DEPLOYMENT
    longest_s = deployment.bot(environ={}).limits
    a_call = longest_s.session_s + longest_s.last_words_s + deployment.arrive_s
    assert longest_s.session_s == deployment.call_s
    # A call may begin at the end of the time in which calls may begin.
    assert defined["Bot"]["timeout"] >= a_call + deployment.call_s
    assert defined["door"]["timeout"] > max(bot.PAGE_WAIT_S, bot.RING_WAIT_S)
    assert defined["Speech"]["exit_grace_period"] >= speech.DRAIN_S
    for name in ("Bot", "Speech", "lm"):
        assert defined[name]["startup_timeout"] >= 600


def test_containers_wait_for_callers_where_their_models_are(defined):
    for name in ("Bot", "door", "Speech", "lm"):
        options = defined[name]
        assert options["min_containers"] >= 1
        assert bot.DEPLOYMENT.region in (options.get("region"), options.get("compute_region"))
        assert [str(secret) for secret in options["secrets"]]
    assert defined["Bot"]["volumes"] == {"/store": images.store}
    assert set(defined["Speech"]["volumes"]) == {"/store", "/engines"}
    assert defined["build"]["max_containers"] == 1
    assert defined["Bot"].get("gpu") is None and defined["Speech"]["gpu"] == bot.DEPLOYMENT.gpu


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("GPU", "Q9000", "GPU: .*'L4'.*found 'Q9000'"),
        ("REGION", "", "REGION: "),
        ("CALL_S", "5", "CALL_S: .*60"),
        ("CALLS", "5", "CALLS: "),
        ("WARM", "many", "WARM: "),
    ],
)
def test_what_modal_would_find_too_late_is_refused(name, value, problem):
    with pytest.raises(ConfigError, match=f"DUOLOGUE_MODAL_{problem}"):
        settings.read({f"DUOLOGUE_MODAL_{name}": value})


def test_an_engine_that_the_gpu_cannot_have():
    environ = {"DUOLOGUE_MODAL_GPU": "H100", "DUOLOGUE_MODAL_ENGINE": "tensorrt"}
    with pytest.raises(ConfigError, match="nothing for H100"):
        settings.read(environ)
    assert set(settings.TENSORRT) < set(settings.GPUS)


def test_a_container_reads_the_same_deployment_from_what_is_put_into_it(tmp_path):
    for name in images.SOURCES:
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(settings.ROOT / name, tmp_path / name, ignore=skip)
    wanted = settings.read({"DUOLOGUE_MODAL_GPU": "H100", "DUOLOGUE_MODAL_CALL_S": "900"})
    script = (
        "import deploy.modal.bot as bot, deploy.modal.speech as speech;"
        "assert bot.DEPLOYMENT == speech.DEPLOYMENT; print(bot.DEPLOYMENT.model_dump_json());"
        f"assert bot.__file__.startswith({str(tmp_path)!r}); bot.DEPLOYMENT.bot()"
    )
    environ = {name: os.environ[name] for name in ("PATH", "HOME")} | wanted.environ()
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=tmp_path,
        env=environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    assert settings.Deployment.model_validate_json(told.stdout) == wanted


def test_images_are_made_from_the_lock():
    lock = settings.ROOT / "requirements/room.txt"
    assert "--hash=sha256:" in lock.read_text()
    for name in images.SOURCES:
        assert (settings.ROOT / name).is_dir()
    for image in (bot.image, speech.image, images.lm_image()):
        assert isinstance(image, modal.Image)
