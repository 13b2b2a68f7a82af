package command

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// tool is a program with commands of all kinds.
func tool(t *testing.T) *cobra.Command {
	t.Helper()
	p := Program[struct{}]{Kind: "Tool", File: "/etc/tool.yaml", Run: func(context.Context, *struct{}) error {
		return nil
	}}
	root := &cobra.Command{
		Use: "tool", Short: "Do it", Long: "Do it well.\n\nWhere things lie:\n  /etc/tool.yaml  what\n  .hidden  " +
			"more\n.A line that man could take for its own.\n",
	}
	p.Root(root)
	join := &cobra.Command{
		Use:     "join --at PLACE",
		Short:   "Join it's place",
		Example: "  tool join --at 'a\\b'",
		Run:     func(*cobra.Command, []string) {},
	}
	join.Flags().StringP("at", "a", "home", "the `place` to join")
	join.Flags().String("secret-flag", "", "nobody sees it")
	if err := join.Flags().MarkHidden("secret-flag"); err != nil {
		t.Fatal(err)
	}
	gone := &cobra.Command{Use: "gone", Hidden: true, Run: func(*cobra.Command, []string) {}}
	root.AddCommand(join, gone)
	return root
}

func TestManPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man")
	root := tool(t)
	root.SetArgs([]string{"man", "--date", "2026-11-21", dir})
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for _, want := range []string{
		"tool.8", "tool-join.8", "tool-config.8", "tool-config-validate.8", "tool-config-print.8",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("pages = %v, want %s among them", names, want)
		}
	}
	if slices.Contains(names, "tool-gone.8") || slices.Contains(names, "tool-man.8") {
		t.Errorf("pages = %v, want none of hidden commands", names)
	}
	for name, wants := range map[string][]string{
		"tool.8": {
			".TH TOOL 8 \"2026-11-21\"", "tool \\- Do it", "Do it well.\n.PP",
			".nf\n/etc/tool.yaml  what\n\\&.hidden  more\n.fi", "\\&.A line",
			".TP\n.B join\nJoin it\\(aqs place. See\n.BR tool\\-join (8).", "\\fB\\-\\-config \\fIfile\\fR\\fR",
		},
		"tool-join.8": {
			"\\-a, \\-\\-at \\fIplace\\fR\\fR\nthe place to join (default home)", ".SH OPTIONS OF ALL COMMANDS",
			"tool join \\-\\-at \\(aqa\\eb\\(aq", ".BR tool (8)",
		},
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s, want %q in it:\n%s", name, want, text)
			}
		}
		if strings.Contains(string(text), "secret") {
			t.Errorf("%s has the word secret, want what is hidden left out:\n%s", name, text)
		}
	}
	formatted(t, dir, names)
}

// formatted has the program read the pages that man uses.
func formatted(t *testing.T, dir string, names []string) {
	t.Helper()
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Fatalf("hack/setup test installs groff, which reads the pages: %v", err)
	}
	for _, name := range names {
		var output bytes.Buffer
		cmd := exec.CommandContext(t.Context(), groff, "-man", "-Tutf8", "-ww", filepath.Join(dir, name))
		cmd.Stderr = &output
		if err := cmd.Run(); err != nil || output.Len() > 0 {
			t.Errorf("groff %s: %v, want no error and no words\n%s", name, err, output.String())
		}
	}
}

func TestRoff(t *testing.T) {
	got := map[string]string{}
	for _, text := range []string{"a-b", ".x", "'x", `a\b`, "`x`"} {
		got[text] = roff(text)
	}
	want := map[string]string{"a-b": `a\-b`, ".x": `\&.x`, "'x": `\(aqx`, `a\b`: `a\eb`, "`x`": `\(gax\(ga`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
