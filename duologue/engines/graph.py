"""The seam of engines: one graph takes named arrays and gives named arrays."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from duologue.errors import EngineError

_AXIS = re.compile(r"(?:(\d+)\*)?([A-Za-z]\w*)(?:\+(\d+))?")


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output.

    Attributes:
        name: As in the exported file.
        dtype: numpy's name, "float32", "float16", "int64"; "bfloat16" is given as float32 where
            numpy arrays go in and out, since numpy has no such type.
        shape: A number for a fixed size; for one that varies its axis ("B"), or a multiple or sum
            of an axis ("480*T", "T+3").
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def array_dtype(self) -> str:
        """The dtype of the numpy array that stands for this port."""
        return "float32" if self.dtype == "bfloat16" else self.dtype

    def size(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape in numbers, for a size of each axis."""
        return tuple(
            axis if isinstance(axis, int) else _size(*_parsed(axis), sizes) for axis in self.shape
        )


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


def axes(ports: Sequence[Port]) -> set[str]:
    """Names of the axes that vary."""
    return {_parsed(axis)[1] for port in ports for axis in port.shape if isinstance(axis, str)}


def is_axis(text: str | None) -> bool:
    """Whether a text can stand in a port's shape."""
    return text is not None and _AXIS.fullmatch(text) is not None


def check_arrays(
    ports: Sequence[Port], arrays: Mapping[str, Any], *, host: bool = True
) -> dict[str, int]:
    """Compare arrays, or torch tensors, with the ports that they are meant for.

    Args:
        ports: All inputs of a graph.
        arrays: By name; each needs `dtype` and `shape`.
        host: Whether they are numpy arrays, which have no bfloat16.

    Returns:
        The size of each axis.

    Raises:
        EngineError: one is missing, unknown, or has another type or shape than its port.
    """
    names = {port.name for port in ports}
    if names != set(arrays):
        missing, unknown = sorted(names - set(arrays)), sorted(set(arrays) - names)
        raise EngineError(
            f"the graph takes {', '.join(sorted(names))}; missing: {', '.join(missing) or 'none'}, "
            f"unknown: {', '.join(unknown) or 'none'}"
        )
    sizes: dict[str, int] = {}
    for port in ports:
        array = arrays[port.name]
        given = str(array.dtype).removeprefix("torch.")
        expected = port.array_dtype if host else port.dtype
        if given != expected:
            raise EngineError(f"input {port.name}: expected {expected}, got {given}")
        _match(port, tuple(array.shape), sizes)
    return sizes


def _match(port: Port, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    fits = len(shape) == len(port.shape)
    for axis, size in zip(port.shape, shape, strict=False):
        if isinstance(axis, int):
            fits &= axis == size
            continue
        factor, name, extra = _parsed(axis)
        whole, rest = divmod(size - extra, factor)
        fits &= not rest and whole >= 0 and sizes.setdefault(name, whole) == whole
    if not fits:
        known = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise EngineError(
            f"input {port.name}: expected shape [{', '.join(map(str, port.shape))}]"
            f"{f' with {known}' if known else ''}, got {list(shape)}"
        )


def _parsed(axis: str) -> tuple[int, str, int]:
    """Factor, axis and summand of `factor*axis+summand`."""
    match = _AXIS.fullmatch(axis)
    if match is None:
        raise ValueError(f"{axis!r} is no size; expected like T, 480*T or T+3")
    factor, name, extra = match.groups()
    return int(factor or 1), name, int(extra or 0)


def _size(factor: int, name: str, extra: int, sizes: Mapping[str, int]) -> int:
    return factor * sizes[name] + extra
