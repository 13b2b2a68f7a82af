package differential

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// Case is a pod and what happens to it.
type Case struct {
	// Name is the pod's name, and that of the test.
	Name string
	// Objects are manifests that are applied before, in the node's namespace. In them and in Spec, @NODE@ stands for
	// the node's name, @NAME@ for the case's, and @DIR@ for a folder of the node.
	Objects string
	// Spec is the pod's spec, as YAML. The node's name, a grace period of 1 s and, in containers that have none, an
	// image and a command that runs until it gets SIGTERM are filled in.
	Spec string
	// Pod is a spec that was made by a program, instead of Spec. @NODE@, @NAME@ and @DIR@ stand for the same in it.
	Pod *v1.PodSpec
	// Labels and Annotations are the pod's.
	Labels, Annotations map[string]string
	// Steps are done on both nodes, in order.
	Steps []Step
	// Right changes the case for the right node: a difference that is planted, to show that it is found.
	Right func(*Case)
	// Alone: no other case runs at the same time, since a step stops an agent or a runtime.
	Alone bool
	// Ignore are regular expressions of paths that are not compared, since chance or the case itself makes them differ.
	Ignore []string
	// Ends are regular expressions of paths of which only the first and the last value are compared.
	Ends []string
	// Chance decides when the containers restart and end: what does not depend on it is compared, see withoutChance.
	Chance bool
}

// Step is one thing that is done, or waited for.
type Step struct {
	Name string
	Do   func(ctx context.Context, s *Subject) error
}

// Subject is the pod of a case on one node.
type Subject struct {
	*Side
	Case  Case
	Pod   *v1.Pod // as it was created
	Trace Trace
	// Brief are the values of the pod's status in Trace that did not last.
	Brief Brief
}

// forever is a script that ends at once when it is told to.
const forever = "trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done"

// fill completes a pod for a node.
func (c Case) fill(node, dir string) (*v1.Pod, error) {
	replace := strings.NewReplacer("@NODE@", node, "@NAME@", c.Name, "@DIR@", dir)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:        c.Name,
		Namespace:   node,
		Labels:      c.Labels,
		Annotations: c.Annotations,
	}}
	text := []byte(c.Spec)
	if c.Pod != nil {
		var err error
		if text, err = json.Marshal(c.Pod); err != nil {
			return nil, fmt.Errorf("spec of case %s: %w", c.Name, err)
		}
	}
	if err := yaml.UnmarshalStrict([]byte(replace.Replace(string(text))), &pod.Spec); err != nil {
		return nil, fmt.Errorf("spec of case %s: %w", c.Name, err)
	}
	pod.Spec.NodeName = node
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	}
	// Otherwise cloudcore changes the tolerations of a pod that lives for a minute, and with them its generation.
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Operator: v1.TolerationOpExists})
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			fillContainer(&list[i])
		}
	}
	return pod, nil
}

func fillContainer(c *v1.Container) {
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

// Run runs the case on both nodes at the same time and returns what was seen.
func (c Case) Run(ctx context.Context, left, right *Side) (l, r Trace, err error) {
	subjects := []*Subject{{Side: left, Case: c, Trace: Trace{}}, {Side: right, Case: c, Trace: Trace{}}}
	if c.Right != nil {
		c.Right(&subjects[1].Case)
	}
	var group errgroup.Group
	for _, s := range subjects {
		group.Go(func() error {
			if err := s.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", s.Kind, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	if err := c.sameEvents(ctx, subjects); err != nil {
		return nil, nil, err
	}
	withoutBrief(subjects[0].Trace, subjects[1].Trace, subjects[0].Brief, subjects[1].Brief)
	l, r = c.kept(subjects[0].Trace, subjects[1].Trace)
	return l, r, nil
}

// kept returns two traces without what is not compared.
func (c Case) kept(l, r Trace) (Trace, Trace) {
	for _, t := range []Trace{l, r} {
		maps.DeleteFunc(t, func(path string, _ []string) bool { return matchesAny(c.Ignore, path) })
		for path, values := range t {
			if len(values) > 2 && matchesAny(c.Ends, path) {
				t[path] = slices.Compact([]string{values[0], values[len(values)-1]})
			}
		}
	}
	if c.Chance {
		withoutChance(l, r)
	}
	return l, r
}

// run does all steps. A step that fails is something to compare; an error says that the case itself cannot be run.
func (s *Subject) run(ctx context.Context) error {
	if s.Case.Objects != "" {
		if err := s.apply(ctx, s.Case.Objects); err != nil {
			return err
		}
	}
	pod, err := s.Case.fill(s.Name, s.Dir)
	if err != nil {
		return err
	}
	if s.Pod, err = s.API.CoreV1().Pods(s.Name).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create pod %s: %w", s.Case.Name, err)
	}
	for i, step := range s.Case.Steps {
		name := fmt.Sprintf("%d-%s", i+1, step.Name)
		if err := s.do(ctx, name, step); err != nil {
			s.Trace.Add("step/"+name, s.own().Replace(err.Error()))
			break
		}
	}
	return s.end(ctx)
}

// do does one step, within the limit of all waits.
func (s *Subject) do(ctx context.Context, name string, step Step) error {
	ctx, cancel := daemon.Within(context.WithValue(ctx, stepKey{}, name))
	defer cancel()
	return step.Do(ctx, s)
}

type stepKey struct{}

// maxGrace bounds the grace period with which end deletes a pod, in seconds: the name is free when the next run creates
// it.
const maxGrace = 10

// end looks at the pod a last time, deletes it, and adds all that is kept of it.
func (s *Subject) end(ctx context.Context) error {
	ctx, cancel := daemon.Within(ctx)
	defer cancel()
	names := s.own()
	runtime := &remains{namespaces: map[string]bool{}}
	if err := runtime.look(ctx, s.CRI, string(s.Pod.UID)); err != nil {
		return err
	}
	if s.gone() != nil { // else its logs may stay for a while, or not
		if err := s.addLogs(s.Trace, s.Pod, names); err != nil {
			return err
		}
	}
	opts := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.Pod.UID))}
	if *s.Pod.Spec.TerminationGracePeriodSeconds > maxGrace {
		opts.GracePeriodSeconds = ptr.To[int64](maxGrace)
	}
	err := s.API.CoreV1().Pods(s.Name).Delete(ctx, s.Case.Name, opts)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s: %w", s.Case.Name, err)
	}
	if err := s.until(ctx, s.gone); err != nil {
		s.Trace.Add("left/pod", names.Replace(err.Error()))
	}
	if err := s.addLeft(ctx, runtime); err != nil {
		return err
	}
	states := s.history.of(s.Pod.UID)
	if s.Brief, err = addStates(s.Trace, states, names); err != nil {
		return err
	}
	if s.Case.Chance {
		addFacts(s.Trace, podsOf(states), names)
	}
	return addCalls(s.Trace, s.Calls.Calls(string(s.Pod.UID)), hookedContainers(s.Pod), names)
}

