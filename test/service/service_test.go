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
)

// TestService goes through the life of one device.
func TestService(t *testing.T) {
	s := newSite(t)
	s.static("web", forever)
	s.static("important", forever, "  priorityClassName: system-node-critical")
	s.running("web", "important")
	s.serviceManager()
	s.mirrors()
	s.logs()
	s.shutdown()
	s.shutdownOffline()
}

// serviceManager: it is told that the agent is there, that it lives, and that it ends.
func (s *site) serviceManager() {
	s.until("the service manager is told", func() error {
		if ready, lives := s.told.count("READY=1"), s.told.count("WATCHDOG=1"); ready != 1 || lives < 3 {
			return fmt.Errorf("READY=1 %d times, WATCHDOG=1 %d times", ready, lives)
		}
		return nil
	})
	before := s.containers("web-" + nodeName)
	must(s.t, s.Stop(s.t.Context()))
	s.until("the service manager is told of the end", func() error {
		if n := s.told.count("STOPPING=1"); n != 1 {
			return fmt.Errorf("STOPPING=1 %d times", n)
		}
		return nil
	})
	must(s.t, s.Start(s.t.Context()))
	s.running("web", "important")
	if after := s.containers("web-" + nodeName); !slices.Equal(before, after) {
		s.t.Errorf("containers %v before the agent was stopped, %v after", before, after)
	}
}

// mirrors: the cloud shows static pods as they are, whatever is done to their mirrors; what changes while there is no
// link is made up for.
func (s *site) mirrors() {
	const web = "web-" + nodeName
	container := s.containers(web)
	var first *v1.Pod
	s.until("the static pod is shown", func() (err error) {
		if first, err = s.shown(web); err == nil && !isReady(first) {
			err = fmt.Errorf("status %+v", first.Status)
		}
		return err
	})
	if first.Annotations[v1.MirrorPodAnnotationKey] == "" || first.Spec.NodeName != nodeName || len(first.OwnerReferences) != 1 || first.OwnerReferences[0].Kind != "Node" {
		s.t.Errorf("the mirror is %+v", first.ObjectMeta)
	}
	// Deleted by somebody it comes again, and the container runs on.
	must(s.t, s.api.CoreV1().Pods("default").Delete(s.t.Context(), web, metav1.DeleteOptions{}))
	second := s.shownAnew(web, first)
	if now := s.containers(web); !slices.Equal(now, container) {
		s.t.Errorf("containers %v before the mirror was deleted, %v after", container, now)
	}
	// Another manifest is another pod.
	s.static("web", "echo changed; "+forever)
	third := s.shownAnew(web, second)

	must(s.t, s.cloud.Stop(s.t.Context()))
	s.static("web", "echo again; "+forever)
	s.static("other", forever)
	must(s.t, s.RemoveManifest("important.yaml"))
	s.running("web", "other")
	s.until("the pod is gone", func() error {
		if ids := s.containers("important-" + nodeName); len(ids) > 0 {
			return fmt.Errorf("containers %v", ids)
		}
		return nil
	})
	// The agent does not live through it.
	must(s.t, s.Kill9(s.t.Context()))
	must(s.t, s.Start(s.t.Context()))
	must(s.t, s.cloud.Start(s.t.Context()))
	s.shownAnew(web, third)
	s.until("what came and went without a link is shown", func() error {
		if other, err := s.shown("other-" + nodeName); err != nil || !isReady(other) {
			return fmt.Errorf("other: %+v, %w", other, err)
		}
		if _, err := s.shown("important-" + nodeName); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the mirror of a manifest that is gone: %v", err)
		}
		return nil
	})
	must(s.t, s.RemoveManifest("other.yaml"))
	s.static("important", forever, "  priorityClassName: system-node-critical")
	s.running("web", "important")
}

