// Package setflag reads the assignments of a --set flag, KEY=VALUE,KEY=VALUE with dots between the parts of a key, as
// helm and keadm read them.
package setflag

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Apply writes assignments such as modules.edged.nodeIP=192.0.2.1,modules.edged.reportEvent=true into a tree. A value
// of true, 5 or null has the type that it has in JSON, {a,b} is a list, and every other value is a string. A backslash
// makes the dot, comma or equals sign behind it a part of the key or value. Apply does not know which keys are valid.
func Apply(tree map[string]any, text string) error {
	for _, assignment := range split(text, ',') {
		if strings.TrimSpace(assignment) == "" {
			continue
		}
		parts := split(assignment, '=')
		if len(parts) < 2 {
			return fmt.Errorf("--set %s: want KEY=VALUE", assignment)
		}
		value := parseValue(strings.Join(parts[1:], "="))
		var keys []string
		for _, key := range split(strings.TrimSpace(parts[0]), '.') {
			keys = append(keys, unescape(key))
		}
		if err := Set(tree, keys, value); err != nil {
			return fmt.Errorf("--set %s: %w", assignment, err)
		}
	}
	return nil
}

// Set writes a value at the path that keys name, and creates the maps on the way to it.
func Set(tree map[string]any, keys []string, value any) error {
	for i, key := range keys {
		switch {
		case key == "":
			return errors.New("a part of the key is empty")
		case strings.HasSuffix(key, "]"):
			return errors.New("a list is given as a whole: KEY={A,B}")
		case i == len(keys)-1:
			tree[key] = value
			return nil
		}
		next, ok := tree[key].(map[string]any)
		if !ok {
			if tree[key] != nil {
				return fmt.Errorf("%s has no keys below it", strings.Join(keys[:i+1], "."))
			}
			next = map[string]any{}
			tree[key] = next
		}
		tree = next
	}
	return errors.New("the key is empty")
}

func parseValue(text string) any {
	if inner, ok := strings.CutPrefix(text, "{"); ok && strings.HasSuffix(inner, "}") {
		list := []any{}
		for _, item := range split(strings.TrimSuffix(inner, "}"), ',') {
			if strings.TrimSpace(item) == "" {
				continue
			}
			list = append(list, parseValue(strings.TrimSpace(item)))
		}
		return list
	}
	text = unescape(text)
	// Only scalars of JSON: those that YAML adds (no, y, 010) are meant as strings more often than not.
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		return text
	}
	switch value.(type) {
	case map[string]any, []any:
		return text // an object or a list of JSON: these are set key by key
	}
	return value
}

// split splits text at each separator that is neither escaped by a backslash nor between braces.
func split(text string, at byte) []string {
	var parts []string
	depth, begin := 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == at && depth == 0:
			parts = append(parts, text[begin:i])
			begin = i + 1
		case c == '{':
			depth++
		case c == '}' && depth > 0:
			depth--
		}
	}
	return append(parts, text[begin:])
}

func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
		}
		out.WriteByte(text[i])
	}
	return out.String()
}
