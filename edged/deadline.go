package edged

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/status"
)

// This file is spec.activeDeadlineSeconds: how long a pod has been active on the node. While the machine runs the time is
// taken from its boot clock, which no setting of the clock moves; where the pod began is kept in its folder, so that
// it holds over restarts of the agent. Over a reboot the wall clock is all there is. It counts from status.startTime,
// unless that is older than the pod itself: then the clock was not set when it was written, and the pod's time
// begins anew rather than be over.

const (
	reasonDeadline  = "DeadlineExceeded"
	messageDeadline = "Pod was active on the node longer than the specified deadline"
	// beganFile, in the pod's folder, says at which time of which boot the pod began.
	beganFile  = "began"
	bootIDFile = "/proc/sys/kernel/random/boot_id"
	// clockSkew is how far the clocks of node and cloud may be apart.
	clockSkew = 5 * time.Minute
)

// deadlines remembers when pods began. The zero value knows none.
type deadlines struct {
	mu    sync.Mutex
	began map[types.UID]time.Time // with a monotonic reading
}

// bootClock is a moment of the machine's life.
type bootClock struct {
	// boot is the id of the boot.
	boot string
	// up is the time since.
	up time.Duration
}

func readBootClock() (bootClock, error) {
	id, err := os.ReadFile(bootIDFile)
	if err != nil {
		return bootClock{}, fmt.Errorf("id of this boot: %w", err)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return bootClock{}, fmt.Errorf("boot clock: %w", err)
	}
	return bootClock{strings.TrimSpace(string(id)), time.Duration(ts.Nano())}, nil
}

// activeFor is how long a pod has been active, given where it began, if that is known, and both clocks now. It is pure.
func activeFor(pod *v1.Pod, start time.Time, began *bootClock, now bootClock, wall time.Time) time.Duration {
	if began != nil && began.boot == now.boot {
		return max(now.up-began.up, 0)
	}
	if start.IsZero() || start.Before(pod.CreationTimestamp.Add(-clockSkew)) {
		return 0
	}
	return max(wall.Sub(start), 0)
}

// of returns when a pod's time is over; zero when it may run for ever. dir is the pod's folder.
func (d *deadlines) of(pod *v1.Pod, start time.Time, dir string) time.Time {
	limit := pod.Spec.ActiveDeadlineSeconds
	if limit == nil {
		return time.Time{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	began, known := d.began[pod.UID]
	if !known {
		began = recall(pod, start, dir)
		if d.began == nil {
			d.began = map[types.UID]time.Time{}
		}
		d.began[pod.UID] = began
	}
	return began.Add(time.Duration(*limit) * time.Second)
}

func (d *deadlines) forget(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.began, uid)
}

// recall finds out when a pod began, and writes it down for the next agent.
func recall(pod *v1.Pod, start time.Time, dir string) time.Time {
	wall := time.Now()
	now, err := readBootClock()
	if err != nil {
		klog.ErrorS(err, "Deadline of a pod counted by the wall clock", "pod", klog.KObj(pod))
		return wall.Add(-activeFor(pod, start, nil, now, wall))
	}
	path := filepath.Join(dir, beganFile)
	before, err := readBegan(path)
	if err != nil {
		klog.ErrorS(err, "Beginning of a pod not read; its status is believed", "pod", klog.KObj(pod))
	}
	active := activeFor(pod, start, before, now, wall)
	if before == nil || before.boot != now.boot {
		text := fmt.Sprintf("%s %d\n", now.boot, now.up-active)
		if err := errors.Join(os.MkdirAll(dir, 0o750), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			klog.ErrorS(err, "Beginning of a pod not kept; its status has to do after a restart", "pod", klog.KObj(pod))
		}
	}
	return wall.Add(-active)
}

// readBegan reads where a pod began; nil when it is not written down.
func readBegan(path string) (*bootClock, error) {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseBegan(string(data))
}

func parseBegan(text string) (*bootClock, error) {
	var c bootClock
	if n, err := fmt.Sscanf(text, "%s %d", &c.boot, &c.up); n != 2 || err != nil {
		return nil, fmt.Errorf("%q is no boot id and time", text)
	}
	return &c, nil
}

// deadline returns when a pod's time is over; zero when it may run for ever. over says that it is, and that the pod
// was told to end.
func (e *Edged) deadline(pod *v1.Pod) (at time.Time, over bool) {
	before, _ := e.statuses.Get(pod.UID)
	var start time.Time
	if before.StartTime != nil {
		start = before.StartTime.Time
	}
	at = e.deadlines.of(pod, start, e.podDir(pod.UID))
	if at.IsZero() || time.Until(at) > 0 {
		return at, false
	}
	if e.desired.Stop(pod.UID, &status.Stopped{Reason: reasonDeadline, Message: messageDeadline, Unready: true}) {
		e.recorder.Eventf(pod, v1.EventTypeNormal, reasonDeadline, "%s", messageDeadline)
	}
	return at, true
}
