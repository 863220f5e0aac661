# Every target makes its own .venv; a second call is quick because .venv/ready is newer than what it depends on.
PYTHON ?= python3
BIN := .venv/bin
# torch's own threads make small batches slower, not faster, on a busy machine.
export OMP_NUM_THREADS ?= 1
# Developers of the project have the real data beside the checkout; everybody else gets it fetched.
ifneq ($(wildcard ../shared/data/SHA256SUMS),)
export EQUIFED_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo test test-portable test-full check-new lint bench bench-peers lock upgrade clean

.venv/ready: pyproject.toml papers/pyproject.toml requirements.lock tools/install.py
	@command -v $(PYTHON) >/dev/null || { echo "Cannot install: there is no program '$(PYTHON)'. equifed needs Python" \
		"3.11 to 3.14: install it, or name it, as in \`make PYTHON=python3.12 test\`." >&2; exit 1; }
	@$(PYTHON) tools/install.py

# kffl's weight was chosen on validation rows: README.md says how
DEMO := --rounds 15 --seeds 10 --batch-size 256 --learning-rate 0.5 --local-epochs 1 --runs runs/demo \
	--target "demographic_parity_difference <= 0.05"

demo: .venv/ready  ## Eight methods on real data, then one held to a stated gap: half a minute of computing, one page.
	rm -rf runs/demo
	@echo "1 of 3: eight methods on Adult, ten seeds each"
	$(BIN)/equifed compare adult $(DEMO) --eval-every 3 --set kffl.fairness-weight=30 \
		--methods fedavg,fedprox,fedmom,fedavg-lr,fedavg-gr,kffl,q-ffl,local
	@echo "2 of 3: FedAvg, its decisions moved until the gap between women and men is the one that is asked for"
	$(BIN)/equifed sweep adult $(DEMO) --eval-every 15 --method fedavg+fair --over gap=0.02,0.03,0.04,0.05
	@echo "3 of 3: one page about all of them"
	$(BIN)/equifed report runs/demo/*/ --output demo-report.html
	@echo "Done. Open demo-report.html in a browser."

test: .venv/ready  ## The tests, at most 5 minutes on 2 quiet cores.
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not full"

test-portable: .venv/ready  ## The tests once for every instruction set that this processor has: other processors round otherwise.
	$(BIN)/python tests/arithmetic.py $(BIN)/python -m pytest -n 2 --dist worksteal -m "not full"
	$(BIN)/python -m pytest tests/contract/test_arithmetic.py

test-full: .venv/ready  ## Everything, slow suites too: what a nightly run does.
	$(BIN)/python -m pytest -n 2 --dist worksteal

check-new: .venv/ready  ## What a new method, metric or partitioner still lacks, and its tests: make check-new NAME=fedprox.
	$(BIN)/python tools/check_new.py $(NAME)

lint: .venv/ready  ## Style, types, and which module may import which.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/ready  ## Speed, as ratios within one run; what secure sums cost.
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/secure.py

bench-peers: .venv/ready  ## The same workload in other simulators, in environments of their own: docs/performance.md.
	$(BIN)/python benchmarks/peers.py --python $(PYTHON)

PEERS := pfl fedjax flower
LOCK := $(BIN)/uv pip compile --quiet --universal --fork-strategy fewest --only-binary :all: --generate-hashes \
	--no-emit-package torch --custom-compile-command "make lock"

upgrade: LOCK += --upgrade
lock upgrade: .venv/ready  ## Pins for what pyproject.toml asks for: those there are where they fit, or all of them new.
	$(LOCK) pyproject.toml --extra dev --group install --group torch --output-file requirements.lock
	set -e; for peer in $(PEERS); do $(LOCK) --group $$peer --output-file benchmarks/peers/$$peer.lock; done

clean:
	rm -rf .venv build runs demo-report.html
