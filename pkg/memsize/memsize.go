// Package memsize measures how much memory decoded objects of the API take. Bytes on the wire say little: an empty
// field of two bytes may become a struct of hundreds.
package memsize

import (
	"reflect"
	"time"
)

const (
	// entryBytes is what an entry of a map takes beside its key and value.
	entryBytes = 16
	// escapeBytes is how many bytes more an escaped character takes in JSON.
	escapeBytes = 5
)

// Of returns about how many bytes a value refers to in memory; strings count as in JSON if that is more.
func Of(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.String:
		return textSize(v.String())
	case reflect.Pointer:
		if !v.IsNil() {
			return int(v.Type().Elem().Size()) + Of(v.Elem())
		}
	case reflect.Slice:
		n = v.Len() * int(v.Type().Elem().Size())
		if k := v.Type().Elem().Kind(); k == reflect.Uint8 || v.Len() == 0 {
			return n
		}
		for i := range v.Len() {
			n += Of(v.Index(i))
		}
	case reflect.Map:
		n = v.Len() * (entryBytes + int(v.Type().Key().Size()+v.Type().Elem().Size()))
		for i := v.MapRange(); i.Next(); {
			n += Of(i.Key()) + Of(i.Value())
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return 0 // its location is shared
		}
		for i := range v.NumField() {
			n += Of(v.Field(i))
		}
	}
	return n
}

// textSize returns the length of a string in JSON.
func textSize(s string) int {
	n := len(s)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '<' || c == '>' || c == '&' || c == '"' || c == '\\' {
			n += escapeBytes
		}
	}
	return n
}
