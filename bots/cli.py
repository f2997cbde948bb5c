"""The commands that need the bots; `duologue` finds this module by name in a checkout."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from loguru import logger
from rich.console import Console

from duologue.config import load_config

CONFIGS = Path(__file__).with_name("configs")


def config_path(name: str) -> Path:
    """A set-up of ours by name, or any file by path."""
    path = Path(name)
    return path if len(path.parts) > 1 or path.suffix else CONFIGS / f"{name}.yaml"


def quiet(verbose: bool) -> None:
    """Keep pipecat's log to what a person has to know."""
    logger.remove()
    logger.add(sys.stderr, level="DEBUG" if verbose else "WARNING")


def room(config: str, flags: list[str], verbose: bool) -> None:
    """Start the browser room."""
    quiet(verbose)
    settings = load_config(config_path(config), flags=flags)
    from bots.room import serve

    url = f"http://{settings.room.host}:{settings.room.port}"
    console = Console(stderr=True)
    console.print(f"duologue room: [bold]{url}[/] (loading models; Ctrl-C ends it)")
    try:
        asyncio.run(serve(settings, ready=lambda: console.print("The room is open.")))
    except KeyboardInterrupt:
        console.print("The room is closed.")


def talk(
    source: Path, target: Path, config: str, flags: list[str], verbose: bool
) -> dict[str, Any]:
    """Answer one recording."""
    quiet(verbose)
    settings = load_config(config_path(config), flags=flags)
    from bots.talk import talk as run

    return asyncio.run(run(source, target, settings)).to_dict()
