package main

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/edged/preflight"
)

// TestPreflightWithoutARuntime: what keeps pods from running is an error with its remedy, in words and for programs.
func TestPreflightWithoutARuntime(t *testing.T) {
	dir := t.TempDir()
	config := writeConfig(t, `database: {dataSource: `+filepath.Join(dir, "db", "edgecore.db")+`}
modules: {edgeHub: {enable: false}, edged: {rootDirectory: `+dir+`, tailoredKubeletConfig: {containerRuntimeEndpoint: "unix://`+filepath.Join(dir, "none.sock")+`", readOnlyPort: 0}}}
`)
	out, _, err := execute(t, "preflight", "--config", config)
	if !errors.Is(err, errPreflight) || !strings.Contains(out, "[error]   container runtime: there is no runtime at "+filepath.Join(dir, "none.sock")+": no such file or directory\n          remedy: Install one") {
		t.Errorf("%v\n%s", err, out)
	}
	if strings.Contains(out, "read-only server") || !strings.Contains(out, "cloud: this device has joined none") {
		t.Errorf("%s", out)
	}
	out, _, err = execute(t, "preflight", "--config", config, "-o", "json")
	var findings []preflight.Finding
	if decode := json.Unmarshal([]byte(out), &findings); decode != nil || !errors.Is(err, errPreflight) || preflight.Worst(findings) != preflight.Error {
		t.Errorf("%v, %v\n%s", err, decode, out)
	}
	if _, _, err := execute(t, "preflight", "--config", config, "-o", "yaml"); err == nil || !strings.Contains(err.Error(), "want json") {
		t.Errorf("%v", err)
	}
}
