package v1alpha2

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// Change is a key that two configurations give different values.
type Change struct {
	Path string
	// From and To are the values as JSON, "unset" where there is none, and hidden where they are secret.
	From, To string
	// Live: the agent takes it over while it runs.
	Live bool
}

func (c Change) String() string { return fmt.Sprintf("%s: %s -> %s", c.Path, c.From, c.To) }

// unset is the value of a key that is not there.
const unset = "unset"

// Changes returns what another configuration changes, by path. Keys that this version does not act on are left out:
// there is nothing to take over. It is pure.
func Changes(from, to *EdgeCore) ([]Change, error) {
	var trees [4]any
	for i, e := range []*EdgeCore{from, to, from.Redacted(), to.Redacted()} {
		data, err := json.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("compare configurations: %w", err)
		}
		if err := json.Unmarshal(data, &trees[i]); err != nil {
			return nil, fmt.Errorf("compare configurations: %w", err)
		}
	}
	d := differ{keys: schema().Keys(), live: live(), reloadable: reloadable()}
	d.walk("", trees[0], trees[1], trees[2], trees[3], false, false)
	return d.changes, nil
}

// differ compares two configurations and redacts secrets.
type differ struct {
	keys             map[string]reflect.Type
	live, reloadable map[string]bool
	changes          []Change
}

func (d *differ) walk(path string, from, to, showFrom, showTo any, used, taken bool) {
	if reflect.DeepEqual(from, to) {
		return
	}
	used, taken = used || d.live[path], taken || d.reloadable[path]
	if d.mapping(path) {
		a, b, shownA, shownB := mapOf(from), mapOf(to), mapOf(showFrom), mapOf(showTo)
		all := map[string]any{}
		maps.Copy(all, a)
		maps.Copy(all, b)
		for _, k := range slices.Sorted(maps.Keys(all)) {
			d.walk(strict.Join(path, k), a[k], b[k], shownA[k], shownB[k], used, taken)
		}
		return
	}
	if used {
		d.changes = append(d.changes, Change{Path: path, From: text(showFrom), To: text(showTo), Live: taken})
	}
}

// mapping reports whether there are keys of ours below a path; a mapping of the user's own keys is one value.
func (d *differ) mapping(path string) bool {
	t, known := d.keys[path]
	return path == "" || known && strict.IsMapping(t)
}

func mapOf(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func text(v any) string {
	if v == nil {
		return unset
	}
	data, err := json.Marshal(v)
	if err != nil {
		return unset
	}
	return strict.Clip(string(data))
}
