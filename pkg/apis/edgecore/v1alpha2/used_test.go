package v1alpha2

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// leaves returns the paths of all keys that have no keys of ours below them, with their types.
func leaves(at string, t reflect.Type, found map[string]reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || hasOwnForm(t) {
		found[at] = t
		return
	}
	for key, field := range fieldsOf(t) {
		leaves(join(at, key), field, found)
	}
}

// other returns a value that a type reads, and that no default has.
func other(t reflect.Type) any {
	switch {
	case t == reflect.TypeFor[metav1.Duration](), hasDuration(t):
		return "17s"
	case t == reflect.TypeFor[resource.Quantity](), hasQuantity(t):
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

func treeOf(path string, value any) map[string]any {
	parts := strings.Split(path, ".")
	for i := len(parts) - 1; i >= 0; i-- {
		value = map[string]any{parts[i]: value}
	}
	tree, _ := value.(map[string]any)
	return tree
}

// TestEveryKeyIsLiveOrWarnedOf: each key that can be set is either one that we act on, and no warning, or
// one warning that names it.
func TestEveryKeyIsLiveOrWarnedOf(t *testing.T) {
	found := map[string]reflect.Type{}
	leaves("", reflect.TypeFor[EdgeCore](), found)
	if len(found) < 150 {
		t.Fatalf("only %d keys found", len(found))
	}
	acted := live()
	isLive := func(path string) bool {
		for ; path != ""; path = parentOf(path) {
			if acted[path] {
				return true
			}
		}
		return false
	}
	for path, typ := range found {
		values := []any{other(typ)}
		if typ.Kind() == reflect.Bool {
			values = append(values, false)
		}
		warnings := Problems{}
		for _, v := range values {
			w := &walker{}
			clean, _ := w.fit("", treeOf(path, v), reflect.TypeFor[EdgeCore]())
			if len(w.problems) > 0 {
				t.Errorf("%s: %v is not read: %v", path, v, w.problems)
				continue
			}
			cfg, err := overlay(clean)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			got := unused(clean, cfg)
			if len(got) > 1 {
				t.Errorf("%s: %d warnings", path, len(got))
			}
			warnings = append(warnings, got...)
		}
		switch {
		case isLive(path):
			if len(warnings) > 0 {
				t.Errorf("%s is acted on, and warned of: %v", path, warnings)
			}
		case len(warnings) != 1 || warnings[0].Path != path:
			t.Errorf("%s is not acted on; warnings: %v", path, warnings)
		}
	}
}

// TestTablesNameKeys: what the tables name are keys.
func TestTablesNameKeys(t *testing.T) {
	known := map[string]bool{}
	var walk func(at string, typ reflect.Type)
	walk = func(at string, typ reflect.Type) {
		known[at] = true
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if typ.Kind() == reflect.Struct && !hasOwnForm(typ) {
			for key, field := range fieldsOf(typ) {
				walk(join(at, key), field)
			}
		}
	}
	walk("", reflect.TypeFor[EdgeCore]())
	tables := map[string]bool{}
	for path := range live() {
		tables[path] = true
	}
	for path := range absent() {
		tables[path] = true
	}
	for path := range formerDefaults() {
		tables[path] = true
	}
	for path := range tables {
		if !known[path] {
			t.Errorf("%s is no key", path)
		}
	}
	for _, key := range formerEdged() {
		if known["modules.edged."+key] {
			t.Errorf("modules.edged.%s is a key of today", key)
		}
	}
}

// TestSpellingsOfADefault: a default in other words is no change.
func TestSpellingsOfADefault(t *testing.T) {
	_, warnings, err := Parse([]byte(head + `
modules:
  edged:
    minimumGCAge: 0h
    nodeLabels: {}
    tailoredKubeletConfig:
      imageMinimumGCAge: 120s
      logging: {flushFrequency: 5s, format: text}
      enableSystemLogQuery: false
      reservedMemory: []
      evictionHard: {nodefs.inodesFree: 5%, nodefs.available: 10%, memory.available: 100Mi, imagefs.inodesFree: 5%, imagefs.available: 15%}
  deviceTwin:
    enable: false
`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string(nil), warnings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestKeysOfKubeEdge: the keys that KubeEdge v1.23 prints are all known, none is lost in an update of
// k8s.io/kubelet.
func TestKeysOfKubeEdge(t *testing.T) {
	data, err := os.ReadFile("testdata/kubeedge-v1.23.yaml")
	if err != nil {
		t.Fatal(err)
	}
	root, _, err := readTree(data)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	var walk func(any)
	walk = func(v any) {
		if m, ok := v.(map[string]any); ok {
			for _, inner := range m {
				count++
				walk(inner)
			}
		}
	}
	walk(root)
	if count < 170 {
		t.Errorf("the file has only %d keys", count)
	}
	w := &walker{}
	w.fit("", root, reflect.TypeFor[EdgeCore]())
	if len(w.problems) > 0 {
		t.Error(fmt.Sprint(w.problems))
	}
}
