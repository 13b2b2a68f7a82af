package edged

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestActiveFor(t *testing.T) {
	noon := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	created := noon.Add(-time.Hour)
	here := func(up time.Duration) bootClock { return bootClock{"here", up} }
	for name, c := range map[string]struct {
		start time.Time
		began *bootClock
		now   bootClock
		wall  time.Time
		want  time.Duration
	}{
		"just begun":                           {noon, nil, here(time.Hour), noon, 0},
		"this boot":                            {noon, &bootClock{"here", time.Minute}, here(3 * time.Minute), noon.Add(2 * time.Minute), 2 * time.Minute},
		"this boot, the clock jumped ahead":    {noon, &bootClock{"here", time.Minute}, here(3 * time.Minute), noon.Add(9999 * time.Hour), 2 * time.Minute},
		"this boot, the clock went back":       {noon, &bootClock{"here", time.Minute}, here(3 * time.Minute), noon.Add(-9999 * time.Hour), 2 * time.Minute},
		"another boot":                         {noon, &bootClock{"there", 99 * time.Hour}, here(time.Minute), noon.Add(10 * time.Minute), 10 * time.Minute},
		"another boot, the clock is not set":   {noon, &bootClock{"there", 0}, here(time.Minute), time.Unix(0, 0), 0},
		"written before the clock was set":     {time.Unix(100, 0), nil, here(time.Minute), noon, 0},
		"the node's clock is a little behind":  {created.Add(-time.Minute), nil, here(time.Minute), noon, time.Hour + time.Minute},
		"nothing is known":                     {time.Time{}, nil, here(time.Minute), noon, 0},
		"another boot, began with this uptime": {noon, &bootClock{"there", 0}, here(time.Minute), noon.Add(time.Second), time.Second},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
		if got := activeFor(pod, c.start, c.began, c.now, c.wall); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestDeadlineOverRestarts: the next agent counts on, and what is written on the disk is believed only if it is whole.
func TestDeadlineOverRestarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod")
	pod := testPod("p", "1")
	if at := new(deadlines).of(pod, time.Now(), dir); !at.IsZero() {
		t.Errorf("a pod without a deadline ends at %v", at)
	}
	pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](100)
	var first deadlines
	at := first.of(pod, time.Now(), dir)
	if left := time.Until(at); left < 40*time.Second || left > 100*time.Second {
		t.Errorf("it ends in %v", left)
	}
	// The status says that it began a day ago: the boot clock knows better.
	yesterday := time.Now().Add(-24 * time.Hour)
	again := new(deadlines).of(pod, yesterday, dir)
	if d := again.Sub(at).Abs(); d > 30*time.Second {
		t.Errorf("the next agent is %v off", d)
	}
	pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](10)
	if left := time.Until(first.of(pod, yesterday, dir)); left > 10*time.Second {
		t.Errorf("a shorter deadline ends in %v", left)
	}
	for _, text := range []string{"", "x", "other-boot 5\n"} {
		if err := os.WriteFile(filepath.Join(dir, beganFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(new(deadlines).of(pod, yesterday, dir)); left > 0 {
			t.Errorf("%q: %v are left, though the status says that it began yesterday", text, left)
		}
	}
	first.forget("1")
	if len(first.began) != 0 {
		t.Error("not forgotten")
	}
}

func FuzzBegan(f *testing.F) {
	f.Add("a-b 12\n")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := parseBegan(text); err == nil && c.boot == "" {
			t.Errorf("%q gives %+v", text, c)
		}
	})
}
