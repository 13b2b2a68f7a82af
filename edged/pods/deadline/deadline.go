// Package deadline measures how long a pod has been active on the node, for spec.activeDeadlineSeconds.
//
// While the machine runs, time is taken from its boot clock, which does not move when the wall clock is set. The moment
// at which a pod began is kept in the pod's folder, so that it survives restarts of the agent. Over a reboot there is
// only the wall clock: then time counts from status.startTime, unless that is older than the pod itself. In that case
// the clock was not set when the status was written, and the time of the pod begins again.
package deadline

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/clock"
)

const (
	// Reason and Message are those of the status and the event of a pod whose time is over. They are the kubelet's.
	Reason  = "DeadlineExceeded"
	Message = "Pod was active on the node longer than the specified deadline"

	// beganFile, in the pod's folder, holds the boot ID and the time on the boot clock when the pod began.
	beganFile = "began"
	// clockSkew is how far the clocks of node and cloud may be apart.
	clockSkew = 5 * time.Minute
)

// Tracker remembers when pods began. The zero value is ready to use. Its methods may be called from any goroutine.
type Tracker struct {
	mu    sync.Mutex
	began map[types.UID]time.Time // with a monotonic reading
}

// activeFor returns how long a pod has been active. start is its status.startTime; began is nil if it is not known when
// the pod began; now and wall are both clocks. It is pure.
func activeFor(pod *v1.Pod, start time.Time, began *clock.Boot, now clock.Boot, wall time.Time) time.Duration {
	if began != nil && began.ID == now.ID {
		return max(now.Uptime-began.Uptime, 0)
	}
	if start.IsZero() || start.Before(pod.CreationTimestamp.Add(-clockSkew)) {
		return 0
	}
	return max(wall.Sub(start), 0)
}

// Of returns when a pod's time is over; zero if the pod has no deadline. start is the pod's status.startTime, and dir
// its folder.
func (d *Tracker) Of(pod *v1.Pod, start time.Time, dir string) time.Time {
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

// Forget drops what is remembered of a pod. The file in its folder stays.
func (d *Tracker) Forget(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.began, uid)
}

// recall returns when a pod began, and writes it down for the next agent.
func recall(pod *v1.Pod, start time.Time, dir string) time.Time {
	wall := time.Now()
	now, err := clock.ReadBoot()
	if err != nil {
		klog.ErrorS(err, "Boot clock not read; the deadline of the pod is counted by the wall clock",
			"pod", klog.KObj(pod))
		return wall.Add(-activeFor(pod, start, nil, now, wall))
	}
	path := filepath.Join(dir, beganFile)
	before, err := readBegan(path)
	if err != nil {
		klog.ErrorS(err, "Start of the pod not read; its status.startTime is used", "pod", klog.KObj(pod))
	}
	active := activeFor(pod, start, before, now, wall)
	if before == nil || before.ID != now.ID {
		text := fmt.Sprintf("%s %d\n", now.ID, now.Uptime-active)
		if err := errors.Join(os.MkdirAll(dir, 0o750), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			klog.ErrorS(err, "Start of the pod not recorded; its status.startTime will be used after a restart",
				"pod", klog.KObj(pod))
		}
	}
	return wall.Add(-active)
}

// readBegan reads when a pod began; it returns nil when no agent wrote it down.
func readBegan(path string) (*clock.Boot, error) {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseBegan(string(data))
}

func parseBegan(text string) (*clock.Boot, error) {
	var c clock.Boot
	if n, err := fmt.Sscanf(text, "%s %d", &c.ID, &c.Uptime); n != 2 || err != nil {
		return nil, fmt.Errorf("%q is not a boot ID and a time", text)
	}
	return &c, nil
}
