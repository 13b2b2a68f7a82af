package cloudhub

import (
	"strings"
	"testing"
)

func TestLimitOf(t *testing.T) {
	for name, tc := range map[string]struct {
		configured int
		files      uint64
		want       limit
		remedy     string
	}{
		"enough":      {500, 1 << 20, limit{nodes: 500}, "nodeLimit"},
		"just enough": {7, 78, limit{nodes: 7}, "nodeLimit"},
		"too few":     {12000, 20000, limit{nodes: 8750, byFiles: true}, "ulimit -n"},
		"hardly any":  {500, 1, limit{nodes: 1, byFiles: true}, "ulimit -n"},
		"unlimited":   {500, 1<<64 - 1, limit{nodes: 500}, "nodeLimit"},
		"unknown":     {500, 0, limit{nodes: 500}, "nodeLimit"},
	} {
		tc.want.perNode = filesOfNode
		got := limitOf(tc.configured, tc.files, filesOfNode)
		if got != tc.want || !strings.Contains(got.full().Error(), tc.remedy) {
			t.Errorf("%s: %+v, %q; want %+v, and to raise %s", name, got, got.full(), tc.want, tc.remedy)
		}
	}
	if got := limitOf(12000, 20000, filesOfNode+filesOfAPI).nodes; got != 5833 {
		t.Errorf("with the files of connections for the API: %d nodes, want 5833", got)
	}
}

// TestArrivalsOf: how many connections may be without a request follows from the nodes and from the open files.
func TestArrivalsOf(t *testing.T) {
	for name, tc := range map[string]struct {
		nodes     int
		files     uint64
		connected int
		want      int
	}{
		"enough files":           {1000, 1 << 20, 1000, 3000},
		"unknown":                {500, 0, 0, 2000},
		"unlimited":              {500, 1<<64 - 1, 500, 2000},
		"few files, no node":     {1792, 4096, 0, 3968},
		"few files, all nodes":   {1792, 4096, 1792, 384},
		"hardly any, and a node": {1, 3, 1, arrivalsLeast},
	} {
		if got := (limit{nodes: tc.nodes, perNode: filesOfNode}).arrivalsOf(tc.files, tc.connected); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
