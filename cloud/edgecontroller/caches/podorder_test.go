package caches

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// TestPodCacheConverges: in any order of what may happen, the cache has in the end what the API server has, has never
// gone back, and has not reported a pod that it had not reported the end of to be new.
func TestPodCacheConverges(t *testing.T) {
	for seed := range uint64(500) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { newPodWorld(t, seed).play() })
		if t.Failed() {
			return
		}
	}
}

// podWorld plays the API server and the watch of a podsEnv.
type podWorld struct {
	*podsEnv
	random  *rand.Rand
	version int
	pods    map[string]*v1.Pod // of the API server, by name
	stream  []podStreamEvent   // not delivered yet
	relist  []any              // of a watch that began again, made small already; nil is none
	lists   []listAnswer       // on the way
	unseen  map[string]bool    // nodes whose change was not handled yet
	newest  map[types.UID]int  // version of the last event of each pod
}

type podStreamEvent struct {
	pod     *v1.Pod
	deleted bool
}

type listAnswer struct {
	node string
	pods []v1.Pod
}

func newPodWorld(t testing.TB, seed uint64) *podWorld {
	w := &podWorld{
		podsEnv: newPodsEnv(t),
		random:  rand.New(rand.NewPCG(seed, 1)),
		pods:    map[string]*v1.Pod{},
		unseen:  map[string]bool{},
		newest:  map[types.UID]int{},
	}
	w.Changed = func(_, now *v1.Pod) {
		if now == nil {
			return
		}
		version, err := strconv.Atoi(now.ResourceVersion)
		w.must(err)
		if version < w.newest[now.UID] {
			t.Errorf("pod %s went back from version %d to %d", now.Name, w.newest[now.UID], version)
		}
		w.newest[now.UID] = version
	}
	w.must(w.Replace(nil, "0"))
	return w
}

func (w *podWorld) play() {
	for range 60 {
		w.step()
	}
	for len(w.stream) > 0 || w.relist != nil {
		w.deliver()
	}
	for node := range w.unseen {
		w.NodeChanged(node)
	}
	want := map[string]string{}
	for _, pod := range w.pods {
		if w.nodes[pod.Spec.NodeName] {
			want[pod.Name] = string(pod.UID) + " " + pod.ResourceVersion
		}
	}
	for _, node := range []string{"e1", "e2"} {
		if w.Lacks(node) && !slices.Contains(w.fetches, node) {
			w.t.Errorf("node %s lacks pods, and they are not fetched", node)
		}
		if n := w.Fill(node, w.list(node)); n != 0 {
			w.t.Errorf("node %s lacks %d pods at the end, want 0", node, n)
		}
	}
	got := map[string]string{}
	for _, pod := range typed[v1.Pod](w.indexer.List()) {
		got[pod.Name] = string(pod.UID) + " " + pod.ResourceVersion
		if w.newest[pod.UID] == 0 {
			w.t.Errorf("pod %s was not reported", pod.Name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("pods in the end (-want +got):\n%s", diff)
	}
	if all, _ := w.Count(); all != len(w.pods) {
		w.t.Errorf("%d pods in the end, want %d", all, len(w.pods))
	}
}

func (w *podWorld) list(node string) (out []v1.Pod) {
	for _, pod := range w.pods {
		if pod.Spec.NodeName == node {
			out = append(out, *pod.DeepCopy())
		}
	}
	return out
}

func (w *podWorld) step() {
	node := []string{"e1", "e2"}[w.random.IntN(2)]
	switch w.random.IntN(10) {
	case 0, 1, 2: // a pod is made, changed, or deleted
		w.write(node)
	case 3, 4:
		w.deliver()
	case 5: // the cache of nodes changes; its event comes later
		w.nodes[node] = !w.nodes[node]
		w.unseen[node] = true
	case 6:
		for node := range w.unseen {
			w.NodeChanged(node)
		}
		clear(w.unseen)
	case 7: // a list leaves
		w.lists = append(w.lists, listAnswer{node, w.list(node)})
	case 8: // lists arrive in any order
		if n := len(w.lists); n > 0 {
			i := w.random.IntN(n)
			w.Fill(w.lists[i].node, w.lists[i].pods)
			w.lists = slices.Delete(w.lists, i, i+1)
		}
	case 9: // the watch begins again
		w.stream, w.relist = nil, []any{}
		for _, pod := range w.pods {
			w.relist = append(w.relist, w.slim(pod.DeepCopy()))
		}
	}
}

func (w *podWorld) write(node string) {
	w.version++
	name := fmt.Sprint("p", w.random.IntN(3))
	pod := w.pods[name]
	deleted := false
	switch {
	case pod == nil:
		pod = fakes.Pod(node, "ns", name)
		pod.UID = types.UID(fmt.Sprint(name, "-", w.version))
	case w.random.IntN(3) == 0:
		deleted = true
		delete(w.pods, name)
	}
	pod = pod.DeepCopy()
	pod.ResourceVersion = fmt.Sprint(w.version)
	if !deleted {
		w.pods[name] = pod
	}
	w.stream = append(w.stream, podStreamEvent{pod.DeepCopy(), deleted})
}

// deliver delivers what comes next in the watch.
func (w *podWorld) deliver() {
	switch {
	case w.relist != nil:
		w.must(w.Replace(w.relist, ""))
		w.relist = nil
	case len(w.stream) > 0:
		e := w.stream[0]
		w.stream = w.stream[1:]
		if e.deleted {
			w.must(w.Delete(e.pod))
		} else {
			w.must(w.Update(e.pod))
		}
	}
}
