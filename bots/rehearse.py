"""The scripted caller on the real page: Chromium talks to a room, and everything is recorded.

Needs Playwright for Python (the `dev` extra) and the system's Chromium. A script is YAML with a
list `say` of utterances: python -m bots.rehearse SCRIPT.yaml --svg call.svg --wav bot.wav
"""

import argparse
import asyncio
import base64
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import httpx
from playwright.async_api import Browser, Page, async_playwright
from playwright.async_api import Error as PlaywrightError

from duologue.audio.pcm import from_int16_bytes, resample, to_int16_bytes, write_wav
from duologue.errors import DuologueError, EngineError
from duologue.models import ensure
from duologue.rehearsal.plot import svg
from duologue.rehearsal.report import exchanges, summary, table
from duologue.rehearsal.script import Utterance, load_script, perform
from duologue.rehearsal.timeline import RATE_HZ, Clip, Said, Timeline
from duologue.tts.offline import speak
from duologue.tts.piper import PiperVoice

T = TypeVar("T")
CHECKOUT = Path(__file__).parent.parent
IN_PAGE = Path(__file__).with_suffix(".js")
CHROMIUM = Path("/usr/bin/chromium")
VOICE = "piper-en_US-joe-medium"
START_S = 120.0
GRACE_S = 5.0
EMPTY_S = 10.0
FLAGS = """
    --headless=new --no-sandbox --disable-gpu --no-first-run --disable-sync
    --disable-background-networking --disable-component-update
    --autoplay-policy=no-user-gesture-required
    --use-fake-device-for-media-stream --use-fake-ui-for-media-stream
""".split()


