package commandtree

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/version"
)

// Program is a program whose tests are in the folder of its command. Its methods are what both programs promise of
// their command lines.
type Program struct {
	// New returns a new tree of commands.
	New func() *cobra.Command
	// Kind and APIVersion are those of its configuration.
	Kind, APIVersion string
	// Parse reports what is wrong with a configuration.
	Parse func(text []byte) error
}

// Execute runs a command line and returns what it wrote to stdout and to stderr.
func (p Program) Execute(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := p.New()
	cmd.SetArgs(append([]string{}, args...)) // never nil, for which cobra takes those of the test
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// WriteConfig writes a configuration, whose first two lines are added, and returns the path of its file.
func (p Program) WriteConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), strings.ToLower(p.Kind)+".yaml")
	if err := os.WriteFile(path, []byte("apiVersion: "+p.APIVersion+"\nkind: "+p.Kind+"\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// PrintsConfigurations compares what is printed with the files in testdata; UPDATE_GOLDEN=1 writes them again. They
// have placeholder where the program prints a value of this machine.
func (p Program) PrintsConfigurations(t *testing.T, machine, placeholder string) {
	for flag, file := range map[string]string{
		"--defaultconfig": "defaultconfig.yaml", "--minconfig": "minconfig.yaml",
	} {
		out, _, err := p.Execute(t, flag)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Parse([]byte(out)); err != nil {
			t.Errorf("what %s prints is not valid: %v", flag, err)
		}
		golden := filepath.Join("testdata", file)
		out = strings.Replace(out, machine, placeholder, 1)
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

// PrintsVersion checks the flag --version.
func (p Program) PrintsVersion(t *testing.T) {
	for flag, want := range map[string]string{
		"--version":      p.Kind + " " + version.Version() + "\n",
		"--version=raw":  p.Kind + " " + version.String() + "\n",
		"--version=true": p.Kind + " " + version.Version() + "\n",
	} {
		out, _, err := p.Execute(t, flag)
		if err != nil || out != want {
			t.Errorf("%s printed %q, %v; want %q", flag, out, err, want)
		}
	}
	if _, _, err := p.Execute(t, "--version=loud"); err == nil || !strings.Contains(err.Error(), "--version=raw") {
		t.Errorf("--version=loud: %v, want an error that names --version=raw", err)
	}
}

// Helps checks that the help text has what all programs have, and more.
func (p Program) Helps(t *testing.T, more ...string) {
	out, _, err := p.Execute(t, "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range append([]string{
		"--config", "--defaultconfig", "--minconfig", "--version", "-v, --v", "--vmodule", "config",
		strings.ToLower(p.Kind) + " --minconfig >",
	}, more...) {
		if !strings.Contains(out, want) {
			t.Errorf("help, want %q in it:\n%s", want, out)
		}
	}
}

// Teaches checks that each command says what it does, and that those which shows names have an example.
func (p Program) Teaches(t *testing.T, shows func(*cobra.Command) bool) {
	commands := p.New().Commands()
	for len(commands) > 0 {
		c := commands[0]
		commands = append(commands[1:], c.Commands()...)
		if c.Short == "" {
			t.Errorf("%s: short text = %q, want one", c.CommandPath(), c.Short)
		}
		if shows(c) && (c.Long == "" || c.Example == "") {
			t.Errorf("%s: long text = %q, example = %q; want both", c.CommandPath(), c.Long, c.Example)
		}
	}
}

// TakesFlagsOfKlog checks that the flags of klog are there.
func (p Program) TakesFlagsOfKlog(t *testing.T) {
	for _, args := range [][]string{
		{"-v", "2"}, {"-v=2"}, {"--v=2"}, {"--vmodule=pod*=3"}, {"--log-flush-frequency=5s"},
	} {
		if _, _, err := p.Execute(t, append(args, "--minconfig")...); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	_, _, _ = p.Execute(t, "-v", "0", "--vmodule=", "--minconfig") // klog's settings are the process's
	if _, _, err := p.Execute(t, "--log-flush-frequency=soon", "--minconfig"); err == nil {
		t.Error("--log-flush-frequency=soon = nil, want an error")
	}
}

// RefusesCommandLines checks that command lines fail with an error that has a text, and print nothing. more are some by
// their texts, beside those that all programs refuse.
func (p Program) RefusesCommandLines(t *testing.T, more map[string][]string) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	refused := map[string][]string{
		strings.ToLower(p.Kind) + " --minconfig > " + missing: {"--config", missing},
		`unknown command "destroy"`:                           {"destroy"},
		"unknown flag: --nodes":                               {"--nodes"},
	}
	for want, args := range more {
		refused[want] = args
	}
	for want, args := range refused {
		out, _, err := p.Execute(t, args...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q in it", args, err, want)
		}
		if out != "" {
			t.Errorf("%v printed %q, want nothing", args, out)
		}
	}
}

// Sample is a configuration after its first two lines, and what config validate says of it.
type Sample struct{ Text, Says string }

// ValidatesConfigurations checks config validate, with a configuration that has one warning, and one that is wrong.
func (p Program) ValidatesConfigurations(t *testing.T, warned, wrong Sample) {
	good, warnedFile, bad := p.WriteConfig(t, ""), p.WriteConfig(t, warned.Text), p.WriteConfig(t, wrong.Text)
	for name, tc := range map[string]struct {
		args                []string
		stdout, stderr, err string
	}{
		"a file":         {[]string{good}, good + " is valid, with no warnings\n", "", ""},
		"the configured": {[]string{"--config", good}, good + " is valid, with no warnings\n", "", ""},
		"a warning":      {[]string{warnedFile}, warnedFile + " is valid, with 1 warning\n", warned.Says, ""},
		"errors":         {[]string{bad}, "", "", "configuration " + bad + ": " + wrong.Says},
		"two files":      {[]string{good, bad}, "", "", "accepts at most 1 arg(s), received 2"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, err := p.Execute(t, append([]string{"config", "validate"}, tc.args...)...)
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

// PrintsConfiguration checks that config print prints what is in force, and no secret: hidden is in its place. redacted
// is the configuration of the file.
func PrintsConfiguration[T any](t *testing.T, p Program, file, secret, hidden string, redacted *T) {
	out, _, err := p.Execute(t, "config", "print", file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, secret) || !strings.Contains(out, hidden) {
		t.Errorf("printed, want %s in it and no %s:\n%s", hidden, secret, out)
	}
	got := new(T)
	if err := yaml.UnmarshalStrict([]byte(out), got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(redacted, got); diff != "" {
		t.Errorf("output mismatch (-want +got):\n%s", diff)
	}
	wrong := p.WriteConfig(t, "zzz: 1\n")
	if out, _, err := p.Execute(t, "config", "print", "--config", wrong); err == nil || out != "" {
		t.Errorf("config print of a file that is wrong = %q, %v; want nothing and an error", out, err)
	}
}
