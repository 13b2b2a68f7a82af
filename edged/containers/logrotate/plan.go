package logrotate

import "time"

const (
	// defaultInterval is the kubelet's containerLogMonitorInterval.
	defaultInterval = 10 * time.Second
	// soonest is how soon after a write, or after another look, a log is looked at.
	soonest = 250 * time.Millisecond
	// growing is the most between two looks at a log that grows: one that trickles may begin to flood.
	growing = 2 * time.Second
	// together is how much too early a log may be looked at for the sake of one waking less.
	together = 200 * time.Millisecond
)

// sighting is what a look at a log has shown. The zero value is none.
type sighting struct {
	size int64
	at   time.Time
}

// step is what follows from two looks.
type step struct {
	rotate bool
	// quiet: nothing was written between the two, so that the kernel may watch.
	quiet bool
	// wait is how long until the next look.
	wait time.Duration
}

// plan decides what to do about a log that was seen twice. It is pure.
func plan(maxSize int64, interval time.Duration, before, now sighting) step {
	most := max(min(interval, growing), soonest)
	grown, took := now.size-before.size, now.at.Sub(before.at)
	switch {
	case now.size >= maxSize:
		return step{rotate: true}
	case before.at.IsZero(): // the first look says nothing about the pace
		return step{wait: soonest}
	case grown == 0:
		return step{quiet: true}
	case grown < 0 || took <= 0: // it was truncated
		return step{wait: most}
	}
	full := float64(took) * float64(maxSize-now.size) / float64(grown) // which may be longer than a Duration can be
	return step{wait: max(time.Duration(min(full/2, float64(most))), soonest)}
}
