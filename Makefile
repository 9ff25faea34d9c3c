# Plain `make` lists what there is.

.DEFAULT_GOAL := help
.PHONY: help setup demo test drill bench lint deny clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## install what is missing: Redis, PostgreSQL, build tools, Apache Kafka
	@deploy/setup.sh

demo: setup  ## the whole system on this machine, a sale under load, and the verdict
	cargo run --locked --release -p loadtest -- demo

test: setup  ## every test, on real servers
	cargo test --locked --workspace

drill: setup  ## every fault, each in a sale under load, and the verdict on each
	cargo run --locked --release -p loadtest -- faults

bench: setup  ## how fast it is beside baselines on this machine: ten minutes and a build
	cargo run --locked --release -p loadtest -- bench

lint:  ## formatting, clippy and documentation, warnings denied
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --document-private-items

deny:  ## licences, sources and banned crates of the dependencies
	@deploy/deny.sh

clean:  ## remove what was built
	cargo clean
