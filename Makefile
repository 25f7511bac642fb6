# What a developer types. `make run` and `make test` are all that a new one needs.

GO      ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
MODULE  := github.com/cayhq/cay
LDFLAGS := -s -w -X $(MODULE).version=$(VERSION)
INSIDE  := internal/embedded/files

# Starting sandboxes takes root.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)

# What package managers write last, below a directory with a lock file.
NPM  := node_modules/.package-lock.json
VENV := .venv/.requirements

# gVisor does not work in a binary built with cgo.
export CGO_ENABLED = 0

.PHONY: run demo build ui ui-deps ui-test js js-deps inside images clean \
  test race lint conformance conformance-short conformance-vercel conformance-docker conformance-cloudflare conformance-gateway conformance-chat conformance-workflow conformance-newest \
  race-all stress leaks crash faults fuzz vuln bench bench-gateway cay-bench opponents changelog \
  deps test-deps browser-deps venv-deps conformance-deps conformance-short-deps conformance-vercel-deps conformance-docker-deps conformance-cloudflare-deps conformance-gateway-deps conformance-chat-deps conformance-workflow-deps bench-gateway-deps

## run: build cay and run real programs in fresh sandboxes
run: deps build
	$(SUDO) bin/cay doctor
	$(SUDO) examples/run

## demo: a sentence becomes a program: models write it and its tests, and mend it
## until they pass in a sandbox
demo: deps build
	$(SUDO) examples/code-agent/demo

## build: bin/cay, with the programs of sandboxes inside
build: inside
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/cay ./cmd/cay

## ui: build the web inspector, which is committed: only who changes it needs Node
ui: ui-deps
	cd internal/ui && npm run build

ui-deps: internal/ui/$(NPM)

## ui-test: how the web inspector shows what others wrote
ui-test: ui-deps
	cd internal/ui && npm test

## js: build the JavaScript packages that daemons serve, which are committed: only who
## changes them needs Node
js: js-deps
	rm -rf sdk/js/world/dist && cd sdk/js/world && npm run build

js-deps: sdk/js/world/$(NPM)

# Where cay-sentry begins; see early.Start.
START_amd64 := -E $(MODULE)/internal/sandboxd/gvisor/sentry/early.Start

# cay-sentry is kept in the data directory, and is the same wherever the same sources
# are built.
inside:
	$(GO) build -ldflags '-s -w' -o $(INSIDE)/cay-guest ./cmd/cay-guest
	$(GO) build -ldflags '-s -w $(START_$(shell $(GO) env GOARCH))' -trimpath -buildvcs=false -o $(INSIDE)/cay-sentry ./cmd/cay-sentry

## deps: the Debian packages that make the default image and check images in
## tests (only where they are missing)
deps:
	@which mmdebstrap mkfs.erofs >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy mmdebstrap erofs-utils; }

## test-deps: and PostgreSQL, of which tests start servers of their own
test-deps: deps
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy --no-install-recommends postgresql-common && \
	  echo 'create_main_cluster = false' | $(SUDO) tee -a /etc/postgresql-common/createcluster.conf && $(SUDO) apt-get install -qy --no-install-recommends postgresql; }

## conformance-deps: a browser and the clients that ./conformance runs
conformance-deps: browser-deps conformance/$(NPM)

browser-deps:
	@which chromium chromium-browser google-chrome >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy --no-install-recommends chromium fonts-liberation; }

venv-deps:
	@python3 -c 'import ensurepip, venv' 2>/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy --no-install-recommends python3-venv; }

## conformance-vercel-deps: the clients that ./conformance/vercel runs, as locked
conformance-vercel-deps: venv-deps $(addprefix conformance/vercel/,$(NPM) $(VENV))

## conformance-docker-deps: docker-py, and tools that run code in containers, as locked
conformance-docker-deps: venv-deps conformance/docker/$(VENV)

## conformance-cloudflare-deps: wrangler, and the Node that it needs, and clients of the bridge, as locked
conformance-cloudflare-deps: venv-deps examples/cloudflare/$(NPM) $(addprefix conformance/cloudflare/bridge/,$(NPM) $(VENV))

