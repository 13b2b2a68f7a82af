package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/configfile"
	"github.com/edgecore-io/edgecore/test/testenv/commandtree"
)

func program() commandtree.Program {
	return commandtree.Program{
		New:        newRootCommand,
		Kind:       "EdgeCore",
		APIVersion: v1alpha2.APIVersion,
		Parse: func(text []byte) error {
			_, _, err := v1alpha2.Parse(text)
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
	name := v1alpha2.Default().Modules.Edged.HostnameOverride
	program().PrintsConfigurations(t, "hostnameOverride: "+name+"\n", "hostnameOverride: HOSTNAME\n")
}

func TestVersion(t *testing.T) { program().PrintsVersion(t) }

func TestHelp(t *testing.T) {
	program().Helps(t, v1alpha2.DefaultConfigFile, v1alpha2.DefaultDataSource, v1alpha2.DefaultManifests,
		v1alpha2.DefaultRootDirectory, "get", "status", "logs")
}

// TestHelpIsTheSameEverywhere: manual pages are made from it, on whichever machine.
func TestHelpIsTheSameEverywhere(t *testing.T) {
	out, _, err := execute(t, "--help")
	if err != nil || !strings.Contains(out, configfile.Packaged+" with the package, else "+v1alpha2.DefaultConfigFile) {
		t.Errorf("--help = %v, want both places of the configuration in it:\n%s", err, out)
	}
}

// TestEveryCommandTeaches: each command says what it does, and those on the configuration show how.
func TestEveryCommandTeaches(t *testing.T) {
	program().Teaches(t, func(c *cobra.Command) bool { return c.HasParent() && c.Parent().Name() == "config" })
}

func TestFlagsOfKlog(t *testing.T) { program().TakesFlagsOfKlog(t) }

func TestBadCommandLines(t *testing.T) {
	program().RefusesCommandLines(t, map[string][]string{"unknown flag: --pods": {"--pods"}})
}

// TestUnknownCommands: a misspelt command is an error at each level, never a help text and success.
func TestUnknownCommands(t *testing.T) { commandtree.RefusesUnknown(t, newRootCommand) }

// TestCommandsForKeadm: the commands and flags that docs/adopt.md names in place of keadm's exist.
func TestCommandsForKeadm(t *testing.T) {
	text, err := os.ReadFile("../../docs/adopt.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tables, _ := strings.Cut(string(text), "## keadm's commands\n")
	commands := 0
	for _, span := range regexp.MustCompile("`[^`]+`").FindAllString(tables, -1) {
		words := strings.Fields(strings.Trim(span, "`"))
		root := newRootCommand()
		switch {
		case words[0] == "edgecore":
			commands++
			cmd, rest, err := root.Find(words[1:])
			if err != nil || cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
				t.Errorf("%s: %v, want a command", span, err)
				continue
			}
			for _, word := range rest {
				name := strings.TrimLeft(word, "-")
				if word != name && cmd.Flag(name) == nil && cmd.Flags().ShorthandLookup(name[:1]) == nil {
					t.Errorf("%s: %s is no flag of %s", span, word, cmd.CommandPath())
				}
			}
		case strings.HasPrefix(words[0], "--"), len(words[0]) == 2 && words[0][0] == '-':
			commands++
			join, _, err := root.Find([]string{"join"})
			if err != nil {
				t.Fatal(err)
			}
			name := strings.TrimLeft(words[0], "-")
			if join.Flag(name) == nil && (len(name) > 1 || join.Flags().ShorthandLookup(name) == nil) {
				t.Errorf("%s is no flag of join", span)
			}
		}
	}
	if commands < 40 {
		t.Errorf("%d commands and flags found, want the table", commands)
	}
}
