"""`duologue serve`: the speech server."""

import asyncio
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from duologue.config import load_config
from duologue.errors import ConfigError, UsageError

DEFAULT = Path(__file__).parent / "serving" / "default.yaml"
NEEDED = ("grpc", "grpc_health", "grpc_reflection", "starlette", "uvicorn")


def serve(
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", help="A YAML file, or in a checkout a set-up's name."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="Port of gRPC.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Port of HTTP.")] = None,
    flags: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value."),
    ] = [],  # noqa: B006
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
) -> None:
    """Serve speech over gRPC and HTTP: voices, synthesis, speech tokens."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UsageError(f"this command needs {', '.join(missing)}; run: pip install -e '.[serve]'")
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING)
    named = {"host": host, "grpc_port": grpc_port, "http_port": http_port}
    own = [f"serve.{key}={value}" for key, value in named.items() if value is not None]
    settings = load_config(_path(config), flags=[*flags, *own])
    from duologue.serving.server import Ports
    from duologue.serving.server import serve as run

    host = settings.serve.host
    address = f"[{host}]" if ":" in host else host
    scheme = "https" if settings.serve.tls_cert else "http"

    def ready(ports: Ports) -> None:
        grpc, http = f"{address}:{ports.grpc}", f"{scheme}://{address}:{ports.http}"
        typer.echo(f"The server is ready: gRPC on {grpc}, HTTP on {http}", err=True)

    typer.echo("duologue serve: loading models; Ctrl-C ends it", err=True)
    asyncio.run(run(settings, ready=ready))
    typer.echo("The server is closed.", err=True)


def _path(config: str | None) -> Path:
    """The default set-up, a file, or a set-up of the bots by its name."""
    if config is None:
        return DEFAULT
    path = Path(config)
    if len(path.parts) > 1 or path.suffix:
        return path
    folder = Path(__file__).parent.parent / "bots" / "configs"
    if not folder.is_dir():
        raise ConfigError(f"-c {config}: set-ups by name are in a checkout; give a YAML file")
    return folder / f"{config}.yaml"
