package differential

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Trace is what was seen of one pod on one node: for each path the values that it had, in order, without repetitions.
type Trace map[string][]string

// Add appends a value to a path, unless it is the path's last one.
func (t Trace) Add(path, value string) {
	if old := t[path]; len(old) == 0 || old[len(old)-1] != value {
		t[path] = append(old, value)
	}
}

// absent is the value of a path that was there before.
const absent = "(absent)"

// Gone appends absent to each path below a prefix that is not among those that are there now.
func (t Trace) Gone(prefix string, there map[string]string) {
	for path := range t {
		if _, ok := there[path]; !ok && strings.HasPrefix(path, prefix) {
			t.Add(path, absent)
		}
	}
}

// Flatten turns a value, as JSON, into paths and values below a path. Elements of lists are called by their name, type
// or other key where all elements have one, else by their index.
func Flatten(path string, v any) (map[string]string, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		return nil, err
	}
	out := map[string]string{}
	flatten(path, tree, out)
	return out, nil
}

func flatten(path string, v any, out map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			out[path] = "{}"
		}
		for key, value := range v {
			flatten(path+"."+key, value, out)
		}
	case []any:
		if unordered(path) {
			v = sorted(v)
		}
		keys := elementKeys(v)
		order := keys
		if unordered(path) {
			order = slices.Sorted(slices.Values(keys))
		}
		out[path] = fmt.Sprintf("[%s]", strings.Join(order, " "))
		for i, value := range v {
			flatten(path+"["+keys[i]+"]", value, out)
		}
	case string:
		out[path] = v
	default:
		data, err := json.Marshal(v)
		if err != nil {
			data = []byte(err.Error())
		}
		out[path] = string(data)
	}
}

// unordered reports whether a list has no order: the kubelet fills it from a map.
func unordered(path string) bool {
	return strings.HasSuffix(path, ".envs") || strings.HasSuffix(path, ".hugepageLimits") ||
		strings.HasSuffix(path, ".dnsConfig.options")
}

// sorted sorts a list of texts, and returns any other one as it is.
func sorted(list []any) []any {
	out := slices.Clone(list)
	for _, v := range list {
		if _, ok := v.(string); !ok {
			return list
		}
	}
	slices.SortFunc(out, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return out
}

// elementKeys names the elements of a list: by the first field that all of them have, each with another value.
func elementKeys(list []any) []string {
	for _, field := range []string{"name", "type", "resourceName", "containerPath", "key", "pageSize"} {
		var keys []string
		for _, element := range list {
			object, ok := element.(map[string]any)
			if !ok {
				break
			}
			key, ok := object[field].(string)
			if !ok || slices.Contains(keys, key) {
				break
			}
			keys = append(keys, key)
		}
		if len(keys) == len(list) {
			return keys
		}
	}
	keys := make([]string, len(list))
	for i := range list {
		keys[i] = fmt.Sprint(i)
	}
	return keys
}
