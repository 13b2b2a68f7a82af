package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestCgroupLimit: the memory limit is found with cgroup v1 and v2, on a host and in a container, and the lowest
// counts.
func TestCgroupLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroups": {nil, 0},
		"v2, a container": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1073741824\n",
		}, 1 << 30},
		"v2, a unit in a slice with less": {map[string]string{
			"proc/self/cgroup":                                        "0::/system.slice/cloudcore.service\n",
			"sys/fs/cgroup/system.slice/memory.max":                   "536870912\n",
			"sys/fs/cgroup/system.slice/cloudcore.service/memory.max": "max\n",
		}, 512 << 20},
		"v2, no limit": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n",
		}, 0},
		"v1, a container, whose path is the host's": {map[string]string{
			"proc/self/cgroup":                           "12:pids:/kubepods/x\n9:memory:/kubepods/x\n0::/kubepods/x\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
		}, 1 << 30},
		"v1, no limit": {map[string]string{
			"proc/self/cgroup": "9:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0},
		"nonsense": {map[string]string{
			"proc/self/cgroup": "nonsense\n0::/../../x\n", "sys/fs/cgroup/x/memory.max": "much\n",
		}, 0},
	} {
		root := t.TempDir()
		for file, text := range tc.files {
			path := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := cgroupLimit(root); got != tc.want {
			t.Errorf("%s: limit %d, want %d", name, got, tc.want)
		}
	}
}
