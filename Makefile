# Every target makes .venv and installs what it needs first; an install is repeated only when pyproject.toml changes.
#   make train ARGS="--epochs 90"                     make test ARGS="-k softmax"
#   make train-text ARGS="--resume --steps 3000"      make train-gpt2 ARGS="--data notes/"
#   make train CUDA=cuda13 ARGS="--device cuda"       (adds CuPy; cuda12 for CUDA 12 and older cards)
#   make bench-gpu CUDA=cuda13 ARGS="--only gpt2"
.PHONY: train train-text train-gpt2 test lint bench bench-gpu docs clean
.NOTPARALLEL:

ARGS ?=
CUDA ?=
BIN := .venv/bin
have = $(addprefix .venv/.have-,$(1) $(CUDA))

# The first Python of at least 3.11 that starts and can make environments: a name on the PATH alone proves neither.
PROBE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
FIND_PYTHON = for python in $(PYTHON) python3.12 python3.11 python3 python3.13 python; do \
	"$$python" -c '$(PROBE)' >/dev/null 2>&1 && break; python=; done

train: $(call have,examples)
	$(BIN)/python examples/train_digits.py $(ARGS)

train-text: $(call have,examples)
	$(BIN)/python examples/train_text.py $(ARGS)

train-gpt2: $(call have,examples)
	$(BIN)/python examples/train_gpt2.py $(ARGS)

test: $(call have,test)  # one BLAS thread each: the workers are the parallelism
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal $(ARGS)

lint: $(call have,lint test)
	$(BIN)/ruff check .
	$(BIN)/pyright

bench: $(call have,test)
	$(BIN)/python -m benchmarks $(ARGS)

bench-gpu: $(call have,test)  # peers are measured where they are installed: PyTorch, JAX
	$(BIN)/python -m benchmarks.gpu $(ARGS)

# site/: the pages of docs/, and under api/ one page per module from the docstrings.
docs: $(call have,docs)
	rm -rf site
	$(BIN)/python tools/build_docs.py

clean:
	rm -rf .venv site dist build .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.have-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	@touch $@

$(BIN)/python:
	@$(FIND_PYTHON); \
	if [ -z "$$python" ]; then \
		echo "ruda needs Python 3.11 or newer that can make environments." >&2; \
		echo "Debian and Ubuntu: apt-get install python3 python3-venv; or name one: make test PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi; \
	echo "making .venv with $$("$$python" --version)"; \
	"$$python" -m venv --clear .venv
