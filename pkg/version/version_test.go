package version

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	info := func(version, revision string) *debug.BuildInfo {
		b := &debug.BuildInfo{
			Settings: []debug.BuildSetting{{Key: "vcs.time", Value: "now"}, {Key: "vcs.revision", Value: revision}},
		}
		b.Main.Version = version
		return b
	}
	for name, tc := range map[string]struct {
		version, commit string
		info            *debug.BuildInfo
		want            string
	}{
		"nothing":         {want: "v0.0.0-dev unknown"},
		"the linker":      {"v1.2.3", "abc", nil, "v1.2.3 abc"},
		"the linker wins": {"v1.2.3", "abc", info("v9", "def"), "v1.2.3 abc"},
		"go install":      {"", "", info("v9", "def"), "v9 def"},
		"go run":          {"", "", info("(devel)", ""), "v0.0.0-dev unknown"},
	} {
		v, c := choose(tc.version, tc.commit, tc.info)
		if got := v + " " + c; got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestString(t *testing.T) {
	if v := Version(); !strings.HasPrefix(v, "v") || strings.ContainsAny(v, " \n") {
		t.Errorf("version = %q, want a v first and no white space", v)
	}
	for _, part := range []string{Version(), "commit ", runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH} {
		if !strings.Contains(String(), part) {
			t.Errorf("String = %q, want %q in it", String(), part)
		}
	}
}
