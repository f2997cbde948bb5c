"""One exception root and its causes; the CLI maps each cause to an exit code.

Every message says what was given, what was expected and what to do.
"""


class DuologueError(Exception):
    """Root of every error that duologue raises on purpose."""

    exit_code = 1


class UsageError(DuologueError):
    """A wrong call: unknown option, mode or name."""

    exit_code = 2


class ConfigError(UsageError):
    """A set-up file, flag or environment value that is not valid."""


class InputError(DuologueError):
    """Input that cannot be used: missing, empty, broken or too long."""

    exit_code = 3


class EngineError(DuologueError):
    """A model or engine that is missing, damaged or failed."""

    exit_code = 4


class ModelError(EngineError):
    """A model file that cannot be found, fetched or verified."""


class CapacityError(EngineError):
    """A refusal because every slot is taken; trying again later may work."""
