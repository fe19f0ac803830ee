# What can be done here. `make` or `make help` prints this file's targets with their sentences.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON_HERE := .venv/bin/python
# Where it is set, each of the hundreds of processes that tests start would compile all that it imports: a second of the gateway's two.
unexport PYTHONDONTWRITEBYTECODE
SETUP := pyproject.toml constraints.txt scripts/setup.sh scripts/compile.py
# Everything but what needs torch (make test-models), sends load for long (make test-campaigns), needs a browser (make test-browser), needs Go
# (make test-cluster), builds images (make test-images) or measures time (make bench, make prove).
TESTS := not models and not recipes and not campaigns and not browser and not cluster and not images
# Tests marked `thorough` show the same over more seeds, hours and processes: with THOROUGH=1 every suite runs them too.
QUICK := $(if $(THOROUGH),, and not thorough)
# Where a suite's tests are, which is looked through faster than all; unless ARGS names some itself.
IN = $(if $(findstring tests/,$(ARGS)),,$(1))
# Whole files side by side, in their order; a number of them follows. For --pdb or -s, one after another: ARGS="-n 0 -s".
# `make test` has four: many of its tests wait for servers.
SIDE_BY_SIDE := --dist loadfile --no-loadscope-reorder -n

.PHONY: help setup up test test-campaigns test-browser test-cluster test-images test-readme test-card test-recipes test-older-cpu lint check models models-foreign test-models test-clients fuzz loadtest compiled bench bench-variants prove soak image release chart reference docs constraints clean

help: ## Print what can be done
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

setup: .venv/.local ## Make .venv/ with `tandem` in it and all that README.md shows (no torch)

up: .venv/.local ## Serve model_repo/ on embedded Triton behind the gateway; options by ARGS="--port 8090"
	@.venv/bin/python scripts/compile.py && exec .venv/bin/tandem up $(ARGS)

# GOGC: hundreds of renders of the chart take a quarter less where Go, inside Python there, looks for garbage less often.
test: .venv/.dev ## Run the tests (no torch; real Triton included)
	GOGC=400 $(PYTHON_HERE) -m pytest -m "$(TESTS)$(QUICK)" $(SIDE_BY_SIDE) 4 $(ARGS)

test-campaigns: .venv/.dev ## Test whole campaigns, profiles, benches, a rehearsal for a card, servers that fail under load: minutes of load
	$(PYTHON_HERE) -m pytest -m "campaigns$(QUICK)" $(SIDE_BY_SIDE) 2 $(call IN,tests/loadtest tests/gateway tests/helm) $(ARGS)

test-browser: .venv/.dev ## Test the page in a real Chromium
	@command -v chromium chromium-browser google-chrome > /dev/null || { echo "tandem: no Chromium here (Debian: apt-get install chromium)" >&2; exit 3; }
	$(PYTHON_HERE) -m pytest -m "browser$(QUICK)" $(SIDE_BY_SIDE) 2 $(call IN,tests/ui) $(ARGS)

# The programs are compiled once for each state of their sources (7 to 9 minutes) and kept in ~/.cache/tandem/{cluster-bed,otelcol,jaeger}.
test-cluster: .venv/.dev ## Test the chart and `tandem cluster` on a real control plane with simulated nodes (needs Go)
	@$(PYTHON_HERE) -m tests.cluster.bed.build
	@$(PYTHON_HERE) -m tests.telemetry.build
	$(PYTHON_HERE) -m pytest -m "cluster$(QUICK)" $(SIDE_BY_SIDE) 2 --durations 12 $(call IN,tests/cluster tests/helm) $(ARGS)

test-images: .venv/.dev ## Build the gateway's and the CPU pool's images, start them and ask them; needs root, buildah and debootstrap, minutes
	$(PYTHON_HERE) -m pytest -m images -s tests/images $(ARGS)

test-readme: .venv/.dev ## Do what README.md says, word for word, in a clone on a bare Debian 12; needs root, debootstrap and port 8080, minutes
	@$(PYTHON_HERE) -m scripts.readme $(ARGS)

test-card: .venv/.dev ## Rehearse a day with a card on an empty Debian 12 without a network; needs root and debootstrap, minutes
	loadtest/gpu/rehearse.sh

test-recipes: .venv/.dev ## Export each recipe in the environment that `--yes` makes, from an empty cache (downloads 3.2 GB)
	$(PYTHON_HERE) -m pytest -m recipes $(call IN,tests/export/recipes) $(ARGS)

test-older-cpu: .venv/.dev ## Test exports and engines as on a processor without AVX-512 and VNNI
	tests/as_avx2.sh $(PYTHON_HERE) -m pytest -m "$(TESTS)$(QUICK)" $(SIDE_BY_SIDE) 2 tests/export tests/local/test_backend.py tests/local/test_engine_choice.py tests/test_repository.py $(ARGS)

lint: .venv/.dev ## Lint, check formatting and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

check: lint ## Lint, check types, run the tests that need no server: about a minute and a half
	$(PYTHON_HERE) -m pytest -q -m "$(TESTS) and not triton and not slow and not thorough" $(SIDE_BY_SIDE) 2 $(ARGS)

models: .venv-export/.export ## Build and gate the trained models into model_repo/; ARGS=--speed adds random nets (installs torch, 6.2 GB)
	.venv-export/bin/python -m scripts.models $(ARGS)

