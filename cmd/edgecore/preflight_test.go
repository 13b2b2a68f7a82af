package main

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/edged/preflight"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// TestPreflightWithoutARuntime: what keeps pods from running is an error with its remedy, in words and for programs.
func TestPreflightWithoutARuntime(t *testing.T) {
	dir := t.TempDir()
	port, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	config := writeConfig(t, `database: {dataSource: `+filepath.Join(dir, "db", "edgecore.db")+`}
modules: {edgeHub: {enable: false, tlsCaFile: `+dir+`/ca.crt, tlsCertFile: `+dir+`/node.crt}, edged: {rootDirectory: `+
		dir+`, tailoredKubeletConfig: {containerRuntimeEndpoint: "unix://`+filepath.Join(dir, "none.sock")+
		`", readOnlyPort: 0, port: `+strconv.Itoa(port)+`, podLogsDir: `+dir+`}}}
`)
	out, _, err := execute(t, "preflight", "--config", config)
	if !errors.Is(err, errPreflight) ||
		!strings.Contains(out, "[error]   container runtime: there is no runtime at "+filepath.Join(dir, "none.sock")+
			": no such file or directory\n          remedy: Install one") {
		t.Errorf("preflight = %v, want %v with a remedy for the missing runtime:\n%s", err, errPreflight, out)
	}
	if strings.Contains(out, "read-only server") || !strings.Contains(out, "cloud: this device has joined none") {
		t.Errorf("printed, want no read-only server and that the device has joined no cloud:\n%s", out)
	}
	out, _, err = execute(t, "preflight", "--config", config, "-o", "json")
	var findings []preflight.Finding
	if decode := json.Unmarshal([]byte(out), &findings); decode != nil || !errors.Is(err, errPreflight) ||
		preflight.Worst(findings) != preflight.Error {
		t.Errorf("preflight -o json = %v, decoded with %v; want %v and findings with an error:\n%s", err, decode,
			errPreflight, out)
	}
	if _, _, err := execute(t, "preflight", "--config", config, "-o", "yaml"); err == nil ||
		!strings.Contains(err.Error(), "want json") {
		t.Errorf("preflight -o yaml = %v, want an error with %q", err, "want json")
	}
}
