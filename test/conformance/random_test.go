package conformance

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/test/testenv/csi"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/deviceplugin"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var (
	randomPods = flag.Int("pods", 40, "how many random pods TestRandomPods makes on each runtime")
	randomSeed = flag.Uint64("seed", 1, "the seed of TestRandomPods; 0 takes one from the clock")
)

// atOnce is how many random pods live side by side.
const atOnce = 6

// TestRandomPods: random pods are created, changed, killed and deleted while the agent and the runtime are killed,
// too. Every one goes when it is deleted; afterwards nothing is left of any, and the agent has no more goroutines
// than before.
func TestRandomPods(t *testing.T) {
	seed := *randomSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", seed)
	f := start(t)
	for i, name := range []string{containerd1, containerd2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := f.startNode(t, name)
			n.randomPods(t, rand.New(rand.NewPCG(seed, uint64(i))))
		})
	}
}

func (n *node) randomPods(t *testing.T, rng *rand.Rand) {
	hostDir := t.TempDir()
	objects := strings.NewReplacer("@NODE@", n.name, "@DIR@", hostDir).Replace(randomObjects)
	if out, err := n.kube.Kubectl(t.Context(), "apply", "-n", n.name, "-f", writeFile(t, objects)); err != nil {
		t.Fatal(out, err)
	}
	driver, plugin := n.plugins(t)
	before := n.goroutines(t)
	ctx, stop := context.WithCancel(t.Context())
	var trouble sync.WaitGroup
	troubleRand := rand.New(rand.NewPCG(rng.Uint64(), 1))
	trouble.Go(func() { n.makeTrouble(ctx, t, troubleRand, driver, plugin) })
	g, lives := errgroup.Group{}, n.lives(t)
	g.SetLimit(atOnce)
	for i := range *randomPods {
		gen := &generator{
			Rand: rand.New(rand.NewPCG(rng.Uint64(), 2)),
			RandomOptions: RandomOptions{
				HostDir: hostDir,
				Driver:  driver.Name,
				Device:  v1.ResourceName(plugin.Resource),
				Images:  n.name == containerd2,
			},
		}
		g.Go(func() error { return lives.live(fmt.Sprintf("random-%d", i), gen) })
	}
	err := g.Wait()
	stop()
	trouble.Wait()
	env.Must(t, err)
	n.NothingLeft()
	wait.Until(t, "nothing is left of the CSI volumes", driver.Left)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the goroutines of the agent:\n%s", n.stacks(t))
		}
	})
	wait.Until(t, "the goroutines have ended", func() error {
		if after := n.goroutines(t); after > before+5 {
			return fmt.Errorf("%d goroutines, %d before any pod", after, before)
		}
		return nil
	})
}

// plugins starts a CSI driver and a device plugin, and waits until the node has both.
func (n *node) plugins(t *testing.T) (*csi.Driver, *deviceplugin.Plugin) {
	base, err := os.MkdirTemp("", "csi") // t.TempDir is too long for the path of a socket
	env.Must(t, err)
	t.Cleanup(func() { env.Must(t, os.RemoveAll(base)) })
	binary, err := csi.Build(t.Context(), base)
	env.Must(t, err)
	root := filepath.Join(n.Dir, "root")
	driver := csi.Start(t, csi.Options{
		Binary: binary,
		Name:   "random." + n.name,
		Node:   n.name,
		Root:   root,
		Dir:    filepath.Join(base, "driver"),
	})
	plugin := deviceplugin.Start(t, deviceplugin.Build(t), deviceplugin.Options{Resource: "example.com/random",
		Root: root, Dir: filepath.Join(base, "plugin")},
		"a", "b", "c", "d")
	wait.Until(t, "the node has its devices", func() error {
		obj, err := n.api.CoreV1().Nodes().Get(t.Context(), n.name, metav1.GetOptions{})
		if q := obj.Status.Allocatable[v1.ResourceName(plugin.Resource)]; err == nil && q.Value() != 4 {
			err = fmt.Errorf("allocatable %v", obj.Status.Allocatable)
		}
		return err
	})
	return driver, plugin
}

// makeTrouble kills the agent, the runtime or a plugin again and again, until ctx ends; all run then.
func (n *node) makeTrouble(
	ctx context.Context, t *testing.T, rng *rand.Rand, driver *csi.Driver, plugin *deviceplugin.Plugin,
) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(3+rng.IntN(8)) * time.Second):
		}
		var err error
		switch rng.IntN(6) {
		case 0:
			err = n.ctrd.Restart(context.Background())
		case 1:
			err = errors.Join(n.ctrd.Kill9(context.Background()), n.ctrd.Run(context.Background()))
		case 2:
			err = driver.End(context.Background(), syscall.SIGKILL)
			driver.Run(t)
		case 3:
			err = plugin.End(context.Background(), syscall.SIGKILL)
			plugin.Run(t)
		default:
			err = errors.Join(n.Kill9(context.Background()), n.Start(context.Background()))
		}
		if err != nil {
			t.Errorf("trouble: %v, want no error", err)
			return
		}
	}
}