## conformance-gateway-deps: the clients that ./conformance/gateway runs, as locked
conformance-gateway-deps: venv-deps $(addprefix conformance/gateway/,$(NPM) agents/$(NPM) $(VENV))

## conformance-chat-deps: a browser, and the clients that ./conformance/chat runs, as locked
conformance-chat-deps: browser-deps conformance/chat/$(NPM)

## conformance-workflow-deps: both lines of the Workflow SDK, as ./conformance/workflow and the example lock them
conformance-workflow-deps: conformance-deps $(addprefix conformance/workflow/,v4/$(NPM) v5/$(NPM) agent/$(NPM) testing/$(NPM)) examples/workflow-js/$(NPM)

## bench-gateway-deps: a gateway that the benchmark runs beside cay, as locked
bench-gateway-deps: bench/opponents/portkey/$(NPM)
bench/opponents/portkey/$(NPM): NPM_FLAGS = --ignore-scripts

# Of other package managers: a directory is installed again when what it locks has changed.
%/$(NPM): %/package-lock.json
	cd $* && npm ci --no-progress $(NPM_FLAGS)
	@touch $@

%/$(VENV): %/requirements.txt
	cd $* && python3 -m venv .venv && .venv/bin/pip install -q --require-hashes -r requirements.txt
	@touch $@

## images: the images tests use, in .cache/images
images: deps
	$(GO) test -count=1 -timeout 20m ./internal/image/imagetest

# Two tiers, one after the other: packages that start no sandbox, side by side;
# then those that do, one at a time.
tests_of = $(GO) list -test -f '{{.ImportPath}}{{range .Deps}} {{.}}{{end}}' ./... | grep -E '^[^ ]+\.test ' | grep $(1) -E ' $(MODULE)/internal/sandboxd/gvisor( |$$)' | sed 's/\.test .*//'

# run_tests NAME, PACKAGES (a command that lists them), FLAGS of go test, ENVIRONMENT. A test that
# fails gets two more chances and is printed as FLAKY if it takes one; more than five
# failures, a panic or a data race get none.
define run_tests
	@mkdir -p .cache/test
	@rc=0; $(4) $(GO) tool gotestsum --format standard-quiet --hide-summary skipped --jsonfile .cache/test/$(1).json \
	  --rerun-fails=2 --rerun-fails-max-failures=5 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race \
	  --packages "$$($(2))" -- $(3) || rc=$$?; \
	$(GO) run ./internal/testreport -slow $(SLOW) .cache/test/$(1).json; exit $$rc
endef

# How many of the slowest packages and tests are printed.
SLOW ?= 5

## test: all tests; those that start sandboxes need root. See docs/testing.md
test: test-deps inside images
	$(call run_tests,test,$(call tests_of,-v),-timeout 14m)
	$(call run_tests,sandbox,$(call tests_of,),-p 1 -parallel 4 -timeout 14m)

## conformance: programs of others against cay; part of `make test` once they are installed
conformance: deps conformance-deps ui-test inside images
	$(GO) test -count=1 -timeout 20m ./conformance

conformance-short-deps: conformance-deps venv-deps
	@$(MAKE) --no-print-directory -j4 $(addprefix conformance/,vercel/$(NPM) vercel/$(VENV) gateway/$(NPM) chat/$(NPM))

# Of each suite the newest client of each kind.
SHORT = ^TestSDK$$/^v3$$|^TestClient$$|^TestExec$$|^TestExamples$$/^v3$$|^TestClients$$/^(openai-v7|anthropic-v1|ai-v7)$$|^TestReplay$$/^ai-v7$$|^TestRaw$$|^TestDocs$$|^TestClouds$$|^TestVercel$$|^TestConvert|^TestTransports

