package configreload

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/filewatch"
	"github.com/edgecore-io/edgecore/pkg/filewatch/filewatchtest"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// aReloader has a file with a text, and remembers what it hands on.
func aReloader(t *testing.T, text string) (*reloader, *health.Registry, chan *v1alpha2.EdgeCore) {
	t.Helper()
	file := writeConfig(t, text)
	cfg, _, err := v1alpha2.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	conditions, taken := &health.Registry{}, make(chan *v1alpha2.EdgeCore, 100)
	opts := Options{
		File: file, Watcher: filewatchtest.New(t), Started: cfg, Conditions: conditions,
		Apply: func(next *v1alpha2.EdgeCore) error {
			taken <- next
			return nil
		},
	}
	return &reloader{Options: opts, applied: cfg}, conditions, taken
}

// TestBadAtTheStart: a file that was not used at the start is not applied until it changes. What is in force as a whole
// is handed on.
func TestBadAtTheStart(t *testing.T) {
	r, conditions, taken := aReloader(t, fmt.Sprintf(inKubelet, "maxPods: 20, eventRecordQPS: 5"))
	bad := errors.New("the cloud was not reached")
	var inForce []string
	data, err := v1alpha2.Read(r.File)
	if err != nil {
		t.Fatal(err)
	}
	r.Started = v1alpha2.Default()
	r.applied, r.Bad, r.BadData = r.Started, bad, data
	r.InForce = func(_ *v1alpha2.EdgeCore, data []byte, whole bool) {
		if whole {
			inForce = append(inForce, string(data))
		}
	}
	r.reload()
	if list := conditions.Snapshot(); len(list) != 1 || list[0].Code != health.ConfigurationBad ||
		list[0].Detail != bad.Error() || len(taken) != 0 {
		t.Errorf("conditions %+v, %d files applied; want ConfigurationBad, and none", list, len(taken))
	}
	rewrite(t, r.File, fmt.Sprintf(inKubelet, "maxPods: 20, eventRecordQPS: 6"))
	r.reload()
	if list := conditions.Snapshot(); len(list) != 1 || list[0].Code != health.RestartNeeded || len(taken) != 1 ||
		len(inForce) != 0 {
		t.Errorf("conditions %+v, %d files applied, %d in force; want RestartNeeded, one, and none", list, len(taken),
			len(inForce))
	}
	rewrite(t, r.File, fmt.Sprintf(inKubelet, "eventRecordQPS: 6"))
	r.reload()
	if list := conditions.Snapshot(); len(list) != 0 || len(inForce) != 1 ||
		!strings.Contains(inForce[0], "eventRecordQPS: 6") {
		t.Errorf("conditions %+v, in force %q; want none, and the file", list, inForce)
	}
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edgecore.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: "+v1alpha2.APIVersion+"\nkind: EdgeCore\n"+text),
		0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func rewrite(t *testing.T, file, text string) {
	t.Helper()
	from := writeConfig(t, text)
	if err := os.Rename(from, file); err != nil {
		t.Fatal(err)
	}
}

const inKubelet = "modules: {edged: {tailoredKubeletConfig: {%s}}}\n"

// TestReload: each file in turn, after one with maxPods 20 and 5 events a second.
func TestReload(t *testing.T) {
	r, conditions, taken := aReloader(t, fmt.Sprintf(inKubelet, "maxPods: 20, eventRecordQPS: 5"))
	for _, step := range []struct {
		name, text string
		takes      bool
		// want are the conditions after it, each with a part of its detail.
		want map[health.Code]string
	}{
		{"nothing", "maxPods: 20, eventRecordQPS: 5", false, nil},
		{"what is taken over", "maxPods: 20, eventRecordQPS: 6", true, nil},
		{
			"invalid", "maxPods: 20, eventRecordQPS: -1", false,
			map[health.Code]string{health.ConfigurationBad: "eventRecordQPS"},
		},
		{"no YAML", "maxPods: [", false, map[health.Code]string{health.ConfigurationBad: ""}},
		{
			"mended, and one that waits", "maxPods: 30, eventRecordQPS: 6", true,
			map[health.Code]string{health.RestartNeeded: "maxPods: 20 -> 30"},
		},
		{
			"invalid while one waits", "maxPods: -1", false, map[health.Code]string{health.ConfigurationBad: "maxPods",
				health.RestartNeeded: "maxPods: 20 -> 30"},
		},
		{
			"two wait", "maxPods: 31, podPidsLimit: 99", true, map[health.Code]string{
				health.RestartNeeded: "maxPods: 20 -> 31; modules.edged.tailoredKubeletConfig.podPidsLimit: -1 -> 99",
			},
		},
		{"taken back", "maxPods: 20, eventRecordQPS: 5", true, nil},
	} {
		rewrite(t, r.File, fmt.Sprintf(inKubelet, step.text))
		r.reload()
		if got := len(taken) > 0; got != step.takes {
			t.Errorf("%s: handed on: %v, want %v", step.name, got, step.takes)
		}
		for len(taken) > 0 {
			<-taken
		}
		list := conditions.Snapshot()
		if len(list) != len(step.want) {
			t.Errorf("%s: %+v, want %v", step.name, list, step.want)
		}
		for _, c := range list {
			if want, ok := step.want[c.Code]; !ok || !strings.Contains(c.Detail, want) {
				t.Errorf("%s: %s says %q, want %q", step.name, c.Code, c.Detail, want)
			}
		}
	}
	r.Apply = func(*v1alpha2.EdgeCore) error { return errors.New("no room") }
	rewrite(t, r.File, fmt.Sprintf(inKubelet, "eventRecordQPS: 9"))
	r.reload()
	if c, _ := conditions.Healthy(); len(conditions.Snapshot()) != 1 ||
		!strings.Contains(conditions.Snapshot()[0].Detail, "no room") {
		t.Errorf("%+v, %+v: want what a part had against it", conditions.Snapshot(), c)
	}
}

// TestReloadNoticesTheFile: a file that is replaced, written into, or changed behind a link is read without being
// asked.
func TestReloadNoticesTheFile(t *testing.T) {
	r, _, taken := aReloader(t, fmt.Sprintf(inKubelet, "eventRecordQPS: 5"))
	real := r.File
	r.File = filepath.Join(t.TempDir(), "link.yaml")
	if err := os.Symlink(real, r.File); err != nil {
		t.Fatal(err)
	}
	told, quiet := Hangups()
	defer quiet()
	defer Start(t.Context(), told, r.Options)()
	expect := func(what string, qps int32) {
		t.Helper()
		for {
			cfg := wait.Receive(t, what+" to be noticed", taken)
			if *cfg.Modules.Edged.TailoredKubeletConfig.EventRecordQPS == qps {
				return
			}
		}
	}
	rewrite(t, real, fmt.Sprintf(inKubelet, "eventRecordQPS: 6"))
	expect("replaced behind a link", 6)
	text, err := os.ReadFile(real)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(real, []byte(strings.Replace(string(text), "QPS: 6", "QPS: 17", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	expect("written into", 17)
	other := writeConfig(t, fmt.Sprintf(inKubelet, "eventRecordQPS: 8"))
	if err := os.Symlink(other, r.File+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(r.File+".new", r.File); err != nil {
		t.Fatal(err)
	}
	expect("another link", 8)
}

// TestReloadUnwatched: where no folder can be watched, a change is noticed all the same, later.
func TestReloadUnwatched(t *testing.T) {
	r, _, taken := aReloader(t, fmt.Sprintf(inKubelet, "eventRecordQPS: 5"))
	synctest.Test(t, func(t *testing.T) {
		r.Watcher = filewatch.New(filewatch.Options{
			Open: func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE },
		})
		defer r.Watcher.Close()
		defer Start(t.Context(), nil, r.Options)()
		time.Sleep(2 * quietFor)
		rewrite(t, r.File, fmt.Sprintf(inKubelet, "eventRecordQPS: 6"))
		time.Sleep(rescan + 2*quietFor)
		select {
		case cfg := <-taken:
			if got := *cfg.Modules.Edged.TailoredKubeletConfig.EventRecordQPS; got != 6 {
				t.Errorf("eventRecordQPS = %d, want 6", got)
			}
		default:
			t.Errorf("the change was not noticed within %v", rescan)
		}
	})
}

// TestReloadOnSIGHUP: the file is read though nothing about it looks new, and the program goes on.
func TestReloadOnSIGHUP(t *testing.T) {
	r, conditions, _ := aReloader(t, fmt.Sprintf(inKubelet, "maxPods: 21"))
	told, quiet := Hangups()
	defer quiet()
	defer Start(t.Context(), told, r.Options)()
	waits := func(what, detail string) {
		t.Helper()
		wait.Until(t, what+" to be read", func() error {
			list := conditions.Snapshot()
			if len(list) == 1 && list[0].Code == health.RestartNeeded && strings.Contains(list[0].Detail, detail) {
				return nil
			}
			return fmt.Errorf("conditions %+v, want %s with %q", list, health.RestartNeeded, detail)
		})
	}
	rewrite(t, r.File, fmt.Sprintf(inKubelet, "maxPods: 22"))
	waits("changed", "21 -> 22")
	info, err := os.Stat(r.File)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(r.File)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.File, []byte(strings.Replace(string(text), "22", "23", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(r.File, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	arrived := make(chan os.Signal, 1) // after the test nobody would take it
	signal.Notify(arrived, syscall.SIGHUP)
	defer signal.Stop(arrived)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	<-arrived
	waits("SIGHUP", "21 -> 23")
}
