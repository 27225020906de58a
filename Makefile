PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: install test quickstart quality style clean

# The stamp is newer than what it was installed from.
$(VENV)/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable ".[train,test]"
	touch $@

install: $(VENV)/installed

test: install
	$(BIN)/python -m pytest

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
