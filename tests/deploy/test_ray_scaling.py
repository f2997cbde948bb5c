"""How many replicas there are: the rule alone, and on a real cluster."""

from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from deploy.ray.scaling import QUEUED, QueuedAudio
from tests.deploy.ray_cluster import TOKEN, Cluster, Model, Spoken, remote, speech


def wanted(requests: float, **queued: float) -> int:
    context = SimpleNamespace(aggregated_metrics={QUEUED: queued}, total_num_requests=requests)
    count, state = QueuedAudio(target_s=2.0, places=6.0)(context)
    assert state == {}
    return count


def test_sound_that_waits_asks_for_replicas():
    assert wanted(1, a=0.5) == 1
    assert wanted(1, a=2.0, b=2.0) == 2
    assert wanted(1, a=4.1, b=0.0) == 3


def test_places_that_are_taken_do_too():
    assert wanted(6, a=0.0) == 1
    assert wanted(7, a=0.0) == 2
    assert wanted(7, a=9.0) == 5


def test_without_work_and_before_the_first_report_nothing_is_asked_for():
    assert wanted(0) == 0
    context = SimpleNamespace(aggregated_metrics=None, total_num_requests=0)
    assert QueuedAudio()(context)[0] == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("ray") is None, reason="needs ray: pip install -e '.[ray]'")
def test_one_long_sentence_that_waits_brings_a_second_replica(tmp_path, monkeypatch):
    monkeypatch.setenv("DUOLOGUE_SERVE_TOKEN", TOKEN)
    model = Model.write(tmp_path, places=8)
    cluster = Cluster(model, "--replicas", "1", "--max-replicas", "2")
    try:
        cluster.wait_until_ready()
        assert len(cluster.replicas()) == 1
        with remote(cluster) as far:
            spoken = Spoken(far, model.voice, 1)
            spoken.utterance.push(speech(1, 14_000))
            while len(cluster.replicas()) < 2:
                spoken.hear()
            spoken.utterance.cancel()
    finally:
        cluster.end()
