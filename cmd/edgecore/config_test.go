package main

import (
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/configfile"
	"github.com/edgecore-io/edgecore/test/testenv/commandtree"
)

const kubeEdgeFile = "../../pkg/apis/edgecore/v1alpha2/testdata/kubeedge-v1.23.yaml"

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	return program().WriteConfig(t, text)
}

func TestConfigValidate(t *testing.T) {
	program().ValidatesConfigurations(t, commandtree.Sample{
		Text: "modules: {edged: {runtimeCgroups: /rt}}\n",
		Says: "warning: line 3: modules.edged.runtimeCgroups: accepted, but this version does not act on it\n",
	}, commandtree.Sample{
		Text: "modules:\n  edged:\n    nodeIp: 192.0.2.1\n    rootDirectory: here\n",
		Says: `2 problems:
  line 5: modules.edged.nodeIp: no such key; did you mean "nodeIP"?
  line 6: modules.edged.rootDirectory: "here" is not allowed; want an absolute path`,
	})
}

// TestConfigPrint: what is printed is what is in force, and holds no secret.
func TestConfigPrint(t *testing.T) {
	want, _, err := v1alpha2.Load(kubeEdgeFile)
	if err != nil {
		t.Fatal(err)
	}
	commandtree.PrintsConfiguration(t, program(), kubeEdgeFile, "20261121", "mqttPassword: (hidden)", want.Redacted())
}

// TestConfigRefused: validate and print --effective say of a valid file that the agent has tried it and gone back to
// the configuration before. For another device it is valid.
func TestConfigRefused(t *testing.T) {
	file := writeConfig(t, "database: {dataSource: "+t.TempDir()+"/edgecore.db}\n")
	f, err := configfile.Choose(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Copies.Keep(append([]byte("# before\n"), f.Data...), configfile.Proof{Ran: true}); err != nil {
		t.Fatal(err)
	}
	if err := f.Copies.Refuse(f.Data, "there is no runtime", true); err != nil {
		t.Fatal(err)
	}
	if out, _, err := execute(t, "config", "validate", file); err == nil ||
		!strings.Contains(err.Error(), "there is no runtime") {
		t.Errorf("config validate = %q, %v; want why the file was refused", out, err)
	}
	if _, stderr, err := execute(t, "config", "print", "--effective", file); err != nil ||
		!strings.Contains(stderr, "there is no runtime") {
		t.Errorf("config print --effective = %q, %v; want a warning with why the file was refused", stderr, err)
	}
	if out, _, err := execute(t, "config", "validate", "--offline", file); err != nil {
		t.Errorf("config validate --offline = %q, %v; want that it is valid", out, err)
	}
}
