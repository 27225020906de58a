PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: install test test-fast quickstart quality style clean

# The stamp is newer than what it was installed from.
$(VENV)/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable ".[train,test]"
	touch $@

install: $(VENV)/installed

# A process for each core; tests of a file stay together, as they share trained models.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

test: install
	$(PYTEST)

# The core's tests, without those that start processes, compile or train.
test-fast: install
	$(PYTEST) -m "not slow"

quickstart: install
	$(BIN)/python examples/quickstart.py quickstart_output

quality: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

style: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) quickstart_output
