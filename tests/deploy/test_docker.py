"""The images and their compose file, read: nothing here builds or starts them."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from aioice.stun import TransactionFailed
from prometheus_client import REGISTRY
from typer.main import get_command

from bots.room_ice import IceServers
from duologue import metrics
from duologue.cli import app
from duologue.config import RoomConfig, ServeConfig, load_config
from tests.coturn import coturn_place
from tests.test_room_path import allocate

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy/docker"
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*")


def steps() -> list[tuple[str, str, str]]:
    """(stage, instruction, its text) of the Dockerfile."""
    lines = [x for x in (DOCKER / "Dockerfile").read_text().splitlines() if not x.startswith("#")]
    found, stage = [], ""
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, text = line.split(maxsplit=1)
            if name == "FROM":
                stage = text.split(" AS ")[1]
            found.append((stage, name, text.strip()))
    return found


def told(instruction: str) -> list[tuple[str, str]]:
    return [(stage, text) for stage, name, text in steps() if name == instruction]


def copied(stage: str) -> list[str]:
    """What a stage copies from the checkout."""
    texts = [text for of, text in told("COPY") if of == stage and "--from=" not in text]
    return [source for text in texts for source in text.split()[:-1]]


def test_bases_are_pinned_and_nothing_runs_as_root():
    stages = {stage for stage, _, _ in steps()}
    for _, text in told("FROM"):
        base = text.split()[0]
        assert base in stages or PINNED.fullmatch(base), base
    for target in ("cpu", "gpu"):
        users = [text for stage, text in told("USER") if stage == target]
        assert users[-1].isdigit() and int(users[-1]) > 0


def test_signals_reach_the_program_and_layers_stay_small():
    for _, text in [*told("ENTRYPOINT"), *told("CMD")]:
        assert isinstance(json.loads(text), list), "the exec form passes SIGTERM on"
    for _, text in told("RUN"):
        if "apt-get install" in text:
            assert "--no-install-recommends" in text and "rm -rf /var/lib/apt/lists/*" in text
        assert "sudo" not in text and "curl" not in text
    assert not told("ADD")
    assert any("--require-hashes" in text for _, text in told("RUN"))


def test_what_is_copied_is_there_and_let_through():
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().split()
    for stage in ("build", "cpu", "gpu"):
        for source in copied(stage):
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source


def test_what_is_copied_is_enough(tmp_path):
    for source in [*copied("build"), *copied("cpu")]:
        if (ROOT / source).is_dir():
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, tmp_path / source, ignore=skip)
        elif not source.startswith("requirements/"):
            shutil.copy(ROOT / source, tmp_path)
    script = (
        "import bots.cli, bots.room, bots.phone, duologue.cli, duologue.serving.server;"
        "assert bots.room.WEB.joinpath('index.html').is_file();"
        "assert bots.cli.__file__.startswith(duologue.cli.__file__.rsplit('/', 2)[0])"
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environ, check=True)


def given(path: Path = DOCKER / "example.env") -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    pairs = (line.split("=", 1) for line in lines)
    return {name: value.strip("'") or "x" * 32 for name, value in pairs}


def compose() -> dict[str, Any]:
    """The compose file with the example's variables."""
    text = (DOCKER / "compose.yaml").read_text()
    known = given()

    def put(found: re.Match[str]) -> str:
        name, default = found[1], found[2] or ""
        assert name in known or default.startswith(":-"), f"example.env has no {name}"
        return known.get(name, default.removeprefix(":-"))

    return yaml.safe_load(re.sub(r"\$\{(\w+)([:?-][^}]*)?\}", put, text))


SERVICES = compose()["services"]
BOTS = [name for name, service in SERVICES.items() if service["image"].startswith("duologue:")]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_and_mounts_what_is_there(name):
    service = SERVICES[name]
    assert name in BOTS or PINNED.fullmatch(service["image"])
    assert "privileged" not in service
    for mount in service.get("volumes", ()):
        source = mount.split(":")[0]
        if source.startswith("."):
            assert (DOCKER / source).exists(), source
        else:
            assert source in compose()["volumes"], source