# What packages carry is kept in ~/.cache/tandem/packages; TensorFlow's environment (1.9 GB) in ~/.cache/tandem/environments.
models-foreign: .venv-export/.export ## Export, serve and compare models from other hands, out of packages (downloads 0.5 GB); one: ARGS="--only magika"
	.venv-export/bin/python -m scripts.foreign $(ARGS)

test-models: .venv-export/.export ## Test export and gates with torch
	.venv-export/bin/python -m pytest -m "models$(QUICK)" $(SIDE_BY_SIDE) 2 $(call IN,tests/export tests/gateway/classify tests/gateway/openai tests/loadtest/bench tests/preprocessing) $(ARGS)

# KServe's SDK and tritonclient describe the same messages, so that one process can import only one of the two.
test-clients: .venv/.dev .venv-clients/.installed .venv-clients-older/.installed ## Run tritonclient, KServe's SDK, openai and curl, unchanged, against the gateway
	.venv-clients/bin/python -m pytest -c tests/clients/pytest.ini tests/clients --ignore tests/clients/test_kserve.py $(ARGS)
	.venv-clients/bin/python -m pytest -c tests/clients/pytest.ini tests/clients/test_kserve.py $(ARGS)
	.venv-clients-older/bin/python -m pytest -c tests/clients/pytest.ini tests/clients/test_tritonclient_*.py $(ARGS)

fuzz: .venv-fuzz/.installed ## Fuzz what reads clients' bytes and a gateway that runs: ten minutes; shorter: ARGS="--seconds 60"
	.venv-fuzz/bin/python -m tests.fuzz $(ARGS)

loadtest: .venv/.local ## Compare the variants under load for about a minute and write a report
	$(PYTHON_HERE) -m serving campaign run loadtest/campaigns/digits.yaml $(ARGS)

compiled: .venv/.dev ## Compile what decides about requests where its sources are newer than the environment, as images have it
	@.venv/bin/python scripts/compile.py

bench: .venv/.dev compiled ## Measure the gateway beside Triton and a bare proxy, its connections, then images, texts and gRPC beside none
	@status=0; for part in gateway connections surfaces; do $(PYTHON_HERE) -m loadtest.bench.$$part $(ARGS) || status=$$?; echo; done; exit $$status

bench-variants: .venv/.dev compiled ## Measure served variants and engines of ResNet-50 beside plain FP32, in one run (minutes)
	$(PYTHON_HERE) -m loadtest.bench.variants $(ARGS)

prove: .venv/.dev compiled ## Overload, kill and chill things under load and time what happens: 35 minutes; a part: ARGS="--only overload"; all computed nets: ARGS=--all
	$(PYTHON_HERE) -m loadtest.bench.prove $(ARGS)

soak: .venv/.dev compiled ## Serve a mixed load for an hour while things are killed, reloaded and flooded, and count what is lost and what grows; ARGS="--minutes 5"
	$(PYTHON_HERE) -m loadtest.bench.soak $(ARGS)

image: ## Build the container images with docker or buildah; some of them: ARGS="gateway triton-cpu"
	scripts/build_images.sh $(ARGS)

release: .venv/.dev ## Build images and chart and push them to REGISTRY=registry.example.com/team, with SBOM, provenance and signature; some images: ARGS=gateway
	$(PYTHON_HERE) -m scripts.release --registry "$(REGISTRY)" $(ARGS)

chart: .venv/.dev ## Regenerate what is made from the chart: its schema, its values table and k8s/rendered/
	$(PYTHON_HERE) -m scripts.chart write

reference: .venv/.dev ## Regenerate docs/settings.md, docs/cli.md and docs/protocol.md
	$(PYTHON_HERE) scripts/reference.py write
	$(PYTHON_HERE) scripts/protocol_table.py write

docs: .venv-docs/.installed ## Build the site of docs/ into site/, with search; a broken link fails it. To read while writing: ARGS=serve
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs $(or $(ARGS),build --strict)

constraints: .venv/.dev ## Renew the pinned versions in constraints.txt
	$(PYTHON_HERE) -m pip install -q uv
	.venv/bin/uv pip compile pyproject.toml --universal --python-version 3.11.0 --all-extras --upgrade \
	  --no-header --no-annotate --no-emit-index-url -q -o constraints.txt

clean: ## Remove environments, results and caches of this clone (not the cache in your home)
	rm -rf site .venv .venv-docs .venv-go .venv-export .venv-clients .venv-clients-older .venv-fuzz results dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.local: $(SETUP)
	@scripts/setup.sh .venv quickstart && .venv/bin/python scripts/compile.py && touch $@

.venv/.dev: $(SETUP)
	@scripts/setup.sh .venv dev && .venv/bin/python scripts/compile.py && touch $@ .venv/.local

.venv-export/.export: $(SETUP)
	@scripts/setup.sh .venv-export export,keras,catboost,dev && touch $@

.venv-clients/.installed: $(wildcard tests/clients/*.txt) scripts/setup.sh
	@scripts/setup.sh .venv-clients tests/clients/ && touch $@

.venv-clients-older/.installed: $(wildcard tests/clients/older/*.txt) scripts/setup.sh
	@scripts/setup.sh .venv-clients-older tests/clients/older/ && touch $@

.venv-docs/.installed: $(SETUP)
	@scripts/setup.sh .venv-docs docs && touch $@

.venv-fuzz/.installed: $(SETUP)
	@scripts/setup.sh .venv-fuzz fuzz && touch $@
