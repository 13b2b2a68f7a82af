package agentconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// TestCheckFolders: a folder that can never be is named with its key; one that is not there yet is no problem.
func TestCheckFolders(t *testing.T) {
	dir := t.TempDir()
	file, loop, unmounted := filepath.Join(dir, "file"), filepath.Join(dir, "loop"), filepath.Join(dir, "unmounted")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{loop: loop, unmounted: filepath.Join(dir, "none", "x")} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct{ store, root, logs, want string }{
		"as they are":        {dir + "/edgecore.db", dir, dir, ""},
		"not there yet":      {dir + "/a/b/edgecore.db", dir + "/c/d", dir + "/e", ""},
		"in memory":          {"/run/none/edgecore.db", dir, dir, ""},
		"of the kernel":      {"/proc/none/edgecore.db", dir, dir, "database.dataSource: /proc/none"},
		"pods of the kernel": {dir + "/edgecore.db", "/sys/none", dir, "modules.edged.rootDirectory: /sys/none"},
		"below a file":       {dir + "/edgecore.db", dir, file + "/logs", "podLogsDir: " + file + "/logs"},
		"a file":             {dir + "/edgecore.db", file, dir, "is not a folder"},
		"a loop":             {loop + "/edgecore.db", dir, dir, "too many levels"},
		"on a disk to come":  {dir + "/edgecore.db", unmounted + "/root", dir, ""},
		"the store a folder": {dir, dir, dir, "is not a file"},
		"a long name":        {dir + "/edgecore.db", dir + "/" + strings.Repeat("x", 300), dir, "too long"},
	} {
		cfg := v1alpha2.Default()
		cfg.Database.DataSource, cfg.Modules.Edged.RootDirectory = c.store, c.root
		cfg.Modules.Edged.TailoredKubeletConfig.PodLogsDir = c.logs
		err := CheckFolders(cfg)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: CheckFolders = %v, want %q", name, err, c.want)
		}
	}
}
