package env

import (
	"os"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxTotal is what the kernel takes at most for all arguments and variables of a program, in bytes.
const maxTotal = 6 << 20

// maxString is what the kernel takes for one of them, with its end: 32 pages.
func maxString() int { return 32 * os.Getpagesize() }

// Expand replaces each $(NAME) for which lookup knows a value; others stay as they are. "$$" stands for
// one '$', so that "$$(NAME)" yields the text "$(NAME)". References stay, too, where the text would become
// longer than the kernel takes anyway: a few that name each other would otherwise fill the memory.
func Expand(text string, lookup func(string) (string, bool)) string {
	return expand(text, lookup, maxString())
}

func expand(text string, lookup func(string) (string, bool), limit int) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var out strings.Builder
	closable := true // there is a ')' ahead
	for {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		switch {
		case strings.HasPrefix(rest, "$"):
			out.WriteByte('$')
			text = rest[1:]
		case strings.HasPrefix(rest, "(") && closable:
			var name string
			name, text, closable = strings.Cut(rest[1:], ")")
			if !closable {
				out.WriteByte('$')
				text = rest
				continue
			}
			if value, ok := lookup(name); ok && out.Len()+len(value) <= limit {
				out.WriteString(value)
			} else {
				out.WriteString("$(" + name + ")")
			}
		default:
			out.WriteByte('$')
			text = rest
		}
	}
}

// Lookup makes a lookup of an environment.
func Lookup(vars []*runtimeapi.KeyValue) func(string) (string, bool) {
	values := make(map[string]string, len(vars))
	for _, v := range vars {
		values[v.Key] = string(v.Value)
	}
	return func(name string) (string, bool) {
		value, ok := values[name]
		return value, ok
	}
}

// ExpandAll expands a command or arguments.
func ExpandAll(list []string, vars []*runtimeapi.KeyValue) []string {
	if len(list) == 0 {
		return nil
	}
	lookup, left := Lookup(vars), maxTotal
	out := make([]string, len(list))
	for i, text := range list {
		out[i] = expand(text, lookup, min(left, maxString()))
		left = max(0, left-len(out[i]))
	}
	return out
}
