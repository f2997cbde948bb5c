# Two commands do all on a fresh machine: `make room` and `make test`.
PYTHON ?= python3
VENV := .venv
DEV := .venv-dev
ARGS ?=
# The tests need torch on the CPU alone; pip takes the build that its configuration offers.
TORCH ?= torch==2.13.0

.PHONY: room install models dev test test-slow soak churn lint format type layers wheel torch-free bench proto triton lock clean

room: install models ## install, fetch the embedded models, start the browser room
	$(VENV)/bin/duologue room $(ARGS)

install: $(VENV)/.installed ## the default install, without torch

models: install ## the default models, verified
	$(VENV)/bin/duologue models fetch

$(VENV)/.installed: pyproject.toml requirements/room.txt scripts/install.sh
	@scripts/install.sh $(PYTHON) $(VENV) requirements/room.txt espeak-ng
	@touch $@

$(DEV)/.installed: pyproject.toml requirements/dev.txt scripts/install.sh scripts/references.sh
	@scripts/install.sh $(PYTHON) $(DEV) requirements/dev.txt \
	    espeak-ng chromium coturn alsa-utils pocketsphinx-testdata
	@$(DEV)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	@scripts/references.sh $(DEV) .references
	@touch $@

dev: $(DEV)/.installed ## what development and the tests need
	$(DEV)/bin/duologue models fetch
	$(DEV)/bin/duologue models fetch whisper-base

test: dev lint type layers wheel torch-free ## everything that CI checks
	$(DEV)/bin/pytest $(ARGS)

test-slow: dev ## the long proofs
	$(DEV)/bin/pytest -m slow $(ARGS)

lint: $(DEV)/.installed
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .

format: $(DEV)/.installed
	$(DEV)/bin/ruff check --fix .
	$(DEV)/bin/ruff format .

type: $(DEV)/.installed
	$(DEV)/bin/pyright

layers: $(DEV)/.installed
	$(DEV)/bin/lint-imports

wheel: $(DEV)/.installed ## build the wheel, install it in a clean environment, import it
	scripts/check_wheel.sh $(DEV)

torch-free: $(DEV)/.installed ## `talk` works where `import torch` fails
	scripts/check_torch_free.sh $(DEV)

soak: dev ## a quarter of an hour of phone calls; fails on gaps, silence or growing memory
	$(DEV)/bin/python -m benchmarks.calls --kind graph --calls 10 --seconds 900 $(ARGS)

churn: dev ## half an hour of phone calls that come and go; fails on growing memory, tasks or files
	$(DEV)/bin/python -m benchmarks.churn --warm-s 900 $(ARGS)

bench: dev ## figures of latency and of barge-in, in a real browser
	$(DEV)/bin/python benchmarks/latency.py $(ARGS)
	$(DEV)/bin/python benchmarks/duplex.py $(ARGS)
	$(DEV)/bin/python -m benchmarks.calls

proto: $(DEV)/.installed ## generate the speech server's messages and stubs
	$(DEV)/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. \
	    duologue/serving/speech.proto

triton: $(DEV)/.installed ## a Triton server for the CPU, for deploy/triton and its tests
	deploy/triton/install.sh $(DEV)/bin/python .venv-triton

lock: ## renew the pinned requirements
	uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
	    pyproject.toml --extra room --extra serve --extra trace -o requirements/room.txt
	uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
	    pyproject.toml --extra dev -o requirements/dev.txt

clean:
	rm -rf $(VENV) $(DEV) .references dist build artifacts
