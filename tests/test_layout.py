"""The checkout's own folders are what is imported, and nothing installed claims their names."""

from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["bots", "processors", "services", "duologue"])
def test_folders_are_ours(name):
    assert Path(import_module(name).__file__).is_relative_to(ROOT)


def test_no_distribution_claims_our_names():
    claimed = packages_distributions()
    for name in ("bots", "processors", "services", "deploy", "benchmarks"):
        assert name not in claimed


def test_the_core_works_without_pipecat_and_torch():
    import subprocess
    import sys

    script = (
        "import sys; sys.modules['pipecat'] = sys.modules['torch'] = None;"
        "import duologue.cli, duologue.asr.whisper, duologue.tts.offline, duologue.lm.llamacpp;"
        "import duologue.lm.openai_http, duologue.doctor, duologue.voices;"
        "import duologue.token2wav.batch, duologue.token2wav.graph_flow;"
        "import duologue.token2wav.vocoder, duologue.token2wav.front_end, duologue.engines.onnx;"
        "import duologue.lm.demux"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
