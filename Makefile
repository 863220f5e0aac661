# Every target makes its own .venv; a second call is quick because .venv/ready is newer than what it depends on.
PYTHON ?= python3
BIN := .venv/bin
# torch's own threads make small batches slower, not faster, on a busy machine.
export OMP_NUM_THREADS ?= 1
# Developers of the project have the real data beside the checkout; everybody else gets it fetched.
ifneq ($(wildcard ../shared/data/SHA256SUMS),)
export EQUIFED_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo test test-full lint bench clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/ready  ## Compare the methods on real COMPAS data and write the report.
	$(BIN)/equifed compare compas --preset fair-fate --report demo-report.html \
		--methods fedavg,fedprox,local,fedmom,fedavg-lr,fedavg-gr,fedval,fair-fate,fairfed,kffl,fedminmax

test: .venv/ready  ## The tests, at most 5 minutes on 2 quiet cores.
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not full" tests

test-full: .venv/ready  ## Everything, slow suites too: what a nightly run does.
	$(BIN)/python -m pytest -n 2 --dist worksteal tests

lint: .venv/ready  ## Style, types, and which module may import which.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/ready  ## Speed, as ratios within one run.
	$(BIN)/python benchmarks/speed.py

clean:
	rm -rf .venv runs demo-report.html
