package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

const kubeEdgeFile = "../../pkg/apis/edgecore/v1alpha2/testdata/kubeedge-v1.23.yaml"

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edgecore.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: "+v1alpha2.APIVersion+"\nkind: EdgeCore\n"+text),
		0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigValidate(t *testing.T) {
	good := writeConfig(t, "")
	warned := writeConfig(t, "modules: {edged: {runtimeCgroups: /rt}}\n")
	bad := writeConfig(t, "modules:\n  edged:\n    nodeIp: 192.0.2.1\n    rootDirectory: here\n")
	for name, tc := range map[string]struct {
		args                []string
		stdout, stderr, err string
	}{
		"a file":         {[]string{good}, good + " is valid, with no warnings\n", "", ""},
		"the configured": {[]string{"--config", good}, good + " is valid, with no warnings\n", "", ""},
		"a warning": {[]string{warned}, warned + " is valid, with 1 warning\n",
			"warning: line 3: modules.edged.runtimeCgroups: accepted, but this version does not act on it\n", ""},
		"errors": {[]string{bad}, "", "", "configuration " + bad + `: 2 problems:
  line 5: modules.edged.nodeIp: no such key; did you mean "nodeIP"?
  line 6: modules.edged.rootDirectory: "here" is not allowed; want an absolute path`},
		"two files": {[]string{good, bad}, "", "", "accepts at most 1 arg(s), received 2"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, err := execute(t, append([]string{"config", "validate"}, tc.args...)...)
			got := []string{stdout, stderr, ""}
			if err != nil {
				got[2] = err.Error()
			}
			if diff := cmp.Diff([]string{tc.stdout, tc.stderr, tc.err}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestConfigPrint: what is printed is what is in force, and holds no secret.
func TestConfigPrint(t *testing.T) {
	out, _, err := execute(t, "config", "print", kubeEdgeFile)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, "20261121") || !strings.Contains(out, "mqttPassword: (hidden)") {
		t.Errorf("printed, want mqttPassword hidden and no 20261121:\n%s", out)
	}
	want, _, err := v1alpha2.Load(kubeEdgeFile)
	if err != nil {
		t.Fatal(err)
	}
	got := &v1alpha2.EdgeCore{}
	if err := yaml.UnmarshalStrict([]byte(out), got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Redacted(), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	file := writeConfig(t, "zzz: 1\n")
	if out, _, err := execute(t, "config", "print", "--config", file); err == nil || out != "" {
		t.Errorf("config print of a file that is wrong = %q, %v; want nothing and an error", out, err)
	}
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
