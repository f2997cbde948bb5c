"""token2wav on a real Triton server of this machine's CPU."""

import signal
from contextlib import ExitStack
from importlib.util import find_spec

import numpy as np
import pytest

from deploy.triton import local
from duologue.errors import CapacityError, ConfigError, EngineError, InputError
from duologue.serving.remote import RemoteBatcher
from duologue.serving.remote_call import Patience
from tests.deploy.ray_cluster import TOKEN, Model, Spoken, speech, whole
from tests.deploy.triton_server import Triton

MISSING = None
try:
    local.find_server()
except EngineError as error:
    MISSING = str(error)
if find_spec("tritonclient") is None:
    MISSING = "needs tritonclient: pip install -e '.[triton]'"
pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or ""), pytest.mark.timeout(240)]
PLACES = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return Model.write(tmp_path_factory.mktemp("triton"), PLACES)


@pytest.fixture(scope="module")
def start(model):
    """Start a server; at the end it is killed if it still runs."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Triton(model))


@pytest.fixture(scope="module")
def triton(start):
    return start()


@pytest.fixture(scope="module")
def here(model):
    with model.batcher() as batcher:
        yield batcher


@pytest.fixture
def token(monkeypatch):
    monkeypatch.setenv("DUOLOGUE_SERVE_TOKEN", TOKEN)


@pytest.fixture
def far(triton, token):
    with remote(triton) as far:
        yield far


def remote(triton: Triton) -> RemoteBatcher:
    return RemoteBatcher([triton.url], patience=Patience(place_s=5, stall_s=20, search_s=5))


def test_it_says_what_one_engine_says(far, here, model):
    tokens = speech(1, 70)
    spoken = Spoken(far, model.voice, 2**64 - 1)
    for at in range(0, 70, 12):
        spoken.utterance.push(tokens[at : at + 12])
    expected = whole(here, model.voice, 2**64 - 1, tokens)
    np.testing.assert_allclose(spoken.rest(), expected, atol=1e-3)


def test_interleaved_utterances_say_what_they_say_alone(far, here, model):
    tokens = [speech(seed, 60) for seed in range(2)]
    spoken = [Spoken(far, model.voice, seed) for seed in range(2)]
    for at in range(0, 60, 5):
        for one, its in zip(spoken, tokens, strict=True):
            one.utterance.push(its[at : at + 5])
    for seed, one in enumerate(spoken):
        expected = whole(here, model.voice, seed, tokens[seed])
        np.testing.assert_allclose(one.rest(), expected, atol=1e-3)


def test_a_full_server_refuses_and_a_cancelled_call_frees_its_place(far, model):
    spoken = [Spoken(far, model.voice, seed) for seed in range(PLACES)]
    spoken[0].utterance.push(speech(2, 40))
    spoken[0].hear()
    with pytest.raises(CapacityError, match="all 3 places are taken"):
        Spoken(far, model.voice, 9)
    for one in spoken:
        one.utterance.cancel()
    again = [_placed(far, model) for _ in range(PLACES)]
    for one in again:
        one.utterance.push(speech(2, 10))
    assert [len(one.rest()) for one in again] == [9600] * PLACES


def test_a_wrong_voice_is_refused(far, model):
    other = type(model.voice)(model.voice.tokens, model.voice.mel, None, "ab" * 32)
    spoken = Spoken(far, other, 1)
    spoken.utterance.push(speech(1, 5))
    with pytest.raises(InputError, match="no voice has the hash abababababab; known: ada"):
        spoken.rest()


def test_a_client_without_the_token_is_refused(triton, model):
    with remote(triton) as far, pytest.raises(ConfigError, match="set DUOLOGUE_SERVE_TOKEN"):
        Spoken(far, model.voice, 1)


def test_stopping_lets_a_sentence_end(triton, far, model):
    """The last on this server. Calls that were cancelled or refused do not hold it up."""
    spoken = Spoken(far, model.voice, 6)
    spoken.utterance.push(speech(5, 40))
    spoken.hear()
    triton.process.send_signal(signal.SIGTERM)
    triton.wait_for("Waiting for in-flight requests")
    spoken.utterance.push(speech(6, 20))
    assert len(spoken.rest()) == 60 * 960
    assert triton.wait() == 0, triton.log
    assert "Traceback" not in triton.log


@pytest.mark.slow
def test_when_the_models_process_dies_callers_hear_of_it_and_a_load_cures_it(start, token, model):
    from tritonclient.grpc import InferenceServerClient

    triton = start()
    with remote(triton) as far, InferenceServerClient(triton.address) as client:
        spoken = Spoken(far, model.voice, 1)
        spoken.utterance.push(speech(1, 40))
        spoken.hear()
        triton.stub().kill()
        spoken.utterance.push(speech(1, 40))
        with pytest.raises(EngineError, match="not healthy"):
            spoken.rest()
        assert client.is_model_ready("token2wav"), (
            "Triton tells of it now: say so in docs/deploy.md"
        )
        client.unload_model("token2wav")
        client.load_model("token2wav")
        assert len(whole(far, model.voice, 1, speech(1, 10))) == 9600


def _placed(far: RemoteBatcher, model: Model) -> Spoken:
    """The server looks for clients that have gone a few times a second."""
    while True:
        try:
            return Spoken(far, model.voice, 9)
        except CapacityError:
            continue
