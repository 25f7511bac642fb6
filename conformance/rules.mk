# Programs of others that run against cay, and the rules that install them. The Makefile of
# the repository includes this file; recipes run in the root.

.PHONY: conformance conformance-short conformance-vercel conformance-docker conformance-cloudflare conformance-gateway \
  conformance-chat conformance-workflow conformance-workflow-short conformance-newest faults-workflow-js
.PHONY: conformance-deps conformance-short-deps conformance-vercel-deps conformance-docker-deps conformance-cloudflare-deps \
  conformance-gateway-deps conformance-chat-deps conformance-workflow-deps conformance-workflow-short-deps browser-deps venv-deps

# What package managers write last, below a directory with a lock file.
NPM  := node_modules/.package-lock.json
VENV := .venv/.requirements

# Of other package managers: a directory is installed again when what it locks has changed.
%/$(NPM): %/package-lock.json
	cd $* && npm ci --no-progress $(NPM_FLAGS)
	@touch $@

%/$(VENV): %/requirements.txt
	cd $* && python3 -m venv .venv && .venv/bin/pip install -q --require-hashes -r requirements.txt
	@touch $@

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

## conformance: programs of others against cay; part of `make test` once they are installed
conformance: deps conformance-deps ui-test inside images
	$(GO) test -count=1 -timeout 20m ./conformance

conformance-short-deps: conformance-deps venv-deps
	@$(MAKE) --no-print-directory -j4 $(addprefix conformance/,vercel/$(NPM) vercel/$(VENV) gateway/$(NPM) chat/$(NPM))

## conformance-short: of each of the suites vercel, gateway and chat a part, for every change:
## the tests that do not skip with -short
conformance-short: conformance-short-deps inside images
	$(call run_tests,conformance,echo ./conformance/vercel ./conformance/gateway ./conformance/chat,-count=1 -short -p 3 -timeout 14m,CAY_CONFORMANCE=short)

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
	$(call run_tests,workflow,echo ./conformance/workflow ./bench,-count=1 -p 1 -timeout 30m,CAY_CONFORMANCE=workflow)

conformance-workflow-short-deps: conformance/workflow/short/$(NPM)

## conformance-workflow-short: of that suite a part with one line of the SDK, for every change
conformance-workflow-short: conformance-workflow-short-deps inside
	$(call run_tests,workflow-short,echo ./conformance/workflow,-count=1 -timeout 14m -run '^TestShort$$',CAY_CONFORMANCE=short)

NEWEST := .cache/newest

# The Python clients whose newest version conformance-newest installs.
NEWEST_vercel  := vercel-sandbox
NEWEST_gateway := anthropic openai

## conformance-newest: the suites vercel, gateway and chat with the newest client of each kind that
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

## faults-workflow-js: an app of the Workflow SDK and the daemon, killed ROUNDS times at
## random points under runs of the app, with both lines of the SDK
faults-workflow-js: deps conformance-workflow-deps inside
	CAY_SEED=$(SEED) CAY_ROUNDS=$(ROUNDS) CAY_CONFORMANCE=workflow $(GO) test -count=1 -timeout 180m -v -run 'TestKilled_Random' ./conformance/workflow
