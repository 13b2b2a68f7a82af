package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/pprof"
	"runtime"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// Profiling are the routes to Go's profiles of the agent.
func Profiling() []Route {
	route := func(pattern string, h http.HandlerFunc) Route {
		return Route{
			Pattern:   pattern,
			Handler:   h,
			Methods:   []string{http.MethodGet, http.MethodPost},
			Stream:    true,
			Debugging: true,
			Verb:      "get",
		}
	}
	return []Route{
		route("/debug/pprof/", pprof.Index),
		route("/debug/pprof/heap", memoryProfile("heap")),
		route("/debug/pprof/allocs", memoryProfile("allocs")),
		route("/debug/pprof/cmdline", pprof.Cmdline),
		route("/debug/pprof/profile", pprof.Profile),
		route("/debug/pprof/symbol", pprof.Symbol),
		route("/debug/pprof/trace", pprof.Trace),
	}
}

// memoryProfile serves a profile of allocations, or explains how to turn on their recording.
func memoryProfile(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if runtime.MemProfileRate == 0 {
			http.Error(w, "allocations are not recorded, to save memory: restart edgecore with the "+
				"environment variable GODEBUG=memprofilerate=524288 (systemctl edit edgecore)", http.StatusNotFound)
			return
		}
		pprof.Handler(name).ServeHTTP(w, r)
	}
}

// LogLevel is the route that changes how much the agent logs, until it is started again: PUT with the level as the
// body.
func LogLevel() Route {
	return Route{
		Pattern:   "/debug/flags/v",
		Methods:   []string{http.MethodPut},
		Debugging: true,
		Handler:   http.HandlerFunc(setLogLevel),
	}
}

// maxLevel is more than anything logs at.
const maxLevel = 10

func setLogLevel(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16))
	value := strings.TrimSpace(string(body))
	n, bad := strconv.Atoi(value)
	if err != nil || bad != nil || n < 0 || n > maxLevel {
		http.Error(w, "the body is not a log level: want a number from 0 to 10", http.StatusBadRequest)
		return
	}
	var level klog.Level
	if err := level.Set(value); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	klog.InfoS("Log level changed", "v", n, "from", r.RemoteAddr)
	text(w, "successfully set klog.logging.verbosity to "+value)
}

// Configz is the route to the configuration that is in force, without its secrets.
func Configz(config func() any) Route {
	return Route{
		Pattern:   "/configz",
		Resource:  "configz",
		OrProxy:   true,
		Debugging: true,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(map[string]any{"kubeletconfig": config()}); err != nil {
				klog.V(4).InfoS("Answer not written", "err", err)
			}
		}),
	}
}

// RunningPods is the route to what the container runtime runs, no matter who wants it.
func RunningPods(pods func() []*v1.Pod) Route {
	return Route{
		Pattern:   "/runningpods/",
		Resource:  "pods",
		OrProxy:   true,
		Debugging: true,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			list(w, podList, pods())
		}),
	}
}

// maxCheckpoint is how many seconds a checkpoint may take.
const maxCheckpoint = 3600

// Checkpoint is the route that writes a container's state to a file, and answers with its path. Checkpoints are large:
// one is made at a time.
func Checkpoint(
	checkpoint func(ctx context.Context, namespace, pod, container string, timeoutSeconds int64) (path string,
		err error),
) Route {
	one := newGate()
	return Route{
		Pattern:   "/checkpoint/{namespace}/{pod}/{container}",
		Methods:   []string{http.MethodPost},
		Resource:  "checkpoint",
		Stream:    true,
		Debugging: true,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			timeout, err := strconv.ParseInt(r.URL.Query().Get("timeout"), 10, 64)
			if err != nil && r.URL.Query().Has("timeout") || timeout < 0 || timeout > maxCheckpoint {
				http.Error(w, fmt.Sprintf("timeout: want a number of seconds from 0 to %d", maxCheckpoint),
					http.StatusBadRequest)
				return
			}
			if !one.enter() {
				http.Error(w, "another checkpoint is being made on this node; try again when it is done",
					http.StatusTooManyRequests)
				return
			}
			defer one.leave()
			path, err := checkpoint(r.Context(), r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container"),
				timeout)
			if err != nil {
				fail(w, err)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(map[string][]string{"items": {path}}); err != nil {
				klog.V(4).InfoS("Answer not written", "err", err)
			}
		}),
	}
}

// gate lets one in at a time.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

func (g gate) enter() bool {
	select {
	case g <- struct{}{}:
		return true
	default:
		return false
	}
}

func (g gate) leave() { <-g }

// fail answers with an error: 404 for what does not exist, else 500.
func fail(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	if errors.Is(err, fs.ErrNotExist) {
		code = http.StatusNotFound
	}
	http.Error(w, err.Error(), code)
}