// goroutines is how many the agent has.
func (n *node) goroutines(t *testing.T) (count int) {
	t.Helper()
	wait.Until(t, "metrics", func() error {
		text, err := n.Get(context.Background(), "/metrics")
		if err != nil {
			return err
		}
		_, after, _ := strings.Cut(text, "\ngo_goroutines ")
		_, err = fmt.Sscan(after, &count)
		return err
	})
	return count
}

// stacks has the agent say what its goroutines do, which ends it, and counts them by the functions that they began
// with.
func (n *node) stacks(t *testing.T) string {
	pid := n.PID()
	if pid == 0 {
		return "the agent does not run"
	}
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		return err.Error()
	}
	wait.Until(t, "the agent ends", func() error {
		if n.PID() != 0 {
			return errors.New("it runs")
		}
		return nil
	})
	text, err := os.ReadFile(n.Log())
	if err != nil {
		return err.Error()
	}
	began := map[string]int{}
	for _, stack := range strings.Split(string(text), "\n\ngoroutine ")[1:] {
		frames, _, _ := strings.Cut(stack, "\ncreated by ")
		name := ""
		// a function, and where it is, in turn; the first function is the last
		for line := range strings.Lines(frames) {
			if line[0] != '\t' && !strings.HasPrefix(line, "runtime.goexit") &&
				!strings.HasPrefix(line, "sync.(*WaitGroup).Go") {
				name, _, _ = strings.Cut(strings.TrimSpace(line), "(0x")
			}
		}
		began[name]++
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(began)) {
		fmt.Fprintf(&out, "%4d %s\n", began[name], name)
	}
	return out.String()
}

// randomLives are the lives of random pods on a node.
type randomLives struct {
	*node
	t *testing.T
}

func (n *node) lives(t *testing.T) *randomLives { return &randomLives{n, t} }

// live is the life of one random pod. An error says what of it was not as promised.
func (l *randomLives) live(name string, g *generator) error {
	ctx := l.t.Context()
	obj := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"a": "b"}}, Spec: g.spec()}
	complete(&obj.Spec, l.name)
	pods := l.api.CoreV1().Pods(l.name)
	made, err := pods.Create(ctx, obj, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create: %w\n%s", err, show(obj))
	}
	pause(g, 6)
	for range g.IntN(3) {
		if err := l.change(ctx, name, g); err != nil {
			return fmt.Errorf("change: %w\n%s", err, show(obj))
		}
		pause(g, 3)
	}
	if g.chance(2) {
		l.kill(ctx, made.UID, g)
		pause(g, 3)
	}
	var grace *int64
	if g.chance(3) {
		grace = ptr.To(g.Int64N(3))
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: grace}); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, wait.Max())
	defer cancel()
	return daemon.PollEvery(limited, 100*time.Millisecond, func() error {
		last, err := pods.Get(limited, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("pod %s is not gone (%v):\n%s", name, err, show(last))
	})
}

func pause(g *generator, seconds int) {
	time.Sleep(time.Duration(g.IntN(seconds*1000)) * time.Millisecond)
}

func show(obj *v1.Pod) string {
	text, _ := yaml.Marshal(obj)
	return string(text)
}

// change does one of the things that may be done to a pod that is there.
func (l *randomLives) change(ctx context.Context, name string, g *generator) error {
	pods := l.api.CoreV1().Pods(l.name)
	patch := func(text string, subresource ...string) error {
		data, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			return err
		}
		_, err = pods.Patch(ctx, name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, subresource...)
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	}
	switch g.IntN(4) {
	case 0:
		return patch(fmt.Sprintf("metadata: {labels: {changed: %q}}", fmt.Sprint(g.IntN(100))))
	case 1:
		return patch("spec: {containers: [{name: main0, image: 'edgecore.local/entrypoint:1'}]}")
	case 2:
		err := patch(fmt.Sprintf("spec: {ephemeralContainers: [{name: look%d, image: 'edgecore.local/demo:1', "+
			"imagePullPolicy: IfNotPresent, command: [sh, -c, %q]}]}", g.IntN(1000), pick(g, scripts...)),
			"ephemeralcontainers")
		if apierrors.IsInvalid(err) {
			return nil // of a pod that has ended
		}
		return err
	default:
		return patch(`status: {conditions: [{type: example.com/gate, status: "True"}]}`, "status")
	}
}

// kill ends a container or the sandbox behind the agent's back.
func (l *randomLives) kill(ctx context.Context, uid types.UID, g *generator) {
	labels := map[string]string{"io.kubernetes.pod.uid": string(uid)}
	if g.chance(3) {
		if list, err := l.cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
			Filter: &runtimeapi.PodSandboxFilter{LabelSelector: labels},
		}); err == nil && len(list.Items) > 0 {
			_, err := l.cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: list.Items[0].Id})
			l.t.Logf("sandbox %s stopped: %v", list.Items[0].Id, err)
		}
		return
	}
	list, err := l.cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: labels},
	})
	if err != nil || len(list.Containers) == 0 {
		return // the runtime is down, or nothing is there: that is no fault
	}
	c := list.Containers[g.IntN(len(list.Containers))]
	_, err = l.cri.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.Id})
	l.t.Logf("container %s stopped: %v", c.Id, err)
}
