PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: install test test-fast test-oldest test-newest quickstart quality style docs build clean

# The stamp is newer than what it was installed from.
$(VENV)/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable ".[train,test]"
	touch $@

install: $(VENV)/installed

$(VENV)/installed-train: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable ".[train]"
	touch $@

# A process for each core; tests of a file stay together, as they share trained models.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

test: install
	$(PYTEST)

# The core's tests, without most of those that start processes, compile or train.
test-fast: install
	$(PYTEST) -m "not slow"

# The core's tests and those of saved models' code, by another Python.
test_with = OMP_NUM_THREADS=1 $(1) -m pytest -m "not slow" && OMP_NUM_THREADS=1 $(1) -m pytest tests/test_hub.py

# With the oldest versions that setup.cfg allows, in an environment of its own.
OLDEST := .venv-oldest/bin/python

test-oldest:
	test -x $(OLDEST) || $(PYTHON) -m venv .venv-oldest
	grep -vE '^(huggingface_hub|setuptools|tokenizers|torch|transformers)==' constraints.txt > .venv-oldest/constraints.txt
	$(OLDEST) -m pip install --quiet --disable-pip-version-check --constraint .venv-oldest/constraints.txt \
		$$(sed -nE 's/^ *(torch|transformers)>=([0-9.]+).*/\1==\2.*/p' setup.cfg) --editable ".[train,test]"
	$(call test_with,$(OLDEST))

# With the newest versions of all packages, transformers beyond the bound of setup.cfg: if it passes, the bound rises.
NEWEST := .venv-newest/bin/python

test-newest:
	test -x $(NEWEST) || $(PYTHON) -m venv .venv-newest
	$(NEWEST) -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		--editable ".[train,test]"
	$(NEWEST) -m pip install --quiet --disable-pip-version-check --upgrade transformers
	$(call test_with,$(NEWEST))
	$(NEWEST) -m pip show torch transformers | grep -E '^(Name|Version)'

# Without the packages of the tests.
quickstart: $(VENV)/installed-train
	$(BIN)/python examples/quickstart.py quickstart_output

quality: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy

style: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in docs/_build/html; a warning is an error.
docs: install
	$(PIP_INSTALL) --editable ".[docs]"
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --builder html docs docs/_build/html

# The wheel, tried in an environment of its own: import, help, a training step.
build: install
	$(PIP_INSTALL) build
	$(BIN)/python -m build --outdir dist
	.ci/try_wheel dist $(PYTHON)

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest build dist docs/_build quickstart_output
