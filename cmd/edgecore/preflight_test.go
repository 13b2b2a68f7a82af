package main

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/edged/node/preflight"
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

// TestPreflightOfACloud: with -e, the way to a cloud is checked on a device that has no configuration yet. What would
// make a join fail makes the exit status 1.
func TestPreflightOfACloud(t *testing.T) {
	d := newJoinDevice(t)
	link := httptest.NewUnstartedServer(http.NotFoundHandler())
	link.Listener = tls.NewListener(link.Listener, d.authority.ServerTLS(tls.RequireAndVerifyClientCert))
	link.Config.ErrorLog = log.New(io.Discard, "", 0)
	link.Start()
	defer link.Close()
	args := []string{
		"preflight", "--config", d.config(), "-e", link.Listener.Addr().String(), "--certport", d.port,
		"-t", d.token(""),
	}
	out, _, err := execute(t, args...)
	if err != nil || !strings.Contains(out, "[ok]      port of the link: ") ||
		!strings.Contains(out, "[ok]      certificate of the cloud: signed by the CA of the token") ||
		strings.Contains(out, "container runtime") || strings.Contains(out, "eyJ") {
		t.Errorf("preflight -e = %v, want the findings on the cloud alone, and no token:\n%s", err, out)
	}
	nothingWritten(t, d)
	link.Close()
	out, _, err = execute(t, append(args, "-o", "json")...)
	var findings []preflight.Finding
	if decode := json.Unmarshal([]byte(out), &findings); decode != nil || !errors.Is(err, errJoin) ||
		!strings.Contains(out, "refuses connections") {
		t.Errorf("preflight -e of a link that is off = %v, decoded with %v; want %v:\n%s", err, decode, errJoin, out)
	}
	for want, args := range map[string][]string{
		"want HOST:PORT":                  {"-e", "https://x"},
		"want 1 to 65535":                 {"-e", "x", "-s", "0"},
		"copy the whole line":             {"-e", "x", "-t", "x.y"},
		"--token-file is for the way to ": {"--token-file", "x"},
	} {
		if out, _, err := execute(t, append([]string{"preflight"}, args...)...); err == nil || out != "" ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("preflight %v = %v, want an error with %q, and no output:\n%s", args, err, want, out)
		}
	}
}
