"""What a process logs, and in which form: for a person at a terminal, or one JSON object a line.

At the default level no record holds what anybody said. DEBUG is pipecat's own and does.
"""

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from loguru import logger

from duologue.errors import ConfigError

FORM = "DUOLOGUE_LOG"


def log_to(sink: Any = sys.stderr, *, verbose: bool, environ: Mapping[str, str] = os.environ):
    """Send all records, pipecat's and those of the standard library, to one place.

    Args:
        sink: As loguru takes it.
        verbose: Whether to log everything, words of callers among it.
        environ: DUOLOGUE_LOG is "text" or "json"; JSON is for machines, and tells more.

    Raises:
        ConfigError: another form.
    """
    form = environ.get(FORM, "text")
    if form not in ("text", "json"):
        raise ConfigError(f"{FORM}: expected text or json, found {form!r}")
    usual = "INFO" if form == "json" else "WARNING"
    logger.remove()
    # `diagnose` would print the values of variables, and with them what callers said.
    logger.add(
        sink,
        level="DEBUG" if verbose else usual,
        serialize=form == "json",
        diagnose=False,
    )
    logging.basicConfig(handlers=[_ToLoguru()], level=logging.INFO, force=True)


class _ToLoguru(logging.Handler):
    """Hands the standard library's records on."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record as one of ours, under its own name."""
        log = logger.patch(lambda ours: ours.update(name=record.name, line=record.lineno))
        log.opt(exception=record.exc_info).log(record.levelname, record.getMessage())
