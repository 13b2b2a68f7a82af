package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// The runtimes, which are also the names of the nodes and of their namespaces.
const (
	containerd1 = "containerd1"
	containerd2 = "containerd2"
)

// fixture is a cluster and its cloudcore.
type fixture struct {
	cluster *env.Cluster
	kube    *kube.Cluster
	api     kubernetes.Interface
}

// node is one edgecore and the runtime under it.
type node struct {
	*env.Node
	*fixture
	t *testing.T
	// name is the node's, and that of the namespace of its pods.
	name string
	ctrd *containerd.Instance
	cri  *cri.Client
}

// row is one pod and what is to be seen of it.
type row struct {
	// name is the pod's name, and that of the test.
	name string
	// objects are manifests that are applied before (kubectl apply). In them and in spec, @NODE@ stands for the
	// node's name, which is also the namespace's, and @NAME@ for the row's: objects without a namespace need both.
	objects string
	// bound delays the pod until its claim, which has the row's name, is bound, as the scheduler does. Without it the
	// controllers that attach volumes may meet the pod before they know its volume, and look again after 3 minutes.
	bound bool
	// spec is the pod's spec, as YAML without indentation. The harness sets nodeName, a termination grace of 1 s and,
	// in containers that say nothing, the image Demo and a command that runs until it is told to end.
	spec string
	// labels and annotations of the pod.
	labels, annotations map[string]string
	// check says what has to be seen; it may wait with p.until, and change things.
	check func(p *pod)
}

// pod is a row's pod on a node.
type pod struct {
	*testing.T
	node *node
	name string
	uid  types.UID
}

// forever is a script that ends at once when it is told to.
const forever = "trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done"

// run does all of a row.
func (n *node) run(t *testing.T, r row) {
	fill := strings.NewReplacer("@NODE@", n.name, "@NAME@", r.name)
	if r.objects != "" {
		out, err := n.kube.Kubectl(t.Context(), "apply", "-n", n.name, "-f", writeFile(t, fill.Replace(r.objects)))
		if err != nil {
			t.Fatalf("kubectl apply: %v, want no error\n%s", err, out)
		}
	}
	if r.bound {
		wait.Until(t, "the claim is bound", func() error {
			claim, err := n.api.CoreV1().PersistentVolumeClaims(n.name).Get(t.Context(), r.name, metav1.GetOptions{})
			if err == nil && claim.Status.Phase != v1.ClaimBound {
				err = fmt.Errorf("claim is %s", claim.Status.Phase)
			}
			return err
		})
	}
	obj := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: r.name, Labels: r.labels, Annotations: r.annotations}}
	env.Must(t, yaml.UnmarshalStrict([]byte(fill.Replace(r.spec)), &obj.Spec))
	p := n.create(t, obj)
	defer func() {
		if t.Failed() { // what has passed is deleted below
			p.Log(p.describe())
			if err := n.api.CoreV1().Pods(n.name).Delete(t.Context(), p.name, metav1.DeleteOptions{}); err != nil &&
				!apierrors.IsNotFound(err) {
				t.Logf("delete: %v", err)
			}
		}
	}()
	r.check(p)
	p.delete()
}

func writeFile(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "objects.yaml")
	env.Must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// create makes a pod that is bound to the node.
func (n *node) create(t *testing.T, obj *v1.Pod) *pod {
	t.Helper()
	complete(&obj.Spec, n.name)
	made, err := n.api.CoreV1().Pods(n.name).Create(t.Context(), obj, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create pod: %v, want no error", err)
	}
	return &pod{T: t, node: n, name: made.Name, uid: made.UID}
}

// complete fills in what every row would say.
func complete(spec *v1.PodSpec, node string) {
	spec.NodeName = node
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	}
	for i := range spec.InitContainers {
		completeContainer(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		completeContainer(&spec.Containers[i])
	}
}

func completeContainer(c *v1.Container) {
	if c.Image == "" {
		c.Image = "edgecore.local/demo:1"
		if c.Command == nil && c.Args == nil {
			c.Command = []string{"sh", "-c", forever}
		}
	}
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = v1.PullIfNotPresent
	}
}

