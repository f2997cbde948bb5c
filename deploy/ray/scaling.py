"""How many replicas the work asks for. Ray ships this file by value: it imports nothing of ours."""

import math
from typing import Any

QUEUED = "queued_audio_s"
"""What replicas report: seconds of sound whose tokens wait for the engine."""


class QueuedAudio:
    """Replicas for the sound that waits, and for the utterances that are spoken.

    Sound that waits says that engines are too slow. Places that are taken say that the next caller
    is refused, however fast the engines are.

    Args:
        target_s: Seconds of waiting sound that one replica may have.
        places: Utterances that one replica should have, fewer than it takes.
    """

    def __init__(self, target_s: float = 2.0, places: float = 6.0):
        self._target_s, self._places = target_s, places

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:
        """The number wanted, before the bounds and the delays of the deployment's set-up."""
        queued = (ctx.aggregated_metrics or {}).get(QUEUED, {})
        by_audio = math.ceil(sum(queued.values()) / self._target_s)
        by_places = math.ceil(ctx.total_num_requests / self._places)
        return max(by_audio, by_places), {}
