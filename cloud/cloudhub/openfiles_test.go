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
		got := limitOf(tc.configured, tc.files)
		if got != tc.want || !strings.Contains(got.full().Error(), tc.remedy) {
			t.Errorf("%s: %+v, %q; want %+v, and to raise %s", name, got, got.full(), tc.want, tc.remedy)
		}
	}
}
