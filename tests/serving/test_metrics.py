"""What is counted of sessions and sound."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from duologue import metrics
from duologue.errors import CapacityError, EngineError, InputError
from tests.fakes import ManualClock


def count(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "done"),
        (CapacityError("full"), "refused"),
        (InputError("bad"), "invalid"),
        (TimeoutError(), "timeout"),
        (EngineError("broken"), "failed"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
def test_a_session_ends_as_its_exception_says(error, outcome):
    labels = {"kind": "phone", "outcome": outcome}
    before = count("duologue_sessions_ended_total", **labels)
    try:
        with metrics.session("phone"):
            assert count("duologue_sessions", kind="phone") == 1
            if error:
                raise error
    except BaseException as caught:
        assert caught is error
    assert count("duologue_sessions", kind="phone") == 0
    assert count("duologue_sessions_ended_total", **labels) == before + 1


def test_a_listener_who_waits_for_more_is_an_underrun():
    clock = ManualClock()
    listener = metrics.Listener("test", clock)
    for wait_s, sound_s in ((0.25, 1.0), (0.9, 1.0), (1.2, 0.5), (0.4, 0.5)):
        clock.now_s += wait_s
        listener.hear(sound_s)
    assert count("duologue_first_audio_seconds_sum", engine="test") == 0.25
    assert count("duologue_audio_seconds_total", engine="test") == 3.0
    assert count("duologue_underruns_total", engine="test") == 1
    assert b"duologue_underruns_total" in metrics.render()