// addLeft waits until the node has nothing of the pod, and adds what stays. Log folders are not waited for: the kubelet
// keeps them for up to a minute more.
func (s *Subject) addLeft(ctx context.Context, runtime *remains) error {
	var left []string
	err := s.until(ctx, func() (err error) {
		if left, err = s.leftovers(string(s.Pod.UID)); err != nil {
			return daemon.Fatal(err)
		}
		if err := runtime.look(ctx, s.CRI, string(s.Pod.UID)); err != nil {
			return daemon.Fatal(err)
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return daemon.Fatal(err)
		}
		if left = append(left, runtime.left(string(mounts))...); len(left) > 0 {
			return errLeft
		}
		return nil
	})
	for _, what := range left {
		s.Trace.Add("left/"+what, "there")
	}
	if errors.Is(err, errLeft) {
		return nil
	}
	return err
}

var errLeft = errors.New("something of the pod is left")

// gone returns an error while the pod is in the API.
func (s *Subject) gone() error {
	if s.history.isGone(s.Pod.UID) {
		return nil
	}
	pod, err := s.history.latest(s.Pod.UID)
	if err == nil {
		err = fmt.Errorf("the pod is still there, %s", pod.Status.Phase)
	}
	return err
}

// own are the placeholders of the pod.
func (s *Subject) own() Names { return s.names(map[string]string{string(s.Pod.UID): "<uid>"}) }

// eventsSettle is how long both nodes have to report the same events, which are sent late and in bundles.
const eventsSettle = 15 * time.Second

// sameEvents adds the events of both pods, once they differ only where they may, or time is up.
func (c Case) sameEvents(ctx context.Context, subjects []*Subject) error {
	within, cancel := context.WithTimeout(ctx, daemon.Scaled(eventsSettle))
	defer cancel()
	var found [2]Trace
	err := daemon.PollEvery(within, 200*time.Millisecond, func() error {
		for i, s := range subjects {
			found[i] = Trace{}
			if err := addEvents(found[i], s.history.eventsOf(s.Pod.UID), s.own()); err != nil {
				return daemon.Fatal(err)
			}
		}
		found[0], found[1] = c.kept(found[0], found[1])
		if len(Unlisted(c.Name, Compare(found[:1], found[1:]), Known())) > 0 {
			return errDiffer
		}
		return nil
	})
	if err != nil && !errors.Is(err, errDiffer) {
		return err
	}
	for i, s := range subjects {
		for path, values := range found[i] {
			s.Trace[path] = values
		}
	}
	return nil
}

var errDiffer = errors.New("the events differ")

// apply does what kubectl apply does.
func (s *Subject) apply(ctx context.Context, manifests string) error {
	text := strings.NewReplacer("@NODE@", s.Name, "@NAME@", s.Case.Name, "@DIR@", s.Dir).Replace(manifests)
	return s.Cluster.Kube.ApplyIn(ctx, s.Name, text)
}

// until waits until a check returns nil.
func (s *Subject) until(ctx context.Context, check func() error) error {
	return daemon.PollEvery(ctx, 50*time.Millisecond, check)
}
