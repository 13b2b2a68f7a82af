package agentconfig

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// TestCheckDevice: what cannot work on this device is named, all of it at once.
func TestCheckDevice(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	kubelet := func(text string) string { return "  edged: {tailoredKubeletConfig: {" + text + "}}\n" }
	mqtt := func(text string) string {
		return "  eventBus: {enable: true, mqttMode: 0, mqttServerInternal: \"tcp://127.0.0.1:1\", " + text + "}\n"
	}
	for name, c := range map[string]struct {
		modules string
		want    []string // parts of the problems; none: it works
	}{
		"default":            {"", nil},
		"too much reserved":  {kubelet("systemReserved: {memory: 900Gi}"), []string{"leave no memory for pods"}},
		"no password file":   {mqtt("mqttPasswordFile: " + missing), []string{"modules.eventBus", missing}},
		"no group":           {"  deviceTwin: {dmiSockGroup: no-such-group}\n", []string{"dmiSockGroup", "groupadd"}},
		"no TLS certificate": {mqtt("eventBusTLS: {enable: true}"), []string{"eventBusTLS"}},
		"no CA in the file": {
			kubelet("authentication: {x509: {clientCAFile: " + garbage + "}}"), []string{"clientCAFile", garbage},
		},
		"two": {
			kubelet("authentication: {x509: {clientCAFile: "+missing+"}}") + mqtt("mqttPasswordFile: "+missing),
			[]string{"2 problems", "clientCAFile", "modules.eventBus"},
		},
		"not enabled": {"  eventBus: {enable: false, mqttMode: 0, mqttPasswordFile: " + missing + "}\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, _, err := v1alpha2.Parse([]byte("apiVersion: " + v1alpha2.APIVersion + "\nkind: EdgeCore\ndatabase: " +
				"{dataSource: " + dir + "/edgecore.db}\nmodules:\n  edgeStream: {enable: false}\n" + c.modules))
			if err != nil {
				t.Fatal(err)
			}
			cfg.Modules.Edged.RootDirectory = dir
			err = CheckDevice(cfg)
			var problems strict.Problems
			if (err != nil) != (len(c.want) > 0) || err != nil && !errors.As(err, &problems) {
				t.Fatalf("CheckDevice = %v, want problems with %q", err, c.want)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("CheckDevice = %v, want %q in it", err, part)
				}
			}
		})
	}
}
