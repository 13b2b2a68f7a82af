package differential

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/conformance"
	"github.com/edgecore-io/edgecore/test/testenv/csi"
	"github.com/edgecore-io/edgecore/test/testenv/deviceplugin"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestRandomPods runs pods that are made by chance, of three kinds in turn: steady pods run until they are deleted, and
// pods that end do so in a way that their spec decides; all that is seen of both is compared. The rest restart, fail
// and end at times of their own, so what does not depend on that is compared; see [Case].Chance.
func TestRandomPods(t *testing.T) {
	p := startPair(t, supported())
	dir, err := os.MkdirTemp("", "plugins-") // t.TempDir is too long for the path of a socket
	env.Must(t, err)
	t.Cleanup(func() { env.Must(t, os.RemoveAll(dir)) })
	driver, err := csi.Build(t.Context(), dir)
	env.Must(t, err)
	plugin := deviceplugin.Build(t)
	for _, s := range []*Side{p.left, p.right} {
		objects := strings.NewReplacer("@NODE@", s.Name, "@DIR@", s.Dir).Replace(conformance.RandomObjects)
		env.Must(t, p.cluster.Kube.ApplyIn(t.Context(), s.Name, objects))
		s.plugins(t, driver, plugin, filepath.Join(dir, s.Name))
	}
	t.Run("pods", func(t *testing.T) {
		for i := range *podsFlag {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				defer func() {
					if t.Failed() {
						t.Logf("this pod alone: -run 'TestRandomPods/pods/%d$' -pods %d -seed %d", i, i+1, *seedFlag)
					}
				}()
				p.compare(t, randomCase(i))
			})
		}
	})
}

// The driver and the devices that random pods use. No pod waits for a device.
const (
	randomDriver = "random.@NODE@"
	randomDevice = "example.com/random"
	devices      = 100
)

// plugins starts a CSI driver and a device plugin for a node, and waits until it has both.
func (s *Side) plugins(t *testing.T, driver, plugin, dir string) {
	t.Helper()
	name := strings.ReplaceAll(randomDriver, "@NODE@", s.Name)
	csi.Start(t, csi.Options{Binary: driver, Name: name, Node: s.Name, Root: s.Root, Dir: filepath.Join(dir, "driver")})
	var names []string
	for i := range devices {
		names = append(names, fmt.Sprintf("random-device-%d", i))
	}
	deviceplugin.Start(t, plugin, deviceplugin.Options{
		Resource: randomDevice,
		Root:     s.Root,
		Dir:      filepath.Join(dir, "plugin"),
		Args:     []string{"-registry", filepath.Join(s.Root, "plugins_registry")},
	}, names...)
	s.texts = map[string]string{dir: "<plugins>"}
	wait.Until(t, "the node has its devices and its driver", func() error {
		node, err := s.API.CoreV1().Nodes().Get(t.Context(), s.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if q := node.Status.Allocatable[randomDevice]; q.Value() != devices {
			return fmt.Errorf("allocatable devices = %v, want %d", q.Value(), devices)
		}
		drivers, err := s.API.StorageV1().CSINodes().Get(t.Context(), s.Name, metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(drivers.Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
			return d.Name == name
		}) {
			err = fmt.Errorf("drivers = %v, want %s", drivers.Spec.Drivers, name)
		}
		return err
	})
}

// randomCase is a pod made by chance, which is the same for the same seed and number.
func randomCase(i int) Case {
	random := rand.New(rand.NewPCG(*seedFlag, uint64(i)))
	spec := conformance.RandomSpec(random, conformance.RandomOptions{HostDir: "@DIR@/@NAME@", Driver: randomDriver,
		Device: randomDevice})
	eachContainer(&spec, func(c *v1.Container) {
		if c.Lifecycle != nil {
			c.Lifecycle.StopSignal = nil // see the row stop-signal of the conformance suite
		}
	})
	c := Case{
		Name:   fmt.Sprintf("random-%d", i),
		Pod:    &spec,
		Labels: map[string]string{"app": "random"},
		Steps:  []Step{Settled(), Inspect()},
		// In which order containers become ready, and which of them share a report, depends on time.
		Ends: []string{`pod\.status\.conditions\[(Ready|ContainersReady|Initialized)\]\.(message|reason)`},
	}
	switch i % 3 {
	case 0:
		steady(&spec, random)
		if random.IntN(5) == 0 {
			var steps []Step
			steps, c.Ignore = debug(random)
			c.Steps = append(c.Steps, steps...)
		}
	case 1:
		ending(&spec, random)
		c.Steps = []Step{Until("ended", ended)}
	default:
		c.Chance = true
		c.Steps = []Step{Lived(), Inspect()}
		withoutServers(&spec)
		endsBeforeProbes(&spec)
		if d := spec.ActiveDeadlineSeconds; d != nil {
			*d = max(*d, deadline)
		}
	}
	if pulls(&spec) {
		c.Chance = true // the reason for which its container waits changes by the clock
	}
	if waitsForVolume(&spec) {
		c.Steps = []Step{Event("FailedMount"), Until("reported", reported)}
	}
	return c
}

// deadline is the shortest activeDeadlineSeconds of a random pod: below, the load decides which containers start in
// time, and which of them a probe has started again by then.
const deadline = 25

// withoutServers has pods of both nodes see the same in the host's network: there only one container could listen on a
// port.
func withoutServers(spec *v1.PodSpec) {
	if !spec.HostNetwork {
		return
	}
	eachContainer(spec, func(c *v1.Container) {
		if strings.Contains(strings.Join(c.Command, " "), "httpd") {
			c.Command = []string{"sh", "-c", forever}
		}
	})
}

// endsBeforeProbes has containers that end after a second or two do so before a probe may end them: both in the same
// moment would leave to chance which of them is first.
func endsBeforeProbes(spec *v1.PodSpec) {
	eachContainer(spec, func(c *v1.Container) {
		command := strings.Join(c.Command, " ")
		if !strings.Contains(command, "sleep 1; exit") && !strings.HasSuffix(command, "sleep 2") {
			return
		}
		for _, probe := range []*v1.Probe{c.StartupProbe, c.LivenessProbe} {
			if probe != nil {
				probe.InitialDelaySeconds = max(probe.InitialDelaySeconds, 5)
			}
		}
	})
}

// debug are steps that add an ephemeral container to a pod, and the paths that differ by chance.
func debug(random *rand.Rand) (steps []Step, ignore []string) {
	target := []string{"", ", targetContainerName: main0"}[random.IntN(2)]
	container := func(script string) Step {
		return Patch(
			fmt.Sprintf(
				`spec: {ephemeralContainers: [{name: look, image: "edgecore.local/demo:1", imagePullPolicy: IfNotPresent, command: [sh, -c, %q]%s}]}`, script, target), "ephemeralcontainers")
	}
	if random.IntN(2) == 0 {
		return []Step{
			container("sleep 2; exit 3"),
			Until("look-ended", looked(func(s v1.ContainerState) bool { return s.Terminated != nil })),
		}, nil
	}
	if target != "" { // the target's end kills it, if it has not ended by then
		ignore = []string{`pod\.status\.ephemeralContainerStatuses\[look\]\.state\.terminated\.(exitCode|reason)`}
	}
	return []Step{
		container(forever),
		Until("look-started", looked(func(s v1.ContainerState) bool { return s.Running != nil })),
		Inspect(),
	}, ignore
}

// looked waits until the ephemeral container has a state, or cannot start.
func looked(done func(v1.ContainerState) bool) func(*v1.Pod) error {
	return func(pod *v1.Pod) error {
		c, err := containerStatus(pod, "look")
		if err == nil && !done(c.State) && !refused(c) {
			err = fmt.Errorf("state of look is %+v, want another or that it cannot start", c.State)
		}
		return err
	}
}

// pulls reports whether a pod has an image that cannot be pulled.
func pulls(spec *v1.PodSpec) (yes bool) {
	eachContainer(spec, func(c *v1.Container) { yes = yes || strings.HasPrefix(c.Image, "127.0.0.1") })
	return yes
}

// waitsForVolume reports whether a pod has a volume that is never there. One that no container mounts is not looked
// for.
func waitsForVolume(spec *v1.PodSpec) (yes bool) {
	eachContainer(spec, func(c *v1.Container) {
		yes = yes || slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool {
			return m.Name == conformance.AbsentVolume
		})
	})
	return yes
}

