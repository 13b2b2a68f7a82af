package command

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// suggestWithin is the edit distance up to which a command is suggested; it is cobra's default.
const suggestWithin = 2

// RefuseUnknown makes root, and each command below it that only groups others, refuse an argument that is not one of
// its commands. Cobra prints the help of such a group and succeeds, so that a script does not notice that nothing was
// done. Call it when all commands are added.
//
// A group without an argument still prints its help.
func RefuseUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	refuseUnknown(root)
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Args = helpTopic
		}
	}
}

func refuseUnknown(cmd *cobra.Command) {
	if !cmd.HasSubCommands() {
		return
	}
	switch {
	case !cmd.Runnable():
		// Only what runs has its arguments checked.
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		cmd.Args, cmd.DisableFlagsInUseLine = noSuchCommand, true
	case !cmd.HasParent():
		cmd.Args = noSuchCommand
	}
	for _, c := range cmd.Commands() {
		refuseUnknown(c)
	}
}

// noSuchCommand returns an error if there are arguments.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = suggestWithin
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		return errors.New(text + `: did you mean "` + strings.Join(names, `" or "`) + `"?`)
	}
	return errors.New(text + "; " + cmd.CommandPath() + " --help lists what there is")
}

// helpTopic checks the arguments of the command help, which name a command.
func helpTopic(cmd *cobra.Command, args []string) error {
	found, rest, err := cmd.Root().Find(args)
	if err != nil {
		return err
	}
	return noSuchCommand(found, rest)
}
