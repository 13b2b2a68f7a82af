package command

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/edgecore-io/edgecore/pkg/version"
)

// manSection is that of programs for administrators.
const manSection = "8"

// man is the hidden command that writes the manual's pages, for packages.
func man(root *cobra.Command) *cobra.Command {
	date := ""
	cmd := &cobra.Command{
		Use:   "man DIR",
		Short: "Write the manual's pages into a folder, a page a command",
		Long: `Write the manual's pages into a folder, which is made where it is not there: a page for each command that a user sees, in the
section for administrators. Packages are made with it.`,
		Example: "  " + root.Name() + " man --date 2026-11-21 man8 && man -l man8/" + root.Name() + ".8",
		Hidden:  true,
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root.InitDefaultHelpFlag()
			return writePages(root, args[0], date)
		},
	}
	cmd.Flags().StringVar(&date, "date", "", "the `date` on the pages")
	return cmd
}

// writePages writes the page of a command, and those of its own commands.
func writePages(cmd *cobra.Command, dir, date string) error {
	if err := os.WriteFile(filepath.Join(dir, pageName(cmd)+"."+manSection), page(cmd, date), 0o644); err != nil {
		return err
	}
	for _, c := range subcommands(cmd) {
		if err := writePages(c, dir, date); err != nil {
			return err
		}
	}
	return nil
}

// subcommands are those that a user sees.
func subcommands(cmd *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" {
			list = append(list, c)
		}
	}
	return list
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// page returns the man page of a command, in the man(7) language.
func page(cmd *cobra.Command, date string) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, ".TH %s %s %q %q %q\n", strings.ToUpper(roff(pageName(cmd))), manSection, date,
		cmd.Root().Name()+" "+version.Version(), "System Manager's Manual")
	fmt.Fprintf(&out, ".SH NAME\n%s \\- %s\n", roff(pageName(cmd)), roff(cmd.Short))
	fmt.Fprintf(&out, ".SH SYNOPSIS\n.B %s\n", roff(cmd.UseLine()))
	if subs := subcommands(cmd); len(subs) > 0 && cmd.Runnable() {
		fmt.Fprintf(&out, ".br\n.B %s\n.I COMMAND\n", roff(cmd.CommandPath()))
	}
	out.WriteString(".SH DESCRIPTION\n")
	prose(&out, strings.TrimSpace(firstOf(cmd.Long, cmd.Short+".")))
	if subs := subcommands(cmd); len(subs) > 0 {
		out.WriteString(".SH COMMANDS\n")
		for _, c := range subs {
			fmt.Fprintf(&out, ".TP\n.B %s\n%s. See\n.BR %s (%s).\n", roff(c.Name()), roff(c.Short), roff(pageName(c)),
				manSection)
		}
	}
	options(&out, "OPTIONS", cmd.NonInheritedFlags())
	options(&out, "OPTIONS OF ALL COMMANDS", cmd.InheritedFlags())
	if cmd.Example != "" {
		out.WriteString(".SH EXAMPLES\n.nf\n")
		for line := range strings.Lines(cmd.Example) {
			out.WriteString(roff(strings.TrimPrefix(strings.TrimRight(line, "\n"), "  ")) + "\n")
		}
		out.WriteString(".fi\n")
	}
	if cmd.HasParent() {
		fmt.Fprintf(&out, ".SH SEE ALSO\n.BR %s (%s)\n", roff(pageName(cmd.Parent())), manSection)
	}
	return out.Bytes()
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// prose writes paragraphs; lines that start with two spaces are kept as they are.
func prose(out *bytes.Buffer, text string) {
	asIs := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if literal := strings.HasPrefix(line, "  "); literal != asIs {
			if asIs = literal; asIs {
				out.WriteString(".RS 2\n.nf\n")
			} else {
				out.WriteString(".fi\n.RE\n")
			}
		}
		switch {
		case line == "":
			out.WriteString(".PP\n")
		default:
			out.WriteString(roff(strings.TrimPrefix(line, "  ")) + "\n")
		}
	}
	if asIs {
		out.WriteString(".fi\n.RE\n")
	}
}

// options writes flags with what they are for.
func options(out *bytes.Buffer, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(out, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "\\-\\-" + roff(f.Name)
		if f.Shorthand != "" {
			name = "\\-" + roff(f.Shorthand) + ", " + name
		}
		if kind != "" {
			name += " \\fI" + roff(kind) + "\\fR"
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" && f.DefValue != "0s" {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(out, ".TP\n\\fB%s\\fR\n%s\n", name, roff(usage))
	})
}

// roff escapes a text for man.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "'", `\(aq`).Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}
