"""Pipelines of tests, while they run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pipecat.pipeline.worker import PipelineWorker
from pipecat.workers.runner import WorkerRunner


@asynccontextmanager
async def running(worker: PipelineWorker) -> AsyncIterator[None]:
    """Run a pipeline in virtual time, settled, until the block is over."""
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    task = asyncio.create_task(runner.run(auto_end=True))
    await asyncio.sleep(0.5)
    try:
        yield
    finally:
        await worker.cancel()
        await task
