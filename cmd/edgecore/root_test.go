package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/configfile"
	"github.com/edgecore-io/edgecore/pkg/version"
	"github.com/edgecore-io/edgecore/test/testenv/commandtree"
)

// execute runs a command line and returns what it wrote to stdout and to stderr.
func execute(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := newRootCommand()
	cmd.SetArgs(append([]string{}, args...)) // never nil, for which cobra takes those of the test
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// TestPrintedConfigurations compares with the files in testdata; UPDATE_GOLDEN=1 writes them again.
func TestPrintedConfigurations(t *testing.T) {
	name := v1alpha2.Default().Modules.Edged.HostnameOverride
	for flag, file := range map[string]string{
		"--defaultconfig": "defaultconfig.yaml", "--minconfig": "minconfig.yaml",
	} {
		out, _, err := execute(t, flag)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := v1alpha2.Parse([]byte(out)); err != nil {
			t.Errorf("what %s prints is not valid: %v", flag, err)
		}
		golden := filepath.Join("testdata", file)
		out = strings.Replace(out, "hostnameOverride: "+name+"\n", "hostnameOverride: HOSTNAME\n", 1)
		if os.Getenv("UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(golden, []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), out); diff != "" {
			t.Errorf("%s (-want +got):\n%s", flag, diff)
		}
	}
}

func TestVersion(t *testing.T) {
	for flag, want := range map[string]string{
		"--version":      "EdgeCore " + version.Version() + "\n",
		"--version=raw":  "EdgeCore " + version.String() + "\n",
		"--version=true": "EdgeCore " + version.Version() + "\n",
	} {
		out, _, err := execute(t, flag)
		if err != nil || out != want {
			t.Errorf("%s printed %q, %v; want %q", flag, out, err, want)
		}
	}
	if _, _, err := execute(t, "--version=loud"); err == nil || !strings.Contains(err.Error(), "--version=raw") {
		t.Errorf("--version=loud: %v, want an error that names --version=raw", err)
	}
}

func TestHelp(t *testing.T) {
	out, _, err := execute(t, "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"--config", "--defaultconfig", "--minconfig", "--version", "-v, --v", "--vmodule",
		v1alpha2.DefaultConfigFile, v1alpha2.DefaultDataSource, v1alpha2.DefaultManifests,
		v1alpha2.DefaultRootDirectory,
		"config", "get", "status", "logs", "edgecore --minconfig >",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("help, want %q in it:\n%s", want, out)
		}
	}
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
	commands := newRootCommand().Commands()
	for len(commands) > 0 {
		c := commands[0]
		commands = append(commands[1:], c.Commands()...)
		if c.Short == "" {
			t.Errorf("%s: short text = %q, want one", c.CommandPath(), c.Short)
		}
		if c.HasParent() && c.Parent().Name() == "config" && (c.Long == "" || c.Example == "") {
			t.Errorf("%s: long text = %q, example = %q; want both", c.CommandPath(), c.Long, c.Example)
		}
	}
}

func TestFlagsOfKlog(t *testing.T) {
	for _, args := range [][]string{
		{"-v", "2"}, {"-v=2"}, {"--v=2"}, {"--vmodule=pod*=3"}, {"--log-flush-frequency=5s"},
	} {
		if _, _, err := execute(t, append(args, "--minconfig")...); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	execute(t, "-v", "0", "--vmodule=", "--minconfig") // klog's settings are the process's
	if _, _, err := execute(t, "--log-flush-frequency=soon", "--minconfig"); err == nil {
		t.Error("--log-flush-frequency=soon = nil, want an error")
	}
}

func TestBadCommandLines(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	for want, args := range map[string][]string{
		"edgecore --minconfig > " + missing: {"--config", missing},
		`unknown command "destroy"`:         {"destroy"},
		"unknown flag: --pods":              {"--pods"},
	} {
		out, _, err := execute(t, args...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q in it", args, err, want)
		}
		if out != "" {
			t.Errorf("%v printed %q, want nothing", args, out)
		}
	}
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
