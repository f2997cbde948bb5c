"""A cluster of one machine, to try things out: `python -m deploy.ray.local SETUP --replicas 2`."""

import argparse
import logging
import os
import signal
import threading
from pathlib import Path

import ray
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions

from deploy.ray.app import GRPC_SERVICES, Arguments, app

NAME = "default"
"""Of the only application, which clients therefore need not name."""


def start(arguments: Arguments, *, grpc_port: int, http_port: int) -> str:
    """Start Ray and the application; the URL for clients, once every replica can be called."""
    application = app(arguments)
    for kind in ("REPLICA", "HANDLE"):
        os.environ.setdefault(f"RAY_SERVE_{kind}_AUTOSCALING_METRIC_PUSH_INTERVAL_S", "2")
    # Ray counts CPUs to place replicas, it does not bind them: here they share what there is.
    ray.init(
        num_cpus=arguments.max_replicas + 2,
        include_dashboard=False,
        logging_level=logging.WARNING,
        log_to_driver=False,
    )
    serve.start(
        http_options=HTTPOptions(host="127.0.0.1", port=http_port),
        grpc_options=gRPCOptions(port=grpc_port, grpc_servicer_functions=GRPC_SERVICES),
    )
    serve.run(application, name=NAME)
    return f"grpc://127.0.0.1:{grpc_port}"


def stop() -> None:
    """Let calls end, for as long as the set-up says, and stop everything."""
    # The replicas first: calls reach them through the proxy.
    serve.delete(NAME)
    serve.shutdown()
    ray.shutdown()


def main() -> None:
    """Start, print the URL, stop on SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="A cluster of one machine.")
    parser.add_argument("setup", type=Path, help="as for `duologue serve -c`")
    parser.add_argument("--replicas", type=int, default=2, help="kept at least")
    parser.add_argument("--max-replicas", type=int, help="no more than kept, if not given")
    parser.add_argument("--gpus", type=float, default=0, help="of each replica")
    parser.add_argument("--grpc-port", type=int, default=9000)
    parser.add_argument("--http-port", type=int, default=8000)
    options = parser.parse_args()
    arguments = Arguments(
        setup=options.setup,
        min_replicas=options.replicas,
        max_replicas=options.max_replicas or options.replicas,
        gpus=options.gpus,
    )
    url = start(arguments, grpc_port=options.grpc_port, http_port=options.http_port)
    ended = threading.Event()
    # Behind Ray's start, whose own handlers end the process at once.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: ended.set())
    print(url, flush=True)
    ended.wait()
    stop()


if __name__ == "__main__":
    main()