## conformance-short: of each of the three suites below a part, for every change
conformance-short: conformance-short-deps inside images
	$(call run_tests,conformance,echo ./conformance/vercel ./conformance/gateway ./conformance/chat,-count=1 -p 3 -timeout 14m -run '$(SHORT)',CAY_CONFORMANCE=short)

## conformance-vercel: official clients of Vercel Sandbox against cay
conformance-vercel: deps conformance-vercel-deps inside images
	$(call run_tests,vercel,echo ./conformance/vercel ./bench,-count=1 -p 1 -timeout 30m,CAY_CONFORMANCE=vercel)

## conformance-docker: official clients of the Docker Engine API against cay
conformance-docker: deps conformance-docker-deps build images
	$(call run_tests,docker,echo ./conformance/docker,-count=1 -timeout 15m,CAY_CONFORMANCE=docker)

## conformance-cloudflare: "wrangler dev" of a Worker project with containers, and clients of the bridge, on cay
conformance-cloudflare: deps conformance-cloudflare-deps build images
	$(call run_tests,cloudflare,echo ./conformance/cloudflare ./conformance/cloudflare/bridge,-count=1 -p 1 -timeout 15m,CAY_CONFORMANCE=cloudflare)

## conformance-gateway: official clients of model providers and gateways against cay
conformance-gateway: conformance-gateway-deps inside
	$(call run_tests,gateway,echo ./conformance/gateway,-count=1 -timeout 30m,CAY_CONFORMANCE=gateway)

## conformance-chat: a chat page built with the AI SDK, in a browser, against agents
conformance-chat: conformance-chat-deps inside
	$(call run_tests,chat,echo ./conformance/chat,-count=1 -timeout 15m,CAY_CONFORMANCE=chat)

## conformance-workflow: apps of the Workflow SDK against cay, and the SDK's suite for Worlds
conformance-workflow: deps conformance-workflow-deps inside images
	$(call run_tests,workflow,echo ./conformance/workflow,-count=1 -timeout 30m,CAY_CONFORMANCE=workflow)

NEWEST := .cache/newest

# The Python clients whose newest version conformance-newest installs.
NEWEST_vercel  := vercel-sandbox
NEWEST_gateway := anthropic openai

## conformance-newest: the three suites above with the newest client of each kind that
## there is, in a copy of this tree: what a change of the pins would meet
conformance-newest: deps browser-deps venv-deps inside images
	rm -rf $(NEWEST) && mkdir -p $(NEWEST)
	git ls-files -z | tar -c --null -T - | tar -x -C $(NEWEST)
	cp $(INSIDE)/cay-* $(NEWEST)/$(INSIDE)/
	@set -e; for d in vercel gateway gateway/agents chat; do (cd $(NEWEST)/conformance/$$d && node $(CURDIR)/conformance/newest.mjs && npm install --no-progress); done
	@set -e; for d in vercel gateway; do (cd $(NEWEST)/conformance/$$d && python3 -m venv .venv && touch .venv/.requirements); done
	cd $(NEWEST)/conformance/vercel && .venv/bin/pip install -q -U $(NEWEST_vercel)
	cd $(NEWEST)/conformance/gateway && .venv/bin/pip install -q -U $(NEWEST_gateway)
	CAY_TEST_IMAGES=$${CAY_TEST_IMAGES:-$(CURDIR)/.cache/images} $(MAKE) -C $(NEWEST) -k conformance-vercel conformance-gateway conformance-chat

ROUNDS ?= 200

# What the long forms of tests try at random: new things each time. The test says
# what its seed was.
SEED ?= random

## crash: kill a daemon with real sandboxes ROUNDS times, wherever it may be
crash: deps inside images
	CAY_SEED=$(SEED) CAY_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 60m -v ./internal/sandboxd/torture

## leaks: start and remove sandboxes ROUNDS times, and count what is left
leaks: deps inside images
	CAY_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 60m -run Leak ./internal/sandboxd/gvisor

## faults: workflows, and what can happen to them: programs of steps, sleeps and
## hooks that are killed and cut off ROUNDS times, on both databases
faults: test-deps
	CAY_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 60m -v ./internal/workflowd/faults

