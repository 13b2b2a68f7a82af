package shutdown

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/edged/pods/shutdown/logindtest"
)

// TestFormerLimit: a limit that an earlier version raised in /etc moves to /run, also where logind has taken it
// already.
func TestFormerLimit(t *testing.T) {
	for _, has := range []time.Duration{5 * time.Second, time.Minute} {
		l := logindtest.Start(t, has)
		dir := t.TempDir()
		conf, former := filepath.Join(dir, "run"), filepath.Join(dir, "etc")
		old := filepath.Join(former, confName)
		if err := errors.Join(os.Mkdir(former, 0o755), os.WriteFile(old, []byte("[Login]\nInhibitDelayMaxSec=30\n"),
			0o644)); err != nil {
			t.Fatal(err)
		}
		watch(t, Options{
			Groups:            []Group{{0, seconds(30)}},
			Address:           l.Address,
			ConfDir:           conf,
			DeprecatedConfDir: former,
		}).wait(t)
		text, err := os.ReadFile(filepath.Join(conf, confName))
		if err != nil || !strings.Contains(string(text), "\nInhibitDelayMaxSec=30\n") {
			t.Errorf("limit %v: the file in /run says %q, %v; want InhibitDelayMaxSec=30", has, text, err)
		}
		if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("limit %v: Stat of the former file = %v, want it removed", has, err)
		}
	}
	if got := New(Options{}).opts; !slices.Equal([]string{got.ConfDir, got.DeprecatedConfDir},
		[]string{"/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d"}) {
		t.Errorf("the system's folders are %s and %s, want those in /run and /etc", got.ConfDir, got.DeprecatedConfDir)
	}
}
