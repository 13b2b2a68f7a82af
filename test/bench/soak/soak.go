package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// patience bounds each step of a wave: these machines are shared.
const patience = 3 * time.Minute

type options struct {
	binary string
	// pods in all, wave at a time; figures are taken after the first so many, after as many again and again, and at the
	// end.
	pods, first, wave int
	seed              uint64
	settle            time.Duration
	say               func(format string, args ...any)
}

// soaker is a device that is soaked.
type soaker struct {
	options
	ctrd  *containerd.Instance
	cri   *cri.Client
	agent *agent.Agent
	rand  *rand.Rand
	found result
}

// soak runs it all, and leaves nothing behind.
func soak(ctx context.Context, o options) (r *result, err error) {
	dir, err := os.MkdirTemp("", "edgecore-soak-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	s := &soaker{options: o, rand: rand.New(rand.NewPCG(o.seed, 1))}
	if s.ctrd, err = containerd.Start(ctx, containerd.Options{}); err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, agent.Unmount(dir), s.ctrd.Stop(context.WithoutCancel(ctx)))
	}()
	if err := s.ctrd.LoadImages(ctx); err != nil {
		return nil, err
	}
	if s.cri, err = s.ctrd.Dial(); err != nil {
		return nil, err
	}
	defer s.cri.Close()
	if s.agent, err = agent.New(agent.Options{
		Binary:     o.binary,
		Dir:        dir,
		Endpoint:   s.ctrd.Endpoint(),
		CgroupRoot: s.ctrd.CgroupRoot(),
	}); err != nil {
		return nil, err
	}
	// Before the start, which may fail, or be interrupted, while the agent runs already.
	defer func() { err = errors.Join(err, s.agent.Stop(context.WithoutCancel(ctx))) }()
	if err := s.agent.Start(ctx); err != nil {
		return nil, err
	}
	if err := s.waves(ctx); err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%w\n%s", err, daemon.Tail(s.agent.Log(), 30))
	}
	return &s.found, ctx.Err()
}

// goesWithin is how long what is over may take to go: Go collects its garbage every two minutes at the latest.
const goesWithin = 3 * time.Minute

// waves makes one wave after the other, and takes the figures.
func (s *soaker) waves(ctx context.Context) error {
	plan := planOf(s.pods, s.first, s.wave, s.rand)
	for i, w := range plan {
		began := time.Now()
		if err := s.once(ctx, i, w); err != nil {
			return fmt.Errorf("wave %d: %w", i, err)
		}
		if i%10 == 9 || w.figures {
			s.say("%d pods so far; the last wave took %.1f s", w.until, time.Since(began).Seconds())
		}
		if !w.figures {
			continue
		}
		figures, err := s.figures(ctx)
		if err != nil {
			return err
		}
		if s.found.first == nil {
			s.found.first, s.found.firstAt = figures, w.until
		}
		s.found.end, s.found.endAt = figures, w.until
		s.say("after %d pods: %s", w.until, line(figures))
	}
	return s.lookAgain(ctx)
}

// lookAgain takes the last figures again, while something has grown: what is on its way out goes, what leaks stays.
func (s *soaker) lookAgain(ctx context.Context) error {
	for end := time.Now().Add(daemon.Scaled(goesWithin)); time.Now().Before(end); {
		grown := s.found.verdict()
		if grown == nil {
			return nil
		}
		s.say("looking again, as there is more than at first: %v", grown)
		figures, err := s.figures(ctx)
		if err != nil {
			return err
		}
		s.found.end = figures
	}
	return nil
}

// wave is what happens with some pods.
type wave struct {
	pods int
	// until is how many pods there have been after it.
	until int
	// killStarting and killRunning are how many processes are killed while pods start and when they run.
	killStarting, killRunning int
	// agent says when the agent is killed: not at all, while pods start, or while they are deleted.
	agent moment
	// figures are taken after it.
	figures bool
}

type moment int

const (
	never moment = iota
	starting
	deleting
)

// planOf decides by chance what happens when. It is pure but for chance.
func planOf(pods, first, size int, chance *rand.Rand) []wave {
	var plan []wave
	for done := 0; done < pods; {
		w := wave{pods: min(size, pods-done), killStarting: chance.IntN(3), killRunning: chance.IntN(4)}
		if next := first - done%first; w.pods > next {
			w.pods = next
		}
		done += w.pods
		w.until, w.figures = done, done%first == 0 || done == pods
		// The agent is killed in a third of the waves of the first half; that of the first figures lives for a wave at
		// least.
		if roll := chance.IntN(6); done <= pods/2 && roll < 2 && !w.figures {
			w.agent = moment(roll + 1)
		}
		plan = append(plan, w)
	}
	return plan
}

