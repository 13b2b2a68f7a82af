package images

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// A pull has no overall timeout: on a slow link an image takes hours. A pull without progress for ProgressTimeout is
// cancelled and, after the backoff, started again; the runtime keeps what it has of it.
//
// CRI says nothing of a pull before its end, so this looks at what shows from outside: the blobs that the runtime is
// fetching, where it tells of them, and else whether the file system of the images changes, as it does while layers are
// unpacked. With several pulls at once the blobs are those of all of them: one that hangs is given up when the others
// have ended.

const (
	// DefaultProgressTimeout is how long a pull may go without anything coming. containerd counts what it fetches in
	// pieces of 1 MiB: at 3.5 KiB/s, the speed of the worst links, that is once in five minutes.
	DefaultProgressTimeout = 5 * time.Minute
	// progressLook is how often is looked, oftener where the deadline is short.
	progressLook = 5 * time.Second
	// firstReport is the time after which a pull is reported as slow; each next report comes after twice the time.
	firstReport = time.Minute
)

// Fetch is a blob on its way.
type Fetch struct {
	Ref string
	// Offset is how many bytes have come, of Total; that is 0 where it is not known.
	Offset, Total int64
}

// Meter shows what pulls do.
type Meter interface {
	// Fetches returns the blobs that are on their way; none where the runtime does not say.
	Fetches(ctx context.Context) ([]Fetch, error)
	// Room returns how many bytes are free on the file system of the images.
	Room(ctx context.Context) (uint64, error)
}

// StalledError says that a pull was given up.
type StalledError struct {
	After    time.Duration
	Progress Progress
}

func (e *StalledError) Error() string {
	return fmt.Sprintf("nothing was received for %v (%v); the pull was cancelled and will be tried "+
		"again", e.After, e.Progress)
}

// Progress is how far a pull is.
type Progress struct {
	// Received is how many bytes came, of Total as far as that is known; 0 where the runtime does not say.
	Received, Total int64
	// Took is how long the pull has lasted.
	Took time.Duration
}

// Rate is bytes a second.
func (p Progress) Rate() float64 {
	if p.Took <= 0 {
		return 0
	}
	return float64(p.Received) / p.Took.Seconds()
}

func (p Progress) String() string {
	if p.Received == 0 {
		return "nothing received in " + p.Took.Round(time.Second).String()
	}
	of := ""
	if p.Total > p.Received {
		of = " of " + Bytes(float64(p.Total))
	}
	return fmt.Sprintf("received %s%s at %s/s", Bytes(float64(p.Received)), of, Bytes(p.Rate()))
}

// Bytes writes a number of bytes for people.
func Bytes(n float64) string {
	unit := 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for n >= 1024 && unit < len(units)-1 {
		n /= 1024
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%.0f B", n)
	}
	return fmt.Sprintf("%.1f %s", n, units[unit])
}

// course follows one pull.
type course struct {
	began, moved time.Time
	// blobs are all that were seen; under way those of the last look.
	blobs    map[string]Fetch
	underWay int
	room     uint64
}

func newCourse(now time.Time) *course {
	return &course{began: now, moved: now, blobs: map[string]Fetch{}}
}

// record records what was seen, and when anything last moved.
func (c *course) record(now time.Time, fetches []Fetch, room uint64) {
	moved := false
	for _, f := range fetches {
		before, known := c.blobs[f.Ref]
		if !known || f.Offset != before.Offset {
			moved = true
		}
		if !known || f.Offset >= before.Offset {
			c.blobs[f.Ref] = f
		}
	}
	if len(fetches) < c.underWay {
		moved = true // one is whole
	}
	// Others write to the same disk: that counts only while no blob is on its way.
	if len(fetches) == 0 && room != c.room {
		moved = true
	}
	c.underWay, c.room = len(fetches), room
	if moved {
		c.moved = now
	}
}

// progress is how far the pull is.
func (c *course) progress(now time.Time) Progress {
	p := Progress{Took: now.Sub(c.began)}
	for _, f := range c.blobs {
		p.Received += f.Offset
		p.Total += max(f.Total, f.Offset)
	}
	return p
}

// watch follows a pull until ctx ends, which it does itself with a StalledError when nothing comes, and returns how far
// it saw it come. It looks for the first time after a while: most pulls are over by then.
func (p *Puller) watch(
	ctx context.Context, image string, giveUp context.CancelCauseFunc, tell func(Progress),
) Progress {
	c := newCourse(time.Now())
	ticker := time.NewTicker(min(progressLook, p.opts.ProgressTimeout/4))
	defer ticker.Stop()
	report := c.began.Add(cmp.Or(p.opts.ReportEvery, firstReport))
	for {
		select {
		case <-ctx.Done():
			return c.progress(time.Now())
		case <-ticker.C:
		}
		fetches, err := p.opts.Meter.Fetches(ctx)
		if err != nil {
			klog.V(4).InfoS("Progress of a pull unknown", "image", image, "err", err)
			continue // a runtime that does not answer ends the pull by itself
		}
		room, err := p.opts.Meter.Room(ctx)
		if err != nil {
			klog.V(4).InfoS("Free space for images unknown", "err", err)
		}
		now := time.Now()
		c.record(now, fetches, room)
		done := c.progress(now)
		if idle := now.Sub(c.moved); idle >= p.opts.ProgressTimeout {
			giveUp(&StalledError{After: idle.Round(time.Second), Progress: done})
			return done
		}
		if !now.Before(report) {
			report = now.Add(cmp.Or(p.opts.ReportEvery, now.Sub(c.began)))
			klog.InfoS("Image is being pulled", "image", image, "progress", done.String(),
				"since", done.Took.Round(time.Second))
			tell(done)
		}
	}
}
