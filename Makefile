# What a developer types. `make run` and `make test` are all that a new one needs.

GO      ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := -s -w -X github.com/cayhq/cay.version=$(VERSION)
GUEST   := internal/sandboxd/guest/embedded/files/cay-guest

# Starting sandboxes takes root.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)

# gVisor does not work in a binary built with cgo.
export CGO_ENABLED = 0

.PHONY: run build guest test conformance race lint vuln bench fuzz images deps conformance-deps clean

## run: build cay and run real programs in fresh sandboxes
run: deps build
	$(SUDO) bin/cay doctor
	$(SUDO) examples/run

## build: bin/cay, with the guest program inside
build: guest
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/cay ./cmd/cay

guest:
	$(GO) build -ldflags '-s -w' -o $(GUEST) ./cmd/cay-guest

## deps: the Debian packages that make the default image and check images in
## tests (only where they are missing)
deps:
	@which mmdebstrap mkfs.erofs >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy mmdebstrap erofs-utils; }

## conformance-deps: a browser and the clients that ./conformance runs
conformance-deps:
	@which chromium chromium-browser google-chrome >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy --no-install-recommends chromium fonts-liberation; }
	cd conformance && npm ci --no-progress

## images: the images tests use, in .cache/images
images: deps
	$(GO) test -count=1 -timeout 20m ./internal/sandboxd/image/imagetest

## test: all tests; those that start sandboxes need root
test: deps guest images
	$(GO) test -timeout 14m ./...

## conformance: programs of others against cay; part of `make test` once they are installed
conformance: deps conformance-deps guest images
	$(GO) test -count=1 -timeout 20m ./conformance/...

# Packages that start no sandbox: the race detector needs cgo.
RACE = $(shell $(GO) list ./... | grep -vE '/(cmd/cay|internal/daemon|internal/testenv|internal/sandboxd/gvisor|bench|conformance|examples.*)$$')

## race: the tests that can run under the race detector
race: deps guest images
	CGO_ENABLED=1 $(GO) test -race -timeout 20m $(RACE)

## lint: formatting, vet and staticcheck
lint: guest
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo 'not formatted:'; gofmt -l $$(git ls-files '*.go'); false; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

## vuln: known vulnerabilities in dependencies (asks the internet)
vuln:
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.1.4 ./...

## bench: measure this machine; see docs/benchmarks.md
bench: build
	$(SUDO) bin/cay bench

FUZZTIME ?= 10s

## fuzz: every fuzz target for FUZZTIME, except where gVisor's runtime is linked
## in, which does not build when instrumented; there the seeds run as tests
fuzz: guest
	@for d in $$(grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u); do \
	  if $(GO) list -tags fuzz -test -deps $$d | grep -q '^gvisor.dev/gvisor/runsc/boot$$'; then echo "$$d: seeds only"; continue; fi; \
	  for t in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' $$d/*_test.go); do \
	    echo "$$d $$t"; $(GO) test -tags fuzz -run='^$$' -fuzz="^$$t$$" -fuzztime=$(FUZZTIME) $$d || exit 1; \
	  done; \
	done

clean:
	rm -rf bin $(GUEST)