// shownAnew waits until the cloud shows a ready pod of that name which is not the one before.
func (s *site) shownAnew(name string, before *v1.Pod) *v1.Pod {
	s.t.Helper()
	var pod *v1.Pod
	s.until("the static pod is shown anew", func() (err error) {
		if pod, err = s.shown(name); err == nil && (pod.UID == before.UID || !isReady(pod) || pod.DeletionTimestamp != nil) {
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
func (s *site) logs() {
	s.static("flood", flood)
	pods := s.running("flood")
	dir := filepath.Join(s.PodLogs(), fmt.Sprintf("default_flood-%s_%s", nodeName, pods["flood"].UID), "main")
	var peak int64
	everPacked := false
	s.until("the log is rotated", func() error {
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
		if len(files) > 3 || !everPacked && !crowded || plain > 1 || sum > 5<<20 || !s.saysEnd(dir) {
			return fmt.Errorf("%d files of %d bytes: %v", len(files), sum, files)
		}
		return nil
	})
	s.t.Logf("of a flood of 35 MB, %d MB were seen on the disk at most", peak>>20)
	s.until("the log goes on without a gap", func() error { return checkLines(dir) })
	s.running("web", "important", "flood")
	must(s.t, s.RemoveManifest("flood.yaml"))
	s.until("the logs are gone with the pod", func() error {
		if _, err := os.Stat(filepath.Dir(dir)); !os.IsNotExist(err) {
			return fmt.Errorf("the folder is there: %v", err)
		}
		return nil
	})
}

// saysEnd tells whether the flood is over, and the log is not to be rotated once more. The last that was said may be in
// the newest part.
func (s *site) saysEnd(dir string) bool {
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
	last, lines := -1, 0
	for _, part := range append(parts, filepath.Join(dir, "0.log")) {
		text, err := content(part)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			n, err := strconv.Atoi(fields[len(fields)-1])
			if err != nil {
				continue // the end
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

// shutdown: logind waits while the pods end, the critical one last; the cloud is told, and what was to run once fails. When
// the shutdown is called off, the others run again.
func (s *site) shutdown() {
	job := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cloudly", Namespace: "default"}, Spec: v1.PodSpec{
		NodeName: nodeName, TerminationGracePeriodSeconds: new(int64(10)), AutomountServiceAccountToken: new(false), RestartPolicy: v1.RestartPolicyNever,
		Containers: []v1.Container{{Name: "main", Image: "edgecore.local/demo:1", Command: []string{"sh", "-c", forever}}},
	}}
	always := job.DeepCopy()
	always.Name, always.Spec.RestartPolicy = "always", v1.RestartPolicyAlways
	for _, pod := range []*v1.Pod{job, always} {
		_, err := s.api.CoreV1().Pods("default").Create(s.t.Context(), pod, metav1.CreateOptions{})
		must(s.t, err)
	}
	uid := s.running("web", "important", "cloudly", "always")["always"].UID
	s.until("the lock is held", s.locks(1))
	s.logind.Prepare(s.t, true)
	s.until("the lock is released", s.locks(0))
	for _, name := range []string{"web-" + nodeName, "important-" + nodeName, "cloudly", "always"} {
		if ids := s.containers(name); len(ids) > 0 {
			s.t.Errorf("%s runs on: %v", name, ids)
		}
	}
	if web, important := s.toldToEnd("web"), s.toldToEnd("important"); !web.Before(important) {
		s.t.Errorf("web was told to end at %v, the critical pod at %v", web, important)
	}
	s.until("the cloud is told", func() error {
		pod, err := s.shown("cloudly")
		if err != nil {
			return err
		}
		disrupted := slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonTerminationByKubelet
		})
		if pod.Status.Phase != v1.PodFailed || pod.Status.Reason != "Terminated" || !disrupted {
			return fmt.Errorf("status %+v", pod.Status)
		}
		return s.ready(v1.ConditionFalse, "node is shutting down")
	})
	s.logind.Prepare(s.t, false)
	s.until("the node is Ready again", func() error { return s.ready(v1.ConditionTrue, "") })
	s.until("the lock is held again", s.locks(1))
	if pods := s.running("web", "important", "always"); pods["always"].UID != uid {
		s.t.Errorf("pod %s before, %s after", uid, pods["always"].UID)
	}
	for _, name := range []string{"cloudly", "always"} {
		must(s.t, s.api.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{}))
	}
}

// shutdownOffline: pods run again after the boot, also without a cloud.
func (s *site) shutdownOffline() {
	job := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stays", Namespace: "default"}, Spec: v1.PodSpec{
		NodeName: nodeName, TerminationGracePeriodSeconds: new(int64(10)), AutomountServiceAccountToken: new(false),
		Containers: []v1.Container{{Name: "main", Image: "edgecore.local/demo:1", Command: []string{"sh", "-c", forever}}},
	}}
	_, err := s.api.CoreV1().Pods("default").Create(s.t.Context(), job, metav1.CreateOptions{})
	must(s.t, err)
	s.static("task", forever, "  restartPolicy: OnFailure") // it exits 0 when it is told to end, and is not done
	uid := s.running("web", "stays", "task")["stays"].UID
	must(s.t, s.cloud.Stop(s.t.Context()))
	s.until("the loss of the link is noticed", func() error {
		text, err := s.Get(s.t.Context(), "/status")
		if err == nil && !strings.Contains(text, `"connected":false`) && !strings.Contains(text, `"connected": false`) {
			err = fmt.Errorf("status %s", text)
		}
		return err
	})
	s.logind.Prepare(s.t, true)
	s.until("the lock is released", s.locks(0))
	if ids := s.containers("stays"); len(ids) > 0 {
		s.t.Errorf("it runs on: %v", ids)
	}
	must(s.t, s.Stop(s.t.Context()))
	must(s.t, s.Start(s.t.Context()))
	if pods := s.running("web", "important", "stays", "task"); pods["stays"].UID != uid {
		s.t.Errorf("pod %s before, %s after", uid, pods["stays"].UID)
	}
	must(s.t, s.cloud.Start(s.t.Context()))
	s.until("the cloud sees it run", func() error {
		pod, err := s.shown("stays")
		if err == nil && (!isReady(pod) || pod.Status.ContainerStatuses[0].RestartCount != 1) {
			err = fmt.Errorf("status %+v", pod.Status)
		}
		return err
	})
}

// locks checks how many locks of the shutdown are held.
func (s *site) locks(want int) func() error {
	return func() error {
		if got := s.logind.Locks(); got != want {
			return fmt.Errorf("%d locks are held, want %d", got, want)
		}
		return nil
	}
}

// toldToEnd is when a static pod's newest container was told to end, by its log.
func (s *site) toldToEnd(name string) time.Time {
	s.t.Helper()
	logs, err := filepath.Glob(filepath.Join(s.PodLogs(), fmt.Sprintf("default_%s-%s_*", name, nodeName), "main", "*.log"))
	must(s.t, err)
	for _, log := range slices.Backward(logs) {
		data, err := os.ReadFile(log)
		must(s.t, err)
		for line := range strings.Lines(string(data)) {
			if stamp, rest, _ := strings.Cut(line, " "); strings.HasSuffix(rest, " told\n") {
				at, err := time.Parse(time.RFC3339Nano, stamp)
				must(s.t, err)
				return at
			}
		}
	}
	s.t.Fatalf("no log of %s says that it was told to end: %v", name, logs)
	return time.Time{}
}
