package streaming

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/crilog"
	"github.com/edgecore-io/edgecore/edged/containers/logdir"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

const logBuffer = 32 << 10

// Logs answers with the log of a container.
func (s *Server) Logs() http.Handler {
	return s.handler(s.logs, func(w http.ResponseWriter, r *http.Request) error {
		query, err := parseLogQuery(r.URL.Query(), time.Now())
		if err != nil {
			return err
		}
		pod, err := s.pod(r)
		if err != nil {
			return err
		}
		name := r.PathValue("container")
		if spec(pod, name) == nil {
			return refuse(http.StatusNotFound, "container %q not found in pod %q; it has %s", name, pod.Name,
				strings.Join(containers(pod), ", "))
		}
		id, err := logged(pod, name, query.previous)
		if err != nil {
			return err
		}
		path, err := s.logPath(pod, name, id, query.previous)
		if err != nil {
			return err
		}
		return s.send(w, r, path, query, func() bool { return s.alive(pod, name, id) })
	})
}

// send answers with a log. Once the first of it is out, a failure can only end it.
func (s *Server) send(w http.ResponseWriter, r *http.Request, path string, q logQuery, alive func() bool) error {
	out := &flushed{w: w, c: http.NewResponseController(w), stall: s.opts.IdleTimeout}
	buffer := bufio.NewWriterSize(out, logBuffer)
	opts := crilog.Options{
		Follow: q.follow, Watcher: s.opts.Watcher,
		Tail: q.tail, Since: q.since, Timestamps: q.timestamps, Limit: q.limit,
		Caught: func() error { return errors.Join(buffer.Flush(), out.flush()) },
	}
	var stdout, stderr io.Writer
	if q.stdout {
		stdout = buffer
	}
	if q.stderr {
		stderr = buffer
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	err := crilog.PrintAttempt(r.Context(), path, stdout, stderr, opts, alive)
	if errors.Is(err, crilog.ErrNoLog) && !out.begun {
		return refuse(http.StatusBadRequest,
			"container %q of pod %q has no log any more: it was removed, or rotated away", r.PathValue("container"),
			r.PathValue("pod"))
	}
	if errors.Is(err, logdir.ErrRefused) && !out.begun {
		return refuse(http.StatusForbidden, "container %q of pod %q: %v", r.PathValue("container"), r.PathValue("pod"),
			err)
	}
	if err != nil && !out.begun {
		return err
	}
	if err != nil && r.Context().Err() == nil {
		klog.V(2).InfoS("Log not sent to its end", "log", path, "err", err)
	}
	return nil
}

// flushed sends what is written at once, and gives up a client that takes nothing for a long time.
type flushed struct {
	w     io.Writer
	c     *http.ResponseController
	stall time.Duration
	begun bool
}

func (f *flushed) Write(data []byte) (int, error) {
	f.begun = true
	_ = f.c.SetWriteDeadline(time.Now().Add(f.stall)) // a writer without deadlines, in a test
	return f.w.Write(data)
}

// flush also sends the head of an answer without output yet, so that a client that follows knows that it is connected.
func (f *flushed) flush() error {
	f.begun = true
	return f.c.Flush()
}

// logged returns the id of the container whose log is meant, or why there is none, in the kubelet's words. It is pure.
func logged(pod *v1.Pod, name string, previous bool) (id string, err error) {
	st, ok := statusOf(pod, name)
	if !ok {
		return "", refuse(http.StatusBadRequest, "container %q in pod %q is not available", name, pod.Name)
	}
	last := ""
	if t := st.LastTerminationState.Terminated; t != nil {
		last = t.ContainerID
	}
	switch {
	case previous && last == "":
		return "", refuse(http.StatusBadRequest, "previous terminated container %q in pod %q not found", name, pod.Name)
	case previous:
		id = last
	case st.State.Running != nil:
		id = st.ContainerID
	case st.State.Terminated != nil && st.State.Terminated.ContainerID != "":
		id = st.State.Terminated.ContainerID
	case last != "":
		id = last
	case st.State.Terminated != nil:
		return "", refuse(http.StatusBadRequest, "container %q in pod %q is terminated", name, pod.Name)
	case st.State.Waiting != nil:
		return "", refuse(http.StatusBadRequest, "container %q in pod %q is waiting to start: %s", name, pod.Name,
			waitsFor(st.State.Waiting.Reason))
	default:
		return "", refuse(http.StatusBadRequest, "container %q in pod %q is waiting to start - no logs yet", name,
			pod.Name)
	}
	if _, after, found := strings.Cut(id, "://"); found {
		id = after
	}
	return id, nil
}

func waitsFor(reason string) string {
	switch reason {
	case "ErrImagePull":
		return "image can't be pulled"
	case "ImagePullBackOff":
		return "trying and failing to pull image"
	}
	return reason
}

// logPath is where the log of a container lies: where the runtime says, or, when it has forgotten the container, among
// the files of its name. It is always in the container's own folder.
func (s *Server) logPath(pod *v1.Pod, name, id string, previous bool) (string, error) {
	dir := filepath.Join(s.opts.Node.LogDir(pod), name)
	if c := s.observed(pod, id); c != nil && c.Name == name {
		if c.LogPath == "" { // it has not been asked for in detail
			return filepath.Join(dir, fmt.Sprintf("%d.log", c.Attempt)), nil
		}
		if filepath.Dir(c.LogPath) != dir {
			return "", refuse(http.StatusForbidden,
				"container %q of pod %q: the runtime has its log at %s, which is not in %s: not opened",
				name, pod.Name, c.LogPath, dir)
		}
		return c.LogPath, nil
	}
	attempts, err := crilog.Attempts(dir)
	if errors.Is(err, logdir.ErrRefused) {
		return "", refuse(http.StatusForbidden, "container %q of pod %q: %v", name, pod.Name, err)
	}
	if err != nil && !errors.Is(err, crilog.ErrNoLog) {
		return "", err
	}
	if st, _ := statusOf(pod, name); previous && st.State.Waiting == nil && len(attempts) > 0 {
		attempts = attempts[:len(attempts)-1] // the newest is not the previous one
	}
	if len(attempts) == 0 {
		return "", refuse(http.StatusBadRequest, "container %q of pod %q has no log any more: it was removed", name,
			pod.Name)
	}
	return attempts[len(attempts)-1], nil
}

func (s *Server) observed(pod *v1.Pod, id string) *observed.Container {
	obs := s.opts.Node.Observed(pod.UID)
	if obs == nil {
		return nil
	}
	if i := slices.IndexFunc(obs.Containers, func(c *observed.Container) bool { return c.ID == id }); i >= 0 {
		return obs.Containers[i]
	}
	return nil
}

// alive reports whether a container may still write. Where nothing is known of the pod's containers (yet), its status
// says.
func (s *Server) alive(pod *v1.Pod, name, id string) bool {
	if s.opts.Node.Observed(pod.UID) != nil {
		c := s.observed(pod, id)
		return c != nil && !c.Exited()
	}
	now := choosePod(s.opts.Node.Pods(), pod.Namespace, pod.Name, pod.UID)
	if now == nil {
		return false
	}
	st, ok := statusOf(now, name)
	return ok && st.State.Running != nil && strings.HasSuffix(st.ContainerID, "://"+id)
}
