package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// setAll lays assignments such as modules.edged.nodeIP=192.0.2.1,modules.edged.reportEvent=true over a tree,
// as --set of keadm and helm does: true, 5 and null are taken as what they are, {a,b} is a list, and a backslash takes its
// meaning from a dot, a comma or an equals sign. Whether the keys exist is checked with the whole file.
func setAll(tree map[string]any, text string) error {
	for _, assignment := range splitOutside(text, ',') {
		if strings.TrimSpace(assignment) == "" {
			continue
		}
		parts := splitOutside(assignment, '=')
		if len(parts) < 2 {
			return fmt.Errorf("--set %s: want KEY=VALUE", assignment)
		}
		value := setValue(strings.Join(parts[1:], "="))
		var keys []string
		for _, key := range splitOutside(strings.TrimSpace(parts[0]), '.') {
			keys = append(keys, unescape(key))
		}
		if err := setKey(tree, keys, value); err != nil {
			return fmt.Errorf("--set %s: %w", assignment, err)
		}
	}
	return nil
}

// setKey puts a value into the tree; a map on the way is made where there is none.
func setKey(tree map[string]any, keys []string, value any) error {
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

func setValue(text string) any {
	if inner, ok := strings.CutPrefix(text, "{"); ok && strings.HasSuffix(inner, "}") {
		list := []any{}
		for _, item := range splitOutside(strings.TrimSuffix(inner, "}"), ',') {
			if strings.TrimSpace(item) == "" {
				continue
			}
			list = append(list, setValue(strings.TrimSpace(item)))
		}
		return list
	}
	text = unescape(text)
	// A scalar of JSON: what YAML knows beyond that (no, y, 010) is meant as a text more often than not.
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		return text
	}
	switch value.(type) {
	case map[string]any, []any:
		return text // structures are set key by key
	}
	return value
}

// splitOutside splits at a byte that stands neither behind a backslash nor between braces.
func splitOutside(text string, at byte) []string {
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