// reported returns an error while no container of a pod has a status.
func reported(pod *v1.Pod) error {
	if len(pod.Status.ContainerStatuses) == 0 {
		return errors.New("no container has a status, want one of each")
	}
	return nil
}

// steady changes a spec so that its containers run until they are stopped, with probes and hooks that succeed.
func steady(spec *v1.PodSpec, random *rand.Rand) {
	spec.ActiveDeadlineSeconds = nil
	eachContainer(spec, func(c *v1.Container) {
		c.Command = []string{"sh", "-c", forever}
		succeed := v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}
		for _, probe := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			if probe != nil {
				probe.ProbeHandler, probe.TimeoutSeconds, probe.FailureThreshold = succeed, 10, 10
			}
		}
		if c.Lifecycle != nil {
			hook := &v1.LifecycleHandler{Exec: succeed.Exec}
			c.Lifecycle.PostStart, c.Lifecycle.PreStop = hook, nil
			if random.IntN(2) == 0 {
				c.Lifecycle.PreStop = hook
			}
		}
	})
	endInits(spec, "sleep 2")
}

// ending changes a spec so that its containers, but for sidecars, end once, each in a way of its own, after all of them
// were started.
func ending(spec *v1.PodSpec, random *rand.Rand) {
	scripts := []string{
		"sleep 4", "sleep 4; exit 3", "sleep 4; echo bye >/dev/termination-log; exit 1", "sleep 4; kill -9 $$",
	}
	spec.ActiveDeadlineSeconds = nil
	spec.RestartPolicy = v1.RestartPolicyNever
	eachContainer(spec, func(c *v1.Container) {
		c.Command = []string{"sh", "-c", scripts[random.IntN(len(scripts))]}
		c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		c.RestartPolicyRules = nil
	})
	for i := range spec.Containers {
		spec.Containers[i].RestartPolicy = nil
	}
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.RestartPolicy != nil {
			c.Command = []string{"sh", "-c", forever}
		}
	}
	endInits(spec, []string{"sleep 2", "sleep 2", "sleep 2; exit 1"}[random.IntN(3)])
}

// ended returns an error while a container of a pod runs, or may still start.
func ended(pod *v1.Pod) error {
	if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
		return nil
	}
	if slices.ContainsFunc(pod.Status.InitContainerStatuses, refused) {
		return nil // no other container starts
	}
	if !slices.ContainsFunc(pod.Status.ContainerStatuses, refused) {
		return fmt.Errorf("phase is %s, want Succeeded or Failed", pod.Status.Phase)
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Terminated == nil && !refused(c) {
			return fmt.Errorf("state of %s is %+v, want that it has ended or cannot start", c.Name, c.State)
		}
	}
	return nil
}

// endInits makes the init containers that are not sidecars run a script.
func endInits(spec *v1.PodSpec, script string) {
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.RestartPolicy == nil {
			c.Command = []string{"sh", "-c", script}
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		}
	}
}

func eachContainer(spec *v1.PodSpec, do func(*v1.Container)) {
	for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			do(&list[i])
		}
	}
}
