"""The GPU app on Modal, run in this process without an account."""

import asyncio
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest

from duologue.engines.onnx_model import REQUIRED
from duologue.engines.plans import find_plans, read_info
from duologue.serving import speech_pb2 as pb
from duologue.serving import speech_pb2_grpc as stubs
from duologue.token2wav.weights import load_preset, save
from tests.serving import conftest as serving_parts
from tests.serving import servers as serving

pytest.importorskip("modal", reason="needs the extra `modal`")
# What runs in this process has no Volume, and needs none.
pytestmark = pytest.mark.filterwarnings("ignore:The .* function is executing locally:UserWarning")

from deploy.modal import settings, speech  # noqa: E402

ada, front_end = serving_parts.ada, serving_parts.front_end


def raw(server: Any, name: str) -> Any:
    """What Modal calls at a container's start or end."""
    return next(iter(vars(vars(type(server))[name]).values())).raw_f


def test_the_language_model_is_started_behind_its_key(tmp_path, monkeypatch):
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "$VLLM_API_KEY $@" > "$0.called"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("DUOLOGUE_LM_API_KEY", "secret")
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)))
    speech.lm.local()
    assert started[0].wait(10) == 0
    called = (tmp_path / "vllm.called").read_text()
    assert called.startswith(f"secret serve {speech.DEPLOYMENT.lm} ")
    assert f"--port {speech.LM_PORT}" in called


class Volume:
    """A Volume that is a folder of this machine."""

    commits = 0

    def reload(self) -> None:
        pass

    def commit(self) -> None:
        self.commits += 1


@pytest.fixture
def gpu_app(tmp_path, monkeypatch):
    """The GPU app over a tiny checkpoint, its Volumes in `tmp_path`."""
    monkeypatch.setattr(settings, "STORE", tmp_path / "store")
    monkeypatch.setattr(settings, "ENGINES", tmp_path / "engines")
    monkeypatch.setattr(speech, "engines", Volume())

    def deployed(**update: Any) -> settings.Deployment:
        update = {"checkpoint": "tiny/token2wav", "sessions": 2} | update
        deployment = settings.Deployment().model_copy(update=update)
        monkeypatch.setattr(speech, "DEPLOYMENT", deployment)
        deployment.source.mkdir(parents=True)
        save(load_preset("tiny", 3), deployment.source)
        return deployment

    return deployed


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_plans_are_built_once_for_a_kind_of_gpu(gpu_app):
    pytest.importorskip("tensorrt_rtx_bindings")
    deployment = gpu_app(engine="tensorrt")
    folder = Path(speech.build.local())
    assert folder == deployment.built and deployment.gpu in folder.parts
    infos = [read_info(plan) for plan in find_plans(folder)]
    assert {info.graph for info in infos} == set(REQUIRED)
    assert {info.targets for info in infos} == {("sm89",)}
    assert speech.build.local() == str(folder)
    assert speech.engines.commits == 1


async def test_the_speech_server_comes_up_and_drains(gpu_app, ada, monkeypatch):
    """What CUDA graphs would do, torch does here."""
    gpu_app(engine="torch")
    voices = settings.STORE / "voices"
    voices.mkdir()
    shutil.copy(ada, voices)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(speech, "GRPC_PORT", port)
    monkeypatch.setenv("DUOLOGUE_VOICES", str(voices))
    monkeypatch.setenv("DUOLOGUE_SERVE_TOKEN", "secret")
    monkeypatch.setenv("DUOLOGUE_SERVE__HTTP_PORT", "0")
    server = speech.Speech._get_user_cls()()
    raw(server, "start")(server)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
            stub = stubs.SpeechStub(channel)
            bearer = [("authorization", "Bearer secret")]
            messages = [serving.start(voice="ada"), serving.tokens([1] * 50)]
            call = stub.Synthesize(iter(messages), metadata=bearer)
            said = [answer.pcm async for answer in call]
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await stub.ListVoices(pb.ListVoicesRequest())
    finally:
        await asyncio.to_thread(raw(server, "stop"), server)
    assert len(b"".join(said)) == 2 * 50 * serving.TOKEN
    assert server.server.returncode == 0
    assert speech.engines.commits == 1
