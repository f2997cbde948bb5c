"""Traces of conversations and their turns, for whoever names a collector.

OpenTelemetry's own variables say where to and how much: OTEL_EXPORTER_OTLP_ENDPOINT turns traces
on, OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_HEADERS and OTEL_TRACES_SAMPLER are honoured too.
"""

import importlib
import os
from functools import cache

from opentelemetry import trace

from duologue.errors import ConfigError

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


@cache
def tracing() -> bool:
    """Whether turns are traced; the first call starts the export.

    Raises:
        ConfigError: a collector is named, and what sends to it is not installed.
    """
    named = next((name for name in ENDPOINTS if os.environ.get(name)), None)
    if named is None:
        return False
    try:
        exporter = importlib.import_module(EXPORTER).OTLPSpanExporter()
        sdk = importlib.import_module("opentelemetry.sdk.trace")
        resources = importlib.import_module("opentelemetry.sdk.resources")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
    except ImportError as error:
        raise ConfigError(
            f"{named} is set: traces need OpenTelemetry's SDK; run: pip install -e '.[trace]'"
        ) from error
    name = os.environ.get("OTEL_SERVICE_NAME", "duologue")
    provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": name}))
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return True
