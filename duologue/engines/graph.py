"""The seam of engines: one graph takes named arrays and gives named arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output.

    Attributes:
        name: As in the exported file.
        dtype: numpy's name, "float32", "float16", "int64".
        shape: A number for a fixed size, a name for one that varies (-1 is never used).
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Graph(Protocol):
    """One model graph, ready to run."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once.

        Raises:
            EngineError: an input is missing, unknown, or has another type or shape than its port.
        """
        ...
