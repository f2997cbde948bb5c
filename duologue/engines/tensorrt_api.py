"""The flavours of TensorRT, which share what is used here: TensorRT 10 and 11, TensorRT for RTX.

TensorRT tunes a plan on the GPU that is present; TensorRT for RTX builds on any machine for the
compute capabilities that are named, and compiles the rest where the plan runs.
"""

import logging
from importlib import import_module
from typing import Any, Literal, get_args

from duologue.errors import EngineError, UsageError

Flavour = Literal["tensorrt", "tensorrt_rtx"]
FLAVOURS: tuple[Flavour, ...] = get_args(Flavour)

_INSTALL = {
    "tensorrt": "pip install tensorrt",
    "tensorrt_rtx": "pip install -e '.[tensorrt-rtx]'",
}
_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}

log = logging.getLogger(__name__)


def load(flavour: str) -> Any:
    """The module of a flavour.

    The wheels with the code are called `*_libs` and `*_bindings`; the package of the plain name,
    which joins them, is often not installable.

    Raises:
        UsageError: there is no such flavour.
        EngineError: it is not installed.
    """
    if flavour not in FLAVOURS:
        raise UsageError(f"{flavour!r} is no flavour of TensorRT; expected {' or '.join(FLAVOURS)}")
    reasons = []
    for name in (flavour, f"{flavour}_bindings"):
        try:
            if name.endswith("_bindings"):
                _preload(f"{flavour}_libs")
            return import_module(name)
        except ImportError as error:
            reasons.append(str(error))
    raise EngineError(f"{flavour} cannot be imported ({'; '.join(reasons)}); {_INSTALL[flavour]}")


def _preload(libraries: str) -> None:
    """Import a wheel of shared libraries, which loads them; a system may have its own instead."""
    try:
        import_module(libraries)
    except ModuleNotFoundError:
        log.debug("no %s; the system's libraries are used", libraries)


def dtype_name(dtype: Any) -> str:
    """The name that numpy gives a TensorRT data type.

    Raises:
        EngineError: numpy and torch have no such type.
    """
    if dtype.name not in _DTYPES:
        raise EngineError(f"a tensor of type {dtype.name}; expected one of {', '.join(_DTYPES)}")
    return _DTYPES[dtype.name]


def make_logger(trt: Any) -> Any:
    """A TensorRT logger that keeps its errors in `errors` and sends the rest to the log."""
    severity = trt.ILogger.Severity
    levels = {severity.WARNING: logging.WARNING, severity.INFO: logging.DEBUG}

    class Logger(trt.ILogger):
        def __init__(self):
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(message)
            elif severity in levels:
                log.log(levels[severity], "%s", message)

    return Logger()
