package v1alpha2

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
		if i == maxShown {
			fmt.Fprintf(text, "\n  and %d more", len(p)-i)
			break
		}
		text.WriteString("\n  ")
		text.WriteString(problem.Error())
	}
	return text.String()
}

// maxShown bounds what one error says; a file that is something else altogether has thousands of problems.
const maxShown = 50

func (p Problems) orNil() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// notAllowed is the text on a value that is of no use.
func notAllowed(path string, v any, want string) string {
	return shown(path, v) + " is not allowed; want " + want
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
	hidden = "(hidden)"
	// maxQuoted bounds a name or a value in an error.
	maxQuoted = 80
)

// isSecret tells by its path whether a value must not be shown. It errs on the side of silence: what a
// misspelt key holds may be a secret too.
func isSecret(path string) bool {
	lower := strings.ToLower(path)
	return strings.Contains(lower, "token") || strings.Contains(lower, "password") || strings.Contains(lower, "secret") ||
		strings.Contains(lower, "staticpodurlheader")
}

// shown is a value as an error may show it.
func shown(path string, v any) string {
	if isSecret(path) {
		return hidden
	}
	switch x := v.(type) {
	case string:
		return fmt.Sprintf("%q", clip(withoutPassword(x)))
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	}
	return clip(fmt.Sprint(v))
}

func clip(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	return strings.ToValidUTF8(s[:maxQuoted], "") + "..."
}

// withoutPassword takes the password out of a URL such as tcp://user:password@host:1883.
func withoutPassword(s string) string {
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
	return scheme + "://" + user + ":" + hidden + rest[at:]
}
