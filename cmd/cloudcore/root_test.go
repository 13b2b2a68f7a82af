package main

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/test/testenv/commandtree"
)

func program() commandtree.Program {
	return commandtree.Program{
		New:        func() *cobra.Command { return newRootCommand(nil) },
		Kind:       "CloudCore",
		APIVersion: v1alpha1.APIVersion,
		Parse: func(text []byte) error {
			_, _, err := v1alpha1.Parse(text)
			return err
		},
	}
}

// execute runs a command line and returns what it wrote to stdout and to stderr.
func execute(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return program().Execute(t, args...)
}

// TestPrintedConfigurations compares with the files in testdata; UPDATE_GOLDEN=1 writes them again.
func TestPrintedConfigurations(t *testing.T) {
	address := v1alpha1.Default().Modules.CloudHub.AdvertiseAddress[0]
	program().PrintsConfigurations(t, "    - "+address+"\n", "    - HOSTIP\n")
}

func TestVersion(t *testing.T) { program().PrintsVersion(t) }

func TestHelp(t *testing.T) {
	program().Helps(t, v1alpha1.DefaultConfigFile, v1alpha1.DefaultMonitorBind, "10000/tcp", "10001/udp", "10002/tcp",
		"/metrics, /healthz and /readyz", "gettoken", "edgecore join --cloudcore-ipport")
}

// TestEveryCommandTeaches: each command says what it does, and shows how.
func TestEveryCommandTeaches(t *testing.T) {
	program().Teaches(t, func(c *cobra.Command) bool {
		return c.Runnable() && !c.HasSubCommands() && c.Name() != "help" && c.Parent().Name() != "completion"
	})
}

func TestFlagsOfKlog(t *testing.T) { program().TakesFlagsOfKlog(t) }

func TestBadCommandLines(t *testing.T) {
	program().RefusesCommandLines(t, map[string][]string{
		"kubeAPIConfig.kubeConfig \"/none": {
			"--config", writeConfig(t, "kubeAPIConfig: {kubeConfig: /none/kubeconfig}\n"),
		},
		"set kubeAPIConfig.kubeConfig to the": {"--config", writeConfig(t, "")},
	})
}

// TestUnknownCommands: a misspelt command is an error at each level, never a help text and success.
func TestUnknownCommands(t *testing.T) { commandtree.RefusesUnknown(t, program().New) }
