package endpods

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// TestAwaitPods: how often and for how long a runtime is asked.
func TestAwaitPods(t *testing.T) {
	const halfway = 2500 * time.Millisecond // through a pause
	unavailable := status.Error(codes.Unavailable, "no such file or directory")
	uninitialized := status.Error(codes.Unknown, "server is not initialized yet")
	unimplemented := status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService")
	for name, c := range map[string]struct {
		within time.Duration
		cancel time.Duration // after which the caller gives up; 0 is never
		errs   []error       // of the answers; the last one is repeated
		asked  int
		took   time.Duration
		want   error
	}{
		"answers at once":     {time.Minute, 0, []error{nil}, 1, 0, nil},
		"restarts":            {time.Minute, 0, []error{unavailable, uninitialized, nil}, 3, 2 * time.Second, nil},
		"is gone":             {time.Minute, 0, []error{unavailable}, 31, 30 * time.Second, unavailable},
		"is gone, short":      {5 * time.Second, 0, []error{unavailable}, 6, 5 * time.Second, unavailable},
		"is gone, no time":    {0, 0, []error{unavailable}, 1, 0, unavailable},
		"has no CRI":          {time.Minute, 0, []error{unimplemented}, 1, 0, unimplemented},
		"the caller gives up": {time.Minute, halfway, []error{unavailable}, 3, halfway, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if c.cancel > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.cancel)
					defer cancel()
				}
				var output bytes.Buffer
				o := &ender{Options{
					RuntimeEndpoint: "unix:///run/cri.sock",
					Within:          c.within,
					Wait:            DefaultWait,
					Interval:        DefaultInterval,
					Progress:        &output,
				}}
				start, asked := time.Now(), 0
				_, err := o.awaitPods(ctx, func(context.Context) ([]*observed.Pod, error) {
					asked++
					return nil, c.errs[min(asked, len(c.errs))-1]
				})
				if took := time.Since(start); !errors.Is(err, c.want) || asked != c.asked || took != c.took {
					t.Errorf("awaitPods = %v after %d requests and %s, want %v after %d and %s",
						err, asked, took, c.want, c.asked, c.took)
				}
				if got, want := strings.Count(output.String(), "\n"), min(c.asked-1, 1); got != want {
					t.Errorf("awaitPods says %q, want %d lines", output.String(), want)
				}
			})
		})
	}
}

func TestOwnPods(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "pods/a"), 0o755),
		os.WriteFile(filepath.Join(root, "pods/file"), nil, 0o644),
		os.Symlink(root, filepath.Join(root, "pods/link"))); err != nil {
		t.Fatal(err)
	}
	var got []types.UID
	for _, uid := range []types.UID{"a", "b", "file", "link", "..", ".", "", "a/../a", "../pods"} {
		mine, others := ownPods([]*observed.Pod{{UID: uid}}, root)
		if len(mine)+len(others) != 1 {
			t.Errorf("ownPods(%q) = %v, %v; want one pod in all", uid, mine, others)
		}
		if len(mine) == 1 {
			got = append(got, uid)
		}
	}
	if diff := cmp.Diff([]types.UID{"a"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
