package service

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestService goes through the life of one device. Each part leaves the pods web and important as it finds them.
func TestService(t *testing.T) {
	d := startDevice(t)
	d.static("web", forever)
	d.static("important", forever, "  priorityClassName: system-node-critical")
	d.Running("web", "important")
	for _, part := range []struct {
		name string
		run  func(*device)
	}{
		{"service manager", (*device).serviceManager}, {"mirrors", (*device).mirrors}, {"logs", (*device).logs},
		{"shutdown", (*device).shutdown}, {"shutdown offline", (*device).shutdownOffline},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(d.with(t)) }) {
			break
		}
	}
}

// serviceManager: it is told that the agent is ready, that it lives, and that it stops.
func (d *device) serviceManager() {
	d.told.until(d.T, "WATCHDOG=1", 3)
	if got := d.told.count("READY=1"); got != 1 {
		d.T.Errorf("READY=1 was told %d times, want 1", got)
	}
	before := d.ContainersOf("web-" + nodeName)
	env.Must(d.T, d.Stop(d.T.Context()))
	d.told.sync(d.T)
	if got := d.told.count("STOPPING=1"); got != 1 {
		d.T.Errorf("STOPPING=1 was told %d times, want 1", got)
	}
	env.Must(d.T, d.Start(d.T.Context()))
	d.Running("web", "important")
	if after := d.ContainersOf("web-" + nodeName); !slices.Equal(before, after) {
		d.T.Errorf("containers after the agent was stopped = %v, want %v as before", after, before)
	}
}

// mirrors: the cloud shows static pods as they are, whatever is done to their mirrors; what changes while there is no
// link is made up for.
func (d *device) mirrors() {
	const web = "web-" + nodeName
	container := d.ContainersOf(web)
	var first *v1.Pod
	wait.Until(d.T, "the static pod to be shown", func() (err error) {
		if first, err = d.shown(web); err == nil && !env.IsReady(first) {
			err = fmt.Errorf("status %+v", first.Status)
		}
		return err
	})
	if first.Annotations[v1.MirrorPodAnnotationKey] == "" || first.Spec.NodeName != nodeName ||
		len(first.OwnerReferences) != 1 || first.OwnerReferences[0].Kind != "Node" {
		d.T.Errorf("the mirror is %+v, want the annotation and the Node %s as its owner", first.ObjectMeta, nodeName)
	}
	// Deleted by someone it comes again, and the container runs on.
	env.Must(d.T, d.cluster.API.CoreV1().Pods("default").Delete(d.T.Context(), web, metav1.DeleteOptions{}))
	second := d.shownAnew(web, first)
	if now := d.ContainersOf(web); !slices.Equal(now, container) {
		d.T.Errorf("containers after the mirror was deleted = %v, want %v as before", now, container)
	}
	// Another manifest is another pod.
	d.static("web", "echo changed; "+forever)
	third := d.shownAnew(web, second)

	env.Must(d.T, d.cluster.Cloud.Stop(d.T.Context()))
	d.static("web", "echo again; "+forever)
	d.static("other", forever)
	env.Must(d.T, d.RemoveManifest("important.yaml"))
	d.Running("web", "other")
	wait.Until(d.T, "the containers of the pod to end", func() error {
		if ids := d.ContainersOf("important-" + nodeName); len(ids) > 0 {
			return fmt.Errorf("containers %v", ids)
		}
		return nil
	})
	// The agent does not live through it.
	env.Must(d.T, d.Kill9(d.T.Context()))
	env.Must(d.T, d.Start(d.T.Context()))
	env.Must(d.T, d.cluster.Cloud.Start(d.T.Context()))
	d.shownAnew(web, third)
	wait.Until(d.T, "what changed without a link to be shown", func() error {
		if other, err := d.shown("other-" + nodeName); err != nil || !env.IsReady(other) {
			return fmt.Errorf("other: %+v, %w", other, err)
		}
		if _, err := d.shown("important-" + nodeName); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the mirror of a manifest that is gone: %v", err)
		}
		return nil
	})
	env.Must(d.T, d.RemoveManifest("other.yaml"))
	d.static("important", forever, "  priorityClassName: system-node-critical")
	d.Running("web", "important")
}

// shownAnew waits until the cloud shows a ready pod of that name which is not the one before.
func (d *device) shownAnew(name string, before *v1.Pod) *v1.Pod {
	d.T.Helper()
	var pod *v1.Pod
	wait.Until(d.T, "the static pod to be shown again", func() (err error) {
		if pod, err = d.shown(name); err == nil && (pod.UID == before.UID || !env.IsReady(pod) ||
			pod.DeletionTimestamp != nil) {
			err = fmt.Errorf("pod %s before, now %s: %+v", before.UID, pod.UID, pod.Status)
		}
		return err
	})
	return pod
}

// flood writes 24 MB in numbered lines of 100 bytes, faster than anybody reads.
const flood = `awk 'BEGIN { for (i = 0; i < 240000; i++) printf "%-99d\n", i }'; echo end; sleep 3600`

