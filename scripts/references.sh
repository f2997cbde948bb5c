#!/usr/bin/env bash
# references.sh VENV FOLDER: the packages that the tests compare ours with, each in a folder of its
# own and without its dependencies. Nothing of duologue imports them.
set -euo pipefail
venv=$1 folder=$2

fetch() { # PACKAGE==VERSION
    local target=$folder/${1%%==*}
    [[ -d $target ]] || "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" \
        --no-deps --target "$target" "$1"
}

fetch stepaudio2-minicpmo==0.1.1 # flow and HiFT of Step-Audio 2, Apache-2.0
fetch s3tokenizer==0.3.0         # the speech tokenizer in torch, Apache-2.0
fetch chatterbox-tts==0.1.7      # CAMPPlus in torch (models/s3gen/xvector.py), MIT
# TensorRT's Python surface, without its libraries: which calls exist, Apache-2.0 and proprietary.
fetch tensorrt-cu12-bindings==10.16.1.11
fetch tensorrt-cu13-bindings==11.4.0.106
