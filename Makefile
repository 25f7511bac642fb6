# What a developer types. `make run` and `make test` are all that a new one needs.

GO      ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := -s -w -X github.com/cayhq/cay.version=$(VERSION)
GUEST   := internal/sandboxd/guest/embedded/files/cay-guest

# Starting sandboxes takes root.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)

# gVisor does not work in a binary built with cgo.
export CGO_ENABLED = 0

.PHONY: run demo build ui ui-deps ui-test guest test conformance conformance-vercel conformance-gateway conformance-chat crash race lint vuln bench bench-gateway opponents faults fuzz images deps test-deps conformance-deps conformance-vercel-deps conformance-gateway-deps conformance-chat-deps bench-gateway-deps clean

## run: build cay and run real programs in fresh sandboxes
run: deps build
	$(SUDO) bin/cay doctor
	$(SUDO) examples/run

## demo: a sentence becomes a program: models write it and its tests, and mend it
## until they pass in a sandbox
demo: deps build
	$(SUDO) examples/code-agent/demo

## build: bin/cay, with the guest program inside
build: guest
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/cay ./cmd/cay

## ui: build the web inspector, which is committed: only who changes it needs Node
ui: ui-deps
	cd internal/ui && npm run build

ui-deps:
	cd internal/ui && npm ci --no-progress

## ui-test: how the web inspector shows what others wrote
ui-test: ui-deps
	cd internal/ui && npm test

guest:
	$(GO) build -ldflags '-s -w' -o $(GUEST) ./cmd/cay-guest

## deps: the Debian packages that make the default image and check images in
## tests (only where they are missing)
deps:
	@which mmdebstrap mkfs.erofs >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy mmdebstrap erofs-utils; }

## test-deps: and PostgreSQL, of which tests start servers of their own
test-deps: deps
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy --no-install-recommends postgresql-common && \
	  echo 'create_main_cluster = false' | $(SUDO) tee -a /etc/postgresql-common/createcluster.conf && $(SUDO) apt-get install -qy --no-install-recommends postgresql; }

## conformance-deps: a browser and the clients that ./conformance runs
conformance-deps:
	@which chromium chromium-browser google-chrome >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy --no-install-recommends chromium fonts-liberation; }
	cd conformance && npm ci --no-progress

## conformance-vercel-deps: the clients that ./conformance/vercel runs, as locked
conformance-vercel-deps:
	@python3 -c 'import ensurepip, venv' 2>/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy --no-install-recommends python3-venv; }
	cd conformance/vercel && npm ci --no-progress
	cd conformance/vercel && python3 -m venv .venv && .venv/bin/pip install -q --require-hashes -r requirements.txt

## conformance-gateway-deps: the clients that ./conformance/gateway runs, as locked
conformance-gateway-deps:
	@python3 -c 'import ensurepip, venv' 2>/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy --no-install-recommends python3-venv; }
	cd conformance/gateway && npm ci --no-progress
	cd conformance/gateway/agents && npm ci --no-progress
	cd conformance/gateway && python3 -m venv .venv && .venv/bin/pip install -q --require-hashes -r requirements.txt

## conformance-chat-deps: a browser, and the clients that ./conformance/chat runs, as locked
conformance-chat-deps:
	@which chromium chromium-browser google-chrome >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy --no-install-recommends chromium fonts-liberation; }
	cd conformance/chat && npm ci --no-progress

## bench-gateway-deps: a gateway that the benchmark runs beside cay, as locked
bench-gateway-deps:
	cd bench/opponents/portkey && npm ci --no-progress --ignore-scripts

## images: the images tests use, in .cache/images
images: deps
	$(GO) test -count=1 -timeout 20m ./internal/sandboxd/image/imagetest

## test: all tests; those that start sandboxes need root
test: test-deps guest images
	$(GO) test -timeout 14m ./...

## conformance: programs of others against cay; part of `make test` once they are installed
conformance: deps conformance-deps ui-test guest images
	$(GO) test -count=1 -timeout 20m ./conformance

