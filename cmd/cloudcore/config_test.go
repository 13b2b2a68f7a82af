package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
)

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cloudcore.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: "+v1alpha1.APIVersion+"\nkind: CloudCore\n"+text),
		0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigValidate(t *testing.T) {
	good := writeConfig(t, "")
	warned := writeConfig(t, "modules: {dynamicController: {enable: true}}\n")
	bad := writeConfig(t, "modules:\n  cloudHub:\n    nodelimit: 5\n    keepaliveInterval: 0\n")
	for name, tc := range map[string]struct {
		args                []string
		stdout, stderr, err string
	}{
		"a file":         {[]string{good}, good + " is valid, with no warnings\n", "", ""},
		"the configured": {[]string{"--config", good}, good + " is valid, with no warnings\n", "", ""},
		"a warning": {
			[]string{warned}, warned + " is valid, with 1 warning\n",
			"warning: line 3: modules.dynamicController.enable: accepted, but this version does not have this " +
				"module yet\n", "",
		},
		"errors": {[]string{bad}, "", "", "configuration " + bad + `: 2 problems:
  line 5: modules.cloudHub.nodelimit: no such key; did you mean "nodeLimit"?
  line 6: modules.cloudHub.keepaliveInterval: 0 is not allowed; want 1 or more`},
		"two files": {[]string{good, bad}, "", "", "accepts at most 1 arg(s), received 2"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, err := execute(t, append([]string{"config", "validate"}, tc.args...)...)
			got := []string{stdout, stderr, ""}
			if err != nil {
				got[2] = err.Error()
			}
			if diff := cmp.Diff([]string{tc.stdout, tc.stderr, tc.err}, got); diff != "" {
				t.Errorf("output mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestConfigPrint: what is printed is what is in force, and holds no secret.
func TestConfigPrint(t *testing.T) {
	file := writeConfig(t,
		"kubeAPIConfig: {master: 'https://admin:hunter2@192.0.2.1:6443'}\nmodules: {cloudHub: {nodeLimit: 7}}\n")
	out, _, err := execute(t, "config", "print", file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, "hunter2") || !strings.Contains(out, "https://admin:(hidden)@192.0.2.1:6443") {
		t.Errorf("printed, want the password of the master hidden and no hunter2:\n%s", out)
	}
	want, _, err := v1alpha1.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	got := &v1alpha1.CloudCore{}
	if err := yaml.UnmarshalStrict([]byte(out), got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Redacted(), got); diff != "" {
		t.Errorf("output mismatch (-want +got):\n%s", diff)
	}
	wrong := writeConfig(t, "zzz: 1\n")
	if out, _, err := execute(t, "config", "print", "--config", wrong); err == nil || out != "" {
		t.Errorf("config print of a file that is wrong = %q, %v; want nothing and an error", out, err)
	}
}
