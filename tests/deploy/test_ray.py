"""token2wav on a real Ray Serve cluster of two replicas: `make test` starts one, in seconds."""

from importlib.util import find_spec

import grpc
import numpy as np
import pytest

from duologue.errors import CapacityError, ConfigError, EngineError, InputError
from duologue.serving import speech_pb2 as pb
from duologue.serving import speech_pb2_grpc as stubs
from tests.deploy.ray_cluster import TOKEN, Cluster, Model, Spoken, remote, speech, whole

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs ray: pip install -e '.[ray]'"),
    pytest.mark.timeout(240),
]
PLACES = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return Model.write(tmp_path_factory.mktemp("ray"), PLACES)


@pytest.fixture(scope="module")
def cluster(model):
    cluster = Cluster(model, "--replicas", "2")
    try:
        cluster.wait_until_ready()
        yield cluster
    finally:
        if cluster.process.poll() is None:
            cluster.end()


@pytest.fixture(scope="module")
def here(model):
    with model.batcher() as batcher:
        yield batcher


@pytest.fixture
def far(cluster, monkeypatch):
    monkeypatch.setenv("DUOLOGUE_SERVE_TOKEN", TOKEN)
    with remote(cluster) as far:
        yield far


def test_a_cluster_says_what_one_engine_says(far, here, model):
    tokens = speech(1, 70)
    spoken = Spoken(far, model.voice, 7)
    for at in range(0, 70, 12):
        spoken.utterance.push(tokens[at : at + 12])
    expected = whole(here, model.voice, 7, tokens)
    np.testing.assert_allclose(spoken.rest(), expected, atol=1e-3)


def test_statuses_come_through(far, cluster, model):
    def call(token=TOKEN, **start):
        with grpc.insecure_channel(cluster.url.removeprefix("grpc://")) as channel:
            requests = [
                pb.SynthesizeRequest(start=pb.SynthesizeStart(**start)),
                pb.SynthesizeRequest(tokens=pb.Tokens(ids=[1])),
            ]
            metadata = (("authorization", f"Bearer {token}"),)
            list(stubs.SpeechStub(channel).Synthesize(iter(requests), metadata=metadata))

    for arguments, code, words in [
        ({"voice": "bob"}, grpc.StatusCode.NOT_FOUND, "known: ada"),
        ({"voice": "ada", "rate_hz": 7}, grpc.StatusCode.INVALID_ARGUMENT, "8000 to 48000"),
        ({"token": "other"}, grpc.StatusCode.UNAUTHENTICATED, "authorization"),
    ]:
        with pytest.raises(grpc.RpcError, match=words) as refused:
            call(**arguments)
        assert refused.value.code() == code  # type: ignore[attr-defined]


def test_a_client_without_the_token_is_refused(cluster, model):
    with remote(cluster) as far, pytest.raises(ConfigError, match="authorization"):
        Spoken(far, model.voice, 1)


def test_a_wrong_voice_is_refused(far, model):
    other = type(model.voice)(*(getattr(model.voice, n) for n in ("tokens", "mel")), None, "other")
    with pytest.raises(InputError, match="its voices: ada"):
        Spoken(far, other, 1)


def test_a_full_cluster_refuses_and_a_cancelled_call_frees_its_place(cluster, far, model):
    spoken = [Spoken(far, model.voice, seed) for seed in range(2 * PLACES)]
    with remote(cluster, place_s=0.5) as hasty, pytest.raises(CapacityError, match="more replicas"):
        Spoken(hasty, model.voice, 9)
    spoken[0].utterance.cancel()
    spoken[0] = Spoken(far, model.voice, 9)
    for one in spoken:
        one.utterance.push(speech(2, 10))
    assert [len(one.rest()) for one in spoken] == [9600] * len(spoken)


def test_a_replica_that_is_killed_in_mid_sentence_is_not_heard(cluster, far, here, model, caplog):
    tokens = speech(3, 80)
    before = {one.pid: sum(one.cpu_times()[:2]) for one in cluster.replicas()}
    assert len(before) == 2
    spoken = [Spoken(far, model.voice, seed) for seed in range(PLACES)]
    for one in spoken:
        one.utterance.push(tokens[:50])
        one.hear()
    # The one that has worked for them.
    victim = max(cluster.replicas(), key=lambda p: sum(p.cpu_times()[:2]) - before[p.pid])
    victim.kill()
    for one in spoken:
        one.utterance.push(tokens[50:])
    for seed, one in enumerate(spoken):
        expected = whole(here, model.voice, seed, tokens)
        np.testing.assert_allclose(one.rest(), expected, atol=1e-3)
    assert "moves" in caplog.text


def test_when_all_are_killed_a_sentence_goes_on_with_the_next_ones(cluster, far, here, model):
    tokens = speech(4, 60)
    spoken = Spoken(far, model.voice, 5)
    spoken.utterance.push(tokens)
    spoken.hear()
    for replica in cluster.replicas():
        replica.kill()
    expected = whole(here, model.voice, 5, tokens)
    np.testing.assert_allclose(spoken.rest(), expected, atol=1e-3)


def test_stopping_lets_a_sentence_end_and_takes_no_other(cluster, far, model):
    """The last of this file: it ends the cluster."""
    spoken = Spoken(far, model.voice, 6)
    spoken.utterance.push(speech(5, 40))
    spoken.hear()
    cluster.process.terminate()
    with remote(cluster, place_s=0.5) as other, pytest.raises(EngineError):
        while True:
            Spoken(other, model.voice, 1).utterance.cancel()
    spoken.utterance.push(speech(6, 20))
    assert len(spoken.rest()) == 60 * 960
    assert cluster.wait() == 0
