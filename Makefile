# Everything runs in .venv, made by `make setup`; nothing else on the machine is touched.

# The first of these that runs and is new enough; override with `make PYTHON=/path/to/python3.12 setup`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KAFKAJS := $(VENV)/node/.installed

.PHONY: setup kafkajs demo quorum test checks lint proto sim histories ways clusters attacks arrivals suites newest lowest wheels size planted mutants walk figures bench bench-failover clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 setup" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@# Python compiles what is used when it is imported; to compile all of Spark and numpy takes half a minute.
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,pipeline]'
	@# What every node imports, once: where PYTHONDONTWRITEBYTECODE is set, each start would compile it.
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c 'import metaquorum.cli.main, metaquorum.combined.process'
	@touch $@

# kafkajs and its codecs, into the virtual environment. Tests skip what needs them if this is not possible.
kafkajs: $(KAFKAJS)

$(KAFKAJS): tests/e2e/package.json $(STAMP)
	@mkdir -p $(@D) && cp $< $(@D)
	@if ! command -v node >/dev/null || ! command -v npm >/dev/null; then \
		echo "There is no node or no npm: the tests of kafkajs are skipped."; \
	elif npm install --prefix $(@D) --silent --no-audit --no-fund --no-package-lock --ignore-scripts \
		--fetch-retries=0 --fetch-timeout=20000 >/dev/null; then \
		touch $@; \
	else \
		echo "npm cannot install kafkajs, so its tests are skipped. To see why: npm install --prefix $(@D)"; \
	fi

# A cluster is started, hurt and repaired while a topic is written and read, and its log is replayed: half a minute.
# The last line opens the console on its log, which stays until the next demo.
demo: setup
	@rm -rf var/demo
	$(BIN)/metaquorum demo --directory var/demo --keep

# Three controllers and three brokers with a live status table; Ctrl-C stops them in order.
quorum: setup
	$(BIN)/metaquorum local up --watch

# Ten at once on any machine, of which six wait; what fails beside others runs once more, alone (tests/suite.py). mypy
# runs among them.
test: checks kafkajs
	$(BIN)/python -m tests.suite

# The tests of listeners, storage and tools again, with the newest Python on PATH or of pyenv, in .venv-newest.
# Says so, and succeeds, if there is none newer than that of .venv. TESTS runs others.
newest: setup
	$(BIN)/python -m tests.newest $(TESTS)

lint: checks
	$(BIN)/python -m tests.types

checks: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/codespell

proto: setup
	$(BIN)/python proto/generate.py

# make sim SEED=n replays one seed with a readable trace; without SEED a swarm of seeds runs.
sim: setup
	$(BIN)/python -m tests.sim $(if $(SEED),$(SEED),$(if $(SEEDS),--seeds $(SEEDS)))

# Transactions of real clients that append to lists and read them while brokers are killed: is there a serial order?
histories: setup
	$(BIN)/python -m tests.histories $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

# Nodes of 60 clusters are killed, cut off, paused, stopped and made to hand over: does the log tell what was done to
# them? About eight minutes. FIRST=31 WAYS=2: some of them.
ways: setup
	$(BIN)/python -m tests.ways $(if $(FIRST),--first $(FIRST)) $(if $(WAYS),--ways $(WAYS))

# COUNT clusters in one process, one after another (default 200): whether anything of them is left.
clusters: setup
	$(BIN)/python -m tests.many_clusters $(COUNT)

# Attacks on every port of a node, SEEDS variations of each (ONLY=idle: those with this in their names).
attacks: setup
	$(BIN)/python -m tests.attacks $(ONLY) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1))

# Tables of logs that grow, shrink, go and come between runs: EXAMPLES random ones (default 500; about a second each).
arrivals: setup
	METAQUORUM_ARRIVALS=$(or $(EXAMPLES),500) $(BIN)/python -m pytest -n 0 -q --timeout 0 tests/unit/pipeline/test_arrivals.py

# The test suites of Kafka's clients, from the package registries, run against a cluster of ours; failures that are not
# listed in tests/suites/known.toml are named (ONLY=python-2: suites with this in their names). About five minutes each.
# ONLY=librdkafka SOURCE=PATH: the tests in C of a checkout where they are compiled; half an hour or more.
suites: setup
	$(BIN)/python -m tests.suites $(ONLY) $(if $(SOURCE),--source $(SOURCE))

# The tests of listeners, storage and tools with the lowest versions that pyproject.toml allows, in an environment
# of its own with the lowest Python. About five minutes. TESTS runs others.
lowest: setup
	$(BIN)/python -m tests.packaging.lowest $(TESTS)

# Asks the registry whether the base installation needs a compiler on any platform and Python that is promised.
wheels: setup
	$(BIN)/python -m tests.packaging.wheels

# What the base installation takes on disk, from a wheel that is built here: at most 140 MiB.
size: setup
	$(BIN)/python -m tests.packaging.size

# Deliberate bugs, one at a time in a copy of the sources: each must be caught. About 25 minutes on two cores.
planted: setup
	$(BIN)/python -m tests.planted $(BUG)

# Small mistakes in the code, made by machine: 40 in each of thirteen layers, more than an hour on two idle cores.
# make mutants LAYER=storage MUTANTS=all SEED=2 judges more; SEED draws other samples. Results: docs/mutants.md.
mutants: setup
	$(BIN)/python -m tests.mutants $(if $(LAYER),--layer $(LAYER)) $(if $(MUTANTS),--count $(MUTANTS)) \
		$(if $(SEED),--seed $(SEED)) $(OPTIONS)

# Which files one topic creation, one heartbeat, one produce, one broker death and one catch-up pass, in order.
walk: setup
	$(BIN)/python -m tests.walk $(OPTIONS)

figures: setup
	$(BIN)/python -m tests.figures $(OPTIONS)

bench: setup
	$(BIN)/python -m tests.bench $(BENCH)

# kill -9 of a broker at 10,000, 100,000 and 1,000,000 partitions: where the time goes. About three minutes.
bench-failover: setup
	$(BIN)/python -m tests.bench failover_clock $(OPTIONS)

clean:
	rm -rf $(VENV) .venv-newest build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
