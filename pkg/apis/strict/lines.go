package strict

import (
	"bytes"
	"fmt"
	"strings"
)

// lineIndex finds the line of a key. The YAML library keeps no positions, and a second library just for errors would
// cost the device a part of a megabyte, so this reads the indentation. In forms that it does not follow, such as {a:
// {b: 1}}, it returns the line of the enclosing key.
type lineIndex struct {
	lines map[string]int
	paths map[int]string
}

// frame is an open mapping key or list item. The depth is twice the column, plus one for the dash of a list, which may
// be in the column of the list's key.
type frame struct {
	depth int
	path  string
}

// maxDepth limits the depth of the index; the configuration itself is 8 deep.
const maxDepth = 24

func indexLines(data []byte) *lineIndex {
	x := &lineIndex{lines: map[string]int{}, paths: map[int]string{}}
	var stack []frame
	items := map[string]int{}
	block := -1 // the column of the key whose text block is being skipped
	number := 0
	for line := range bytes.Lines(data) {
		number++
		text := strings.TrimRight(string(line), " \t\r\n")
		rest := strings.TrimLeft(text, " ")
		column := len(text) - len(rest)
		if rest == "" || block >= 0 && column > block {
			continue
		}
		block = -1
		for len(stack) < maxDepth && (rest == "-" || strings.HasPrefix(rest, "- ")) {
			stack = closeFrames(stack, 2*column+1)
			parent := top(stack)
			path := fmt.Sprintf("%s[%d]", parent, items[parent])
			items[parent]++
			x.note(path, number)
			stack = append(stack, frame{2*column + 1, path})
			after := strings.TrimLeft(strings.TrimPrefix(rest, "-"), " ")
			column += len(rest) - len(after)
			rest = after
		}
		key, value, ok := splitKey(rest)
		if !ok {
			continue
		}
		stack = closeFrames(stack, 2*column)
		if len(stack) >= maxDepth {
			continue
		}
		path := Join(top(stack), key)
		x.note(path, number)
		stack = append(stack, frame{2 * column, path})
		if strings.HasPrefix(value, "|") || strings.HasPrefix(value, ">") {
			block = column
		}
	}
	return x
}

func closeFrames(stack []frame, depth int) []frame {
	for len(stack) > 0 && stack[len(stack)-1].depth >= depth {
		stack = stack[:len(stack)-1]
	}
	return stack
}

func top(stack []frame) string {
	if len(stack) == 0 {
		return ""
	}
	return stack[len(stack)-1].path
}

// splitKey reads `key: value`, with or without quotes around the key.
func splitKey(s string) (key, value string, ok bool) {
	if s == "" || s[0] == '#' {
		return "", "", false
	}
	if q := s[0]; q == '"' || q == '\'' {
		end := strings.IndexByte(s[1:], q)
		if end < 0 {
			return "", "", false
		}
		value, ok = strings.CutPrefix(strings.TrimLeft(s[end+2:], " "), ":")
		return s[1 : end+1], strings.TrimLeft(value, " "), ok
	}
	for i := range len(s) {
		if s[i] == ':' && (i+1 == len(s) || s[i+1] == ' ') {
			return strings.TrimRight(s[:i], " "), strings.TrimLeft(s[i+1:], " "), true
		}
	}
	return "", "", false
}

func (x *lineIndex) note(path string, line int) {
	if _, ok := x.lines[path]; !ok {
		x.lines[path] = line
	}
	x.paths[line] = path
}

// line returns the line of path, or of what encloses it; 0 if neither is known.
func (x *lineIndex) line(path string) int {
	for path != "" {
		if n, ok := x.lines[path]; ok {
			return n
		}
		if n, ok := x.lines[dotted(path)]; ok {
			return n
		}
		path = parentOf(path)
	}
	return 0
}

// dotted writes a[b.c] as a.b.c: the index does not know which mappings have user-chosen keys.
func dotted(path string) string {
	if !strings.HasSuffix(path, "]") {
		return path
	}
	open := strings.LastIndexByte(path, '[')
	return path[:open] + "." + path[open+1:len(path)-1]
}

func parentOf(path string) string {
	if strings.HasSuffix(path, "]") {
		return path[:max(0, strings.LastIndexByte(path, '['))]
	}
	return path[:max(0, strings.LastIndexByte(path, '.'))]
}

// Join is the path of a key in a mapping.
func Join(parent, key string) string {
	if parent == "" {
		return key
	}
	return parent + "." + key
}

// Split is the keys of a path outside lists and maps; none for "".
func Split(path string) []string {
	if path == "" {
		return nil
	}
	return strings.Split(path, ".")
}
