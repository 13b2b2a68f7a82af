// Package deviceplugin runs a device plugin of the tests (command serve beside it) as a process of its own. Its devices
// are nodes like /dev/null, made with mknod.
package deviceplugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// Options say which plugin to run.
type Options struct {
	// Resource is what it offers.
	Resource string
	// Root is the agent's folder, Dir one for the plugin's files.
	Root, Dir string
	// Args are more flags.
	Args []string
}

// Plugin is a plugin with its files. Its methods must not be called at the same time.
type Plugin struct {
	Options
	binary string
	proc   *daemon.Process
}

// Build builds the program of the plugins.
func Build(t testing.TB) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "serve")
	mod, err := exec.CommandContext(t.Context(), "go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./test/testenv/deviceplugin/serve")
	cmd.Dir = filepath.Dir(strings.TrimSpace(string(mod)))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the device plugin: %v\n%s", err, out)
	}
	return binary
}

// Start runs a plugin that was built, with some devices, until the test ends.
func Start(t testing.TB, binary string, opts Options, devices ...string) *Plugin {
	t.Helper()
	p := &Plugin{Options: opts, binary: binary}
	if err := os.MkdirAll(opts.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p.Devices(t, devices...)
	t.Cleanup(func() {
		if err := p.End(context.Background(), syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the end of the log of the plugin of %s:\n%s", p.Resource, daemon.Tail(p.log(), 20))
		}
	})
	p.Run(t)
	return p
}

func (p *Plugin) log() string { return filepath.Join(p.Dir, "plugin.log") }

// Run starts the plugin again.
func (p *Plugin) Run(t testing.TB) {
	t.Helper()
	args := append([]string{"-resource", p.Resource, "-sockets", filepath.Join(p.Root, "device-plugins"), "-dir",
		p.Dir}, p.Args...)
	proc, err := daemon.Start(p.log(), nil, p.binary, args...)
	if err != nil {
		t.Fatal(err)
	}
	p.proc = proc
}

// End ends the plugin with a signal: SIGTERM takes its socket with it, SIGKILL leaves it.
func (p *Plugin) End(ctx context.Context, signal syscall.Signal) error {
	return p.proc.End(ctx, signal)
}

// Devices says which devices there are: "name", or "name!" for one that is not healthy.
func (p *Plugin) Devices(t testing.TB, names ...string) {
	t.Helper()
	next := filepath.Join(p.Dir, "devices.next")
	if err := errors.Join(os.WriteFile(next, []byte(strings.Join(names, " ")), 0o600),
		os.Rename(next, filepath.Join(p.Dir, "devices"))); err != nil {
		t.Fatal(err)
	}
}

// Call is a call that the plugin was asked.
type Call struct {
	Method string   `json:"method"`
	IDs    []string `json:"ids"`
}

// Calls returns the calls of a method so far.
func (p *Plugin) Calls(t testing.TB, method string) []Call {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(p.Dir, "calls.log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var calls []Call
	for line := range bytes.Lines(data) {
		var c Call
		if err := json.Unmarshal(line, &c); err != nil {
			continue // of a plugin that was killed
		}
		if c.Method == method {
			calls = append(calls, c)
		}
	}
	return calls
}
