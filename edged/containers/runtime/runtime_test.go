package runtime

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const (
	isRunning = runtimeapi.ContainerState_CONTAINER_RUNNING
	isExited  = runtimeapi.ContainerState_CONTAINER_EXITED
	isCreated = runtimeapi.ContainerState_CONTAINER_CREATED
	isUnknown = runtimeapi.ContainerState_CONTAINER_UNKNOWN
)

func testPod(policy v1.RestartPolicy, inits, mains int) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "1"},
		Spec:       v1.PodSpec{RestartPolicy: policy},
	}
	for i := range inits {
		p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: fmt.Sprintf("i%d", i), Image: "img"})
	}
	for i := range mains {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: fmt.Sprintf("c%d", i), Image: "img"})
	}
	return p
}

// seen makes a snapshot with a ready sandbox "s" and containers written as "name state [exit code]".
func seen(containers ...string) *observed.Pod {
	obs := &observed.Pod{
		UID: "1", Detailed: true, Sandboxes: []*observed.Sandbox{{ID: "s", Ready: true, IPs: []string{"10.0.0.2"}}},
	}
	for _, text := range containers {
		f := strings.Fields(text)
		c := &observed.Container{
			ID:        f[0] + "-id",
			Name:      f[0],
			SandboxID: "s",
			Hash:      Hash(&v1.Container{Name: f[0], Image: "img"}),
		}
		c.State = map[string]runtimeapi.ContainerState{"running": isRunning, "exited": isExited, "created": isCreated,
			"unknown": isUnknown}[f[1]]
		if len(f) > 2 {
			fmt.Sscan(f[2], &c.ExitCode)
		}
		obs.Containers = append(obs.Containers, c)
	}
	return obs
}

func describe(a Actions) string {
	var parts []string
	if a.KillPod {
		parts = append(parts, "kill pod")
	}
	for _, k := range a.Kill {
		parts = append(parts, "kill "+k.Name)
	}
	if a.CreateSandbox {
		parts = append(parts, fmt.Sprintf("sandbox %d", a.Attempt))
	}
	for _, s := range a.Start {
		parts = append(parts, "start "+s.Container.Name)
	}
	return strings.Join(parts, ", ")
}

