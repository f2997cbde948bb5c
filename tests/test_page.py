"""The page of the room bot in a real Chromium, against the scripted server of fake_room.py."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

pytestmark = pytest.mark.browser

CHROMIUM_FLAGS = [
    *"--headless=new --no-sandbox --disable-gpu --disable-background-networking".split(),
    *"--disable-component-update --disable-sync --no-first-run".split(),
    *"--use-fake-device-for-media-stream --autoplay-policy=no-user-gesture-required".split(),
    # An address that is neither https nor localhost, so the browser gives it no microphone.
    "--host-resolver-rules=MAP insecure.test 127.0.0.1",
]
XSS = "<img src=x onerror=\"document.body.dataset.hacked='yes'\"><script>alert(1)</script>"
PEAK_HZ = """async () => {
  const context = new AudioContext();
  const meter = new AnalyserNode(context, {fftSize: 4096});
  const stream = new MediaStream([duologue.pc.getReceivers()[0].track]);
  context.createMediaStreamSource(stream).connect(meter);
  const bins = new Float32Array(meter.frequencyBinCount);
  for (;;) {
    await new Promise((done) => setTimeout(done, 50));
    meter.getFloatFrequencyData(bins);
    const peak = bins.indexOf(Math.max(...bins));
    if (bins[peak] > -30) return (peak * context.sampleRate) / meter.fftSize;
  }
}"""


class Room:
    """The fake server's process, on one port for the whole module."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = requests.Session()
        patience = Retry(100, backoff_factor=0.05, backoff_max=0.2)
        self.client.mount("http://", HTTPAdapter(max_retries=patience))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.process is None:
            command = [sys.executable, "-m", "tests.fake_room", str(self.port)]
            self.process = subprocess.Popen(command, cwd=Path(__file__).parent.parent)
        self.change()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def say(self, *messages: Any) -> None:
        self.post("say", {"messages": messages})

    def change(self, **answers: bool) -> None:
        self.post("room", answers)

    def post(self, path: str, body: dict[str, Any]) -> None:
        self.client.post(f"{self.url}/test/{path}", json=body, timeout=20).raise_for_status()

    def wait(self, until: str) -> list[str]:
        query = {"until": until}
        response = self.client.get(f"{self.url}/test/report", params=query, timeout=20)
        response.raise_for_status()
        return response.json()


@pytest.fixture(scope="module")
def server() -> Iterator[Room]:
    room = Room()
    yield room
    room.kill()
    room.client.close()


@pytest.fixture
def room(server: Room) -> Room:
    server.start()
    return server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=CHROMIUM_FLAGS
        )
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(permissions=["microphone"])
    yield context
    context.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser's console complained about. A test that provokes one clears it."""
    return []


