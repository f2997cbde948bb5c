"""What the benchmark of coming and going calls says of its samples."""

import numpy as np
import pytest

from benchmarks.churn import judge, slope

AT_S = np.arange(0, 1800, 10.0)


def samples(**per_hour: float) -> list[dict[str, float]]:
    """Half an hour of noise about 100, with what each figure gains in an hour."""
    rng = np.random.default_rng(1)
    figures = {
        name: 100 + rng.normal(0, 1, len(AT_S)) + per_hour.get(name, 0.0) * AT_S / 3600
        for name in ("rss_mb", "tasks", "files", "threads")
    }
    return [
        {"at_s": at_s, **{name: values[i] for name, values in figures.items()}}
        for i, at_s in enumerate(AT_S)
    ]


def test_a_line_and_its_error():
    steep, error = slope(AT_S, 7.0 + 36.0 * AT_S / 3600)
    assert steep == pytest.approx(36.0) and error == pytest.approx(0.0, abs=1e-6)
    noise = np.random.default_rng(2).normal(0, 1, (200, len(AT_S)))
    lines = np.array([slope(AT_S, row) for row in noise])
    assert lines[:, 0].std() == pytest.approx(lines[:, 1].mean(), rel=0.2)


@pytest.mark.parametrize(
    ("per_hour", "climbs"),
    [
        ({}, False),
        ({"rss_mb": 60.0}, True),
        ({"rss_mb": 3.0}, False),
        ({"tasks": 30.0}, True),
        ({"files": 30.0}, True),
        ({"threads": 30.0}, False),
    ],
)
def test_what_climbs(per_hour, climbs):
    figures, found = judge(samples(**per_hour), warm_s=300)
    assert found is climbs
    for name, steep in per_hour.items():
        assert abs(figures[name]["per_hour"] - steep) < 4 * figures[name]["error"]
