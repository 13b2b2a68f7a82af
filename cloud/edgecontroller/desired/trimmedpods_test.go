package desired

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/evictions"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/podfacts"
)

// largePod is pod ns/p of e1 with an annotation of so many bytes.
func largePod(version string, size int) *v1.Pod {
	pod := fakes.WholePod(version)
	pod.Annotations = map[string]string{"large": strings.Repeat("x", size)}
	pod.ManagedFields = nil
	return pod
}

// ordinaryPod is about what a Deployment makes: 5 KB of JSON.
func ordinaryPod() *v1.Pod {
	pod := fakes.Pod("e1", "ns", "web-7c5ddbdf54-abcde")
	pod.Labels = map[string]string{"app": "web", "pod-template-hash": "7c5ddbdf54"}
	yes, seconds := true, int64(300)
	for i := range 3 {
		c := v1.Container{Name: fmt.Sprint("container-", i), Image: "registry.example.com/team/web:1.2.3",
			Args: []string{"--config=/etc/web/config.yaml", "--log=info"},
			Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi")},
				Limits:   v1.ResourceList{"memory": resource.MustParse("128Mi")},
			},
			LivenessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/healthz"}}},
			VolumeMounts:  []v1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "token", MountPath: "/var/run"}},
		}
		for j := range 10 {
			c.Env = append(c.Env, v1.EnvVar{Name: fmt.Sprint("SETTING_", j), Value: "a value of some length"})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, v1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true, Started: &yes,
			ContainerID: "containerd://" + strings.Repeat("a", 64),
			State:       v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}
	pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	pod.Spec.Tolerations = []v1.Toleration{
		{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute,
			TolerationSeconds: &seconds},
	}
	return pod
}

// TestOrdinaryPodsAreWhole: an ordinary pod is cached whole, and sent without a request.
func TestOrdinaryPodsAreWhole(t *testing.T) {
	w := newFixture(t)
	pod := ordinaryPod()
	w.add(fakes.Node("e1"), pod)
	if caches.TrimIfLarge(pod) != pod {
		t.Errorf("a pod of %d bytes is trimmed, want it whole", caches.ContentSize(pod))
	}
	if o, err := w.podFor("e1", caches.PodKey(pod)); o == nil || err != nil || o.Done != nil || len(w.api.Seen()) > 0 {
		t.Errorf("podFor = %v, %v, requests %v; want the pod, without any", o, err, w.api.Seen())
	}
}