## faults-workflow-js: an app of the Workflow SDK and the daemon, killed ROUNDS times at
## random points under runs of the app, with both lines of the SDK
faults-workflow-js: deps conformance-workflow-deps inside
	CAY_SEED=$(SEED) CAY_ROUNDS=$(ROUNDS) CAY_CONFORMANCE=workflow $(GO) test -count=1 -timeout 180m -v -run 'TestKilled_Random' ./conformance/workflow

# Packages that start no sandbox: the race detector needs cgo. Nor the faults of
# workflows: what they kill is other processes, each with little time.
RACE_ALL = $(call tests_of,-v) | grep -vE '/(internal/workflowd/faults|conformance.*|examples.*)$$'
# Those in which many goroutines share what there is; and tests that are long without that.
RACE = echo $(addprefix ./,workflow $(addprefix internal/,api blob gatewayd gatewayd/admin gatewayd/upstream limit workflowd workflowd/queue sandboxd \
  $(addprefix sandboxd/,feed flowlog idle label route store usage fake guest/agent guest/agent/process network network/intercept network/sniff preview upload)))
RACE_SKIP = ^TestEngine$$|^TestClient$$/^(Invalid|List|Orders|Tenancy|Quota|Drives|Snapshots|Sessions|SessionRefs|Kept)$$|^TestHandle_Run$$|^TestKept_hostile$$|Model|Crash|Kill|Leaks|Labels|SameOnReplay|Envelopes|LongLog|LargePayloads|LargePrompt|SlowReader

## race: the packages in which many goroutines share what there is, under the race detector
race: test-deps inside images
	$(call run_tests,race,$(RACE),-race -skip '$(RACE_SKIP)' -timeout 14m,CGO_ENABLED=1)

## race-all: the tests of all packages that can run under it
race-all: test-deps inside images
	$(call run_tests,race,$(RACE_ALL),-race -timeout 30m,CGO_ENABLED=1)

PKG ?= ./...
COUNT ?= 20

## stress: the tests of PKG COUNT times, in random order, with random seeds, beside busy CPUs
stress: test-deps inside images
	@pids=; for i in 1 2 3 4; do (while :; do :; done) & pids="$$pids $$!"; done; trap "kill $$pids" EXIT; \
	CAY_SEED=random $(GO) test -p 1 -count=$(COUNT) -shuffle=on -timeout 0 $(PKG)

## lint: formatting, vet and staticcheck
lint: inside
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

## cay-bench: bin/cay-bench, which measures; it is no part of the release
cay-bench: inside
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/cay-bench ./cmd/cay-bench

## bench: measure this machine; see docs/benchmarks.md
bench: build cay-bench opponents
	$(SUDO) bin/cay-bench

## bench-gateway: the AI gateway alone, with what it is compared with
bench-gateway: build cay-bench bench-gateway-deps
	$(SUDO) bin/cay-bench gateway

## changelog: print the changes of each version; go run ./internal/changelog 0.1.0 prints one
changelog:
	@$(GO) run ./internal/changelog

FUZZTIME ?= 10s

## fuzz: every fuzz target for FUZZTIME, except where gVisor's runtime is linked
## in, which does not build when instrumented; there the seeds run as tests
fuzz: inside
	@for d in $$(grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u); do \
	  if $(GO) list -tags fuzz -test -deps $$d | grep -q '^gvisor.dev/gvisor/runsc/boot$$'; then echo "$$d: seeds only"; continue; fi; \
	  for t in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' $$d/*_test.go); do \
	    echo "$$d $$t"; fuzz="$(GO) test -tags fuzz -run=^$$ -fuzz=^$$t$$ -fuzztime=$(FUZZTIME) $$d"; \
	    $$fuzz || { echo "once more: an input that fails was kept, an end of \"context deadline exceeded\" is a slow worker's"; $$fuzz; } || exit 1; \
	  done; \
	done

clean:
	rm -rf bin $(INSIDE)/cay-*
