"""What became of aborts is counted for Prometheus, too."""

from prometheus_client import REGISTRY

from duologue.errors import EngineError
from duologue.lm.abort import AbortWatch


def counted() -> dict[str, float]:
    names = {"yes": {"confirmed": "yes"}, "no": {"confirmed": "no"}}
    found = {
        key: REGISTRY.get_sample_value("duologue_lm_aborts_total", labels) or 0.0
        for key, labels in names.items()
    }
    wasted = REGISTRY.get_sample_value("duologue_lm_wasted_tokens_total") or 0.0
    return {**found, "wasted": wasted}


async def test_aborts_are_counted_with_their_waste():
    async def stops() -> int:
        return 3

    async def breaks() -> int:
        raise EngineError("gone")

    watch, before = AbortWatch(), counted()
    watch.follow(stops(), 100)
    watch.follow(breaks(), 20)
    await watch.settle()
    after = counted()
    assert {key: after[key] - before[key] for key in after} == {"yes": 1, "no": 1, "wasted": 23}
    assert (watch.aborts.confirmed, watch.aborts.unconfirmed) == (1, 1)
    assert watch.aborts.wasted_tokens == 23
