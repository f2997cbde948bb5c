"""What a stage says of its steps."""

import json
from pathlib import Path
from typing import Any


class Log:
    """Lines of JSON in WORK/<stage>.log.jsonl, which `duologue train plot` draws; also printed."""

    def __init__(self, work: Path, stage: str, *, resume: bool):
        work.mkdir(parents=True, exist_ok=True)
        self.path, self._stage = work / f"{stage}.log.jsonl", stage
        if not resume:
            self.path.unlink(missing_ok=True)

    def write(self, **figures: Any) -> None:
        """Add a line."""
        rounded = {k: round(v, 6) if isinstance(v, float) else v for k, v in figures.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rounded) + "\n")
        print(self._stage, *(f"{name} {value:.5g}" for name, value in rounded.items()), flush=True)
