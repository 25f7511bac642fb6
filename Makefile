# What a developer types. `make run` and `make test` are all that a new one needs.

GO      ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
MODULE  := github.com/cayhq/cay
LDFLAGS := -s -w -X $(MODULE).version=$(VERSION)
INSIDE  := internal/embedded/files

# Starting sandboxes takes root.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)

# gVisor does not work in a binary built with cgo.
export CGO_ENABLED = 0

# All Go commands below compile with the same flags, so that one finds in Go's cache what another
# has compiled. -trimpath makes the programs the same wherever the same sources are built.
export GOFLAGS := $(strip $(filter-out -trimpath,$(shell $(GO) env GOFLAGS)) -trimpath)

.PHONY: run demo build ui ui-deps ui-test js js-deps inside images clean test race lint changelog deps test-deps
.PHONY: dist dist-test install-test packaging-test race-all stress leaks crash replace faults fuzz vuln system-test

.DEFAULT_GOAL := run

# Programs of others against cay, with what npm and pip install; and the benchmark.
include conformance/rules.mk bench/rules.mk

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
	$(build_edited) -ldflags '$(LDFLAGS)' -o bin/cay ./cmd/cay

## dist: packages for Debian and RPM, tarballs, container images, SBOM and checksums of this
## commit in bin/dist
dist:
	cd packaging && $(GO) run .

# packages_test FLAGS: a test of packages, too long for the gate.
packages_test = cd packaging && CAY_PACKAGES_TEST=1 $(GO) test -count=1 -timeout 60m -v $(1) .

## dist-test: make dist in two clones of this commit: the results are the same bytes. FRESH=1
## gives each an empty build cache
dist-test:
	$(call packages_test,-run 'TestDist_Reproducible')

## install-test: the packages in bin/dist (see dist) as a new user meets them: in a new Debian,
## from the tarball, from the RPM, and as a container
install-test: deps
	$(SUDO) env "PATH=$$PATH" $(MAKE) packages-install-test

.PHONY: packages-install-test
packages-install-test:
	$(call packages_test,-run 'TestInstall')

# The program that makes packages is a module of its own.
packaging-test:
	cd packaging && $(GO) test ./...

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

# The gVisor that cay-sentry is built with: the module with the edits of internal/sandboxd/gvisor/edits.
# cay is built with it, too: the edits change nothing that cay uses, and gVisor is compiled once.
GVISOR := .cache/gvisor
build_edited = $(GO) build -modfile $(GVISOR).mod

# Both programs are the same wherever the same sources are built (-trimpath): saved memory can be
# restored by a build that has the same two.
inside:
	@mkdir -p .cache
	$(GO) run ./internal/sandboxd/gvisor/edits -out $(GVISOR)
	$(GO) build -ldflags '-s -w' -buildvcs=false -o $(INSIDE)/cay-guest ./cmd/cay-guest
	$(build_edited) -ldflags '-s -w $(START_$(shell $(GO) env GOARCH))' -buildvcs=false -o $(INSIDE)/cay-sentry ./cmd/cay-sentry

## deps: the Debian packages that make the default image and check images in
## tests (only where they are missing)
deps:
	@which mmdebstrap mkfs.erofs >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy mmdebstrap erofs-utils; }

## test-deps: and PostgreSQL, of which tests start servers of their own
test-deps: deps
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy --no-install-recommends postgresql-common && \
	  echo 'create_main_cluster = false' | $(SUDO) tee -a /etc/postgresql-common/createcluster.conf && $(SUDO) apt-get install -qy --no-install-recommends postgresql; }

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

# Most tests wait more than they compute: more run at one time than there are CPUs.

## test: all tests; those that start sandboxes need root. See docs/testing.md
test: test-deps inside images packaging-test
	$(call run_tests,test,$(call tests_of,-v),-parallel 8 -timeout 14m)
	$(call run_tests,sandbox,$(call tests_of,),-p 1 -parallel 4 -timeout 14m)

ROUNDS ?= 200

# What the long forms of tests try at random: new things each time. The test says
# what its seed was.
SEED ?= random

## crash: kill a daemon with real sandboxes ROUNDS times, wherever it may be
crash: deps inside images
	CAY_SEED=$(SEED) CAY_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 60m -v ./internal/sandboxd/torture

## replace: replace a daemon, or kill it, ROUNDS times, with requests and commands under way
replace: deps inside images
	CAY_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 60m -v -run TestDaemon_Replaced ./internal/daemon

## leaks: start and remove sandboxes ROUNDS times, and count what is left
leaks: deps inside images
	CAY_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 60m -run Leak ./internal/sandboxd/gvisor

## system-test: programs in a sandbox that need much of a kernel, such as FUSE file systems
system-test: deps inside images
	CAY_SYSTEM=1 $(GO) test -count=1 -timeout 30m -v -run 'TestSystem' ./internal/sandboxd/gvisor

## faults: workflows, and what can happen to them: programs of steps, sleeps and
## hooks that are killed and cut off ROUNDS times, on both databases
faults: test-deps
	CAY_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 60m -v ./internal/workflowd/faults

# Packages that start no sandbox: the race detector needs cgo. Nor the faults of
# workflows: what they kill is other processes, each with little time.
RACE_ALL = $(call tests_of,-v) | grep -vE '/(internal/workflowd/faults|conformance.*|examples.*)$$'
# Those in which many goroutines share what there is.
RACE = echo $(addprefix ./,workflow $(addprefix internal/,api blob gatewayd gatewayd/admin gatewayd/upstream limit workflowd workflowd/queue sandboxd \
  $(addprefix sandboxd/,feed flowlog idle label route store usage fake guest/agent guest/agent/process network network/intercept network/sniff preview upload)))

## race: the packages in which many goroutines share what there is, under the race detector,
## without the tests that are long (checktest.Long)
race: test-deps inside images
	$(call run_tests,race,$(RACE),-race -short -parallel 8 -timeout 14m,CGO_ENABLED=1)

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
	staticcheck=$$($(GO) tool -n staticcheck) && cd packaging && $(GO) vet ./... && $$staticcheck ./...
	$(GO) build -o bin/cay-vet ./cmd/cay-vet
	$(GO) vet -vettool=bin/cay-vet ./workflow/durable ./examples/...

## vuln: known vulnerabilities in dependencies (asks the internet)
vuln:
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.1.4 ./...

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
