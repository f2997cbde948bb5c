"""The images and Volumes of both apps, from the lock that `make install` takes."""

from pathlib import PurePosixPath

import modal

from deploy.modal.settings import ENGINES, ROOT, STORE, Deployment

SOURCES = ("bots", "deploy", "duologue", "processors", "services")
TORCH = "torch==2.13.0"
VLLM = "vllm/vllm-openai:v0.11.0"

Volumes = dict[str | PurePosixPath, modal.Volume | modal.CloudBucketMount]

store = modal.Volume.from_name("duologue-store", create_if_missing=True)
engines = modal.Volume.from_name("duologue-engines", create_if_missing=True)
hub = modal.Volume.from_name("duologue-hub", create_if_missing=True)


def bot_image(deployment: Deployment) -> modal.Image:
    """What the bots run in, without torch."""
    return _with_sources(_locked(), deployment)


def speech_image(deployment: Deployment) -> modal.Image:
    """What token2wav runs in; torch brings CUDA, and triton compiles its launchers with gcc."""
    extras = [TORCH, "onnx", "onnxscript"]
    if deployment.engine == "tensorrt":
        extras += ["tensorrt-rtx-cu13-libs==1.7.1.116", "tensorrt-rtx-cu13-bindings==1.7.1.116"]
    image = _locked().apt_install("gcc", "libc6-dev").uv_pip_install(*extras)
    return _with_sources(image, deployment)


def lm_image() -> modal.Image:
    """What vLLM publishes."""
    return modal.Image.from_registry(VLLM).entrypoint([]).env({"HF_HOME": "/hub"})


def _locked() -> modal.Image:
    lock = str(ROOT / "requirements/room.txt")
    return (
        modal.Image.debian_slim("3.11")
        .apt_install("libespeak-ng1")
        .uv_pip_install(requirements=[lock], extra_options="--require-hashes")
    )


def _with_sources(image: modal.Image, deployment: Deployment) -> modal.Image:
    paths = {
        "DUOLOGUE_MODELS": str(STORE / "models"),
        "DUOLOGUE_VOICES": str(STORE / "voices"),
        "DUOLOGUE_LOG": "json",
        "TRITON_CACHE_DIR": str(ENGINES / deployment.gpu / "triton"),
    }
    image = image.env(paths | deployment.environ())
    for name in SOURCES:
        # Modal puts /root on Python's path.
        image = image.add_local_dir(ROOT / name, f"/root/{name}", ignore=["**/__pycache__"])
    return image