// BenchmarkOrdinaryPod measures what looking for large pods costs for an ordinary one, compared with its decoding.
func BenchmarkOrdinaryPod(b *testing.B) {
	pod := ordinaryPod()
	data, err := pod.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("trimIfLarge", func(b *testing.B) {
		for b.Loop() {
			caches.TrimIfLarge(pod)
		}
	})
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			if err := new(v1.Pod).Unmarshal(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// randomPod returns a large pod, or with edits a changed copy of one.
func randomPod(r *rand.Rand) *v1.Pod {
	pod := largePod(fmt.Sprint(1+r.IntN(1000)), caches.TrimBytes)
	editPod(r, pod, 20)
	return pod
}

// editPod changes so many things of a pod, most of them those that cloudcore decides from.
func editPod(r *rand.Rand, pod *v1.Pod, edits int) {
	name := func() string { return fmt.Sprint("n", r.IntN(4)) }
	seconds := int64(r.IntN(400))
	status := func() v1.ConditionStatus { return []v1.ConditionStatus{v1.ConditionTrue, v1.ConditionFalse}[r.IntN(2)] }
	for range edits {
		switch r.IntN(16) {
		case 0:
			pod.Annotations = map[string]string{"large": strings.Repeat("x", caches.TrimBytes), "edited": name()}
		case 1:
			pod.Labels = map[string]string{"edited": name()}
		case 2:
			pod.Spec.Volumes = append(slices.Clone(pod.Spec.Volumes), v1.Volume{Name: "v",
				VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name()}}})
		case 3:
			ref := v1.LocalObjectReference{Name: name()}
			source := &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: ref}}
			pod.Spec.Containers = append([]v1.Container{{Name: name(), Env: []v1.EnvVar{{ValueFrom: source}}}},
				pod.Spec.Containers...)
		case 4:
			pod.Spec.Volumes = []v1.Volume{{Name: "claim", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name()}}}}
		case 5:
			links := r.IntN(2) == 0
			pod.Spec.EnableServiceLinks = &links
		case 6:
			pod.Spec.Tolerations = append(slices.Clone(pod.Spec.Tolerations),
				v1.Toleration{Key: []string{"", "other", v1.TaintNodeNotReady, v1.TaintNodeUnreachable}[r.IntN(4)],
					Operator: v1.TolerationOpExists, TolerationSeconds: &seconds})
		case 7:
			pod.Spec.Tolerations = append(slices.Clone(pod.Spec.Tolerations),
				v1.Toleration{Key: evictions.UnlimitedTaints()[r.IntN(2)], Operator: v1.TolerationOpExists})
		case 8:
			pod.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: v1.PodConditionType(name())}}
		case 9:
			pod.Status.Phase = []v1.PodPhase{v1.PodPending, v1.PodRunning, v1.PodFailed}[r.IntN(3)]
		case 10:
			pod.Status.Conditions = []v1.PodCondition{
				{Type: v1.PodReady, Status: status(), Message: "m"}, {Type: v1.ContainersReady, Status: status()},
				{Type: v1.PodConditionType(name()), Status: status()},
				{Type: v1.PodScheduled, Status: status(), LastTransitionTime: metav1.Unix(int64(r.IntN(1000)), 0)},
			}
		case 11:
			pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: name(), Ready: r.IntN(2) == 0}}
		case 12:
			at := metav1.Unix(int64(r.IntN(2)), 0)
			pod.DeletionTimestamp = &at
		case 13:
			pod.Annotations = map[string]string{"large": strings.Repeat("x", caches.TrimBytes),
				marks.KeepEvictions: []string{"true", "false"}[r.IntN(2)]}
		case 14:
			pod.ResourceVersion, pod.Generation = fmt.Sprint(r.IntN(1000)), int64(r.IntN(3))
		case 15:
			at := metav1.Unix(int64(r.IntN(2)), 0)
			pod.Status.StartTime = &at
		}
	}
}

// TestTrimmedPodsDecideTheSame: whatever cloudcore decides from pods, it decides the same from trimmed ones.
func TestTrimmedPodsDecideTheSame(t *testing.T) {
	type decisions struct {
		References []string
		Changes    []string
		Same       bool
		Claims     bool
		Links      bool
		Ready      bool
		Tolerate   bool
		Delay      time.Duration
		Hash, Soon string
		Size       int
	}
	now := time.Unix(500, 0)
	decide := func(old, pod *v1.Pod, size int) (d decisions) {
		for _, key := range podfacts.References(pod) {
			d.References = append(d.References, key.String())
		}
		for _, ch := range podChanges(old, pod) {
			d.Changes = append(d.Changes, ch.node+" "+ch.key.String())
		}
		d.Same, d.Claims, d.Links = samePod(old, pod), podfacts.HasClaims([]*v1.Pod{pod}), podfacts.LinksServices(pod)
		d.Ready, d.Delay, d.Size = podfacts.ReadyAgain(pod), evictions.PatchDelay(pod, now), size
		_, d.Tolerate = evictions.Desired(pod, fakes.Node("e1"))
		var err error
		if d.Hash, d.Soon, err = caches.StatusHashes(pod); err != nil {
			t.Fatal(err)
		}
		return d
	}
	const pairs = 500
	same := 0
	for seed := range uint64(pairs) {
		r := rand.New(rand.NewPCG(seed, 1))
		old := randomPod(r)
		pod := old.DeepCopy()
		editPod(r, pod, 1+r.IntN(2))
		oldTrimmed, trimmed := caches.TrimIfLarge(old), caches.TrimIfLarge(pod)
		if !caches.IsTrimmed(oldTrimmed) || !caches.IsTrimmed(trimmed) {
			t.Fatalf("seed %d: a pod of %d bytes is not trimmed", seed, caches.ContentSize(pod))
		}
		want := decide(old, pod, caches.ContentSize(pod))
		if diff := cmp.Diff(want, decide(oldTrimmed, trimmed, caches.SizeOf(trimmed))); diff != "" {
			t.Fatalf("seed %d (-whole +trimmed):\n%s", seed, diff)
		}
		if want.Same {
			same++
		}
	}
	if same < pairs/10 || same > pairs*9/10 {
		t.Errorf("%d of %d pairs are the same, want some of both", same, pairs)
	}
}

