#!/usr/bin/env bash
# install.sh PYTHON VENV: a Triton server for this machine's CPU, in an environment of its own.
# Only its program and Python backend are used: models run in this checkout's Python.
set -euo pipefail
python=$1 venv=$2

[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
# Without its dependencies, which ask for numpy 1.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps nvidia-pytriton==0.7.0
"$venv/bin/python" - <<'PYTHON'
import shutil
import sys
import sysconfig
from pathlib import Path

server = Path(sysconfig.get_path("purelib"), "pytriton/tritonserver")
version = "{}.{}".format(*sys.version_info)
stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
if not stub.exists():
    sys.exit(f"this Triton has no backend for Python {version}: choose another PYTHON")
shutil.copy(stub, server / "backends/python")
PYTHON
