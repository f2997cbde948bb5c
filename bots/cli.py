"""The commands that need the bots; `duologue` finds this module by name in a checkout."""

import asyncio
import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from bots.ops_log import log_to
from duologue.config import load_config
from duologue.errors import UsageError

CONFIGS = Path(__file__).with_name("configs")


def config_path(name: str) -> Path:
    """A set-up of ours by name, or any file by path."""
    path = Path(name)
    return path if len(path.parts) > 1 or path.suffix else CONFIGS / f"{name}.yaml"


def quiet(verbose: bool) -> None:
    """Keep pipecat's log to what a person has to know."""
    log_to(verbose=verbose)


def room(config: str, flags: list[str], verbose: bool) -> None:
    """Start the browser room."""
    quiet(verbose)
    settings = load_config(config_path(config), flags=flags)
    from bots.room import serve

    url = f"http://{settings.room.host}:{settings.room.port}"
    console = Console(stderr=True)
    console.print(f"duologue room: [bold]{url}[/] (loading models; Ctrl-C ends it)")
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(settings, ready=lambda: console.print("The room is open.")))
    console.print("The room is closed.")


def phone(config: str, flags: list[str], verbose: bool) -> None:
    """Take phone calls."""
    quiet(verbose)
    settings = load_config(config_path(config), flags=flags)
    from bots.phone import Gate, check, serve

    secrets = check(settings.phone)
    gate, console = Gate(settings.phone, secrets), Console(stderr=True, soft_wrap=True)
    console.print("duologue phone (loading models; Ctrl-C ends it)")
    if secrets:
        console.print(
            "At the provider, in your number's voice settings: A call comes in, "
            f"Webhook, HTTP POST, [bold]{gate.base_url}/voice[/]"
        )
    else:
        console.print(f"Without authentication: media streams come to [bold]{gate.media_url}[/]")
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(settings, ready=lambda: console.print("The phone is on.")))
    console.print("The phone is off.")


def daily(config: str, flags: list[str], verbose: bool) -> None:
    """Join a Daily room."""
    quiet(verbose)
    settings = load_config(config_path(config), flags=flags)
    if importlib.util.find_spec("daily") is None:
        raise UsageError("Daily rooms need daily-python; run: pip install -e '.[daily]'")
    from bots.daily import serve

    console = Console(stderr=True)
    told = f"duologue daily: [bold]{settings.daily.url}[/] (loading models; Ctrl-C ends it)"
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(settings, loading=lambda: console.print(told)))
    console.print("The bot has left.")


def talk(
    source: Path, target: Path, config: str, flags: list[str], verbose: bool
) -> dict[str, Any]:
    """Answer one recording."""
    quiet(verbose)
    settings = load_config(config_path(config), flags=flags)
    from bots.talk import talk as run

    return asyncio.run(run(source, target, settings)).to_dict()
