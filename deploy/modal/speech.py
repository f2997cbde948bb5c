"""token2wav and a language model on Modal's GPUs: `modal deploy -m deploy.modal.speech`.

Bots anywhere find token2wav by the address of `Speech` (gRPC over TLS, bearer token
DUOLOGUE_SERVE_TOKEN) and the language model by that of `lm` (OpenAI's, DUOLOGUE_LM_API_KEY).
"""

import os
import signal
import subprocess
import sys

import modal

from deploy.modal import settings
from deploy.modal.images import Volumes, engines, hub, lm_image, speech_image, store
from duologue.engines.onnx_model import REQUIRED

DEPLOYMENT = settings.read()
GRPC_PORT, LM_PORT = 50051, 8000
START_S, BUILD_S = 1200, 3600
CALL_S = 600
"""An utterance's longest, as `serve.call_s`; an answer of the language model is shorter."""
DRAIN_S = 60
WHOLE = "whole"
"""A file that says that all plans of a folder are there."""

DUOLOGUE = (sys.executable, "-c", "from duologue.cli import main; main()")

app = modal.App("duologue-speech", include_source=False)
image = speech_image(DEPLOYMENT)
secret = modal.Secret.from_name("duologue-speech")
volumes: Volumes = {str(settings.STORE): store, str(settings.ENGINES): engines}


@app.function(
    image=image,
    gpu=DEPLOYMENT.gpu,
    volumes=volumes,
    timeout=BUILD_S,
    max_containers=1,
    scaledown_window=60,
)
def build() -> str:
    """Build TensorRT's plans for this kind of GPU, unless they are there; returns their folder."""
    from duologue.engines.build import build_graph
    from duologue.engines.export import export_all
    from duologue.engines.graphs import Limits, load_weights

    engines.reload()
    folder, target = DEPLOYMENT.built, settings.TENSORRT[DEPLOYMENT.gpu]
    if (folder / WHOLE).exists():
        return str(folder)
    weights = load_weights(DEPLOYMENT.source)
    export_all(weights, folder, "fp32", lambda graph, _: print(f"{graph} is exported"))
    for graph in REQUIRED:
        built = build_graph(
            weights,
            graph,
            folder,
            backend="tensorrt_rtx",
            precision="fp16",
            targets=(f"sm{target}",),
            limits=Limits(batch=DEPLOYMENT.sessions),
        )
        print(built.path)
    (folder / WHOLE).touch()
    engines.commit()
    return str(folder)


@app.server(
    image=image,
    gpu=DEPLOYMENT.gpu,
    volumes=volumes,
    secrets=[secret],
    port=GRPC_PORT,
    h2_enabled=True,
    # The server checks its own token; Modal's would need headers that gRPC's clients lack.
    unauthenticated=True,
    compute_region=DEPLOYMENT.region,
    routing_region=DEPLOYMENT.region,
    min_containers=DEPLOYMENT.speech_warm,
    buffer_containers=1,
    target_concurrency=max(1, DEPLOYMENT.sessions * 3 // 4),
    max_concurrency=DEPLOYMENT.sessions,
    scaledown_window=300,
    startup_timeout=START_S,
    exit_grace_period=DRAIN_S,
)
class Speech:
    """`duologue serve` with token2wav; one stream is one utterance, so nothing has to be sticky."""

    @modal.enter()
    def start(self) -> None:
        """Build what is missing for this kind of GPU, then start the server."""
        if DEPLOYMENT.engine == "tensorrt" and not (DEPLOYMENT.built / WHOLE).exists():
            build.remote()
            engines.reload()
        limits = [f"--set=serve.call_s={CALL_S}", f"--set=serve.drain_s={DRAIN_S - 10}"]
        port = f"--grpc-port={GRPC_PORT}"
        self.server = subprocess.Popen([*DUOLOGUE, *DEPLOYMENT.speech(), *limits, port])

    @modal.exit()
    def stop(self) -> None:
        """Let utterances end, and keep the kernels that triton has compiled."""
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(DRAIN_S)
        engines.commit()


@app.function(
    image=lm_image(),
    gpu=DEPLOYMENT.gpu,
    volumes={"/hub": hub},
    secrets=[secret],
    region=DEPLOYMENT.region,
    min_containers=DEPLOYMENT.lm_warm,
    buffer_containers=1,
    scaledown_window=300,
    timeout=CALL_S,
    startup_timeout=START_S,
)
@modal.concurrent(max_inputs=64, target_inputs=32)
@modal.web_server(LM_PORT, startup_timeout=START_S)
def lm() -> None:
    """An OpenAI-compatible server of a language model."""
    key = os.environ["DUOLOGUE_LM_API_KEY"]
    command = ["vllm", "serve", DEPLOYMENT.lm, "--host", "0.0.0.0", "--port", str(LM_PORT)]
    subprocess.Popen(command, env=os.environ | {"VLLM_API_KEY": key})