// until waits until a check is content.
func (p *pod) until(what string, check func() error) {
	p.Helper()
	wait.Until(p.T, what, check)
}

// get returns the pod as the API server has it.
func (p *pod) get() *v1.Pod {
	p.Helper()
	obj, err := p.node.api.CoreV1().Pods(p.node.name).Get(p.Context(), p.name, metav1.GetOptions{})
	env.Must(p, err)
	return obj
}

// status waits until the status that the API server has is as a check wants it, and returns the pod then.
func (p *pod) status(what string, check func(*v1.PodStatus) error) *v1.Pod {
	p.Helper()
	var last *v1.Pod
	p.until(what, func() error {
		obj, err := p.node.api.CoreV1().Pods(p.node.name).Get(p.Context(), p.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		last = obj
		return check(&last.Status)
	})
	return last
}

// running waits until the pod is Ready.
func (p *pod) running() *v1.Pod {
	p.Helper()
	return p.status("it is Ready", func(s *v1.PodStatus) error {
		if c := condition(s, v1.PodReady); s.Phase != v1.PodRunning || c == nil || c.Status != v1.ConditionTrue {
			return fmt.Errorf("phase %s (%s %s), Ready %+v, containers %s", s.Phase, s.Reason, s.Message, c, states(s))
		}
		return nil
	})
}

// phase waits until the pod has a phase.
func (p *pod) phase(want v1.PodPhase) *v1.Pod {
	p.Helper()
	return p.status("it is "+string(want), func(s *v1.PodStatus) error {
		if s.Phase != want {
			return fmt.Errorf("phase %s (%s %s), containers %s", s.Phase, s.Reason, s.Message, states(s))
		}
		return nil
	})
}

// rejected waits until the node has refused the pod.
func (p *pod) rejected(reason, message string) *v1.Pod {
	p.Helper()
	return p.status("it is refused", func(s *v1.PodStatus) error {
		if s.Phase != v1.PodFailed || s.Reason != reason || !strings.Contains(s.Message, message) {
			return fmt.Errorf("phase %s, reason %q, message %q; want Failed, %q, %q", s.Phase, s.Reason, s.Message,
				reason, message)
		}
		return nil
	})
}

// waits waits until a container waits for a reason.
func (p *pod) waits(container, reason, message string) *v1.Pod {
	p.Helper()
	return p.status("it waits", func(s *v1.PodStatus) error {
		c := containerStatus(s, container)
		if c == nil || c.State.Waiting == nil || c.State.Waiting.Reason != reason ||
			!strings.Contains(c.State.Waiting.Message, message) {
			return fmt.Errorf("containers %s, want %s waiting: %s %q", states(s), container, reason, message)
		}
		return nil
	})
}

// event waits for an event of the pod with a reason and a text in its message.
func (p *pod) event(reason, text string) {
	p.Helper()
	p.until("the event "+reason, func() error {
		list, err := p.node.api.CoreV1().Events(p.node.name).List(p.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(p.uid)})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("want %q, got %q", text, seen)
	})
}

// exec runs a shell script in a container that runs, and returns what it prints, without the last line's end.
func (p *pod) exec(container, script string) string {
	p.Helper()
	out, err := p.tryExec(container, "sh", "-c", script)
	if err != nil {
		p.Fatalf("in container %s: %s: %v", container, script, err)
	}
	return out
}

func (p *pod) tryExec(container string, command ...string) (string, error) {
	c, err := p.container(container)
	if err != nil {
		return "", err
	}
	out, err := p.node.cri.ExecSync(p.Context(), &runtimeapi.ExecSyncRequest{
		ContainerId: c.Id, Cmd: command, Timeout: 20,
	})
	if err != nil {
		return "", err
	}
	text := strings.TrimSuffix(string(out.Stdout), "\n")
	if out.ExitCode != 0 {
		return text, fmt.Errorf("exit code %d: %s%s", out.ExitCode, out.Stdout, out.Stderr)
	}
	return text, nil
}

