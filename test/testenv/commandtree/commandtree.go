// Package commandtree checks the commands of a program, all of them, on a tree made by its constructor.
package commandtree

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// RefusesUnknown checks that root, and each command that has commands of its own, refuses an argument that is not one
// of them: with an error that suggests a command with a similar name, and nothing on stdout. make returns a new tree.
func RefusesUnknown(t *testing.T, make func() *cobra.Command) {
	t.Helper()
	groups := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if !cmd.HasSubCommands() {
			return
		}
		groups++
		path := strings.Fields(cmd.CommandPath())[1:]
		refused(t, make(), path, "nosuchthing", `unknown command "nosuchthing" for "`+cmd.CommandPath()+`"`)
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				refused(t, make(), path, c.Name()+"x", `"`+c.Name()+`"`)
				refused(t, make(), append([]string{"help"}, path...), c.Name()+"x", `"`+c.Name()+`"`)
			}
			walk(c)
		}
	}
	root := make()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	walk(root)
	if groups < 3 {
		t.Errorf("%d commands have commands of their own, want the program, its configuration's and completion",
			groups)
	}
}

func refused(t *testing.T, root *cobra.Command, path []string, arg, want string) {
	t.Helper()
	args := append(append([]string{}, path...), arg)
	var out bytes.Buffer
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&bytes.Buffer{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // nothing is to run
	if err := root.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
		t.Errorf("%s %s = %v, want an error with %s, and nothing on stdout:\n%.200s", root.Name(),
			strings.Join(args, " "), err, want, out.String())
	}
}