@pytest.fixture
def page(context: BrowserContext, room: Room, complaints: list[str]) -> Iterator[Page]:
    page = context.new_page()
    page.on("console", lambda entry: entry.type == "error" and complaints.append(entry.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(room.url)
    yield page
    assert complaints == []


def connect(page: Page) -> None:
    page.get_by_role("button", name="Connect").click()
    expect_phase(page, "live")


def expect_phase(page: Page, phase: str, timeout: float = 5_000) -> None:
    expect(page.locator("body")).to_have_attribute("data-phase", phase, timeout=timeout)


def expect_notice(page: Page, *parts: str, timeout: float = 5_000) -> None:
    for part in parts:
        expect(page.get_by_role("alert")).to_contain_text(part, timeout=timeout)


def test_the_call_carries_sound_pings_and_playback_reports(page: Page, room: Room) -> None:
    connect(page)
    assert page.evaluate(PEAK_HZ) == pytest.approx(440, abs=15)
    room.wait("typ host")
    room.wait("ping: ")
    assert 5 < json.loads(room.wait('"playback"')[-1])["buffer_ms"] < 1_000
    expect(page.locator("#quality")).to_contain_text("Good")
    assert page.evaluate("duologue.state") == "listening"
    microphone = page.evaluate_handle("duologue.pc.getSenders()[0].track")
    page.get_by_role("button", name="Hang up").click()
    room.wait("peer closed")
    expect_phase(page, "idle")
    assert microphone.evaluate("(track) => track.readyState") == "ended"
    assert page.evaluate("duologue.pc") is None


def test_what_was_heard_is_told_from_what_was_not(page: Page, room: Room) -> None:
    connect(page)
    user, bot = page.locator(".bubble.user .words"), page.locator(".bubble.bot")
    room.say({"type": "user", "turn": 1, "text": "what time", "final": False})
    expect(page.locator(".bubble.user.interim")).to_have_text("You:what time")
    # The answer may begin before recognition is final; the question still stands above it.
    room.say({"type": "bot_text", "turn": 2, "text": "😀 Half past nine, I think."})
    room.say({"type": "user", "turn": 2, "text": "And now?", "final": True})
    expect(user).to_have_text(["what time", "And now?"])
    expect(page.locator(".bubble")).to_have_count(3)
    expect(page.locator(".bubble").last).to_have_class("bubble bot")
    room.say({"type": "bot_heard", "turn": 2, "chars": 6})
    expect(bot.locator(".heard")).to_have_text("😀 Half")
    expect(bot.locator(".ahead")).to_have_text("past nine, I think.")
    room.say({"type": "bot_end", "turn": 2, "reason": "interrupted", "chars": 11})
    expect(bot.locator(".heard")).to_have_text("😀 Half past")
    expect(bot.locator("del")).to_have_text("nine, I think.")
    expect(page.locator("#announcer")).to_have_text("Bot: 😀 Half past")
    room.say({"type": "user", "turn": 3, "text": "mm", "final": False})
    expect(user).to_have_count(3)
    # Neither a cough nor an answer that was dropped before its first word leaves a bubble.
    room.say(
        {"type": "bot_end", "turn": 3, "reason": "interrupted", "chars": 0},
        {"type": "user", "turn": 3, "text": "", "final": False},
    )
    expect(page.locator(".bubble")).to_have_count(3)


def test_chips_latency_and_states(page: Page, room: Room) -> None:
    connect(page)
    timing = {"end_of_turn_ms": 300, "asr_ms": None, "lm_first_token_ms": 200}
    room.say(
        {"type": "particle", "turn": 1, "name": "laughs", "text": "(laughs)", "rendered": True},
        {"type": "particle", "turn": 1, "name": "hums", "text": "(hums)", "rendered": False},
        {"type": "thought", "turn": 1, "text": "They laugh. So do I."},
        tool(status="running"),
        {"type": "latency", "turn": 1, **timing, "voice_first_audio_ms": 100, "total_ms": 640},
    )
    expect(page.locator(".particle")).to_have_text(["(laughs)", "(hums)not voiced"])
    expect(page.locator(".thought pre")).to_have_text("They laugh. So do I.")
    chip = page.locator(".tool")
    expect(chip.locator("summary")).to_have_text("clockrunning")
    room.say(tool(status="result", result={"time": "21:20"}))
    expect(chip.locator("summary")).to_have_text("clockdone")
    expect(chip).to_have_count(1)
    chip.locator("summary").click()
    expect(chip.locator("pre")).to_contain_text('"time": "21:20"')
    expect(page.locator(".latency .total")).to_have_text("0.64 s")
    widths = page.locator(".latency .bar i").evaluate_all("(all) => all.map(i => i.clientWidth)")
    assert [round(width / widths[2]) for width in widths] == [3, 2, 1]
    expect(page.locator("#stages")).to_contain_text("Recognition–")
    for state in ["hearing", "thinking", "speaking", "held", "tool", "listening"]:
        room.say({"type": "state", "state": state, "turn": 1})
        expect(page.locator("body")).to_have_attribute("data-state", state)
        assert page.evaluate("duologue.state") == state
    turn = page.evaluate("duologue.turns")[0]
    assert (turn["tools"][0]["status"], turn["latency"]["total_ms"]) == ("result", 640)


def tool(**fields: Any) -> dict[str, Any]:
    call = {"type": "tool", "turn": 1, "call_id": "a", "name": "clock", "arguments": {}}
    return call | fields


def test_text_is_never_markup_and_odd_messages_change_nothing(page: Page, room: Room) -> None:
    connect(page)
    room.say(
        "not json",
        "null",
        "7",
        {"type": "toString"},
        {"type": "state", "state": "constructor"},
        {"type": "signalling", "message": {"type": "peerLeft"}},
        {"type": "bot_text", "turn": None, "text": "nowhere"},
        {"type": "user", "turn": 1, "text": XSS, "final": True},
        {"type": "bot_text", "turn": 1, "text": XSS},
        {"type": "particle", "turn": 1, "name": "x", "text": XSS, "rendered": True},
        tool(name=XSS, status=XSS, arguments={"a": XSS}, result=XSS),
        {"type": "error", "message": XSS, "fatal": False},
    )
    for place in [".user .words", ".bot .words", ".particle", ".tool .name", ".note"]:
        expect(page.locator(place)).to_have_text(XSS)
    assert page.locator("#transcript :is(img, script)").count() == 0
    assert page.evaluate("document.body.dataset.hacked ?? duologue.state") == "listening"


def test_a_long_call_keeps_the_last_200_bubbles(page: Page, room: Room) -> None:
    connect(page)
    room.say(*({"type": "bot_text", "turn": turn, "text": f"t{turn}"} for turn in range(230)))
    expect(page.locator(".bubble").last).to_contain_text("t229")
    room.say(
        {"type": "bot_end", "turn": 3, "reason": "done", "chars": 2},
        {"type": "bot_heard", "turn": 229, "chars": 1},
    )
    expect(page.locator(".bubble").last.locator(".heard")).to_have_text("t")
    expect(page.locator(".bubble")).to_have_count(200)
    assert len(page.evaluate("duologue.turns")) == 200
    expect(page.locator(".bubble").last).to_be_in_viewport()
    page.locator("#transcript").evaluate("(list) => { list.scrollTop = 0; }")
    latest = page.get_by_role("button", name="Latest")
    expect(latest).to_be_visible()
    room.say({"type": "bot_text", "turn": 230, "text": "t230"})
    expect(page.locator(".bubble").last).to_contain_text("t230")
    expect(page.locator(".bubble").last).not_to_be_in_viewport()
    latest.click()
    expect(page.locator(".bubble").last).to_be_in_viewport()
    expect(latest).to_be_hidden()


def test_a_refused_microphone(context: BrowserContext, page: Page) -> None:
    # Granting something else takes the microphone away, as a person's "Block" does.
    context.clear_permissions()
    context.grant_permissions(["geolocation"])
    page.get_by_role("button", name="Connect").click()
    expect_notice(page, "The microphone is blocked", "Allow it", "press Connect")
    expect_phase(page, "idle")


@pytest.mark.parametrize(
    ("error", "title"),
    [("NotFoundError", "No microphone was found"), ("NotReadableError", "The microphone is busy")],
)
def test_a_missing_or_busy_microphone(page: Page, error: str, title: str) -> None:
    page.evaluate(
        """(name) => {
          navigator.mediaDevices.getUserMedia = async () => { throw new DOMException("", name); };
        }""",
        error,
    )
    page.get_by_role("button", name="Connect").click()
    expect_notice(page, title, "press Connect")


def test_an_address_without_microphone(page: Page, room: Room) -> None:
    page.goto(f"http://insecure.test:{room.port}")
    page.get_by_role("button", name="Connect").click()
    expect_notice(page, "this address", "https")


def test_a_full_room_says_so_in_its_own_words(
    page: Page, room: Room, complaints: list[str]
) -> None:
    room.change(full=True)
    page.get_by_role("button", name="Connect").click()
    expect_notice(page, "The room is full (4 of 4 <b>calls</b>).")
    expect_phase(page, "idle")
    assert ["503" in text for text in complaints] == [True]
    complaints.clear()


def test_a_loading_room_is_waited_for(page: Page, room: Room) -> None:
    room.change(ready=False)
    page.get_by_role("button", name="Connect").click()
    expect(page.locator("body")).to_have_attribute("data-state", "loading")
    room.change(ready=True)
    expect_phase(page, "live")


@pytest.mark.parametrize(
    ("message", "notice"),
    [
        ({"type": "bye", "reason": "The hour is over."}, "The hour is over."),
        ({"type": "error", "message": "The voice failed.", "fatal": True}, "The voice failed."),
    ],
)
def test_the_room_ends_the_call(page: Page, room: Room, message: Any, notice: str) -> None:
    connect(page)
    room.say(message)
    expect_notice(page, notice)
    expect_phase(page, "idle")
    room.wait("peer closed")


def test_a_killed_server_is_told_and_found_again(
    page: Page, room: Room, complaints: list[str]
) -> None:
    connect(page)
    room.say({"type": "bot_text", "turn": 1, "text": "before"})
    expect(page.locator(".bubble")).to_have_count(1)
    room.kill()
    # Sooner than ICE alone notices: the sound stops and the port is closed.
    expect_notice(page, "The room does not answer", "Trying again by itself", timeout=5_000)
    expect(page.locator("body")).to_have_attribute("data-state", "reconnecting")
    room.start()
    expect_phase(page, "live", timeout=15_000)
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator(".note")).to_contain_text("Reconnected")
    assert page.evaluate(PEAK_HZ) == pytest.approx(440, abs=15)
    room.say({"type": "bot_text", "turn": 1, "text": "after"})
    expect(page.locator(".bubble .words")).to_have_text(["before", "after"])
    assert all("ERR_CONNECTION_REFUSED" in text for text in complaints)
    complaints.clear()


def test_a_narrow_phone_needs_no_sideways_scroll(page: Page, room: Room) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    connect(page)
    room.say(
        {"type": "user", "turn": 1, "text": "w" * 300, "final": True},
        {"type": "bot_text", "turn": 1, "text": "https://example.org/" + "a/" * 200},
        tool(name="n" * 80, status="result", result="r" * 500),
        {"type": "error", "message": "e" * 200, "fatal": False},
    )
    page.locator(".tool summary").click()
    for place in ["html", "#transcript"]:
        assert page.locator(place).evaluate("(box) => box.scrollWidth <= box.clientWidth")
    for name in ["Hang up", "Mute"]:
        expect(page.get_by_role("button", name=name)).to_be_in_viewport(ratio=1)
    expect(page.locator("#state")).to_be_in_viewport(ratio=1)


def test_the_keyboard_alone_is_enough(page: Page, room: Room) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Connect")).to_be_focused()
    page.keyboard.press("Enter")
    expect_phase(page, "live")
    page.keyboard.press("m")
    room.wait('{"type":"mute","muted":true}')
    expect(page.get_by_role("button", name="Unmute")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("duologue.pc.getSenders()[0].track.enabled") is False
    page.keyboard.press("Escape")
    expect_phase(page, "idle")
    page.keyboard.press("Space")
    expect_phase(page, "live")
    page.keyboard.press("Space")
    expect_phase(page, "idle")


def test_a_server_that_stays_away_leaves_a_button(
    page: Page, room: Room, complaints: list[str]
) -> None:
    page.clock.install()
    room.kill()
    page.get_by_role("button", name="Connect").click()
    for attempt in range(1, 6):
        expect_notice(page, f"({attempt} of 5)")
        page.clock.fast_forward(9_000)
    expect_notice(page, "Check that the server runs, then press Connect.")
    expect(page.get_by_role("button", name="Connect")).to_be_enabled()
    assert [complaints.pop() for _ in range(6)] and not complaints