// container returns the running container of a name, as the runtime has it.
func (p *pod) container(name string) (*runtimeapi.Container, error) {
	list, err := p.node.cri.ListContainers(p.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
			LabelSelector: map[string]string{
				"io.kubernetes.pod.uid": string(p.uid), "io.kubernetes.container.name": name,
			},
		},
	})
	if err != nil {
		return nil, err
	}
	if len(list.Containers) != 1 {
		return nil, fmt.Errorf("%d containers %s run in pod %s", len(list.Containers), name, p.name)
	}
	return list.Containers[0], nil
}

// says checks what a script prints in a container, trying again until it does.
func (p *pod) says(container, script, want string) {
	p.Helper()
	p.until(script, func() error {
		out, err := p.tryExec(container, "sh", "-c", script)
		if err == nil && out != want {
			err = fmt.Errorf("printed %q, want %q", out, want)
		}
		return err
	})
}

// logged waits until a container's log, of all its attempts that are kept, has a text.
func (p *pod) logged(container, text string) {
	p.Helper()
	p.until("the log has "+strconv.Quote(text), func() error {
		var all bytes.Buffer
		for attempt := 0; ; attempt++ {
			data, err := os.ReadFile(filepath.Join(p.node.PodLogs(), p.node.name+"_"+p.name+"_"+string(p.uid),
				container, strconv.Itoa(attempt)+".log"))
			if err != nil && attempt > 3 {
				break
			}
			all.Write(data)
		}
		if !strings.Contains(all.String(), text) {
			return fmt.Errorf("log of %s: %q", container, all.String())
		}
		return nil
	})
}

// patch changes the pod by a strategic merge patch in YAML; subresource may be "resize", "status" or
// "ephemeralcontainers".
func (p *pod) patch(change string, subresource ...string) {
	p.Helper()
	data, err := yaml.YAMLToJSON([]byte(change))
	env.Must(p, err)
	_, err = p.node.api.CoreV1().Pods(p.node.name).Patch(p.Context(), p.name, types.StrategicMergePatchType, data,
		metav1.PatchOptions{}, subresource...)
	env.Must(p, err)
}

// apply applies manifests in the node's namespace.
func (p *pod) apply(manifests string) {
	p.Helper()
	fill := strings.NewReplacer("@NODE@", p.node.name, "@NAME@", p.name)
	if out, err := p.node.kube.Kubectl(p.Context(), "apply", "-n", p.node.name, "-f",
		writeFile(p.T, fill.Replace(manifests))); err != nil {
		p.Fatalf("kubectl apply: %v, want no error\n%s", err, out)
	}
}

// delete deletes the pod with its own grace and waits until it is gone.
func (p *pod) delete() {
	p.Helper()
	err := p.node.api.CoreV1().Pods(p.node.name).Delete(p.Context(), p.name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.uid))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		p.Fatalf("delete: %v, want no error, NotFound or Conflict", err)
	}
	p.until("it is gone", func() error {
		obj, err := p.node.api.CoreV1().Pods(p.node.name).Get(p.Context(), p.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && obj.UID != p.uid {
			return nil
		}
		return fmt.Errorf("it is still there (%v)", err)
	})
}

// describe is what a failure shows of the pod.
func (p *pod) describe() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := p.node.kube.Kubectl(ctx, "describe", "pod", "-n", p.node.name, p.name)
	if err != nil {
		return fmt.Sprintf("pod %s: %v", p.name, err)
	}
	return out
}

func condition(s *v1.PodStatus, typ v1.PodConditionType) *v1.PodCondition {
	if i := slices.IndexFunc(s.Conditions, func(c v1.PodCondition) bool { return c.Type == typ }); i >= 0 {
		return &s.Conditions[i]
	}
	return nil
}

// containerStatus finds a container of any kind.
func containerStatus(s *v1.PodStatus, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{
		s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// states shows the states of all containers.
func states(s *v1.PodStatus) string {
	var out []string
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses) {
		data, _ := json.Marshal(c.State)
		out = append(out, fmt.Sprintf("%s (ready %v, restarts %d): %s", c.Name, c.Ready, c.RestartCount, data))
	}
	return strings.Join(out, "; ")
}
