package strict

import "reflect"

// Keys returns the paths of all keys with their types, outside lists.
func (s *Schema[T]) Keys() map[string]reflect.Type { return keysOf(reflect.TypeFor[T]()) }

func keysOf(root reflect.Type) map[string]reflect.Type {
	found := map[string]reflect.Type{}
	var walk func(at string, t reflect.Type)
	walk = func(at string, t reflect.Type) {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		found[at] = t
		if t.Kind() != reflect.Struct || hasOwnForm(t) {
			return
		}
		for key, field := range fieldsOf(t) {
			walk(Join(at, key), field)
		}
	}
	walk("", root)
	delete(found, "")
	return found
}

// IsMapping reports whether a type is read as a mapping with keys of its own.
func IsMapping(t reflect.Type) bool { return t.Kind() == reflect.Struct && !hasOwnForm(t) }
