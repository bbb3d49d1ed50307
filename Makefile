# Everyday commands. `make` lists them.
.DEFAULT_GOAL := help
.PHONY: help test test-race test-allocations test-sql test-fenced lint build bench demo cluster cluster-stop e2e tools ci

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Vetting is for `make lint`: beside the race detector go test would do it once more. `make test -k` goes on after a failure.
test: test-race test-allocations test-sql test-fenced ## all tests, with the race detector; what counts allocations also without it

# A package's own tests run side by side, the packages one after the other: what one of them does is seldom late because of another.
test-race:
	go build -race ./...
	go test -race -vet=off -timeout 15m -p 1 ./...

test-allocations:
	go test -vet=off -run Allocations ./channels ./objects ./session

test-sql:
	scripts/postgres with go -C fence/sqltest test -race -vet=off -timeout 5m ./...

test-fenced:
	go -C examples/fenced test -race -vet=off -timeout 5m ./...

lint: tools ## format, vet and staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	.tools/staticcheck ./...
	cd fence/sqltest && go vet ./... && $(CURDIR)/.tools/staticcheck ./...
	cd examples/fenced && go vet ./... && $(CURDIR)/.tools/staticcheck ./...

build: ## the commands, into dist/
	go build -o dist/ ./cmd/...

bench: ## the Go benchmarks, 5 runs each
	go test -run '^$$' -bench . -benchmem -count 5 ./...

demo: ## a mesh of three nodes working through a real access log
	go run ./cmd/fabricnode demo

cluster: ## start a NATS cluster of three servers on loopback
	scripts/cluster start

cluster-stop: ## stop it
	scripts/cluster stop

e2e: ## the stock nats CLI against a running node, and the web demo in a browser
	scripts/e2e-nats-cli
	scripts/e2e-web

tools: ## build the pinned tools into .tools/
	scripts/tools

ci: ## everything that is checked on each change
	bash .ci/run
