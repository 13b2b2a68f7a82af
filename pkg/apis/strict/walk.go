package strict

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// walker compares a file's tree with the types, and collects what does not fit.
type walker struct {
	problems  Problems
	root      reflect.Type
	secrets   Secrets
	suggested int
}

func (w *walker) fail(path string, v any, want string) {
	w.problems = append(w.problems, Problem{Path: path, Text: notAllowed(path, v, want, w.secrets)})
}

// fit converts v to its type, and reports whether it has a value: null has none, nor has a value that does not fit,
// which is reported. A number or bool in place of a string becomes that string (a password of digits, a label "true"),
// as in KubeEdge.
func (w *walker) fit(path string, v any, t reflect.Type) (any, bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case v == nil:
		return nil, false
	case hasOwnForm(t):
		return w.fitOwnForm(path, v, t)
	}
	switch t.Kind() {
	case reflect.Struct:
		return w.fitStruct(path, v, t)
	case reflect.Map:
		return w.fitMap(path, v, t)
	case reflect.Slice:
		return w.fitList(path, v, t)
	case reflect.String:
		return w.fitString(path, v)
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			w.fail(path, v, "true or false")
			return nil, false
		}
	case reflect.Interface:
	default:
		return w.fitNumber(path, v, t)
	}
	return v, true
}

func (w *walker) fitStruct(path string, v any, t reflect.Type) (any, bool) {
	fields := fieldsOf(t)
	m, ok := v.(map[string]any)
	if !ok {
		w.fail(path, v, "a mapping with keys such as "+strings.Join(firstKeys(fields, 3), ", "))
		return nil, false
	}
	clean := make(map[string]any, len(m))
	for _, key := range SortedKeys(m) {
		at := Join(path, Clip(key))
		field, known := fields[key]
		if !known {
			w.unknownKey(at, path, key, fields)
			continue
		}
		if value, says := w.fit(at, m[key], field); says {
			clean[key] = value
		}
	}
	return clean, true
}

func (w *walker) fitMap(path string, v any, t reflect.Type) (any, bool) {
	m, ok := v.(map[string]any)
	if !ok {
		w.fail(path, v, "a mapping of names to values")
		return nil, false
	}
	clean := make(map[string]any, len(m))
	for _, key := range SortedKeys(m) {
		if value, says := w.fit(Entry(path, key), m[key], t.Elem()); says {
			clean[key] = value
		}
	}
	return clean, true
}

// entry is the path of a key that the user chose, in a map.
func Entry(path, key string) string { return path + "[" + Clip(key) + "]" }

func (w *walker) fitList(path string, v any, t reflect.Type) (any, bool) {
	list, ok := v.([]any)
	if !ok {
		w.fail(path, v, "a list")
		return nil, false
	}
	clean := make([]any, 0, len(list))
	for i, item := range list {
		if value, says := w.fit(fmt.Sprintf("%s[%d]", path, i), item, t.Elem()); says {
			clean = append(clean, value)
		}
	}
	return clean, true
}

func (w *walker) fitString(path string, v any) (any, bool) {
	switch x := v.(type) {
	case string:
		return x, true
	case json.Number:
		return x.String(), true
	case bool:
		return strconv.FormatBool(x), true
	}
	w.fail(path, v, "a text")
	return nil, false
}

func (w *walker) fitNumber(path string, v any, t reflect.Type) (any, bool) {
	number, ok := v.(json.Number)
	if !ok {
		want := "a number"
		if _, isText := v.(string); isText {
			want = "a number, without quotes"
		}
		w.fail(path, v, want)
		return nil, false
	}
	var err error
	var want string
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		_, err = strconv.ParseInt(number.String(), 10, t.Bits())
		want = fmt.Sprintf("a whole number from %d to %d", int64(-1)<<(t.Bits()-1), int64(1)<<(t.Bits()-1)-1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		_, err = strconv.ParseUint(number.String(), 10, t.Bits())
		want = fmt.Sprintf("a whole number from 0 to %d", ^uint64(0)>>(64-t.Bits()))
	default:
		_, err = strconv.ParseFloat(number.String(), t.Bits())
		want = "a number"
	}
	if err != nil {
		w.fail(path, v, want)
		return nil, false
	}
	return number, true
}

// hasOwnForm reports whether a type, such as a quantity or duration, decodes its own JSON.
func hasOwnForm(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}

func (w *walker) fitOwnForm(path string, v any, t reflect.Type) (any, bool) {
	raw, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(raw, reflect.New(t).Interface())
	}
	if err == nil {
		return v, true
	}
	want := "a value of the form " + t.Name()
	switch {
	case t == reflect.TypeFor[metav1.Duration](), hasDuration(t):
		want = "a duration with its unit, such as 30s, 5m or 1h30m"
	case t == reflect.TypeFor[resource.Quantity](), hasQuantity(t):
		want = "a quantity, such as 500m or 64Mi"
	case t == reflect.TypeFor[metav1.Time]():
		want = "a time, such as " + time.RFC3339
	}
	w.fail(path, v, want)
	return nil, false
}

func hasDuration(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t.NumField() > 0 && t.Field(0).Type == reflect.TypeFor[metav1.Duration]()
}

func hasQuantity(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t.NumField() > 0 && t.Field(0).Type == reflect.TypeFor[resource.Quantity]()
}

// fieldsOf returns the keys of a struct with their types.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && (f.Anonymous || strings.Contains(options, "inline")):
			for k, v := range fieldsOf(f.Type) {
				fields[k] = v
			}
		case name != "":
			fields[name] = f.Type
		}
	}
	return fields
}

// SortedKeys returns the keys in order.
func SortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func firstKeys[V any](m map[string]V, n int) []string {
	keys := SortedKeys(m)
	return keys[:min(n, len(keys))]
}
