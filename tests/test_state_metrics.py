"""How much memory sessions hold, as Prometheus is told."""

import sys
from types import SimpleNamespace

import pytest

from duologue import metrics
from duologue.engines.torch import TorchGraph
from duologue.lm.engine import Request
from duologue.lm.prompt import TextPart
from duologue.metrics import STATE
from duologue.talker.engine import TalkerEngine, signature
from duologue.token2wav.pipeline import EngineSettings, load
from duologue.token2wav.step import FlowWork, VocoderWork
from duologue.token2wav.weights import load_preset, save
from tests.embedded.tiny import TALKER, talker
from tests.token2wav.flows import OTHER, VOICE, Spy, chunks_of, make_tokens


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Other tests' engines may live on."""
    monkeypatch.setattr(STATE, "_holders", [])


def told() -> dict[tuple[str, ...], float]:
    """What a scrape finds, by engine or device and what it is of."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in STATE.collect()
        for sample in family.samples
    }


class Holder:
    state_bytes = {"sessions": 3, "set aside": 5}


def test_holders_are_added_up_for_as_long_as_they_live():
    holders = [Holder(), Holder()]
    for holder in holders:
        STATE.watch("scripted", holder)
    assert told()["scripted", "sessions"] == 6
    assert b'duologue_state_bytes{engine="scripted",of="set aside"} 10.0' in metrics.render()
    holders.pop()
    del holder
    assert told()["scripted", "set aside"] == 5
    holders.pop()
    assert ("scripted", "sessions") not in told()


@pytest.fixture
def model(tmp_path):
    save(load_preset("tiny", 5), tmp_path)
    return load(tmp_path, "torch", EngineSettings(sessions=3))


def test_token2wav_tells_what_its_sessions_and_voices_hold(model):
    assert told()["token2wav", "sessions"] == told()["token2wav", "voices"] == 0
    first, second = model.flow.open(VOICE, 1), model.flow.open(VOICE, 2)
    one_voice, two_sessions = told()["token2wav", "voices"], told()["token2wav", "sessions"]
    assert one_voice > 0 and two_sessions > 0
    third = model.flow.open(OTHER, 3)
    assert told()["token2wav", "voices"] > one_voice
    assert told()["token2wav", "sessions"] == pytest.approx(1.5 * two_sessions)
    vocoder = model.vocoder.open(1)
    [mel] = model.flow.step([FlowWork(first, *chunks_of(make_tokens(1, 20), [12])[0])])
    before = told()["token2wav", "sessions"]
    model.vocoder.step([VocoderWork(vocoder, mel, False)])
    assert told()["token2wav", "sessions"] > before
    for handle in (first, second, third):
        model.flow.close(handle)
    model.vocoder.close(vocoder)
    assert told()["token2wav", "sessions"] == 0
    assert told()["token2wav", "voices"] > 0, "voices are kept for later"


@pytest.mark.parametrize("initialized", [False, True])
def test_a_gpus_memory_is_told_where_one_is_in_use(monkeypatch, initialized):
    cuda = SimpleNamespace(
        is_initialized=lambda: initialized,
        device_count=lambda: 2,
        memory_reserved=lambda device: 20 * device,
        memory_allocated=lambda device: 10 * device,
        mem_get_info=lambda device: {1: (70, 100)}[device],
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    found = {of: size for (device, of), size in told().items() if device == "1"}
    assert found == ({"allocated": 10, "reserved": 20, "free": 70} if initialized else {})
    monkeypatch.delitem(sys.modules, "torch")
    assert not [key for key in told() if key[0] == "1"]


async def test_a_talkers_requests_hold_their_keys_and_values():
    graph = Spy(TorchGraph(talker(), *signature(TALKER)))
    engine = TalkerEngine(graph, TALKER)
    seen: list[float] = []
    graph.before = lambda: seen.append(told()["talker", "sessions"])
    asked = Request(parts=(TextPart("hello there."),), seed=1, max_tokens=5, temperature=4.0)
    async for _ in engine.stream(asked):
        pass
    await engine.close()
    assert seen[0] == 0 and seen[1:] == sorted(set(seen[1:])), "each token adds to them"
    assert told()["talker", "sessions"] == 0


def test_a_gpus_engine_tells_what_is_taken_and_what_is_set_aside(monkeypatch):
    pytest.importorskip("triton", reason="needs triton")
    from duologue.engines.cudagraph.vocoder import CudaGraphVocoder
    from tests.engines import test_cudagraph as cuda

    monkeypatch.setattr(cuda, "DEVICE", "cpu")
    engine = cuda.make_engine()
    # No kernel runs here.
    monkeypatch.setattr(engine, "_listen", lambda voice, slot: None)
    whole = engine.state_bytes["set aside"]
    assert set(engine.state_bytes.items()) >= {("sessions", 0), ("voices", 0)}
    handle = engine.open(cuda.VOICE, 1)
    held = engine.state_bytes
    assert held["sessions"] == engine.bytes_per_session and held["voices"] > 0
    assert sum(held.values()) == whole
    engine.close(handle)
    assert engine.state_bytes["sessions"] == 0
    vocoder = CudaGraphVocoder(cuda.MODEL.hift, sessions=3, device=cuda.DEVICE)
    whole = vocoder.state_bytes["set aside"]
    vocoder.open(1)
    assert 0 < vocoder.state_bytes["sessions"] < whole == sum(vocoder.state_bytes.values())