@pytest.mark.parametrize("name", BOTS)
def test_a_bot_is_called_as_it_can_be(name):
    service = SERVICES[name]
    stages = {stage for stage, _, _ in steps()}
    assert service["build"]["target"] in stages
    assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    command = service.get("command", ["room"])
    called = get_command(app).commands[command[0]]  # type: ignore[attr-defined]
    options = {option for parameter in called.params for option in parameter.opts}
    assert {word for word in command if word.startswith("-")} <= options
    environ = {name: str(value) for name, value in service.get("environment", {}).items()}
    config = load_config(ROOT / "bots/configs/embedded.yaml", environ=environ)
    grace_s = int(service["stop_grace_period"].removesuffix("s"))
    drain_s = config.serve.drain_s if name == "speech" else config.limits.drain_s
    assert grace_s >= drain_s + 5
    if config.room.ice_servers:
        IceServers(config.room, environ=environ)


def test_the_speech_servers_setup_is_one():
    assert load_config(DOCKER / "config/serve.yaml", environ={}).token2wav is not None


def test_prometheus_asks_where_the_figures_are():
    jobs = yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"]
    targets = [t for job in jobs for group in job["static_configs"] for t in group["targets"]]
    config = load_config(ROOT / "bots/configs/embedded.yaml", environ={})
    ours = (config.room.port, config.phone.port, ServeConfig().http_port)
    assert {f"127.0.0.1:{port}" for port in ours} <= set(targets)
    if promtool := shutil.which("promtool"):
        check = [promtool, "check", "config", str(DOCKER / "prometheus.yml")]
        subprocess.run(check, check=True, capture_output=True)


def test_the_page_is_behind_a_login_and_figures_are_not_for_others():
    text = (DOCKER / "Caddyfile").read_text()
    (page,) = re.findall(r"@page path (.+)", text)
    (asked,) = re.findall(r"@asked path (.+)", text)
    block = text.partition("handle @page {")[2].partition("\n\t}")[0]
    assert block.index("basic_auth {") < block.index("reverse_proxy 127.0.0.1:7860")
    # Caddy answers what nothing handles with 200.
    assert text.count("handle {\n") == text.count("respond 404\n") == 2
    for path in ("/health", "/ready", "/metrics"):
        assert path not in page and path not in asked


def test_every_figure_is_on_the_board_and_no_other():
    board = json.loads((ROOT / "deploy/grafana/duologue.json").read_text())
    asked = " ".join(t["expr"] for panel in board["panels"] for t in panel["targets"])
    named = set(re.findall(r"duologue_\w+", asked))
    ours = {
        family.name: {sample.name for sample in family.samples}
        | {f"{family.name}{end}" for end in SUFFIXES[family.type]}
        for family in REGISTRY.collect()
        if family.name.startswith("duologue_")
    }
    assert metrics.TURNS.describe()[0].name in ours
    for name in named:
        assert any(name in samples for samples in ours.values()), f"there is no {name}"
    for family, samples in ours.items():
        assert samples & named, f"{family} is not on the board"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"], "gauge": [""]}


@pytest.fixture
def turn_url(tmp_path):
    """coturn with the composed options, on a free port of this machine."""
    binary, address, port = coturn_place()
    ours = [x for x in SERVICES["coturn"]["command"] if not x.startswith("--external-ip")]
    here = shlex.split(
        f"--listening-ip={address} --relay-ip={address} --listening-port={port} "
        f"--pidfile={tmp_path}/pid --userdb={tmp_path}/db"
    )
    server = subprocess.Popen([binary, *ours, *here], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    with socket.socket() as probe:
        while probe.connect_ex((address, port)) and time.monotonic() < deadline:
            time.sleep(0.02)
    yield f"turn:{address}:{port}?transport=udp"
    server.terminate()
    server.wait(10)


async def test_coturn_as_composed_takes_a_rooms_credentials(turn_url):
    config = RoomConfig(ice_servers=[turn_url])
    environ = SERVICES["room"]["environment"]
    await allocate(IceServers(config, environ=environ))
    with pytest.raises(TransactionFailed, match="401"):
        await allocate(IceServers(config, environ=environ | {"DUOLOGUE_TURN_SECRET": "another"}))