// logs: a pod that floods its log takes a bounded part of the disk, the newest lines are there without a gap, and the
// other pods run on.
func (d *device) logs() {
	d.static("flood", flood)
	pods := d.Running("flood")
	dir := filepath.Join(d.PodLogs(), fmt.Sprintf("default_flood-%s_%s", nodeName, pods["flood"].UID), "main")
	var peak int64
	everPacked := false
	wait.Until(d.T, "the log to be rotated", func() error {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			return err
		}
		var sum int64
		for _, f := range files {
			if info, err := os.Stat(f); err == nil {
				sum += info.Size()
			}
		}
		peak = max(peak, sum)
		plain := 0
		for _, f := range files {
			switch {
			case strings.HasSuffix(f, ".gz"):
				everPacked = true
			case strings.Contains(f, "0.log."): // the newest part, and what is being compressed
				plain++
			}
		}
		// A part that grew far beyond its size, while the machine was busy, leaves no room for an older one.
		crowded := sum > 2<<20
		if len(files) > 3 || !everPacked && !crowded || plain > 1 || sum > 5<<20 || !d.saysEnd(dir) {
			return fmt.Errorf("%d files of %d bytes: %v", len(files), sum, files)
		}
		return nil
	})
	d.T.Logf("of a flood of 35 MB, %d MB were seen on the disk at most", peak>>20)
	wait.Until(d.T, "the log to have no gap", func() error { return checkLines(dir) })
	d.Running("web", "important", "flood")
	env.Must(d.T, d.RemoveManifest("flood.yaml"))
	wait.Until(d.T, "the logs to be gone with the pod", func() error {
		if _, err := os.Stat(filepath.Dir(dir)); !os.IsNotExist(err) {
			return fmt.Errorf("the folder is there: %v", err)
		}
		return nil
	})
}

// saysEnd reports whether the flood is over, and the log is not to be rotated once more. The last that was said may be
// in the newest part.
func (d *device) saysEnd(dir string) bool {
	live, err := os.ReadFile(filepath.Join(dir, "0.log"))
	parts, globErr := filepath.Glob(filepath.Join(dir, "0.log.*"))
	if err != nil || globErr != nil || len(live) >= 1<<20 || len(parts) == 0 {
		return false
	}
	newest, err := content(slices.Max(parts))
	return err == nil && strings.Contains(string(newest)+string(live), " stdout F end\n")
}

// content is what a part of a log holds, compressed or not.
func content(part string) ([]byte, error) {
	data, err := os.ReadFile(part)
	if err != nil || !strings.HasSuffix(part, ".gz") {
		return data, err
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// checkLines checks that a log goes on without a gap from its oldest part on. A part may become a .gz meanwhile.
func checkLines(dir string) error {
	parts, err := filepath.Glob(filepath.Join(dir, "0.log.*"))
	if err != nil {
		return err
	}
	slices.Sort(parts)
	last, lines, begun := -1, 0, ""
	for _, part := range append(parts, filepath.Join(dir, "0.log")) {
		text, err := content(part)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			entry := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4) // time, stream, P or F, text
			if len(entry) < 4 {
				return fmt.Errorf("%s: line %q, want a time, a stream, a tag and a text", part, line)
			}
			whole := begun + entry[3]
			if entry[2] == "P" { // the runtime has split a line
				begun = whole
				continue
			}
			begun = ""
			n, err := strconv.Atoi(strings.TrimSpace(whole))
			if err != nil || last < 0 && len(whole) < 99 {
				continue // the end, or the rest of a line that began in a part which is gone
			}
			if lines++; last >= 0 && n != last+1 {
				return fmt.Errorf("%s: line %d comes after %d", part, n, last)
			}
			last = n
		}
	}
	if last != 239999 || lines < 1000 {
		return fmt.Errorf("the last line is %d, of %d", last, lines)
	}
	return nil
}