func TestComputeActions(t *testing.T) {
	always, onFailure, never := v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	dead := func(o *observed.Pod) *observed.Pod { o.Sandboxes[0].Ready = false; return o }
	sidecarPod := testPod(always, 2, 1)
	sidecarPod.Spec.InitContainers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	hostPod := testPod(always, 0, 1)
	hostPod.Spec.HostNetwork = true
	changed := seen("c0 running", "c1 running")
	changed.Containers[0].Hash = 1
	noIP := seen("c0 running")
	noIP.Sandboxes[0].IPs = nil
	elsewhere := seen("c0 running")
	elsewhere.Containers[0].SandboxID = "old"
	doubled := seen("c0 running")
	doubled.Sandboxes = append(doubled.Sandboxes, &observed.Sandbox{ID: "t", Ready: true})
	oldInit := seen("i0 exited 0")
	oldInit.Containers[0].SandboxID = "old"
	for name, c := range map[string]struct {
		pod  *v1.Pod
		obs  *observed.Pod
		want string
	}{
		"new pod":                {testPod(always, 0, 2), &observed.Pod{}, "sandbox 0, start c0, start c1"},
		"new pod with init":      {testPod(always, 2, 1), &observed.Pod{}, "sandbox 0, start i0"},
		"all is well":            {testPod(always, 0, 2), seen("c0 running", "c1 running"), ""},
		"one has crashed":        {testPod(always, 0, 2), seen("c0 running", "c1 exited 1"), "start c1"},
		"well ended, Always":     {testPod(always, 0, 1), seen("c0 exited 0"), "start c0"},
		"well ended, OnFailure":  {testPod(onFailure, 0, 1), seen("c0 exited 0"), ""},
		"failed, OnFailure":      {testPod(onFailure, 0, 1), seen("c0 exited 1"), "start c0"},
		"failed, Never":          {testPod(never, 0, 1), seen("c0 exited 1"), ""},
		"created, never started": {testPod(never, 0, 1), seen("c0 created"), "start c0"},
		"unknown":                {testPod(never, 0, 1), seen("c0 unknown"), "kill c0, start c0"},
		"other image":            {testPod(always, 0, 2), changed, "kill c0, start c0"},
		"sandbox died":           {testPod(always, 0, 1), dead(seen("c0 exited 137")), "sandbox 1, start c0"},
		"sandbox died, container lives": {
			testPod(always, 0, 1), dead(seen("c0 running")), "kill pod, sandbox 1, start c0",
		},
		"sandbox died, all done":       {testPod(onFailure, 0, 1), dead(seen("c0 exited 0")), ""},
		"sandbox died, Never":          {testPod(never, 0, 1), dead(seen("c0 exited 0")), ""},
		"sandbox died, Never, running": {testPod(never, 0, 1), dead(seen("c0 running")), "kill pod"},
		"sandbox died, init again": {
			testPod(always, 1, 1), dead(seen("i0 exited 0", "c0 exited 1")), "sandbox 1, start i0",
		},
		"sandbox without address": {testPod(always, 0, 1), noIP, "kill pod, sandbox 1, start c0"},
		"host network has none": {
			hostPod, &observed.Pod{Sandboxes: []*observed.Sandbox{{ID: "s", Ready: true, HostNetwork: true}}},
			"start c0",
		},
		"network changed":             {hostPod, seen("c0 running"), "kill pod, sandbox 1, start c0"},
		"two ready sandboxes":         {testPod(always, 0, 1), doubled, "kill pod, sandbox 1, start c0"},
		"container of an old sandbox": {testPod(always, 0, 1), elsewhere, "kill c0, start c0"},
		"init runs":                   {testPod(always, 2, 1), seen("i0 running"), ""},
		"next init":                   {testPod(always, 2, 1), seen("i0 exited 0"), "start i1"},
		"init done":                   {testPod(always, 2, 1), seen("i0 exited 0", "i1 exited 0"), "start c0"},
		"init failed":                 {testPod(always, 2, 1), seen("i0 exited 1"), "start i0"},
		"init failed, Never":          {testPod(never, 2, 1), seen("i0 exited 1"), ""},
		"init of an old sandbox":      {testPod(always, 1, 1), oldInit, "start i0"},
		"init forgotten, main runs":   {testPod(always, 2, 1), seen("c0 running"), ""},
		"sidecar first":               {sidecarPod, seen(), "start i0, start i1"},
		"sidecar runs":                {sidecarPod, seen("i0 running"), "start i1"},
		"sidecar died":                {sidecarPod, seen("i0 exited 0", "i1 exited 0", "c0 running"), "start i0"},
	} {
		if got := describe(computeActions(c.pod, c.obs, nil)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestActionsConverge: carrying the actions out on a model of a runtime, from any state, leads to a pod that runs
// or has ended, and never stops a container that is as it should be.
func TestActionsConverge(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	states := []string{"running", "exited 0", "exited 1", "created", "unknown"}
	for range randomPods() {
		pod := testPod([]v1.RestartPolicy{
			v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever,
		}[r.IntN(3)], r.IntN(3), 1+r.IntN(3))
		var list []string
		for _, c := range allContainers(pod) {
			if r.IntN(2) == 0 {
				list = append(list, c.Name+" "+states[r.IntN(len(states))])
			}
		}
		obs := seen(list...)
		obs.Sandboxes[0].Ready = r.IntN(4) > 0
		for step := 0; ; step++ {
			a := computeActions(pod, obs, nil)
			if a.None() {
				if !endInit(obs) {
					break
				}
				continue
			}
			if step > 20 {
				t.Fatalf("step %d on %v: %s, want no action after 20", step, list, describe(a))
			}
			if a.KillPod && obs.Sandboxes[0].Ready {
				t.Fatalf("actions on %v: %s, want the ready sandbox kept", list, describe(a))
			}
			applyActions(t, a, obs)
		}
		for _, c := range pod.Spec.Containers {
			if last := obs.Container(c.Name); pod.Spec.RestartPolicy == v1.RestartPolicyAlways && !last.Running() {
				t.Fatalf("%s in the end = %+v, want it running: %v", c.Name, last, list)
			}
		}
	}
}

// endInit lets an init container that runs end well.
func endInit(obs *observed.Pod) bool {
	for _, c := range obs.Containers {
		if strings.HasPrefix(c.Name, "i") && c.Running() {
			c.State = isExited
			return true
		}
	}
	return false
}

// applyActions does actions on a model in which init containers end well at once and others run.
func applyActions(t *testing.T, a Actions, obs *observed.Pod) {
	t.Helper()
	for _, k := range a.Kill {
		c := find(obs, k.ID)
		if c.Running() && c.SandboxID == a.SandboxID && obs.Sandboxes[0].Ready &&
			!strings.Contains(k.Message, "init container failed") {
			t.Fatalf("kill of %s (%s), which runs in a ready sandbox, want none", k.Name, k.Message)
		}
		c.State, c.ExitCode = isExited, 137
	}
	if a.KillPod {
		for _, c := range obs.Containers {
			if !c.Exited() {
				c.State, c.ExitCode = isExited, 137
			}
		}
	}
	id := a.SandboxID
	if a.CreateSandbox {
		id = fmt.Sprintf("s%d", a.Attempt)
		obs.Sandboxes = []*observed.Sandbox{{ID: id, Attempt: a.Attempt, Ready: true, IPs: []string{"10.0.0.3"}}}
	}
	for _, s := range a.Start {
		c := &observed.Container{
			ID:        fmt.Sprint(s.Container.Name, rand.Int()),
			Name:      s.Container.Name,
			SandboxID: id,
			State:     isRunning,
			Hash:      Hash(s.Container),
		}
		if s.Init {
			c.State = isExited
		}
		obs.Containers = append([]*observed.Container{c}, obs.Containers...)
	}
}

// TestHash: the kubelet's own hash of this container, recorded in its tests.
func TestHash(t *testing.T) {
	c := &v1.Container{
		Name:  "test_container",
		Image: "foo/image:v1",
		Args:  []string{"/bin/sh", "-c", "echo abc"},
		Ports: []v1.ContainerPort{{ContainerPort: 8001}},
	}
	if got := Hash(c); got != 0x8e45cbd0 {
		t.Errorf("hash %#x, want 0x8e45cbd0", got)
	}
}

func TestBackoff(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	crash := func(id string, restarts int32, ran time.Duration) *observed.Container {
		return &observed.Container{
			ID:           id,
			State:        isExited,
			RestartCount: restarts,
			StartedAt:    start,
			FinishedAt:   start.Add(ran),
		}
	}
	b := newBackoff(5 * time.Minute)
	var got []time.Duration
	for i := range 8 {
		d, until := b.waitFor("1", "c", 1, crash(fmt.Sprint(i), int32(i), time.Second))
		again, _ := b.waitFor("1", "c", 1, crash(fmt.Sprint(i), int32(i), time.Second))
		if d != again || (d > 0 && !until.Equal(start.Add(time.Second+d))) {
			t.Errorf("crash %d: %v, then %v, until %v; want the same twice, until 1 s later than that",
				i, d, again, until)
		}
		got = append(got, d)
	}
	s := time.Second
	if diff := cmp.Diff([]time.Duration{0, 10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 300 * s, 300 * s},
		got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if d, _ := b.waitFor("1", "c", 1, crash("long", 9, 11*time.Minute)); d != 0 {
		t.Errorf("after a long run: %v, want nothing", d)
	}
	// An agent that was restarted derives the wait from the count of restarts: no storm.
	if d, _ := newBackoff(5*time.Minute).waitFor("1", "c", 1, crash("x", 3, time.Second)); d != 40*s {
		t.Errorf("after a restart of the agent: %v, want 40 s", d)
	}
	if d, _ := newBackoff(30*s).waitFor("1", "c", 1, crash("x", 9, time.Second)); d != 30*s {
		t.Errorf("with a maximum of 30 s: %v, want 30 s", d)
	}
	b.forget("1")
	if len(b.waits) != 0 {
		t.Errorf("waits after forget(1) = %v, want none", b.waits)
	}
}

// TestBackoffOfFailingProbe: a container that the agent stops again and again, since its probe fails, waits longer and
// longer before it is started, at the times at which a kubelet starts it.
func TestBackoffOfFailingProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newDirectRig(t)
		pod := testPod(v1.RestartPolicyAlways, 0, 1)
		began := time.Now()
		var started []time.Duration
		last := ""
		for len(started) < 6 {
			obs := g.observe(pod)
			input := SyncInput{Pod: pod, Observed: obs}
			if c := obs.Container("c0"); c.Running() {
				if c.ID != last {
					started, last = append(started, time.Since(began)), c.ID
				}
				time.Sleep(2 * time.Second)
				input.Probes = input.Probes.Stopped(c.ID, "Container c0 failed liveness probe, will be restarted")
			}
			if res := g.SyncPod(t.Context(), input); res.Err != nil {
				t.Fatalf("sync: %v, want no error", res.Err)
			} else if !res.RetryAt.IsZero() {
				time.Sleep(time.Until(res.RetryAt))
			}
		}
		s := time.Second
		if diff := cmp.Diff([]time.Duration{0, 2 * s, 4 * s, 16 * s, 18 * s, 40 * s}, started); diff != "" {
			t.Errorf("times at which the container was started, with probes that fail after 2 s (-want +got)\n%s", diff)
		}
	})
}

func TestReservedFor(t *testing.T) {
	for text, want := range map[string]string{
		`rpc error: code = Unknown desc = failed to reserve container name "c_p_default_1_0": name "c_p_default_1_0" is reserved for "0a1b2c"`: "0a1b2c",
		`failed to reserve sandbox name "p": name "p" is reserved for "ff00"`:                                                                  "ff00",
		`the container name "k8s_c" is already in use`:                                                                                         "",
		"": "",
	} {
		if got := reservedFor(errors.New(text)); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if got := reservedFor(nil); got != "" {
		t.Errorf("reservedFor(nil) = %q, want \"\"", got)
	}
}

func TestLabelsRoundTrip(t *testing.T) {
	p := testPod(v1.RestartPolicyAlways, 0, 1)
	p.Labels = map[string]string{"app": "x"}
	p.Spec.TerminationGracePeriodSeconds, p.DeletionGracePeriodSeconds = ptr.To[int64](30), ptr.To[int64](5)
	c := &p.Spec.Containers[0]
	c.TerminationMessagePath, c.TerminationMessagePolicy = "/dev/x", v1.TerminationMessageFallbackToLogsOnError
	o, ok := parseOwner(containerLabels(p, c))
	if !ok || o != (owner{"1", "default", "p", "c0"}) {
		t.Errorf("parseOwner() = %+v, %v; want {1 default p c0}, true", o, ok)
	}
	n := parseNotes(containerAnnotations(p, c, 7))
	if n.hash != Hash(c) || n.restartCount != 7 || n.messagePath != "/dev/x" || !n.messageFromLogs || n.grace == nil ||
		*n.grace != 5 {
		t.Errorf("parseNotes() = %+v, want what was noted", n)
	}
	if got := podLabels(p); got["app"] != "x" || got[labelPodUID] != "1" || p.Labels[labelPodUID] != "" {
		t.Errorf("%v; the pod's own: %v, want \"x\", \"1\", \"\"", got, p.Labels)
	}
	if got, ok := parseOwner(map[string]string{"app": "x"}); ok {
		t.Errorf("parseOwner(foreign labels) = %+v, true, want false", got)
	}
}

func FuzzNotes(f *testing.F) {
	f.Add("8e45cbd0", "3", "30")
	f.Add("-1", "99999999999999", "x")
	f.Add(strings.Repeat("f", 64<<10), strings.Repeat("9", 64<<10), strings.Repeat("0", 64<<10))
	f.Fuzz(func(t *testing.T, hash, count, grace string) {
		labels := map[string]string{
			annotationHash: hash, annotationRestartCount: count, annotationPodTerminationGrace: grace,
		}
		var n notes
		// An error of package strconv has the text, which nobody keeps.
		membound.Check(t, membound.Linear(len(hash)+len(count)+len(grace), 16), func() { n = parseNotes(labels) })
		if n.restartCount < 0 || (n.grace != nil && *n.grace < 0) {
			t.Errorf("parseNotes() = %+v, want no negative numbers", n)
		}
	})
}

func TestSecurityContext(t *testing.T) {
	r := New(Options{RootDir: "/root", MaskedPaths: []string{"/sys/x"}})
	p := testPod(v1.RestartPolicyAlways, 0, 1)
	p.Annotations = map[string]string{v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "c0": "localhost/x"}
	p.Spec.SecurityContext = &v1.PodSecurityContext{
		RunAsUser:          ptr.To[int64](1),
		FSGroup:            ptr.To[int64](9),
		SupplementalGroups: []int64{3},
		SeccompProfile:     &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
	}
	c := &p.Spec.Containers[0]
	c.SecurityContext = &v1.SecurityContext{RunAsUser: ptr.To[int64](2), AllowPrivilegeEscalation: ptr.To(false),
		Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}}}
	sc, err := r.securityContext(p, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if sc.RunAsUser.Value != 2 || !sc.NoNewPrivs || sc.Capabilities.DropCapabilities[0] != "ALL" ||
		sc.SupplementalGroups[0] != 9 ||
		sc.Seccomp.ProfileType != runtimeapi.SecurityProfile_RuntimeDefault || len(sc.MaskedPaths) == 0 {
		t.Errorf("security context = %+v, want the container's fields to override the pod's", sc)
	}
	if diff := cmp.Diff([]int64{9, 3}, sc.SupplementalGroups); diff != "" {
		t.Errorf("groups, the volumes' first (-want +got):\n%s", diff)
	}
	//lint:ignore SA1019 a kubelet sets it too, and old runtimes read nothing else
	last, old := sc.MaskedPaths[len(sc.MaskedPaths)-1], sc.ApparmorProfile
	if last != "/sys/x" || old != "localhost/x" || sc.Apparmor.LocalhostRef != "x" {
		t.Errorf("masked path %q, profile %q, %v; want /sys/x and the profile x of the annotation", last, old,
			sc.Apparmor)
	}
	for _, bad := range []string{"", "/etc/x", "../x"} {
		c.SecurityContext.SeccompProfile = &v1.SeccompProfile{
			Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: &bad,
		}
		if _, err := r.securityContext(p, c, nil); err == nil {
			t.Errorf("securityContext(profile %q) = nil, want an error", bad)
		}
	}
	c.SecurityContext = &v1.SecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](0)}
	sc, err = r.securityContext(p, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.completeUser(t.Context(), p, c, "img", sc); err == nil ||
		!strings.Contains(err.Error(), "breaks non-root policy") {
		t.Errorf("err = %v, want an error with \"breaks non-root policy\"", err)
	}
}

