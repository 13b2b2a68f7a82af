package strict

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
)

// The texts of warnings.
const (
	NotActedOn = "accepted, but this version does not act on it"
	NotThere   = "accepted, but this version does not have this module yet"
)

// unused returns a warning for each key that the tree sets and that other versions act on but this one does not. A key
// with its default value gets none. Values are compared, not spellings: 60s is 1m0s.
func (s *Schema[T]) unused(tree any, cfg *T) Problems {
	fallback := s.Default()
	if s.Fallback != nil {
		fallback = s.Fallback(cfg)
	}
	u := &unusedKeys{live: s.Live, absent: s.Absent, deprecated: s.DeprecatedDefaults, notes: s.Notes}
	u.walk("", tree, reflect.ValueOf(cfg).Elem(), reflect.ValueOf(fallback).Elem())
	return u.warnings
}

type unusedKeys struct {
	live, absent map[string]bool
	deprecated   map[string]string
	notes        map[string]string
	warnings     Problems
}

func (u *unusedKeys) walk(at string, tree any, value, fallback reflect.Value) {
	if u.live[at] {
		return
	}
	value, fallback = pointed(value), pointed(fallback)
	m, isMap := tree.(map[string]any)
	if t := value.Type(); isMap && t.Kind() == reflect.Struct && !hasOwnForm(t) {
		for _, key := range SortedKeys(m) {
			u.walk(Join(at, key), m[key], fieldByKey(value, key), fieldByKey(fallback, key))
		}
		return
	}
	switch former, ok := u.deprecated[at]; {
	case u.absent[at]:
		if value.Bool() {
			u.warnings = append(u.warnings, Problem{Path: at, Text: NotThere})
		}
	case ok && fmt.Sprint(value) == former, same(value, fallback):
	default:
		u.warnings = append(u.warnings, Problem{Path: at, Text: cmp.Or(u.notes[at], NotActedOn)})
	}
}

// pointed dereferences a pointer to a struct; a nil pointer gives the zero struct.
func pointed(v reflect.Value) reflect.Value {
	switch {
	case v.Kind() != reflect.Pointer || v.Type().Elem().Kind() != reflect.Struct || hasOwnForm(v.Type().Elem()):
		return v
	case v.IsNil():
		return reflect.Zero(v.Type().Elem())
	}
	return v.Elem()
}

// fieldByKey returns the field of a JSON key; the tree has only keys that fit.
func fieldByKey(v reflect.Value, key string) reflect.Value {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := bytes.Cut([]byte(f.Tag.Get("json")), []byte(","))
		if string(name) == key {
			return v.Field(i)
		}
		if len(name) == 0 && f.Type.Kind() == reflect.Struct {
			if inner := fieldByKey(v.Field(i), key); inner.IsValid() {
				return inner
			}
		}
	}
	return reflect.Value{}
}

// same compares values: nil, an empty list and a zero are equal.
func same(a, b reflect.Value) bool {
	if saysZero(a) && saysZero(b) {
		return true
	}
	x, errX := json.Marshal(a.Interface())
	y, errY := json.Marshal(b.Interface())
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func saysZero(v reflect.Value) bool {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return true
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Map, reflect.Slice:
		return v.Len() == 0
	}
	return v.IsZero()
}
