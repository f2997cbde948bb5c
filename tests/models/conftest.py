import json

import pytest
from model_web import serve, toy_entry, toy_store
from typer.testing import CliRunner

from duologue.cli_models import models_app
from duologue.errors import DuologueError
from duologue.models.catalogue import load_catalogue


@pytest.fixture
def web():
    with serve() as web:
        yield web


@pytest.fixture
def filled(tmp_path, web):
    web.publish_toy()
    store = toy_store(tmp_path, web)
    store.ensure("toy")
    return store


@pytest.fixture
def command(tmp_path, web, monkeypatch):
    """Run `duologue models` on a catalogue with one toy model."""
    catalogue = tmp_path / "catalogue.yaml"
    catalogue.write_text(json.dumps([toy_entry(), toy_entry("extra", default=False)]))
    monkeypatch.setattr("duologue.models.store.load_catalogue", lambda: load_catalogue(catalogue))
    monkeypatch.setenv("DUOLOGUE_MODELS", str(tmp_path / "store"))
    monkeypatch.setenv("DUOLOGUE_HUB", "off")
    monkeypatch.setenv("PIP_INDEX_URL", f"{web.url}/simple")
    monkeypatch.delenv("DUOLOGUE_OFFLINE", raising=False)
    web.publish_toy()

    def run(*arguments: str) -> tuple[str, DuologueError | None]:
        result = CliRunner().invoke(models_app, arguments)
        error = result.exception
        assert error is None or isinstance(error, DuologueError), repr(error)
        return result.output, error

    return run
