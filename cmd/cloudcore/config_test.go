package main

import (
	"testing"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/test/testenv/commandtree"
)

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	return program().WriteConfig(t, text)
}

func TestConfigValidate(t *testing.T) {
	program().ValidatesConfigurations(t, commandtree.Sample{
		Text: "modules: {taskManager: {enable: true}}\n",
		Says: "warning: line 3: modules.taskManager.enable: accepted, but this version does not have this " +
			"module yet\n",
	}, commandtree.Sample{
		Text: "modules:\n  cloudHub:\n    nodelimit: 5\n    keepaliveInterval: 0\n",
		Says: `2 problems:
  line 5: modules.cloudHub.nodelimit: no such key; did you mean "nodeLimit"?
  line 6: modules.cloudHub.keepaliveInterval: 0 is not allowed; want 1 or more`,
	})
}

// TestConfigPrint: what is printed is what is in force, and holds no secret.
func TestConfigPrint(t *testing.T) {
	file := writeConfig(t,
		"kubeAPIConfig: {master: 'https://admin:hunter2@192.0.2.1:6443'}\nmodules: {cloudHub: {nodeLimit: 7}}\n")
	want, _, err := v1alpha1.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	commandtree.PrintsConfiguration(t, program(), file, "hunter2", "https://admin:(hidden)@192.0.2.1:6443",
		want.Redacted())
}
