package strict

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// maxSuggested limits the searches for nearest names in a file of another kind.
const maxSuggested = 20

// noSuchKey begins the text of a problem with an unknown key.
const noSuchKey = "no such key"

// unknownKey reports an unknown key with the nearest known name: the same name at another place, or a similar name
// here.
func (w *walker) unknownKey(at, parent, key string, here map[string]reflect.Type) {
	text := noSuchKey
	if w.suggested < maxSuggested {
		w.suggested++
		text = suggestion(w.root, parent, Clip(key), here)
	}
	w.problems = append(w.problems, Problem{Path: at, Text: text})
}

func suggestion(root reflect.Type, parent, key string, here map[string]reflect.Type) string {
	name, distance := Nearest(key, SortedKeys(here))
	if distance > min(2, len(key)/3) {
		if elsewhere := placesOf(root, key); len(elsewhere) > 0 {
			return noSuchKey + " here; it belongs at " + strings.Join(elsewhere, " or ")
		}
	}
	if distance <= len(key)/2+1 {
		return fmt.Sprintf(noSuchKey+"; did you mean %q?", name)
	}
	where := "at the top"
	if parent != "" {
		where = "in " + parent
	}
	return fmt.Sprintf(noSuchKey+"; the nearest one %s is %q", where, name)
}

// placesOf returns the full paths of the keys of that name, outside lists.
func placesOf(root reflect.Type, key string) []string {
	var found []string
	for path := range keysOf(root) {
		if strings.EqualFold(path[strings.LastIndexByte(path, '.')+1:], key) {
			found = append(found, path)
		}
	}
	slices.Sort(found)
	if len(found) > 3 {
		return nil // such as enable, which every module has
	}
	return found
}

// Nearest returns the candidate with the fewest letters to change, ignoring case.
func Nearest(key string, candidates []string) (string, int) {
	best, distance := "", -1
	for _, c := range candidates {
		if d := editDistance(strings.ToLower(key), strings.ToLower(c)); distance < 0 || d < distance {
			best, distance = c, d
		}
	}
	return best, distance
}

// editDistance returns the number of bytes to change, add or drop to turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := last
			if a[i] != b[j] {
				cost++
			}
			last = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
