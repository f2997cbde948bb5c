"""The page finds a new path for its call, in a real Chromium, and goes on with the conversation."""

import pytest
from playwright.sync_api import Page, expect

from tests import test_page
from tests.test_page import PEAK_HZ, Room, connect, expect_notice, expect_phase

pytestmark = pytest.mark.browser
browser, context, complaints, page = (
    test_page.browser,
    test_page.context,
    test_page.complaints,
    test_page.page,
)
server, room = test_page.server, test_page.room


def test_a_new_path_carries_sound_and_messages_in_the_same_call(page: Page, room: Room) -> None:
    connect(page)
    room.say({"type": "bot_text", "turn": 1, "text": "before"})
    expect(page.locator(".bubble")).to_have_count(1)
    page.evaluate("window.first = duologue.pc; dispatchEvent(new Event('online'))")
    expect_notice(page, "No path for the sound", "Trying again by itself")
    expect(page.get_by_role("alert")).to_be_hidden(timeout=10_000)
    room.wait("peer closed")
    assert page.evaluate("duologue.pc !== window.first && first.connectionState") == "closed"
    assert page.evaluate(PEAK_HZ) == pytest.approx(440, abs=15)
    room.say({"type": "bot_text", "turn": 1, "text": "before and after"})
    expect(page.locator(".bubble .words")).to_have_text(["before and after"])
    expect(page.locator(".note")).to_have_count(0)
    expect_phase(page, "live")


def test_a_room_that_is_full_by_then_is_tried_again(
    page: Page, room: Room, complaints: list[str]
) -> None:
    connect(page)
    room.change(full=True)
    page.evaluate("dispatchEvent(new Event('online'))")
    expect_notice(page, "No free place", "Trying again by itself")
    room.change()
    expect_phase(page, "live", timeout=10_000)
    expect(page.locator(".note")).to_contain_text("Reconnected")
    assert all("503" in text for text in complaints)
    complaints.clear()
