package strict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a file.
type Problem struct {
	// Line is the line of the file, from 1; 0 where it is not known.
	Line int
	// Path is the full path of the key, such as modules.edged.nodeLabels[zone].
	Path string
	// Text says what is wrong and what is allowed. It never holds a secret.
	Text string
}

func (p Problem) Error() string {
	text := p.Text
	if p.Path != "" {
		text = p.Path + ": " + text
	}
	if p.Line > 0 {
		text = fmt.Sprintf("line %d: %s", p.Line, text)
	}
	return text
}

// Problems is all that is wrong with a file, in the order of its lines.
type Problems []Problem

func (p Problems) Error() string {
	if len(p) == 1 {
		return p[0].Error()
	}
	text := &strings.Builder{}
	fmt.Fprintf(text, "%d problems:", len(p))
	for i, problem := range p {
		if i == MaxShown {
			fmt.Fprintf(text, "\n  and %d more", len(p)-i)
			break
		}
		text.WriteString("\n  ")
		text.WriteString(problem.Error())
	}
	return text.String()
}

// MaxShown bounds what one error says; a file that is something else altogether has thousands of problems.
const MaxShown = 50

// OrNil returns nil when there are none.
func (p Problems) OrNil() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// NotAllowed is the text on a value that is invalid, and that is no secret.
func NotAllowed(v any, want string) string { return notAllowed("", v, want, nil) }

func notAllowed(path string, v any, want string, secrets []string) string {
	return shown(path, v, secrets) + " is not allowed; want " + want
}

// inOrder sorts by line, those without a line last.
func (p Problems) inOrder() Problems {
	slices.SortStableFunc(p, func(a, b Problem) int {
		if (a.Line == 0) != (b.Line == 0) {
			return cmp.Compare(b.Line, a.Line)
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path))
	})
	return p
}

const (
	// Hidden stands where a secret would.
	Hidden = "(hidden)"
	// maxQuoted bounds a name or a value in an error.
	maxQuoted = 80
)

// isSecret tells by its path whether a value must not be shown.
func isSecret(path string, secrets []string) bool {
	lower := strings.ToLower(path)
	return slices.ContainsFunc(secrets, func(word string) bool { return strings.Contains(lower, word) })
}

// shown is a value as an error may show it.
func shown(path string, v any, secrets []string) string {
	if isSecret(path, secrets) {
		return Hidden
	}
	switch x := v.(type) {
	case string:
		return fmt.Sprintf("%q", Clip(WithoutPassword(x)))
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	}
	return Clip(fmt.Sprint(v))
}

// Clip shortens what an error quotes.
func Clip(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	return strings.ToValidUTF8(s[:maxQuoted], "") + "..."
}

// WithoutPassword takes the password out of a URL such as tcp://user:password@host:1883.
func WithoutPassword(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return s
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	at := strings.LastIndex(rest[:end], "@")
	if at < 0 {
		// A password may itself hold a slash; what stands before the last @ is still not for others.
		if at = strings.LastIndex(rest, "@"); at < 0 || !strings.Contains(rest[:at], ":") {
			return s
		}
	}
	user, _, ok := strings.Cut(rest[:at], ":")
	if !ok {
		return s
	}
	return scheme + "://" + user + ":" + Hidden + rest[at:]
}
