# The benchmark. The Makefile of the repository includes this file; recipes run in the root.

.PHONY: bench bench-gateway bench-gateway-deps bench-workflow-js bench-workflow-js-deps cay-bench opponents

## bench-gateway-deps: a gateway that the benchmark runs beside cay, as locked
bench-gateway-deps: bench/opponents/portkey/$(NPM)
bench/opponents/portkey/$(NPM): NPM_FLAGS = --ignore-scripts

## bench-workflow-js-deps: the Workflow SDK and the vendor's World on PostgreSQL, which the
## benchmark runs beside cay, as locked
bench-workflow-js-deps: conformance/workflow/v4/$(NPM) conformance/workflow/v5/$(NPM) bench/opponents/world-postgres/$(NPM)
bench/opponents/world-postgres/$(NPM): NPM_FLAGS = --ignore-scripts

## opponents: other engines of workflows, which the benchmark runs beside cay. They
## are a module of their own: nothing of them is in cay
opponents:
	cd bench/opponents && $(GO) build -o ../../bin/cay-opponents .

## cay-bench: bin/cay-bench, which measures; it is no part of the release
cay-bench: inside
	$(build_edited) -ldflags '$(LDFLAGS)' -o bin/cay-bench ./cmd/cay-bench

## bench: measure this machine; see docs/benchmarks.md
bench: build cay-bench opponents
	$(SUDO) bin/cay-bench

## bench-gateway: the AI gateway alone, with what it is compared with
bench-gateway: build cay-bench bench-gateway-deps
	$(SUDO) bin/cay-bench gateway

## bench-workflow-js: workflows in JavaScript alone, beside the vendor's own Worlds
bench-workflow-js: test-deps build cay-bench bench-workflow-js-deps
	$(SUDO) bin/cay-bench workflow-js