// once starts pods, kills, and deletes them.
func (s *soaker) once(ctx context.Context, n int, w wave) error {
	var docs []string
	for i := range w.pods {
		docs = append(docs, manifest(n, i))
	}
	if err := s.agent.WriteManifest("pods.yaml", strings.Join(docs, "---\n")); err != nil {
		return err
	}
	if err := s.disturb(ctx, w.killStarting, w.agent == starting); err != nil {
		return err
	}
	if err := s.until(ctx, func(pods map[string]*v1.Pod) error { return allStarted(pods, w.pods) }); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := s.disturb(ctx, w.killRunning, false); err != nil {
		return err
	}
	if err := s.agent.RemoveManifest("pods.yaml"); err != nil {
		return err
	}
	if err := s.disturb(ctx, 0, w.agent == deleting); err != nil {
		return err
	}
	if err := s.until(ctx, noneLeft); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// disturb kills processes of pods, and the agent, at moments of chance.
func (s *soaker) disturb(ctx context.Context, processes int, agentToo bool) error {
	for range processes {
		if !sleep(ctx, time.Duration(s.rand.IntN(400))*time.Millisecond) {
			return ctx.Err()
		}
		s.killOne()
	}
	if !agentToo {
		return nil
	}
	if !sleep(ctx, time.Duration(s.rand.IntN(1500))*time.Millisecond) {
		return ctx.Err()
	}
	s.found.agentKills++
	if err := s.agent.Kill9(ctx); err != nil {
		return err
	}
	return s.agent.Start(ctx)
}

// killOne kills a process of a container or a sandbox.
func (s *soaker) killOne() {
	var pids []int
	for _, tree := range trees(s.ctrd.Name) {
		_ = filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || d.Name() != "cgroup.procs" || !strings.Contains(path, "/kubepods") {
				return nil // what has gone since has no processes
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return nil
			}
			for _, f := range strings.Fields(string(data)) {
				if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
			return nil
		})
	}
	slices.Sort(pids)
	if pids = slices.Compact(pids); len(pids) == 0 {
		return
	}
	if id, err := daemon.Identify(pids[s.rand.IntN(len(pids))]); err == nil && id.Signal(syscall.SIGKILL) == nil {
		s.found.kills++
	}
}

// until waits for the pods to be as a check wants them.
func (s *soaker) until(ctx context.Context, check func(map[string]*v1.Pod) error) error {
	ctx, cancel := context.WithTimeout(ctx, daemon.Scaled(patience))
	defer cancel()
	for {
		pods, err := s.agent.Pods(ctx)
		if err == nil {
			err = check(pods)
		}
		if err == nil {
			return nil
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return err
		}
	}
}

// allStarted checks that each pod runs, has run, or is on its way back from being killed.
func allStarted(pods map[string]*v1.Pod, want int) error {
	if len(pods) != want {
		return fmt.Errorf("%d pods, want %d", len(pods), want)
	}
	for name, p := range pods {
		if p.Status.Phase == v1.PodPending || p.Status.Phase == "" {
			return fmt.Errorf("pod %s is %s: %+v", name, p.Status.Phase, p.Status.ContainerStatuses)
		}
	}
	return nil
}

func noneLeft(pods map[string]*v1.Pod) error {
	for name, p := range pods {
		return fmt.Errorf("%d pods are left, of them %s, which is %s", len(pods), name, p.Status.Phase)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// shapes are the kinds of pods in turn: memory volumes, several containers with a probe, jobs with an init container,
// files of the downward API on the host's network.
var shapes = [...]string{
	`
  containers:
  - {name: main, image: %[1]q, command: %[2]s, volumeMounts: [{name: m, mountPath: /m}]}
  volumes: [{name: m, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]
`, `
  containers:
  - {name: main, image: %[1]q, command: %[2]s, volumeMounts: [{name: d, mountPath: /d}]}
  - name: side
    image: %[1]q
    command: %[2]s
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, emptyDir: {}}]
`, `
  restartPolicy: Never
  initContainers:
  - {name: init, image: %[1]q, command: [sh, -c, "echo begun"]}
  containers:
  - {name: main, image: %[1]q, command: [sh, -c, "echo done"]}
`, `
  hostNetwork: true
  containers:
  - {name: main, image: %[1]q, command: %[2]s, volumeMounts: [{name: i, mountPath: /i}]}
  volumes: [{name: i, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]
`,
}

// manifest is a pod of a wave.
func manifest(wave, i int) string {
	const command = `[sh, -c, "echo up; trap 'exit 0' TERM; sleep 1000000 & wait"]`
	return fmt.Sprintf(
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p-%d-%d}\nspec:\n  terminationGracePeriodSeconds: 1", wave, i) +
		fmt.Sprintf(shapes[i%len(shapes)], images.Demo, command)
}
