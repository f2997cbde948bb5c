"""All stages in one go, beside each other where they may be, within one span of time.

A rented GPU is paid by the hour, so the clock rules: each stage gets a share of the time or what is
left of it. The vocoder needs speech only and trains beside the tokenizer and what follows it; the
flow, which takes longest to learn, has the GPU to itself at the end.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from duologue.errors import EngineError

SPEECH, TOKENIZER, TALKER, HIFT = 0.1, 0.07, 0.14, 0.5
"""Shares of the time; the flow trains to the end of it."""

SHOWN = 12
"""Lines of a failed stage's output that its error repeats."""

Command = Callable[[str, float], Sequence[str]]
"""A stage and its minutes, to what runs it."""


@dataclass(frozen=True, slots=True)
class Order:
    """What all stages are told.

    Attributes:
        work: Folder with texts.jsonl.xz.
        voice: The teacher's folder.
        device: Where to train; "" for a GPU if there is one.
        jobs: Processes of the teacher.
        seed: Of everything.
    """

    work: Path
    voice: Path
    device: str = ""
    jobs: int = 2
    seed: int = 0

    def command(self, stage: str, minutes: float) -> list[str]:
        """How a stage is run."""
        options = {"work": self.work, "minutes": minutes, "device": self.device, "seed": self.seed}
        if stage == "speech":
            options |= {"voice": self.voice, "jobs": self.jobs}
        run = "from duologue.cli_train import train_app; train_app()"
        flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return [sys.executable, "-c", run, stage, *flags]


async def run_all(work: Path, minutes: float, command: Command) -> None:
    """Run speech, tokenizer, flow, hift and talker.

    What a failed stage is needed for is left out; the others go on to their end.

    Args:
        work: Each stage's output goes to WORK/<stage>.out.
        minutes: For all of it.
        command: What runs a stage.

    Raises:
        EngineError: stages failed, with what they said last.
    """
    end = time.monotonic() + 60 * minutes
    failed: list[str] = []

    async def stage(name: str, share: float = 1.0) -> bool:
        left = min(share * minutes, (end - time.monotonic()) / 60)
        output = work / f"{name}.out"
        with output.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *command(name, max(left, 0.0)), stdout=file, stderr=asyncio.subprocess.STDOUT
            )
            try:
                code = await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
        if code:
            last = output.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN:]
            failed.append(f"{name} (exit code {code}, {output}):\n" + "\n".join(last))
        return code == 0

    async def tokens() -> None:
        if await stage("tokenizer", TOKENIZER):
            await asyncio.gather(stage("flow"), stage("talker", TALKER))

    if await stage("speech", SPEECH):
        await asyncio.gather(stage("hift", HIFT), tokens())
    if failed:
        raise EngineError("; ".join(failed))