@dataclass(slots=True)
class RoomServer:
    """A room in a process of its own."""

    url: str
    process: subprocess.Popen[bytes]
    _log: IO[bytes]

    def status(self) -> dict[str, Any]:
        """The room's word on itself; not ready when it does not answer."""
        try:
            return httpx.get(f"{self.url}/api/status", timeout=2).json()
        except httpx.HTTPError:
            return {"ready": False}

    def wait_until_empty(self) -> None:
        """Wait until every call is over.

        Raises:
            TimeoutError: one is not, after ten seconds.
        """
        deadline = time.monotonic() + EMPTY_S
        while active := self.status()["active"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{active} calls still hold their place")
            time.sleep(0.1)

    def log(self) -> str:
        """What it has printed so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Ask it to end, and kill it if it does not."""
        self.process.terminate()
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def room_server(*flags: str) -> Iterator[RoomServer]:
    """A room on a free port, ready to take calls.

    Args:
        flags: Values of its set-up, such as "limits.sessions=4".

    Raises:
        EngineError: it ended, or it was not ready within two minutes.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from duologue.cli import main; main()", "room"]
    command += ["--port", str(port), *(part for flag in flags for part in ("--set", flag))]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log)
        server = RoomServer(f"http://127.0.0.1:{port}", process, log)
        try:
            _wait_until_ready(server)
            yield server
        finally:
            server.close()


def _wait_until_ready(server: RoomServer) -> None:
    deadline = time.monotonic() + START_S
    while not server.status()["ready"]:
        if server.process.poll() is not None or time.monotonic() > deadline:
            code = server.process.returncode
            raise EngineError(f"the room did not start (exit code {code}): {server.log()[-2000:]}")
        time.sleep(0.2)


class BrowserCaller:
    """A caller on the room's page; its times are those of the page's AudioContext.

    Attributes:
        timeline: What has happened so far.
        page: The page, for whatever a test wants to look at.
    """

    def __init__(self, page: Page):
        self.timeline = Timeline()
        self.page = page
        self._news = asyncio.Event()

    async def say(self, clip: Clip, *, at_s: float = 0.0) -> Said:
        """Play a clip into the microphone, at `at_s` or now if that has passed."""
        pcm = base64.b64encode(to_int16_bytes(clip.samples)).decode()
        start_s = await self.page.evaluate("([pcm, at]) => rehearsalSay(pcm, at)", [pcm, at_s])
        self.timeline.said.append(Said(clip, start_s))
        return self.timeline.said[-1]

    async def until(self, condition: Callable[[Timeline], T | None], timeout_s: float = 20.0) -> T:
        """Wait until the condition has a value.

        Raises:
            TimeoutError: it has none after `timeout_s`.
        """
        async with asyncio.timeout(timeout_s):
            while (value := condition(self.timeline)) is None:
                self._news.clear()
                await self._news.wait()
        return value

    async def connect(self) -> None:
        """Press Connect and wait for the room's sound and its first word."""
        await self.page.get_by_role("button", name="Connect").click()
        await self.until(lambda seen: seen.first("state") if len(seen.bot.samples) else None)

    async def hang_up(self) -> None:
        """Press Hang up and wait until the page is idle."""
        await self.page.get_by_role("button", name="Hang up").click()
        await self.page.wait_for_selector("body[data-phase=idle]")

    def put(self, kind: str, at_s: float, data: str) -> None:
        """Take what the page recorded."""
        if kind == "event":
            self._event(at_s, data)
        else:
            recording = self.timeline.bot if kind == "bot" else self.timeline.mic
            recording.add(at_s, from_int16_bytes(base64.b64decode(data)))
        self._news.set()

    def _event(self, at_s: float, data: str) -> None:
        message: Any = json.loads(data)
        if isinstance(message, dict) and "type" in message:
            self.timeline.add_event(at_s, message)


@asynccontextmanager
async def chromium(*, microphone: Path | None = None) -> AsyncIterator[Browser]:
    """A headless Chromium.

    Args:
        microphone: Absolute path of a 48 kHz mono WAV that its capture device plays once, for a
            caller with `device=True`.
    """
    flags = [*FLAGS]
    if microphone is not None:
        flags.append(f"--use-file-for-fake-audio-capture={microphone}%noloop")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        await browser.close()


@asynccontextmanager
async def open_page(
    browser: Browser, url: str, *, device: bool = False
) -> AsyncIterator[BrowserCaller]:
    """A caller in front of the room's page, who has not connected yet.

    Args:
        browser: From `chromium`.
        url: The room.
        device: Use the browser's own capture device, and record what it hears.
    """
    # The page's policy allows no script but the room's own; the recording worklet is ours.
    context = await browser.new_context(permissions=["microphone"], bypass_csp=True)
    page = await context.new_page()
    caller = BrowserCaller(page)
    await page.expose_function("rehearsalPut", caller.put)
    await page.add_init_script(f"window.rehearsalDevice = {json.dumps(device)}")
    await page.add_init_script(path=IN_PAGE)
    try:
        await page.goto(url)
        yield caller
    finally:
        await context.close()


async def rehearse(script: list[Utterance], url: str) -> Timeline:
    """Perform a script in one call.

    Raises:
        TimeoutError: the call did not come about, or something that an utterance waits for did not
            happen.
    """
    async with chromium() as browser, open_page(browser, url) as caller:
        await caller.connect()
        await perform(script, caller)
        return caller.timeline


def read_script(path: Path) -> list[Utterance]:
    """A script; what it has no recordings of is spoken by the Piper voice."""
    voice = PiperVoice(ensure(VOICE))
    try:
        return load_script(path, lambda text: resample(speak(voice, text), voice.rate_hz, RATE_HZ))
    finally:
        voice.close()


def main() -> None:
    """Run a script against a room of its own, or one that runs already."""
    parser = argparse.ArgumentParser(description="Let a script talk to the room.")
    parser.add_argument("script", type=Path, metavar="SCRIPT.yaml")
    parser.add_argument("--url", help="a room that runs already")
    parser.add_argument("--svg", type=Path, help="plot the call here")
    parser.add_argument("--wav", type=Path, help="keep the bot's sound here")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        script = read_script(options.script)
        with nullcontext() if options.url else room_server() as server:
            seen = asyncio.run(rehearse(script, server.url if server else options.url))
    except (DuologueError, TimeoutError, PlaywrightError) as error:
        # Of several lines the first says what happened.
        reason = str(error).split("\n")[0] or "the room did not do what the script waits for"
        print(f"rehearse: {reason}", file=sys.stderr)
        raise SystemExit(getattr(error, "exit_code", 1)) from None
    if options.svg:
        options.svg.write_text(svg(seen), encoding="utf-8")
    if options.wav:
        write_wav(options.wav, seen.bot.samples, RATE_HZ)
    found = exchanges(seen)
    print(json.dumps(summary(found), indent=2) if options.json else table(found))


if __name__ == "__main__":
    main()
