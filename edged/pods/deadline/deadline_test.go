package deadline

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/clock"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func TestActiveFor(t *testing.T) {
	noon := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	created := noon.Add(-time.Hour)
	here := func(up time.Duration) clock.Boot { return clock.Boot{ID: "here", Uptime: up} }
	for name, c := range map[string]struct {
		start time.Time
		began *clock.Boot
		now   clock.Boot
		wall  time.Time
		want  time.Duration
	}{
		"just begun": {noon, nil, here(time.Hour), noon, 0},
		"this boot": {
			noon, &clock.Boot{ID: "here", Uptime: time.Minute}, here(3 * time.Minute), noon.Add(2 * time.Minute),
			2 * time.Minute,
		},
		"this boot, the clock jumped ahead": {
			noon, &clock.Boot{ID: "here", Uptime: time.Minute}, here(3 * time.Minute), noon.Add(9999 * time.Hour),
			2 * time.Minute,
		},
		"this boot, the clock went back": {
			noon, &clock.Boot{ID: "here", Uptime: time.Minute}, here(3 * time.Minute), noon.Add(-9999 * time.Hour),
			2 * time.Minute,
		},
		"another boot": {
			noon, &clock.Boot{ID: "there", Uptime: 99 * time.Hour}, here(time.Minute), noon.Add(10 * time.Minute),
			10 * time.Minute,
		},
		"another boot, the clock is not set": {
			noon, &clock.Boot{ID: "there", Uptime: 0}, here(time.Minute), time.Unix(0, 0), 0,
		},
		"written before the clock was set": {time.Unix(100, 0), nil, here(time.Minute), noon, 0},
		"the node's clock is a little behind": {
			created.Add(-time.Minute), nil, here(time.Minute), noon, time.Hour + time.Minute,
		},
		"nothing is known": {time.Time{}, nil, here(time.Minute), noon, 0},
		"another boot, began with this uptime": {
			noon, &clock.Boot{ID: "there", Uptime: 0}, here(time.Minute), noon.Add(time.Second), time.Second,
		},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
		if got := activeFor(pod, c.start, c.began, c.now, c.wall); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestDeadlineOverRestarts: the next agent counts on, and what is written on the disk is believed only if it is whole.
func TestDeadlineOverRestarts(t *testing.T) {
	synctest.Test(t, deadlineOverRestarts)
}

// deadlineOverRestarts runs while the wall clock stands still. The boot clock is the machine's and goes on.
func deadlineOverRestarts(t *testing.T) {
	up := func() time.Duration {
		c, err := clock.ReadBoot()
		if err != nil {
			t.Fatal(err)
		}
		return c.Uptime
	}
	dir := filepath.Join(t.TempDir(), "pod")
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1"}}
	now := time.Now()
	if at := new(Tracker).Of(pod, now, dir); !at.IsZero() {
		t.Errorf("of(a pod without a deadline) = %v, want the zero time", at)
	}
	pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](100)
	var first Tracker
	before := up()
	at := first.Of(pod, now, dir)
	written := up()
	if want := now.Add(100 * time.Second); !at.Equal(want) {
		t.Errorf("it ends at %v, want %v", at, want)
	}
	// The status says that it began a day ago: the boot clock knows better.
	yesterday := now.Add(-24 * time.Hour)
	read := up()
	again := new(Tracker).Of(pod, yesterday, dir)
	after := up()
	if passed := at.Sub(again); passed < read-written || passed > after-before {
		t.Errorf("the next agent counts %v, want between %v and %v", passed, read-written, after-before)
	}
	pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](10)
	if got, want := first.Of(pod, yesterday, dir), now.Add(10*time.Second); !got.Equal(want) {
		t.Errorf("a shorter deadline ends at %v, want %v", got, want)
	}
	for _, text := range []string{"", "x", "other-boot 5\n"} {
		if err := os.WriteFile(filepath.Join(dir, beganFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, want := new(Tracker).Of(pod, yesterday, dir), yesterday.Add(10*time.Second); !got.Equal(want) {
			t.Errorf("%q: it ends at %v, want %v: the status says that it began yesterday", text, got, want)
		}
	}
	first.Forget("1")
	if len(first.began) != 0 {
		t.Errorf("began after forget(1) = %v, want none", first.began)
	}
}

func FuzzBegan(f *testing.F) {
	f.Add("a-b 12\n")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := parseBegan(text); err == nil && c.ID == "" {
			t.Errorf("parseBegan(%q) = %+v, want a boot ID or an error", text, c)
		}
	})
}
