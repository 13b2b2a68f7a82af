package admission

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// beside makes a pod of a class: g, b or e for Guaranteed, Burstable, BestEffort.
func beside(name string, class byte, cpu, memory string) *v1.Pod {
	p := pod(container(cpu, memory))
	p.Name = name
	if class == 'g' {
		p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests
	}
	if class == 'e' {
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{}
	}
	return p
}

func critical(cpu, memory string) *v1.Pod {
	p := pod(container(cpu, memory))
	p.Spec.Priority = ptr.To[int32](criticalPriority)
	return p
}

func names(pods []*v1.Pod) string {
	var list []string
	for _, p := range pods {
		list = append(list, p.Name)
	}
	return strings.Join(list, " ")
}

func TestPreempt(t *testing.T) {
	node := Node{Allocatable: list("2", "512Mi")}
	node.Allocatable[v1.ResourcePods] = resource.MustParse("4")
	with := func(p *v1.Pod, change func(*v1.Pod)) *v1.Pod { change(p); return p }
	mirror := with(beside("mirror", 'b', "2", "512Mi"), func(p *v1.Pod) {
		p.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "x"}
	})
	crit := with(beside("critical", 'b', "2", "512Mi"), func(p *v1.Pod) {
		p.Spec.Priority = ptr.To[int32](criticalPriority + 5)
	})
	for name, c := range map[string]struct {
		pod     *v1.Pod
		others  []*v1.Pod
		victims string
		reason  string
		text    string
	}{
		"fits": {pod: critical("1", ""), others: []*v1.Pod{beside("a", 'b', "1", "")}},
		"not critical": {pod: pod(container("2", "")), others: []*v1.Pod{beside("a", 'b', "1", "")},
			reason: "OutOfcpu"},
		"one of two": {
			pod: critical("1", ""), others: []*v1.Pod{beside("a", 'b', "1500m", ""), beside("b", 'b', "500m", "")},
			victims: "a",
		},
		"the smaller that will do": {
			pod: critical("500m", ""), others: []*v1.Pod{beside("a", 'b', "1500m", ""), beside("b", 'b', "500m", "")},
			victims: "b",
		},
		"both where one is too small": {
			pod: critical("2", ""), others: []*v1.Pod{beside("a", 'b', "1500m", ""), beside("b", 'b', "500m", "")},
			victims: "a b",
		},
		"burstable first": {
			pod: critical("1", "1Mi"), others: []*v1.Pod{beside("g", 'g', "1", "1Mi"), beside("b", 'b', "1", "1Mi")},
			victims: "b",
		},
		"guaranteed where it has to be": {
			pod: critical("2", "1Mi"), others: []*v1.Pod{
				beside("g", 'g', "1500m", "1Mi"), beside("b", 'b', "500m", "1Mi"),
			},
			victims: "b g",
		},
		"best effort gives no cpu": {
			pod: critical("1", ""), others: []*v1.Pod{beside("e", 'e', "", ""), beside("b", 'b', "2", "")},
			victims: "b",
		},
		"best effort gives its place": {
			pod: critical("", ""), others: []*v1.Pod{
				beside("g", 'g', "1", "1Mi"), beside("b", 'b', "1", ""), beside("e", 'e', "", ""),
				beside("c", 'b', "", ""),
			}, victims: "e",
		},
		"several resources": {
			pod: critical("1", "400Mi"), others: []*v1.Pod{
				beside("cpu", 'b', "2", "1Mi"), beside("memory", 'b', "0", "500Mi"),
			}, victims: "cpu memory",
		},
		"one that gives both": {
			pod: critical("1", "200Mi"), others: []*v1.Pod{
				beside("cpu", 'b', "1", "1Mi"), beside("both", 'b', "1", "500Mi"),
			}, victims: "both",
		},
		"among critical ones": {
			pod:    critical("1", ""),
			others: []*v1.Pod{mirror, crit, static(beside("static", 'b', "2", ""))},
			reason: "UnexpectedAdmissionError",
			text:   "no set of running pods found to reclaim resources: [(res: cpu, q: 5000)",
		},
		"higher priority": {
			pod:    with(critical("1", ""), func(p *v1.Pod) { p.Spec.Priority = ptr.To[int32](criticalPriority + 9) }),
			others: []*v1.Pod{crit}, victims: "critical",
		},
		"too large for the node": {
			pod:    critical("3", ""),
			others: []*v1.Pod{beside("a", 'b', "2", "")},
			reason: "UnexpectedAdmissionError",
			text:   "(res: cpu, q: 1000)",
		},
		"another reason, too": {
			pod:    with(critical("2", ""), func(p *v1.Pod) { p.Spec.NodeName = "other" }),
			others: []*v1.Pod{beside("a", 'b', "2", "")},
			reason: "NodeName",
		},
		"a static pod, too large": {
			pod:    static(pod(container("3", ""))),
			others: []*v1.Pod{beside("a", 'b', "2", "")},
			reason: "OutOfcpu",
			text:   "requested: 3000, used: 2000, capacity: 2000",
		},
		"a static pod": {pod: static(pod(container("1", ""))), others: []*v1.Pod{beside("a", 'b', "2", "")},
			victims: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			n := node
			n.Name = "edge-1"
			got := Admit(n, c.pod, c.others)
			if diff := cmp.Diff(c.victims, names(got.Victims)); diff != "" {
				t.Errorf("victims (-want +got):\n%s", diff)
			}
			switch {
			case got.Rejected == nil && c.reason != "":
				t.Errorf("admitted; want %s", c.reason)
			case got.Rejected != nil &&
				(got.Rejected.Reason != c.reason || !strings.Contains(got.Rejected.Message, c.text)):
				t.Errorf("got %+v, want %q with %q", *got.Rejected, c.reason, c.text)
			}
		})
	}
}
