"""The catalogue, the environment and the choice of the index."""

import json
import os

import pytest
from model_web import toy_entry

from duologue.errors import ConfigError
from duologue.models import ensure as ensure_default
from duologue.models.catalogue import load_catalogue
from duologue.models.download import without_secrets
from duologue.models.registry import index_url


def test_the_built_in_catalogue():
    catalogue = load_catalogue()
    assert catalogue.default_names == [
        "whisper-tiny.en",
        "smollm2-135m-instruct",
        "piper-en_US-joe-medium",
    ]
    assert [part.wheel[-5:] for part in catalogue["whisper-base"].files[0].parts] == [
        "part1",
        "part2",
    ]


@pytest.mark.parametrize("bad", ["../evil", "/etc/passwd", "a/../../b", "..\\evil", "C:/evil", ""])
@pytest.mark.parametrize("where", ["name", "member", "hub_path"])
def test_a_path_that_leaves_its_folder_is_refused(tmp_path, where, bad):
    entry = toy_entry()
    target = entry["files"][1]
    (target["parts"][0] if where == "member" else target)[where] = bad
    path = tmp_path / "catalogue.yaml"
    path.write_text(json.dumps([entry]))
    with pytest.raises(ConfigError, match="is not a model catalogue"):
        load_catalogue(path)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../toy"},
        {"surprise": 1},
        {"wheels": []},
        {"files": []},
        {"role": "music"},
    ],
)
def test_a_wrong_catalogue_is_refused(tmp_path, change):
    path = tmp_path / "catalogue.yaml"
    path.write_text(json.dumps([toy_entry(**change)]))
    with pytest.raises(ConfigError):
        load_catalogue(path)


def test_a_name_may_stand_only_once(tmp_path):
    path = tmp_path / "catalogue.yaml"
    path.write_text(json.dumps([toy_entry(), toy_entry()]))
    with pytest.raises(ConfigError, match="toy more than once"):
        load_catalogue(path)


@pytest.mark.parametrize("name", ["DUOLOGUE_OFFLINE", "DUOLOGUE_HUB"])
def test_a_switch_is_on_or_off(monkeypatch, name):
    monkeypatch.setenv(name, "maybe")
    with pytest.raises(ConfigError, match=f"{name} is 'maybe', expected on or off"):
        ensure_default("whisper-base", offline=True)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"PIP_INDEX_URL": "https://a/simple", "UV_INDEX_URL": "https://b"}, "https://a/simple"),
        ({"UV_DEFAULT_INDEX": "https://b/?x=y", "UV_INDEX_URL": "https://c"}, "https://b/?x=y"),
        ({"UV_DEFAULT_INDEX": "mine=https://b/simple"}, "https://b/simple"),
        ({"UV_INDEX_URL": "http://c/simple"}, "http://c/simple"),
    ],
)
def test_the_index_is_the_one_of_pip_and_uv(environ, expected):
    assert index_url(environ) == expected


def test_the_index_of_the_pip_set_up_is_used(tmp_path, monkeypatch):
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\n[ $* = 'config get global.index-url' ] || echo https://d/simple\n")
    pip.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("duologue.models.registry.find_spec", lambda name: None)
    assert index_url({}) == "https://d/simple"


def test_an_index_that_is_no_web_address_is_refused_without_its_password():
    with pytest.raises(ConfigError, match="expected an http") as caught:
        index_url({"PIP_INDEX_URL": "ftp://me:secret@host/simple"})
    assert "secret" not in str(caught.value)


def test_secrets_of_an_address_are_not_shown():
    assert without_secrets("https://me:pass@host:1/a?token=x") == "https://host:1/a"