// TestTerminationMessage: sizes are bounded, and a link in the place of the file is not followed.
func TestTerminationMessage(t *testing.T) {
	r := New(Options{RootDir: t.TempDir()})
	p := testPod(v1.RestartPolicyAlways, 0, 1)
	c := &p.Spec.Containers[0]
	c.TerminationMessagePath = "/dev/termination-log"
	var path string
	for attempt := range uint32(4) {
		var err error
		if path, err = r.messageFile(p, c, attempt); err != nil {
			t.Fatal(err)
		}
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 2 {
		t.Errorf("%d files, %v; want those of the last two attempts", len(files), err)
	}
	st := &runtimeapi.ContainerStatus{
		ExitCode: 1, Annotations: containerAnnotations(p, c, 0),
		Mounts: []*runtimeapi.Mount{{ContainerPath: c.TerminationMessagePath, HostPath: path}},
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 10000)+"\xff"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := terminationMessage(st); len(got) != maxMessage {
		t.Errorf("%d bytes, want %d", len(got), maxMessage)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, path); err != nil {
		t.Fatal(err)
	}
	if got := terminationMessage(st); !strings.HasPrefix(got, "Error on reading termination log "+path+": ") {
		t.Errorf("a link was followed: %q, want an error", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(log, []byte("2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr F two\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	c.TerminationMessagePolicy = v1.TerminationMessageFallbackToLogsOnError
	st.Annotations, st.LogPath = containerAnnotations(p, c, 0), log
	if got := terminationMessage(st); got != "one\ntwo\n" {
		t.Errorf("terminationMessage() = %q, want \"one\\ntwo\\n\"", got)
	}
}

func TestNextAttemptFromLogs(t *testing.T) {
	r := New(Options{})
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "c0"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"2.log", "4.log.20260101-000000", "x.log", "9.txt"} {
		if err := os.WriteFile(filepath.Join(dir, "c0", name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := startParams{config: &runtimeapi.PodSandboxConfig{LogDirectory: dir}}
	c := &v1.Container{Name: "c0"}
	if got := r.nextAttempt(p, Start{Container: c}); got != 5 {
		t.Errorf("from logs: %d, want 5", got)
	}
	if got := r.nextAttempt(p, Start{Container: c, Last: &observed.Container{Attempt: 6}}); got != 7 {
		t.Errorf("from the last attempt: %d, want 7", got)
	}
	if got := r.nextAttempt(p, Start{Container: &v1.Container{Name: "new"}}); got != 0 {
		t.Errorf("of a new one: %d, want 0", got)
	}
}
