"""Prompt caches, shared by every session of a voice."""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Keeps the `size` values used last, and finds any that a session still holds.

    A value pushed out stays as long as somebody holds it, and is found again until then: no voice
    is ever in memory twice. Any thread may ask: one value is made at a time, and who asks for one
    that is there does not wait for it.

    Args:
        size: How many values to keep for later.
    """

    def __init__(self, size: int):
        self._size = size
        self._recent: OrderedDict[str, T] = OrderedDict()
        self._alive: weakref.WeakValueDictionary[str, T] = weakref.WeakValueDictionary()
        self._making = threading.Lock()
        self._table = threading.Lock()

    def __iter__(self) -> Iterator[T]:
        """Every value that is in memory now."""
        # The references are copied at once: other threads may add to them meanwhile.
        held = [reference() for reference in self._alive.valuerefs()]
        return (value for value in held if value is not None)

    def get(self, digest: str, make: Callable[[], T]) -> T:
        """The value of a digest, made now if nobody has it."""
        value = self._alive.get(digest)
        if value is None:
            with self._making:
                value = self._alive.get(digest)
                if value is None:
                    value = self._alive[digest] = make()
        with self._table:
            self._recent[digest] = value
            self._recent.move_to_end(digest)
            if len(self._recent) > self._size:
                self._recent.popitem(last=False)
        return value
