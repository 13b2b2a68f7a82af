package env

import (
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Expand replaces each $(NAME) for which lookup knows a value; others stay as they are. "$$" stands for
// one '$', so that "$$(NAME)" yields the text "$(NAME)".
func Expand(text string, lookup func(string) (string, bool)) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var out strings.Builder
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
		case strings.HasPrefix(rest, "("):
			name, after, closed := strings.Cut(rest[1:], ")")
			if !closed {
				out.WriteString("$")
				text = rest
				continue
			}
			if value, ok := lookup(name); ok {
				out.WriteString(value)
			} else {
				out.WriteString("$(" + name + ")")
			}
			text = after
		default:
			out.WriteByte('$')
			text = rest
		}
	}
}

// Lookup makes a lookup of an environment.
func Lookup(vars []*runtimeapi.KeyValue) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, v := range vars {
			if v.Key == name {
				return string(v.Value), true
			}
		}
		return "", false
	}
}

// ExpandAll expands a command or arguments.
func ExpandAll(list []string, vars []*runtimeapi.KeyValue) []string {
	if len(list) == 0 {
		return nil
	}
	lookup := Lookup(vars)
	out := make([]string, len(list))
	for i, text := range list {
		out[i] = Expand(text, lookup)
	}
	return out
}
