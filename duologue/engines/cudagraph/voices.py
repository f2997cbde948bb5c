"""Slots of voices: counted while sessions use them, kept for later while there is room."""

from collections import Counter, OrderedDict
from collections.abc import Callable

from duologue.errors import CapacityError


class VoiceSlots:
    """Gives each voice a slot.

    Args:
        capacity: Slots.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._free = list(range(capacity))[::-1]
        self._slots: OrderedDict[str, int] = OrderedDict()
        self._users: Counter[str] = Counter()

    def __len__(self) -> int:
        """Voices that are in a slot."""
        return len(self._slots)

    def take(self, digest: str, fill: Callable[[int], None]) -> int:
        """The slot of a voice, filled now if it is new; the caller uses it until `release`.

        Raises:
            CapacityError: sessions use as many other voices as there are slots.
        """
        if digest not in self._slots:
            slot = self._room()
            try:
                fill(slot)
            except BaseException:
                self._free.append(slot)
                raise
            self._slots[digest] = slot
        self._slots.move_to_end(digest)
        self._users[digest] += 1
        return self._slots[digest]

    def release(self, digest: str) -> None:
        """One user less."""
        self._users[digest] -= 1

    def _room(self) -> int:
        if not self._free:
            idle = next((digest for digest in self._slots if not self._users[digest]), None)
            if idle is None:
                raise CapacityError(
                    f"sessions use {len(self._slots)} voices, as many as there is room for; "
                    "close one, or make room for more voices"
                )
            self._free.append(self._slots.pop(idle))
        return self._free.pop()
