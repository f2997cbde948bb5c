"""A recording in, a recording out, with Step-Audio 2's stream from a server and a real decoder."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from bots.cli import CONFIGS
from bots.talk import talk
from duologue.audio.pcm import read_audio, write_wav
from duologue.config import load_config
from duologue.token2wav.weights import load_preset, save
from duologue.voices import VoiceStore
from tests.lm.streams import tokenizer_of
from tests.test_speech_lm import answer, ids, ta4
from tests.token2wav.test_pipeline import voice


class Vllm:
    """The completions endpoint of a vLLM server that has one answer."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert body["return_token_ids"] and not body["skip_special_tokens"]
        self.prompts.append(body["prompt"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        steps = [list(step.ids) for step in answer(ta4("it is time to laugh", 60))]
        for n, step in enumerate(steps):
            last = "stop" if n + 1 == len(steps) else None
            choice = {"index": 0, "text": "", "token_ids": step, "finish_reason": last}
            chunk = {"object": "text_completion", "choices": [choice]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        usage = {"completion_tokens": sum(map(len, steps)), "prompt_tokens": len(body["prompt"])}
        await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@pytest.fixture
async def server(unused_tcp_port: int) -> AsyncIterator[tuple[Vllm, str]]:
    vllm, app = Vllm(), web.Application()
    app.router.add_post("/v1/completions", vllm.completions)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    yield vllm, f"http://127.0.0.1:{unused_tcp_port}/v1"
    await runner.cleanup()


async def test_talk_with_the_set_up_of_step_audio2(
    server: tuple[Vllm, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say
) -> None:
    vllm, url = server
    save(load_preset("tiny", 3), tmp_path / "token2wav")
    tokenizer_of("step-audio2").save(str(tmp_path / "tokenizer.json"))
    write_wav(tmp_path / "in.wav", say("Tell me about the sea."), 16_000)
    # The tiny model comes without the front end that makes voices from clips.
    monkeypatch.setattr(VoiceStore, "get", lambda self, name: voice(1))
    flags = [
        f"speech_lm.base_url={url}",
        f"speech_lm.tokenizer={tmp_path}",
        f"token2wav.model={tmp_path / 'token2wav'}",
        "token2wav.engine=torch",
    ]
    config = load_config(CONFIGS / "step-audio2.yaml", flags=flags, environ={})

    result = await talk(tmp_path / "in.wav", tmp_path / "out.wav", config)

    assert result.reply == "it is time to laugh"
    assert result.audio_s == pytest.approx(60 / 25)
    samples = read_audio(tmp_path / "out.wav", rate_hz=24_000)
    assert np.isfinite(samples).all() and np.abs(samples).max() > 1e-3
    (prompt,) = vllm.prompts
    assert prompt[-1:] == ids("<tts_start>")
