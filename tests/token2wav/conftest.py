"""A tiny flow over graphs that keep what they were given."""

import pytest

from duologue.token2wav.graph_flow import GraphFlow
from duologue.token2wav.solver import FlowGraphs
from tests.token2wav.flows import FEW_STEPS, tiny_graphs


@pytest.fixture
def graphs() -> FlowGraphs:
    return tiny_graphs()


@pytest.fixture
def flow(graphs) -> GraphFlow:
    return GraphFlow(graphs, FEW_STEPS, capacity=4, window=20)
