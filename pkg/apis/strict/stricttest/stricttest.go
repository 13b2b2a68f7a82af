// Package stricttest tests the tables of a strict.Schema: that they hold for each key that there is.
package stricttest

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/apis/strict/keytable"
)

// EveryKeyIsLiveOrWarnedOf: each key that can be set is either one that the program acts on, and no warning,
// or one warning that names it. There are at least so many keys.
func EveryKeyIsLiveOrWarnedOf[T any](t *testing.T, s *strict.Schema[T], atLeast int) {
	t.Helper()
	count := 0
	for path, typ := range s.Keys() {
		if strict.IsMapping(typ) {
			continue
		}
		count++
		values := []any{other(typ)}
		if typ.Kind() == reflect.Bool {
			values = append(values, false)
		}
		var warnings strict.Problems
		for _, v := range values {
			_, got, err := s.Fit(treeOf(path, v))
			if err != nil {
				t.Errorf("Fit of %s: %v = %v, want no error", path, v, err)
			}
			if len(got) > 1 {
				t.Errorf("%s: %d warnings %v, want at most one", path, len(got), got)
			}
			warnings = append(warnings, got...)
		}
		switch {
		case isLive(s.Live, path):
			if len(warnings) > 0 {
				t.Errorf("warnings of %s = %v, want none: it is among the live keys", path, warnings)
			}
		case len(warnings) != 1 || warnings[0].Path != path:
			t.Errorf("warnings of %s = %v, want one: it is not among the live keys", path, warnings)
		}
	}
	if count < atLeast {
		t.Errorf("%d keys found, want %d or more", count, atLeast)
	}
}

// TablesNameKeys: what the tables name are keys. It returns all keys.
func TablesNameKeys[T any](t *testing.T, s *strict.Schema[T]) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	for path := range s.Keys() {
		known[path] = true
	}
	tables := map[string]bool{}
	for _, table := range []map[string]bool{s.Live, s.Absent} {
		for path := range table {
			tables[path] = true
		}
	}
	for _, table := range []map[string]string{s.DeprecatedDefaults, s.Notes} {
		for path := range table {
			tables[path] = true
		}
	}
	for path := range tables {
		if !known[path] {
			t.Errorf("%s in the tables is not a key, want one", path)
		}
	}
	return known
}

// RowsAreKeys checks that each row of a program's table is a key with a value, and that no key has two rows.
func RowsAreKeys[T any](t *testing.T, s *strict.Schema[T], rows []keytable.Key) {
	t.Helper()
	known, seen := s.Keys(), map[string]bool{}
	for _, row := range rows {
		if typ, ok := known[row.Path]; !ok || strict.IsMapping(typ) {
			t.Errorf("%s has a row and is not a key with a value, want one", row.Path)
		}
		if seen[row.Path] {
			t.Errorf("%s has two rows, want one", row.Path)
		}
		seen[row.Path] = true
	}
}

func isLive(live map[string]bool, path string) bool {
	for {
		if live[path] {
			return true
		}
		dot := strings.LastIndexByte(path, '.')
		if dot < 0 {
			return false
		}
		path = path[:dot]
	}
}

// other returns a value that a type reads, and that no default has.
func other(t reflect.Type) any {
	switch {
	case hasForm[metav1.Duration](t):
		return "17s"
	case hasForm[resource.Quantity](t):
		return "17"
	}
	switch t.Kind() {
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Struct {
			return []any{map[string]any{}}
		}
		return []any{other(t.Elem())}
	case reflect.Map:
		if t.Elem().Kind() == reflect.Slice {
			return map[string]any{"other": []any{"x"}}
		}
		return map[string]any{"other": other(t.Elem())}
	case reflect.String:
		return "other"
	case reflect.Bool:
		return true
	}
	return json.Number("17")
}

// hasForm: the type is F, or wraps it.
func hasForm[F any](t reflect.Type) bool {
	form := reflect.TypeFor[F]()
	return t == form || t.Kind() == reflect.Struct && t.NumField() > 0 && t.Field(0).Type == form
}

func treeOf(path string, value any) map[string]any {
	parts := strings.Split(path, ".")
	for i := len(parts) - 1; i >= 0; i-- {
		value = map[string]any{parts[i]: value}
	}
	tree, _ := value.(map[string]any)
	return tree
}
