package runtimelimit

import (
	"math"
	"time"
)

const (
	// minLimit is the lowest limit, unless it starts lower. With fewer calls at once, the processors idle while those
	// wait for the disk or the network, and other programs get a larger share of the processors. It also keeps
	// measurements that mislead from doing harm: at the start of a burst few calls run beside other work, and later
	// many run alone.
	minLimit = 4
	// maxLimit is the highest limit, whatever is measured.
	maxLimit = 16
	// perCPU times the number of processors is where the limit starts.
	perCPU = 2
	// windowCalls is the number of calls after which the limit is adjusted.
	windowCalls = 8
	// worthwhile is the gain that a higher limit must bring: 0.2 means that 10 % more calls at once must get 2 % more
	// done. With a lower limit the first pods of a burst start earlier.
	worthwhile = 0.2
	// pace scales how much the limit changes with the gain beyond worthwhile: if nothing is gained, it falls by 7 %
	// each time.
	pace = 0.35
	// homing is how much each adjustment moves the limit back to where it started; without evidence it returns there.
	homing = 0.1
	// usualWeight is the weight of a new measurement in the average of how long calls take.
	usualWeight = 1.0 / 8
)

// level finds how many calls the runtime should work on at once.
//
// It compares how long calls take with how many run at once. If calls take twice as long with twice as many at once,
// the runtime gets no more done, and the limit falls. If they take as long as before, it gets twice as much done, and
// the limit rises. That is the case while the runtime waits for a disk, and while other programs keep the processors
// busy, since more calls at once get a larger share of them.
type level struct {
	start, limit float64
	trend        trend
	// calls counts the calls since the last adjustment that ended while others waited.
	calls int
	// usual is how long calls of each kind take on average, in seconds; 0 is unknown.
	usual [kinds]float64
}

func newLevel(cpus int) level {
	start := float64(min(perCPU*max(cpus, 1), maxLimit))
	return level{start: start, limit: start}
}

// current returns the limit as a number of calls.
func (l *level) current() int { return int(math.Round(l.limit)) }

// measured records how long a call took while the runtime worked on atOnce calls on average, this one included. limited
// is set if other calls waited; otherwise the limit was not reached and does not change.
func (l *level) measured(now time.Time, k Kind, took time.Duration, atOnce float64, limited bool) {
	if !k.measures() || took <= 0 || atOnce <= 0 {
		return
	}
	l.trend.add(now, k, math.Log(atOnce), math.Log(took.Seconds()))
	if !limited {
		return
	}
	if l.calls++; l.calls >= windowCalls {
		l.calls = 0
		l.adjust()
	}
}

func (l *level) adjust() {
	slope, certain := l.trend.slope()
	step := certain*pace*(1-slope-worthwhile) + homing*math.Log(l.start/l.limit)
	l.limit = min(max(l.limit*math.Exp(step), min(l.start, minLimit)), maxLimit)
}

// returned records how long a call took, for the average of its kind.
func (l *level) returned(k Kind, took time.Duration) {
	if !k.measures() {
		return
	}
	l.usual[k] = average(l.usual[k], took.Seconds(), usualWeight)
}

// counts returns how long a call of a kind counts towards the limit. A call that takes longer hangs, or waits for
// something other than the runtime's own work.
func (l *level) counts(k Kind) time.Duration {
	if k == StopContainer {
		return stopCounts
	}
	usual := time.Duration(l.usual[k] * float64(time.Second))
	if usual == 0 {
		return countsUnknown
	}
	return min(max(4*usual, countsMin), countsMax)
}

// How long calls count.
const (
	// countsMin and countsMax bound this time, which is four times the average; countsUnknown applies before there is
	// an average.
	countsMin     = time.Second
	countsMax     = 10 * time.Second
	countsUnknown = 5 * time.Second
	// stopCounts is how long a StopContainer counts: until the runtime has sent the signal. Then it waits for the
	// container.
	stopCounts = 50 * time.Millisecond
)

// average adds a measurement to a moving average; 0 means that there is none yet.
func average(old, measured, weight float64) float64 {
	if old == 0 {
		return measured
	}
	return old + (measured-old)*weight
}
