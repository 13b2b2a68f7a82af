package images

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// meter shows what its function says of the time since its making.
type meter struct {
	began time.Time
	show  func(since time.Duration) ([]Fetch, uint64)
	err   error
}

func newMeter(show func(time.Duration) ([]Fetch, uint64)) *meter {
	return &meter{began: time.Now(), show: show}
}

func (m *meter) Fetches(context.Context) ([]Fetch, error) {
	list, _ := m.show(time.Since(m.began))
	return list, m.err
}

func (m *meter) Room(context.Context) (uint64, error) {
	_, room := m.show(time.Since(m.began))
	return room, nil
}

// hangs is a pull that ends only when it is given up.
func hangs(ctx context.Context, _ *runtimeapi.PullImageRequest) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestDeadlineByProgress: a pull may last for hours as long as something comes, and is given up soon when nothing does.
func TestDeadlineByProgress(t *testing.T) {
	layer := func(offset int64) []Fetch { return []Fetch{{Ref: "layer-1", Offset: offset, Total: 100 << 20}} }
	for _, c := range []struct {
		name string
		show func(since time.Duration) ([]Fetch, uint64)
		// after is when it is given up; 0 is not within three hours.
		after time.Duration
		says  string
	}{
		{"a byte a minute", func(s time.Duration) ([]Fetch, uint64) { return layer(int64(s / time.Minute)), 0 }, 0, ""},
		{"nothing", func(time.Duration) ([]Fetch, uint64) { return nil, 7 }, DefaultProgressTimeout + 5*time.Second,
			"nothing received"},
		{"stops half way", func(s time.Duration) ([]Fetch, uint64) {
			return layer(int64(min(s, time.Hour)/time.Second) << 10), 0
		}, time.Hour + DefaultProgressTimeout, "received 3.5 MiB of 100.0 MiB at "},
		{"unpacks", func(s time.Duration) ([]Fetch, uint64) { return nil, uint64(s / time.Minute) }, 0, ""},
		{"others write while it hangs", func(s time.Duration) ([]Fetch, uint64) {
			return layer(1), uint64(s)
		}, DefaultProgressTimeout + 5*time.Second, "received 1 B"},
		{"blob after blob", func(s time.Duration) ([]Fetch, uint64) {
			return []Fetch{{Ref: "layer-" + (s / time.Minute).String(), Offset: 5}}, 0
		}, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
				defer cancel()
				began := time.Now()
				p := New(&service{pull: hangs}, Options{Recorder: &eventLog{}, Meter: newMeter(c.show)})
				_, _, err := p.Pull(ctx, "a:1", nil, nil)
				took := time.Since(began)
				if c.after == 0 {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("given up after %v: %v, want it to go on", took, err)
					}
					return
				}
				stalled, ok := errors.AsType[*StalledError](err)
				if !ok || took < c.after-5*time.Second || took > c.after+5*time.Second ||
					!strings.Contains(err.Error(), c.says) {
					t.Errorf("after %v: %v; want %q after %v", took, err, c.says, c.after)
				} else if stalled.After < DefaultProgressTimeout {
					t.Errorf("given up after %v without progress, want %v or more",
						stalled.After, DefaultProgressTimeout)
				}
			})
		})
	}
}

// TestSlowPullTells: a slow pull says how far it is, ever less often, and at its end how fast it was.
func TestSlowPullTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 60 << 20
		s := &service{pull: func(context.Context, *runtimeapi.PullImageRequest) error {
			time.Sleep(598 * time.Second)
			return nil
		}}
		rec := &eventLog{}
		p := New(s, Options{Recorder: rec, Meter: newMeter(func(since time.Duration) ([]Fetch, uint64) {
			return []Fetch{{Ref: "layer", Offset: size * int64(since.Seconds()) / 600, Total: size}}, 0
		})})
		pulled := 0
		p.opts.Pulled = func() { pulled++ }
		if ref, reason, _ := ensure(t.Context(), p, testPod("a:1", v1.PullIfNotPresent)); ref == "" {
			t.Fatalf("pull: %q, want it to succeed", reason)
		}
		want := []string{
			`Pulling: Pulling image "a:1"`,
			`Pulling: Pulling image "a:1": received 6.0 MiB of 60.0 MiB at 102.4 KiB/s so far`,
			`Pulling: Pulling image "a:1": received 12.0 MiB of 60.0 MiB at 102.4 KiB/s so far`,
			`Pulling: Pulling image "a:1": received 24.0 MiB of 60.0 MiB at 102.4 KiB/s so far`,
			`Pulling: Pulling image "a:1": received 48.0 MiB of 60.0 MiB at 102.4 KiB/s so far`,
			`Pulled: Successfully pulled image "a:1" in 9m58s (9m58s including waiting). Image size: 0 bytes. It received 59.5 MiB of 60.0 MiB at 101.9 KiB/s.`,
		}
		if diff := cmp.Diff(want, rec.list); diff != "" || pulled != 1 {
			t.Errorf("pulled %d times, want once; events mismatch (-want +got):\n%s", pulled, diff)
		}
	})
}

// TestStalledPullBacksOff: to be given up is a failure like others.
func TestStalledPullBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(&service{
			pull: hangs,
		}, Options{Recorder: &eventLog{}, Meter: newMeter(func(time.Duration) ([]Fetch, uint64) { return nil, 0 })})
		pod := testPod("a:1", v1.PullIfNotPresent)
		if _, reason, _ := ensure(t.Context(), p, pod); !strings.HasPrefix(reason,
			"ErrImagePull: nothing was received for 5m0s") {
			t.Errorf("reason %q, want ErrImagePull: nothing was received for 5m0s", reason)
		}
		if _, reason, _ := ensure(t.Context(), p, pod); !strings.HasPrefix(reason,
			"ImagePullBackOff: Back-off pulling image") {
			t.Errorf("reason %q, want ImagePullBackOff", reason)
		}
	})
}

func TestBytes(t *testing.T) {
	for n, want := range map[float64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 5 << 20: "5.0 MiB", 3 << 50: "3072.0 TiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%v) = %s, want %s", n, got, want)
		}
	}
}
