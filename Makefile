# What each target does: make help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.NOTPARALLEL:

# Tools from crates.io, in these versions, installed under $(TOOLS).
CARGO_ABOUT := 0.9.3
CARGO_DENY := 0.20.2
CARGO_FUZZ := 0.13.2
CARGO_MACHETE := 0.9.2
TOOLS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/crossfade/tools
deny = $(TOOLS)/bin/cargo-deny
machete = $(TOOLS)/bin/cargo-machete
actionlint = $(TOOLS)/go/actionlint

# Where cargo builds.
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# "auditable build" puts the list of dependencies into the program.
BUILD ?= build

.PHONY: build
build: ## compile the program, optimized: target/release/crossfade
	cargo $(BUILD) --locked --release

.PHONY: demo
demo: ## move live traffic from an old to a new generation, all on this machine; ARGS="--plain --seconds 20"
	@test -x "$(TARGET)/demo/examples/demo" || echo "The first build takes less than four minutes on two cores. Later runs start immediately."
	cargo run --locked --profile demo --no-default-features --features demo --example demo -- $(ARGS)

.PHONY: test
test: prepare-and-compile fmt workflows unit deny unused ## install the test dependencies and run every test
	@cat "$(TARGET)"/tmp/*-skipped 2>/dev/null || true
	@echo "make test: all passed; not part of it, since they need time or other networks: make fuzz, make chaos, make rollouts, make differential, make audit, make macos, make image"

.PHONY: test-fast
test-fast: fmt ## run the tests that need only Rust (unit, proxy, command line, contracts); about three minutes once compiled
	# Most of these tests wait most of the time.
	RUST_TEST_THREADS=$$((3 * $$(nproc))) cargo test --locked --no-fail-fast --lib --test contracts --test proxy --test cli

.PHONY: prepare
prepare: ## install the test dependencies, and report what is missing
	@tests/prepare.sh cargo-deny=$(CARGO_DENY) cargo-machete=$(CARGO_MACHETE)

.PHONY: prepare-and-compile
prepare-and-compile: ## like prepare, and compile the tests meanwhile
	@tests/prepare.sh --compile cargo-deny=$(CARGO_DENY) cargo-machete=$(CARGO_MACHETE)

.PHONY: fmt
fmt: ## check the formatting
	cargo fmt --check

.PHONY: workflows
workflows: ## lint the GitHub workflows
	$(actionlint) .github/workflows/*.yml

.PHONY: clippy
clippy: ## lint all code, warnings denied
	cargo clippy --locked --all-targets -- -D warnings

.PHONY: features
features: ## check that the library compiles with each feature alone
	for features in "" demo kube otlp; do
	  cargo clippy --locked --lib --no-default-features --features "$$features" -- -D warnings
	done

.PHONY: macos
macos: ## check that the program compiles for macOS, where people run status and the kubectl plugin
	rustup target add x86_64-apple-darwin
	CC_x86_64_apple_darwin="$(CURDIR)/tests/no-compiler.sh" AR_x86_64_apple_darwin="$(CURDIR)/tests/no-compiler.sh" \
	  cargo check --locked --bins --target x86_64-apple-darwin

.PHONY: unit
unit: ## run the tests of every tier, including real Dynamo and a real cluster, and lint meanwhile; CROSSFADE_BIN selects a release build
	cargo test --locked --no-run
	tests/all.sh $(MAKE) --no-print-directory clippy features

.PHONY: rollouts
rollouts: build ## run managed updates with every strategy, and all examples, in a real cluster under load; an hour
	CROSSFADE_TEST_LONG=1 CROSSFADE_TEST_SCENARIO="managed examples" CROSSFADE_BIN="$(TARGET)/release/crossfade" \
	  cargo test --locked --test cluster -- --nocapture

.PHONY: proto
proto: ## regenerate the code for proto/, after a change there
	CROSSFADE_WRITE_PROTO=1 cargo test --locked --test contracts -- are_what_the_protocol_says is_what_the_protocol_says

.PHONY: reference
reference: ## regenerate docs/reference.md, after a change of flags, fields, or metrics
	CROSSFADE_WRITE_REFERENCE=1 cargo test --locked --test contracts reference::

.PHONY: analysis-table
analysis-table: ## regenerate the table of docs/analysis.md, after a change of src/analysis; takes minutes
	cargo test --locked --profile simulation --no-default-features --lib analysis::tests::table -- --ignored --nocapture

SEEDS := 1000..3500
.PHONY: scaling-laws
scaling-laws: ## check the invariants of updates and of managed updates in long random histories, after a change of src/rollout or src/scaling; takes a minute; SEEDS=81..82
	SCALING_SEEDS=$(SEEDS) cargo test --locked --profile simulation --no-default-features --lib -- --ignored scaling::tests::simulator rollout::tests::simulator

.PHONY: image
image: build ## build the last stage of the Dockerfile around target/release/crossfade, and run it, without a registry; needs buildah
	@tests/prepare.sh cargo-about=$(CARGO_ABOUT)
	PATH="$(TOOLS)/bin:$$PATH" cargo about generate --locked about.hbs --output-file "$(TARGET)/THIRD-PARTY.txt"
	tests/image.sh "$(TARGET)/release/crossfade" "$(TARGET)/THIRD-PARTY.txt" "$(TARGET)/crossfade-image.tar"

PREFIX ?= /usr/local
.PHONY: install
install: build ## install the program, its manual, completions, and the kubectl plugin under PREFIX (/usr/local)
	program="$(TARGET)/release/crossfade" root="$(DESTDIR)$(PREFIX)"
	install -d "$$root/bin" "$$root/share/bash-completion/completions" "$$root/share/zsh/site-functions" \
	  "$$root/share/fish/vendor_completions.d"
	install "$$program" "$$root/bin/crossfade"
	ln -sf crossfade "$$root/bin/kubectl-crossfade"
	"$$program" completions kubectl >"$$root/bin/kubectl_complete-crossfade"
	chmod 755 "$$root/bin/kubectl_complete-crossfade"
	"$$program" man "$$root/share/man/man1"
	"$$program" completions bash >"$$root/share/bash-completion/completions/crossfade"
	"$$program" completions zsh >"$$root/share/zsh/site-functions/_crossfade"
	"$$program" completions fish >"$$root/share/fish/vendor_completions.d/crossfade.fish"

.PHONY: deny
deny: ## check the licenses, bans, and sources of the dependencies
	$(deny) --locked check bans licenses sources

.PHONY: unused
unused: ## check for unused dependencies
	$(machete)

.PHONY: audit
audit: ## check the dependencies for security advisories; needs the RustSec database on GitHub
	@tests/prepare.sh cargo-deny=$(CARGO_DENY)
	$(deny) --locked check advisories

# Fuzzing needs a sanitizer, for which a stable compiler must be told to act as a nightly one.
# What it finds out goes to fuzz/corpus; it starts from there and from the seeds in tests/corpus.
FUZZ_SECONDS := 20
.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZ_SECONDS (20)
	@tests/prepare.sh cargo-fuzz=$(CARGO_FUZZ)
	export PATH="$(TOOLS)/bin:$$PATH" RUSTC_BOOTSTRAP=1
	for target in $$(cargo fuzz list); do
	  mkdir -p "fuzz/corpus/$$target" "tests/corpus/$$target"
	  cargo fuzz run "$$target" "fuzz/corpus/$$target" "tests/corpus/$$target" -- \
	    -max_total_time=$(FUZZ_SECONDS)
	done

# A failing seed is named with the command that plays its round again. CHAOS_PATIENCE=4 multiplies the test's time limits, for a
# machine that has much else to do.
SECONDS := 600
SEED := random
HTTP2 := 40
.PHONY: chaos
chaos: build ## check invariants under random faults; SECONDS=3600 SEED=0x1f
	CROSSFADE_BIN="$(TARGET)/release/crossfade" CHAOS_SECONDS=$(SECONDS) CHAOS_SEED=$(SEED) CHAOS_HTTP2=$(HTTP2) \
	  cargo test --locked --test chaos -- --nocapture no_invariant

.PHONY: fleet
fleet: build ## measure what many proxies cost a real API server; FLEET=200 FLEET_SECONDS=300
	CROSSFADE_BIN="$(TARGET)/release/crossfade" cargo test --locked --test load -- --ignored --nocapture

.PHONY: differential
differential: build ## compare odd requests through crossfade, HAProxy, and Envoy; WRITE=--write updates the table
	@benches/install.sh
	tests/differential/run.py $(WRITE) "$(TARGET)/release/crossfade"

.PHONY: bench
bench: ## compare speed and memory with HAProxy, nginx, and Envoy; takes half an hour; ARGS="--only tokens --rounds 3"
	@benches/install.sh
	cargo bench --locked --bench e2e -- --json benches/results.json $(ARGS)

.PHONY: bench-plot
bench-plot: ## draw benches/figures/*.svg from the results of make bench
	benches/plot.py benches/results.json benches/figures
