# edgecore's tasks; `make help` explains them.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo v0.0.0-dev)
COMMIT  := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
PKG     := github.com/edgecore-io/edgecore
TAGS    := osusergo,netgo,sqlite_omit_load_extension
LDFLAGS := -s -w -X $(PKG)/pkg/version.version=$(VERSION) -X $(PKG)/pkg/version.commit=$(COMMIT)
BUILD   := go build -trimpath -tags $(TAGS) -ldflags "$(LDFLAGS)"

export CGO_ENABLED := 1

.PHONY: help setup build image run stop demo demo-stop test test-vm lint race bench cross clean

help: ## show this
	@echo "edgecore: pods on edge devices. Targets:"
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r t d; do printf '  %-9s %s\n' "$$t" "$$d"; done
	@echo
	@echo "make run CRI=unix:///run/containerd/containerd.sock uses a runtime that is there already."

setup: ## install the Debian packages that are missing (needs root)
	hack/setup

build: ## build bin/edgecore and bin/cloudcore, stripped
	$(BUILD) -o bin/edgecore ./cmd/edgecore
	CGO_ENABLED=0 $(BUILD) -o bin/cloudcore ./cmd/cloudcore # no C library: it runs in any image
	@ls -l bin/edgecore bin/cloudcore

image: build ## the image of cloudcore, as bin/cloudcore-image.tar (PUSH=REGISTRY/NAME:TAG pushes it)
	go run ./hack/image $(if $(PUSH),--push $(PUSH))

run: setup build ## run sample pods under edgecore on a containerd of its own
	go run ./hack/dev run $(if $(CRI),--cri $(CRI))

stop: ## remove all that `make run` made
	go run ./hack/dev stop

demo: setup build ## a cluster and a device here, the link between them cut and mended (KEEP=1: they run on)
	go build -o bin/demo ./hack/demo
	bin/demo run $(if $(KEEP),--keep)

demo-stop: ## remove all that `make demo` made
	go run ./hack/demo stop

test: setup lint build ## all tests, on real parts, with the race detector (needs root)
	go test -timeout 10m ./beehive ./metamanager/store # what they promise of speed, which means nothing under the race detector
	go run ./hack/kube # builds the Kubernetes of the tests; the first time takes 10 minutes
	go test -timeout 30m -race $$(go list ./... | grep -v -e /test/edge -e /test/link -e '/test/vm$$')
	go test -timeout 30m -race ./test/edge # alone: it measures times
	go test -timeout 40m -race ./test/link # and so does this

lint: ## gofmt, go vet, staticcheck
	@echo "gofmt -l ."; out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "not gofmt-clean:"; echo "$$out"; exit 1; fi
	go vet ./...
	go tool staticcheck ./...

bench: setup build ## measure the agent beside the bare CRI calls, and the packages' own benchmarks
	go test -run '^$$' -bench . -benchtime 1s ./beehive ./metamanager/store
	go run ./test/bench --binary bin/edgecore
	go run ./test/bench/link --edgecore bin/edgecore --cloudcore bin/cloudcore # --nodes 1000,5000 takes longer

test-vm: setup ## the tests that need a booted machine: systemd, cgroup v2, reboots; FULL=1 for all (needs root)
	hack/setup vm
	$(if $(FULL),EDGECORE_TEST_FULL=1 )go test -timeout $(if $(FULL),3h,40m) -count=1 -v ./test/vm

cross: ## build for arm64 and arm (installs the C compilers)
	hack/setup cross
	GOOS=linux GOARCH=arm64 CC=aarch64-linux-gnu-gcc $(BUILD) -o bin/edgecore-arm64 ./cmd/edgecore
	GOOS=linux GOARCH=arm GOARM=7 CC=arm-linux-gnueabihf-gcc $(BUILD) -o bin/edgecore-arm ./cmd/edgecore
	@ls -l bin

clean: ## remove what was built
	rm -rf bin
