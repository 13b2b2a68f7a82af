package endpods

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestOutage: how often a pod's end is tried while the runtime restarts, and for how long.
func TestOutage(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "error reading from server: EOF")
	uninitialized := status.Error(codes.Unknown, "server is not initialized yet")
	failed := status.Error(codes.Unknown, "failed to stop container")
	for name, c := range map[string]struct {
		limit time.Duration
		errs  []error // of the attempts; the last one is repeated
		tried int
		took  time.Duration
		want  error
		says  int
	}{
		"ends at once":         {time.Minute, []error{nil}, 1, 0, nil, 0},
		"the runtime restarts": {time.Minute, []error{unavailable, uninitialized, nil}, 3, 2 * time.Second, nil, 1},
		"fails":                {time.Minute, []error{failed}, 1, 0, failed, 0},
		"restarts, then fails": {time.Minute, []error{unavailable, failed}, 2, time.Second, failed, 1},
		"the runtime is gone":  {time.Minute, []error{unavailable}, 31, 30 * time.Second, unavailable, 1},
		"is gone, with no time": {
			2500 * time.Millisecond, []error{unavailable}, 3, 2500 * time.Millisecond, unavailable, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.limit)
				defer cancel()
				var output bytes.Buffer
				away := &outage{
					endpoint: "unix:///run/cri.sock",
					wait:     DefaultWait,
					interval: DefaultInterval,
					out:      &output,
				}
				start, tried := time.Now(), 0
				err := away.retry(ctx, func(context.Context) error {
					tried++
					return c.errs[min(tried, len(c.errs))-1]
				})
				if took := time.Since(start); !errors.Is(err, c.want) || tried != c.tried || took != c.took {
					t.Errorf("retry = %v after %d attempts and %s, want %v after %d and %s", err, tried, took, c.want,
						c.tried, c.took)
				}
				if got := strings.Count(output.String(), "\n"); got != c.says {
					t.Errorf("retry says %q, want %d lines", output.String(), c.says)
				}
			})
		})
	}
}

// TestOutageIsShared: pods whose turn comes after the runtime has been away for too long do not wait again, and do
// after it was back.
func TestOutageIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unavailable := status.Error(codes.Unavailable, "no such file or directory")
		away := &outage{wait: DefaultWait, interval: DefaultInterval, out: &bytes.Buffer{}}
		for _, c := range []struct {
			what string
			err  error
			want time.Duration
		}{
			{"the first pod", unavailable, 30 * time.Second},
			{"the next pod", unavailable, 0},
			{"a pod of a runtime that is back", nil, 0},
			{"a pod of another outage", unavailable, 30 * time.Second},
		} {
			start := time.Now()
			if err := away.retry(t.Context(), func(context.Context) error { return c.err }); !errors.Is(err, c.err) {
				t.Errorf("%s: retry = %v, want %v", c.what, err, c.err)
			}
			if took := time.Since(start); took != c.want {
				t.Errorf("%s: retry took %s, want %s", c.what, took, c.want)
			}
		}
	})
}
