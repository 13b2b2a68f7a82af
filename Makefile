# edgecore's tasks; `make help` explains them.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo v0.0.0-dev)
COMMIT  := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
PKG     := github.com/edgecore-io/edgecore
# grpcnotrace: pages that show the calls of gRPC need templates, and for their sake the linker keeps every method: 6 MB.
TAGS    := osusergo,netgo,sqlite_omit_load_extension,grpcnotrace
LDFLAGS := -s -w -X $(PKG)/pkg/version.version=$(VERSION) -X $(PKG)/pkg/version.commit=$(COMMIT)
# As hack/release builds edgecore: SQLite, its C part, is hardened. cloudcore has no C part.
HARDEN  := CGO_CFLAGS="-Os -ffunction-sections -fdata-sections -fno-asynchronous-unwind-tables -fstack-protector-strong -D_FORTIFY_SOURCE=2 -DSQLITE_OMIT_JSON -Wp,-USQLITE_ENABLE_FTS3,-USQLITE_ENABLE_FTS3_PARENTHESIS,-USQLITE_ENABLE_RTREE"
RELRO   := -linkmode external -extldflags '-Wl,--gc-sections,-z,relro,-z,now'
BUILD   := go build -trimpath -tags $(TAGS) -ldflags "$(LDFLAGS)"
SUITE   := go run ./hack/suite
RELEASE  = go run ./hack/release --version "$(VERSION)" --commit "$(COMMIT)" --tags "$(TAGS)"

export CGO_ENABLED := 1
# A program does not depend on the folder that it is built in, so a fresh clone finds what another has compiled.
export GOFLAGS := $(GOFLAGS) -trimpath

.PHONY: help setup build image mapper-image run stop demo demo-stop test test-all lint bench bench-record bench-record-fleets bench-page bench-check cross deb clean

help: ## show this
	@echo "edgecore: pods on edge devices. Targets:"
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r t d; do printf '  %-12s %s\n' "$$t" "$$d"; done
	@echo
	@echo "make run CRI=unix:///run/containerd/containerd.sock uses a runtime that is there already."

setup: ## install the Debian packages that are missing (needs root)
	hack/setup

build: ## build bin/edgecore and bin/cloudcore, stripped
	$(HARDEN) go build -trimpath -tags $(TAGS) -ldflags "$(LDFLAGS) $(RELRO)" -o bin/edgecore ./cmd/edgecore
	CGO_ENABLED=0 $(BUILD) -o bin/cloudcore ./cmd/cloudcore # no C library: it runs in any image
	@ls -l bin/edgecore bin/cloudcore

image: build ## the image of cloudcore, as bin/cloudcore-image.tar (PUSH=REGISTRY/NAME:TAG pushes it)
	go run ./hack/image $(if $(PUSH),--push $(PUSH))

mapper-image: ## the image of the Modbus mapper, as bin/modbus-image.tar (PUSH=REGISTRY/NAME:TAG pushes it)
	CGO_ENABLED=0 $(BUILD) -o bin/modbus ./mappers/modbus
	go run ./hack/image -binary bin/modbus -user 65530:65530 -name edgecore.local/modbus:v1 -out bin/modbus-image.tar $(if $(PUSH),--push $(PUSH))

run: setup build ## run sample pods under edgecore on a containerd of its own
	go run ./hack/dev run $(if $(CRI),--cri $(CRI))

stop: ## remove all that `make run` made
	go run ./hack/dev stop

demo: setup build ## a cluster and a device here, the link between them cut and mended (KEEP=1: they run on)
	go build -o bin/demo ./hack/demo
	bin/demo run $(if $(KEEP),--keep)

demo-stop: ## remove all that `make demo` made
	go run ./hack/demo stop

test: setup lint build ## unit tests with the race detector, and each promise on real parts: 10 to 25 minutes, 35 more the first time (needs root)
	$(SUITE) short

test-all: setup ## all the rest, hours; AREA=link|edge|conformance|kubelet|vm|safe|kubeedge|soak for a part (SEED=7; FULL=1 boots every VM)
	$(SUITE) $(if $(FULL),--full )--seed $(or $(SEED),$(shell date +%s)) $(or $(AREA),all)

lint: ## gofmt, go vet, staticcheck, hack/lint
	@echo "gofmt -l ."; out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "not gofmt-clean:"; echo "$$out"; exit 1; fi
	go vet ./...
	GOARCH=arm CGO_ENABLED=0 go build ./edged ./edged/node/preflight ./edgehub/... ./pkg/... # where numbers have 32 bits
	go tool staticcheck ./...
	go build -o bin/lint ./hack/lint
	go vet -vettool=bin/lint ./... # types of errors without errors.As, %w, values that are nil, writes that nobody reads

bench: setup build ## compare the agent with bare CRI calls and a real kubelet; run the packages' own benchmarks
	go test -run '^$$' -bench . -benchtime 1s ./beehive ./metamanager/store ./pkg/apis/edgecore/v1alpha2
	go test -run '^$$' -bench . -benchtime 1s ./cloud/cloudstream # tunnels compared with direct connections
	go test -run '^$$' -bench . -benchtime 10x ./test ./test/pleg # on a containerd
	go run ./test/bench/peers --json bin/bench.json
	go run ./test/bench/link --edgecore bin/edgecore --cloudcore bin/cloudcore # --nodes 1000,5000 takes longer

# In parts: the results of a part stay recorded if a later one fails.
bench-record: setup build ## measure what docs/benchmarks.md and bench/index.html show of one node, into bench/record.json (70 minutes)
	go run ./test/bench/peers --mode long --parts token,plain --json bench/record.json
	go run ./test/bench/peers --mode long --parts bursts --json bench/record.json
	go run ./test/bench/peers --mode long --parts idle --json bench/record.json
	$(MAKE) bench-page

bench-record-fleets: setup build ## measure fleets of 100 to 10,000 simulated nodes with 1, 2 and 3 cloudcores, into bench/record.json (about 2 hours)
	for n in 1 2 3; do \
		go run ./test/bench/link --parts memory,updates,storm --rest 30s --nodes 100,1000,5000,10000 --replicas $$n --json bench/record.json || exit 1; \
	done
	$(MAKE) bench-page

bench-page: ## write bench/index.html, the table of docs/benchmarks.md and README's figures from bench/record.json
	go run ./test/bench/page

bench-check: setup build ## measure again, and fail if a ratio to the floor is 15 % worse than in bench/record.json (8 minutes)
	rm -f bin/bench-check.json
	go run ./test/bench/peers --parts token,plain,bursts --rounds 10 --repeats 3 --json bin/bench-check.json
	go run ./test/bench/check --measured bin/bench-check.json

cross: ## static programs for amd64, arm64 and armv7, with lists of their parts; ARCH=arm64 for one, CHECK=1 builds twice and compares
	$(if $(filter amd64,$(ARCH)),,hack/setup cross)
	$(RELEASE) $(if $(CHECK),reproduce,cross) $(ARCH)

deb: ## Debian packages for amd64, arm64 and armhf, checked by lintian; ARCH=arm64 for one
	hack/setup deb
	$(if $(filter amd64,$(ARCH)),,hack/setup cross)
	$(RELEASE) deb $(ARCH)

clean: ## remove what was built
	rm -rf bin