// TestWholePodsAreRead: a large pod is read when it is sent, in no older version, of no other pod, and not larger. It
// counts in the bytes on their way until the hub is done. Nothing of it is taken for its end.
func TestWholePodsAreRead(t *testing.T) {
	const size = 100 << 10
	status := func(code int, reason metav1.StatusReason) func() (int, any) {
		return func() (int, any) {
			return code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
				Status: metav1.StatusFailure, Reason: reason, Code: int32(code)}
		}
	}
	is := func(change func(pod *v1.Pod)) func() (int, any) {
		return func() (int, any) {
			pod := largePod("5", size)
			change(pod)
			return http.StatusOK, pod
		}
	}
	for name, tc := range map[string]struct {
		reply func() (int, any)
		fails bool
	}{
		"the same version":     {is(func(*v1.Pod) {}), false},
		"a newer version":      {is(func(pod *v1.Pod) { pod.ResourceVersion = "6" }), false},
		"a larger one":         {is(func(pod *v1.Pod) { *pod = *largePod("6", 2*size) }), true},
		"an older version":     {is(func(pod *v1.Pod) { pod.ResourceVersion = "4" }), true},
		"another pod":          {is(func(pod *v1.Pod) { pod.UID = "another" }), true},
		"it is gone":           {status(http.StatusNotFound, metav1.StatusReasonNotFound), true},
		"it is forbidden":      {status(http.StatusForbidden, metav1.StatusReasonForbidden), true},
		"the API server fails": {status(http.StatusInternalServerError, metav1.StatusReasonInternalError), true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			pod := caches.TrimIfLarge(largePod("5", size))
			w.add(fakes.Node("e1"), pod)
			w.api.Answer(func(fakes.Call) (int, any) { return tc.reply() })
			w.podLists.connected("e1")
			w.podLists.inventoried("e1", map[types.UID]bool{pod.UID: true})
			o, err := w.Object("e1", caches.PodKey(pod))
			if (err != nil) != tc.fails || (o != nil) == tc.fails || errors.Is(err, caches.ErrTrimmed) {
				t.Fatalf("Object = %v, %v; want an error %v", o != nil, err, tc.fails)
			}
			if tc.fails {
				if n := w.wholeSent.Taken(); n != 0 {
					t.Errorf("%d bytes are on their way after a failure, want 0", n)
				}
				return
			}
			var sent v1.Pod
			if err := json.Unmarshal(o.JSON, &sent); err != nil || len(sent.Annotations["large"]) != size ||
				len(sent.Annotations) != 1 {
				t.Errorf("sent %.200s, %v; want the whole pod", o.JSON, err)
			}
			if n := w.wholeSent.Taken(); n < size {
				t.Errorf("%d bytes are on their way, want at least %d", n, size)
			}
			o.Done()
			if n := w.wholeSent.Taken(); n != 0 {
				t.Errorf("%d bytes are on their way in the end, want 0", n)
			}
		})
	}
}

// TestManyReferences: objects in the namespace of a pod that names more of them than are kept stay on its node, and
// are not sent for it.
func TestManyReferences(t *testing.T) {
	w := newFixture(t)
	pod := fakes.WholePod("1")
	fakes.Fillers()["references"](pod, 2*caches.MaxReferences)
	if pod = caches.TrimIfLarge(pod); !caches.LacksReferences(pod) {
		t.Fatalf("a pod with %d references has those of %d", 2*caches.MaxReferences, len(podfacts.References(pod)))
	}
	w.add(fakes.Node("e1"), pod)
	secret := fakes.Key("ns/secret/7")
	if _, err := w.Object("e1", secret); !errors.Is(err, cloudhub.ErrWithheld) {
		t.Errorf("Object(%s) = %v, want that it stays", secret, err)
	}
	if o, err := w.Object("e1", fakes.Key("other/secret/7")); o != nil || err != nil {
		t.Errorf("Object in another namespace = %v, %v; want none", o, err)
	}
}
