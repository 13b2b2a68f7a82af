package conformance

import (
	"bytes"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// tableFile is the table of the fields.
const tableFile = "../../docs/pod-support.md"

// line is one line of the table.
type line struct {
	text   string
	fields []string
	state  string
	tests  []string
	words  string
	used   bool
}

var quoted = regexp.MustCompile("`([^`]+)`")

// readTable reads the lines that begin with a field.
func readTable(t *testing.T) []*line {
	t.Helper()
	data, err := os.ReadFile(tableFile)
	env.Must(t, err)
	var lines []*line
	for text := range strings.Lines(string(data)) {
		cells := strings.Split(strings.TrimSpace(text), "|")
		if len(cells) != 6 || !strings.Contains(cells[1], "`") {
			continue
		}
		l := &line{text: text, state: strings.TrimSpace(cells[2]), words: strings.TrimSpace(cells[3])}
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			l.fields = append(l.fields, braces(m[1])...)
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[4], -1) {
			l.tests = append(l.tests, m[1])
		}
		lines = append(lines, l)
	}
	return lines
}

// braces writes {a,b} out.
func braces(text string) []string {
	before, rest, found := strings.Cut(text, "{")
	if !found {
		return []string{text}
	}
	inside, after, _ := strings.Cut(rest, "}")
	var out []string
	for alternative := range strings.SplitSeq(inside, ",") {
		out = append(out, braces(before+strings.TrimSpace(alternative)+after)...)
	}
	return out
}

// TestTable: docs/pod-support.md has every field of a pod, says of each what is done with it, and names tests that
// exist.
func TestTable(t *testing.T) {
	lines := readTable(t)
	fields := slices.Concat(leaves(reflect.TypeFor[v1.PodSpec](), "spec"),
		leaves(reflect.TypeFor[v1.PodStatus](), "status"))
	for _, field := range fields {
		if !covered(field, lines) {
			t.Errorf("lines of %s for %s = none, want one", tableFile, field)
		}
	}
	known := tests(t)
	for _, l := range lines {
		switch {
		case !l.used:
			t.Errorf("line %q names no field of a pod, want it to", l.text)
		case l.state == "elsewhere":
			if l.words == "" {
				t.Errorf("line %q does not say who acts on it, want it to", l.text)
			}
			continue
		case l.state != "supported" && l.state != "refused":
			t.Errorf("state of line %q = %q, want supported, refused or elsewhere", l.text, l.state)
		case len(l.tests) == 0:
			t.Errorf("tests of line %q = none, want at least one", l.text)
		}
		for _, name := range l.tests {
			if !known[name] {
				t.Errorf("test %s of line %q does not exist, want one that does", name, l.text)
			}
		}
	}
}

// covered finds the lines that speak of a field, by its own name or by that of a container of the common kind.
func covered(field string, lines []*line) bool {
	found := false
	for _, name := range []string{field, common(field)} {
		for _, l := range lines {
			for _, f := range l.fields {
				above, all := strings.CutSuffix(f, ".*")
				if f == name ||
					all && (name == above || strings.HasPrefix(name, above+".") || strings.HasPrefix(name, above+"[")) {
					l.used, found = true, true
				}
			}
		}
	}
	return found
}

// common is the field of containers that a field of another kind of container is alike to.
func common(field string) string {
	for _, kind := range []string{"initContainer", "ephemeralContainer"} {
		field = strings.Replace(field, "spec."+kind+"s[]", "spec.containers[]", 1)
		field = strings.Replace(field, "status."+kind+"Statuses[]", "status.containerStatuses[]", 1)
	}
	return strings.Replace(field, ".lastState.", ".state.", 1)
}

// leaves lists the fields below a type that have no fields of this API themselves.
func leaves(typ reflect.Type, path string) []string {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		if typ.Kind() == reflect.Slice {
			if elem := typ.Elem(); elem.Kind() != reflect.Struct {
				return []string{path}
			}
			path += "[]"
		}
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || typ.PkgPath() != reflect.TypeFor[v1.Pod]().PkgPath() {
		return []string{path}
	}
	var out []string
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		below := path
		if name != "" {
			below += "." + name
		}
		out = append(out, leaves(f.Type, below)...)
	}
	if len(out) == 0 {
		return []string{path}
	}
	return out
}

// tests are the names by which the table may call a test: rows of TestPods, and "package.TestName".
func tests(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	for _, r := range allRows() {
		if known[r.name] {
			t.Errorf("row %s exists twice, want each name once", r.name)
		}
		known[r.name] = true
	}
	cmd := exec.CommandContext(t.Context(), "grep", "-rHoE", "--include=*_test.go", `^func (Test|Fuzz)[A-Za-z0-9_]+`,
		"edged", "test", "metamanager", "cloud")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	env.Must(t, err)
	for l := range strings.Lines(string(bytes.TrimSpace(out))) {
		file, function, _ := strings.Cut(strings.TrimSpace(l), ":func ")
		dir, _, _ := strings.Cut(file, "/"+file[strings.LastIndex(file, "/")+1:])
		known[dir+"."+function] = true
	}
	return known
}
