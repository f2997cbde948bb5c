"""Does a phone keep anything of calls that have ended? Calls come and go on the embedded models.

Each call lasts some seconds; one in three ends as a lost network does, without a word. The phone
samples itself every ten seconds, and a line is fitted to the means of minutes after the warm-up.

    python -m benchmarks.churn [--kind graph] [--calls N] [--seconds S] [--warm-s S] [--csv FILE]

It fails if tasks or files climb by more than twice the error of their slope, or memory by that and
by more than 6 MB an hour.
"""

import argparse
import asyncio
import base64
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
from loguru import logger
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from benchmarks.calls import FRAME_S, QUESTIONS, ROOT, Caller, listen_to, serve, wait_until_open
from bots import phone
from duologue.config import load_config
from duologue.rehearsal.script import read_labels
from duologue.rehearsal.timeline import Clip

SAMPLE_S = 10.0
CALL_S = (8.0, 45.0)
PAUSE_S = (0.5, 4.0)
LEAST_S = 240.0
MOST_PER_HOUR = {"rss_mb": 6.0, "tasks": 0.0, "files": 0.0}


async def embedded_phone(port: int) -> None:
    """`duologue phone --no-auth`, with room for more calls than a core holds."""
    logger.remove()
    config = load_config(ROOT / "bots/configs/embedded.yaml")
    changes = {
        "limits": config.limits.model_copy(update={"sessions": 8}),
        "phone": config.phone.model_copy(update={"port": port, "auth": False}),
    }
    await phone.serve(config.model_copy(update=changes))


async def serve_sampled(kind: str, port: int) -> None:
    """The phone; every ten seconds a line of JSON about its process."""
    server = asyncio.create_task(embedded_phone(port) if kind == "embedded" else serve(kind, port))
    process, began_s = psutil.Process(), time.monotonic()
    while not server.done():
        figures = {
            "at_s": round(time.monotonic() - began_s, 1),
            "rss_mb": round(process.memory_info().rss / 1e6, 2),
            "tasks": len(asyncio.all_tasks()),
            "files": process.num_fds(),
            "threads": process.num_threads(),
        }
        print(json.dumps(figures), flush=True)
        await asyncio.wait([server], timeout=SAMPLE_S)
    server.result()


async def call(url: str, number: int, clip: Clip, seconds: float) -> float:
    """One paced call; returns the seconds of sound that it heard."""
    caller = Caller(clip, echo=False)
    ids = {"streamSid": f"MZ{number}", "callSid": f"CA{number}"}
    async with connect(url, compression=None, max_queue=None) as line:
        await line.send(json.dumps({"event": "start", "start": ids, "streamSid": ids["streamSid"]}))
        hearing = asyncio.create_task(listen_to(line, caller))
        due_s = time.monotonic()
        until_s = due_s + seconds
        while due_s < until_s:
            payload = base64.b64encode(caller.next_frame(time.monotonic())).decode()
            await line.send(json.dumps({"event": "media", "media": {"payload": payload}}))
            due_s += FRAME_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        if number % 3:
            await line.send(json.dumps({"event": "stop"}))
        else:
            line.transport.abort()
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
    return caller.heard.audio_s


async def come_and_go(
    url: str, slot: int, until_s: float, clips: list[Clip], heard: list[float]
) -> None:
    """One call after another; appends what each has heard."""
    chance = random.Random(slot)
    while (now_s := time.monotonic()) < until_s:
        seconds = min(chance.uniform(*CALL_S), until_s - now_s)
        number = 1000 * slot + len(heard)
        with suppress(ConnectionClosed):
            heard.append(await call(url, number, chance.choice(clips), seconds))
        await asyncio.sleep(chance.uniform(*PAUSE_S))


async def churn(url: str, calls: int, seconds: float) -> list[float]:
    """So many calls at any time; returns what each has heard."""
    heard: list[float] = []
    clips = [label.clip() for label in read_labels(QUESTIONS)[:8]]
    until_s = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for slot in range(1, calls + 1):
            group.create_task(come_and_go(url, slot, until_s, clips, heard))
    return heard


def slope(at_s: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Change in an hour and its standard error, of the means of minutes.

    Samples that follow each other are alike, which would make the error too small; means of
    minutes are less so.
    """
    minutes = (at_s // 60).astype(int)
    which = np.unique(minutes)
    x = np.array([at_s[minutes == one].mean() for one in which]) / 3600
    y = np.array([values[minutes == one].mean() for one in which])
    x = x - x.mean()
    steep = float(x @ (y - y.mean()) / (x @ x))
    rest = y - y.mean() - steep * x
    return steep, float(np.sqrt(rest @ rest / max(len(x) - 2, 1) / (x @ x)))


def judge(samples: list[dict[str, float]], warm_s: float) -> tuple[dict, bool]:
    """Figures of the samples after the warm-up, and whether something climbs."""
    warm = [sample for sample in samples if sample["at_s"] >= warm_s]
    at_s = np.array([sample["at_s"] for sample in warm])
    found, climbs = {}, False
    for name in samples[0].keys() - {"at_s"}:
        values = np.array([sample[name] for sample in warm])
        steep, error = slope(at_s, values)
        climbs |= name in MOST_PER_HOUR and steep > max(2 * error, MOST_PER_HOUR[name])
        found[name] = {
            "first": samples[0][name],
            "min": float(values.min()),
            "max": float(values.max()),
            "per_hour": round(steep, 2),
            "error": round(error, 2),
        }
    return found, climbs


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what calls leave behind.")
    parser.add_argument("--kind", choices=["graph", "embedded"], default="embedded")
    parser.add_argument("--calls", type=int, default=2, help="how many at any time")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--warm-s", type=float, default=300)
    parser.add_argument("--port", type=int, default=7978)
    parser.add_argument("--csv", type=Path, help="write the samples")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve_sampled(options.kind, options.port))
        return
    if options.seconds - options.warm_s < LEAST_S:
        parser.error(f"a slope needs {LEAST_S:g} s or more behind --warm-s")
    logger.remove()
    command = [sys.executable, "-m", "benchmarks.churn", "--serve", "--kind", options.kind]
    command += ["--port", str(options.port)]
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file)
        try:
            wait_until_open(options.port, process)
            url = f"ws://127.0.0.1:{options.port}/ws"
            heard = asyncio.run(churn(url, options.calls, options.seconds))
        finally:
            process.terminate()
            # An aborted request is first read to the end of its prompt.
            process.wait(120)
        file.seek(0)
        samples = [json.loads(line) for line in file]
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, samples[0])
            writer.writeheader()
            writer.writerows(samples)
    figures, climbs = judge(samples, options.warm_s)
    figures["calls"] = len(heard)
    figures["silent_calls"] = sum(not seconds for seconds in heard)
    figures["audio_s"] = round(sum(heard))
    print(json.dumps(figures, indent=2))
    if climbs:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
