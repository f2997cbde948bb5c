#!/usr/bin/env bash
# Builds the wheel, installs it in a clean environment and imports every module of it, save those
# whose own optional libraries are not in the default install.
set -euo pipefail
dev=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$dev/bin/uv" build --quiet --wheel --out-dir "$work" .
"$dev/bin/uv" venv --quiet --python "$dev/bin/python" "$work/venv"
"$dev/bin/uv" pip install --quiet --python "$work/venv/bin/python" -r requirements/room.txt
"$dev/bin/uv" pip install --quiet --no-deps --python "$work/venv/bin/python" "$work"/*.whl
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import importlib
import pkgutil
from importlib.util import find_spec
from importlib.metadata import files

import duologue
from duologue.errors import EngineError

tops = {path.parts[0] for path in files("duologue") if not path.parts[0].startswith("..")}
assert tops == {"duologue", *(top for top in tops if top.endswith(".dist-info"))}, tops
names = [module.name for module in pkgutil.walk_packages(duologue.__path__, "duologue.")]
optional = [library for library in ("torch", "onnx", "triton", "tritonclient") if find_spec(library) is None]
imported = 0
for name in names:
    try:
        importlib.import_module(name)
        imported += 1
    except ModuleNotFoundError as error:
        assert error.name in optional, f"{name}: {error}"
    except EngineError as error:
        assert any(library in str(error) for library in optional), f"{name}: {error}"
print(f"wheel: {imported} of {len(names)} modules import without {optional}")
PYTHON
set +e
message=$("$work/venv/bin/duologue" room 2>&1)
code=$?
set -e
[[ $code -eq 2 && $message == *checkout* ]] || { echo "wheel: room said $code: $message"; exit 1; }
