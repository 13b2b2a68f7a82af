package strict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Problem is one error in a file.
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

// Problems are all errors in a file, in line order.
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

// MaxShown limits the problems in one error; a file of another kind has thousands.
const MaxShown = 50

// OrNil returns nil if there are none.
func (p Problems) OrNil() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// NotAllowed returns the text for an invalid value that is not a secret.
func NotAllowed(v any, want string) string { return notAllowed("", v, want, Secrets{}) }

func notAllowed(path string, v any, want string, secrets Secrets) string {
	return shown(path, v, secrets) + " is not allowed; want " + want
}

// inOrder sorts by line, those without a line last.
func (p Problems) inOrder() Problems {
	smallsort.SortStableFunc(p, func(a, b Problem) int {
		if (a.Line == 0) != (b.Line == 0) {
			return cmp.Compare(b.Line, a.Line)
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path))
	})
	return p
}

const (
	// Hidden replaces a secret.
	Hidden = "(hidden)"
	// maxQuoted limits a name or value in an error.
	maxQuoted = 80
)

// Secrets says by their paths which values no error and no warning shows.
type Secrets struct {
	// Words are in lower case; a value whose path contains one is secret. A misspelt key may hold a secret, too.
	Words []string
	// Public are keys that contain such a word and hold no secret, in lower case.
	Public []string
}

// hides reports whether a value must not be shown.
func (s Secrets) hides(path string) bool {
	lower := strings.ToLower(path)
	key := lower[strings.LastIndexByte(lower, '.')+1:]
	return !slices.Contains(s.Public, key) &&
		slices.ContainsFunc(s.Words, func(word string) bool { return strings.Contains(lower, word) })
}

// shown returns a value as an error may show it.
func shown(path string, v any, secrets Secrets) string {
	if secrets.hides(path) {
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

// WithoutPassword removes the password from a URL such as tcp://user:password@host:1883.
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
		// A password may contain a slash; hide everything before the last @.
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