// shutdown: logind waits while the pods end, the critical one last; the cloud is told, and what was to run once fails.
// When the shutdown is called off, the others run again.
func (d *device) shutdown() {
	job := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "cloudly", Namespace: "default"}, Spec: v1.PodSpec{
			NodeName:                      nodeName,
			TerminationGracePeriodSeconds: new(int64(10)),
			AutomountServiceAccountToken:  new(false),
			RestartPolicy:                 v1.RestartPolicyNever,
			Containers: []v1.Container{
				{Name: "main", Image: "edgecore.local/demo:1", Command: []string{"sh", "-c", forever}},
			},
		},
	}
	always := job.DeepCopy()
	always.Name, always.Spec.RestartPolicy = "always", v1.RestartPolicyAlways
	for _, pod := range []*v1.Pod{job, always} {
		_, err := d.cluster.API.CoreV1().Pods("default").Create(d.T.Context(), pod, metav1.CreateOptions{})
		env.Must(d.T, err)
	}
	uid := d.Running("web", "important", "cloudly", "always")["always"].UID
	wait.Until(d.T, "the lock to be held", d.locks(1))
	d.logind.Prepare(d.T, true)
	wait.Until(d.T, "the lock to be released", d.locks(0))
	for _, name := range []string{"web-" + nodeName, "important-" + nodeName, "cloudly", "always"} {
		if ids := d.ContainersOf(name); len(ids) > 0 {
			d.T.Errorf("running containers of %s = %v, want none", name, ids)
		}
	}
	if web, important := d.toldToEnd("web"), d.toldToEnd("important"); !web.Before(important) {
		d.T.Errorf("web was told to end at %v, want earlier than the critical pod at %v", web, important)
	}
	wait.Until(d.T, "the cloud to be told", func() error {
		pod, err := d.shown("cloudly")
		if err != nil {
			return err
		}
		disrupted := slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue &&
				c.Reason == v1.PodReasonTerminationByKubelet
		})
		if pod.Status.Phase != v1.PodFailed || pod.Status.Reason != "Terminated" || !disrupted {
			return fmt.Errorf("status %+v", pod.Status)
		}
		return nil
	})
	d.cluster.NodeUntil(nodeName, "to be shutting down", func(n *v1.Node) error {
		return env.NodeCondition(n, v1.NodeReady, v1.ConditionFalse, "node is shutting down")
	})
	d.logind.Prepare(d.T, false)
	d.cluster.NodeUntil(nodeName, "to be Ready again", env.Ready)
	wait.Until(d.T, "the lock to be held again", d.locks(1))
	if pods := d.Running("web", "important", "always"); pods["always"].UID != uid {
		d.T.Errorf("UID of the pod after = %s, want %s as before", pods["always"].UID, uid)
	}
	for _, name := range []string{"cloudly", "always"} {
		env.Must(d.T, d.cluster.API.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{}))
	}
}

// shutdownOffline: pods run again after the boot, also without a cloud.
func (d *device) shutdownOffline() {
	job := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "stays", Namespace: "default"}, Spec: v1.PodSpec{
			NodeName:                      nodeName,
			TerminationGracePeriodSeconds: new(int64(10)),
			AutomountServiceAccountToken:  new(false),
			Containers: []v1.Container{
				{Name: "main", Image: "edgecore.local/demo:1", Command: []string{"sh", "-c", forever}},
			},
		},
	}
	_, err := d.cluster.API.CoreV1().Pods("default").Create(d.T.Context(), job, metav1.CreateOptions{})
	env.Must(d.T, err)
	d.static("task", forever, "  restartPolicy: OnFailure") // it exits 0 when it is told to end, and is not done
	uid := d.Running("web", "stays", "task")["stays"].UID
	env.Must(d.T, d.cluster.Cloud.Stop(d.T.Context()))
	wait.Until(d.T, "the loss of the link to be noticed", func() error {
		text, err := d.Get(d.T.Context(), "/status")
		if err == nil && !strings.Contains(text, `"connected":false`) && !strings.Contains(text, `"connected": false`) {
			err = fmt.Errorf("status %s", text)
		}
		return err
	})
	d.logind.Prepare(d.T, true)
	wait.Until(d.T, "the lock to be released", d.locks(0))
	if ids := d.ContainersOf("stays"); len(ids) > 0 {
		d.T.Errorf("running containers = %v, want none", ids)
	}
	env.Must(d.T, d.Stop(d.T.Context()))
	env.Must(d.T, d.Start(d.T.Context()))
	if pods := d.Running("web", "important", "stays", "task"); pods["stays"].UID != uid {
		d.T.Errorf("UID of the pod after = %s, want %s as before", pods["stays"].UID, uid)
	}
	env.Must(d.T, d.cluster.Cloud.Start(d.T.Context()))
	wait.Until(d.T, "the cloud to see it run", func() error {
		pod, err := d.shown("stays")
		if err == nil && (!env.IsReady(pod) || pod.Status.ContainerStatuses[0].RestartCount != 1) {
			err = fmt.Errorf("status %+v", pod.Status)
		}
		return err
	})
}

// locks checks how many locks of the shutdown are held.
func (d *device) locks(want int) func() error {
	return func() error {
		if got := d.logind.Locks(); got != want {
			return fmt.Errorf("%d locks are held, want %d", got, want)
		}
		return nil
	}
}

// toldToEnd is when a static pod's newest container was told to end, by its log.
func (d *device) toldToEnd(name string) time.Time {
	d.T.Helper()
	logs, err := filepath.Glob(filepath.Join(d.PodLogs(), fmt.Sprintf("default_%s-%s_*", name, nodeName), "main",
		"*.log"))
	env.Must(d.T, err)
	for _, log := range slices.Backward(logs) {
		data, err := os.ReadFile(log)
		env.Must(d.T, err)
		for line := range strings.Lines(string(data)) {
			if stamp, rest, _ := strings.Cut(line, " "); strings.HasSuffix(rest, " told\n") {
				at, err := time.Parse(time.RFC3339Nano, stamp)
				env.Must(d.T, err)
				return at
			}
		}
	}
	d.T.Fatalf("logs %v of %s have no line \"told\", want one", logs, name)
	return time.Time{}
}
