#!/usr/bin/env bash
# One turn through the whole pipeline where `import torch` fails.
set -euo pipefail
dev=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/block"
echo 'raise ImportError("torch is blocked here")' >"$work/block/torch.py"
export PYTHONPATH=$work/block
"$dev/bin/duologue" speak "What is the capital of France?" -o "$work/question.wav"
"$dev/bin/duologue" talk "$work/question.wav" -o "$work/answer.wav" --json | tee "$work/talk.json"
"$dev/bin/python" - "$work/talk.json" <<'PYTHON'
import json
import sys

talk = json.load(open(sys.argv[1], encoding="utf-8"))
assert "capital" in talk["transcript"].lower(), talk
assert talk["audio_s"] > 0.5, talk
PYTHON
