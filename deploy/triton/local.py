"""A Triton server of this machine: `python -m deploy.triton.local SETUP`; Triton's options follow.

`make triton` installs the server (deploy/triton/install.sh). Its models run in this Python.
"""

import argparse
import os
import sysconfig
from pathlib import Path

from duologue.errors import EngineError

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-triton"
LOCAL = "127.0.0.1"
"""Triton asks callers for nothing: others may call if the options say so."""
MODELS = Path(__file__).parent / "models"


def find_server(venv: Path = VENV) -> Path:
    """The folder of the server.

    Raises:
        EngineError: it is not installed.
    """
    for folder in venv.glob("lib/python3*/site-packages/pytriton/tritonserver"):
        if (folder / "backends/python/triton_python_backend_stub").exists():
            return folder
    raise EngineError(f"no Triton server in {venv}; run: make triton")


def command(server: Path, *options: str) -> list[str]:
    """What starts the server.

    Args:
        server: From `find_server`.
        options: More of tritonserver's own.
    """
    return [
        str(server / "bin/tritonserver"),
        f"--model-repository={MODELS}",
        f"--backend-directory={server / 'backends'}",
        # Loaded anew by request when the model's process has died, which Triton does not do itself.
        "--model-control-mode=explicit",
        "--load-model=token2wav",
        "--disable-auto-complete-config",
        *(f"--{kind}-address={LOCAL}" for kind in ("grpc", "http", "metrics")),
        *options,
    ]


def environment(server: Path, setup: Path) -> dict[str, str]:
    """Variables for the server and for this Python in it."""
    libraries = [server.parents[1] / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR")]
    return {
        **os.environ,
        "DUOLOGUE_TRITON_SETUP": str(setup.absolute()),
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        # The backend takes the packages of the first python3 here, and no PYTHONPATH.
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]),
    }


def main() -> None:
    """Become the server."""
    parser = argparse.ArgumentParser(description="A Triton server of this machine.")
    parser.add_argument("setup", type=Path, help="as for `duologue serve -c`")
    known, options = parser.parse_known_args()
    server = find_server()
    arguments = command(server, *options)
    os.execve(arguments[0], arguments, environment(server, known.setup))


if __name__ == "__main__":
    main()