## conformance-vercel: official clients of Vercel Sandbox against cay
conformance-vercel: deps conformance-vercel-deps guest images
	CAY_CONFORMANCE=vercel $(GO) test -count=1 -timeout 30m ./conformance/vercel
	CAY_CONFORMANCE=vercel $(GO) test -count=1 -timeout 10m -run '^TestVercelSuite' ./bench

## conformance-gateway: official clients of model providers and gateways against cay
conformance-gateway: conformance-gateway-deps guest
	@mkdir -p .cache
	CAY_CONFORMANCE=gateway $(GO) test -count=1 -timeout 30m -v ./conformance/gateway > .cache/conformance-gateway.log || { grep -A15 -e '--- FAIL' .cache/conformance-gateway.log; false; }
	@grep -E ' passed +[0-9]+ failed| answers$$' .cache/conformance-gateway.log

## conformance-chat: a chat page built with the AI SDK, in a browser, against agents
conformance-chat: conformance-chat-deps guest
	CAY_CONFORMANCE=chat $(GO) test -count=1 -timeout 15m ./conformance/chat

ROUNDS ?= 200

## crash: kill a daemon with real sandboxes ROUNDS times, wherever it may be
crash: deps guest images
	CAY_TORTURE_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 60m -v ./internal/sandboxd/torture

## faults: workflows, and what can happen to them: programs of steps, sleeps and
## hooks that are killed and cut off ROUNDS times, on both databases
faults: test-deps
	CAY_FAULT_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 60m -v ./internal/workflowd/faults

# Packages that start no sandbox: the race detector needs cgo. Nor the faults of
# workflows: what they kill is other processes, each with little time.
RACE = $(shell $(GO) list ./... | grep -vE '/(agent/sandboxtool|cmd/cay|internal/daemon|internal/testenv|internal/sandboxd/gvisor|internal/sandboxd/torture|internal/workflowd/faults|bench|conformance.*|examples.*)$$')

## race: the tests that can run under the race detector
race: test-deps guest images
	CGO_ENABLED=1 $(GO) test -race -timeout 20m $(RACE)

## lint: formatting, vet and staticcheck
lint: guest
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo 'not formatted:'; gofmt -l $$(git ls-files '*.go'); false; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) build -o bin/cay-vet ./cmd/cay-vet
	$(GO) vet -vettool=bin/cay-vet ./workflow/durable ./examples/...

## vuln: known vulnerabilities in dependencies (asks the internet)
vuln:
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.1.4 ./...

## opponents: other engines of workflows, which the benchmark runs beside cay. They
## are a module of their own: nothing of them is in cay
opponents:
	cd bench/opponents && $(GO) build -o ../../bin/cay-opponents .

## bench: measure this machine; see docs/benchmarks.md
bench: build opponents
	$(SUDO) bin/cay bench

## bench-gateway: the AI gateway alone, with what it is compared with
bench-gateway: build bench-gateway-deps
	$(SUDO) bin/cay bench gateway

FUZZTIME ?= 10s

## fuzz: every fuzz target for FUZZTIME, except where gVisor's runtime is linked
## in, which does not build when instrumented; there the seeds run as tests
fuzz: guest
	@for d in $$(grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u); do \
	  if $(GO) list -tags fuzz -test -deps $$d | grep -q '^gvisor.dev/gvisor/runsc/boot$$'; then echo "$$d: seeds only"; continue; fi; \
	  for t in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' $$d/*_test.go); do \
	    echo "$$d $$t"; fuzz="$(GO) test -tags fuzz -run=^$$ -fuzz=^$$t$$ -fuzztime=$(FUZZTIME) $$d"; \
	    $$fuzz || { echo "once more: an input that fails was kept, an end of \"context deadline exceeded\" is a slow worker's"; $$fuzz; } || exit 1; \
	  done; \
	done

clean:
	rm -rf bin $(GUEST)
