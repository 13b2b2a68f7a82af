package caches

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/podfacts"
)

// TestCachedPodsAreBounded: a pod of an edge node takes no more of the cache than TrimBytes and a little, however it
// is made, and its size is about what it takes in memory whole.
func TestCachedPodsAreBounded(t *testing.T) {
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	for name, fill := range fakes.Fillers() {
		t.Run(name, func(t *testing.T) {
			const pods = 10
			for _, n := range []int{10, 50, 100, 250, 1000, 5000} {
				pod := fakes.WholePod("1")
				fill(pod, n)
				if size := ContentSize(pod); isPlain(pod) && size > TrimBytes {
					t.Errorf("%d: a pod of %d bytes counts as plain", n, size)
				}
				data, err := pod.Marshal()
				if err != nil {
					t.Fatal(err)
				}
				e := newPodsEnv(t)
				e.Changed = func(_, _ *v1.Pod) {}
				e.label("e1", true)
				whole := make([]*v1.Pod, pods)
				before := heap()
				for i := range whole {
					whole[i] = &v1.Pod{}
					if err := whole[i].Unmarshal(data); err != nil {
						t.Fatal(err)
					}
					whole[i].Name = fmt.Sprint(i)
				}
				decoded := (heap() - before) / pods
				size := ContentSize(pod) + statusSize(pod)
				if decoded > 64<<10 && size < decoded/2 {
					t.Errorf("%d: the size is %d bytes, and the pod takes %d", n, size, decoded)
				}
				before = heap()
				for i := range whole {
					e.must(e.Add(whole[i]))
					whole[i] = nil
				}
				runtime.KeepAlive(whole)
				cached := (heap()-before)/pods + decoded
				t.Logf("%d: %d bytes encoded, %d decoded, %d by size, %d cached", n, len(data), decoded, size, cached)
				if most := TrimBytes * 3 / 2; cached > most {
					t.Errorf("%d: a pod takes %d bytes in the cache, want at most %d", n, cached, most)
				}
				runtime.KeepAlive(e)
			}
		})
	}
}

// TestTrimmedPodsKeepNoLongNames: names that no ConfigMap or Secret can have do not stay in the cache.
func TestTrimmedPodsKeepNoLongNames(t *testing.T) {
	p := fakes.Pod("e1", "ns", "p")
	for i := range 4 {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: fmt.Sprint("v", i), VolumeSource: v1.VolumeSource{
			Secret: &v1.SecretVolumeSource{SecretName: fmt.Sprint(i) + strings.Repeat("n", 256<<10)}}})
	}
	longest := strings.Repeat("n", validation.DNS1123SubdomainMaxLength)
	p.Spec.Volumes[3].Secret.SecretName = longest
	out := TrimIfLarge(p)
	if size := ContentSize(out); !IsTrimmed(out) || size > TrimBytes {
		t.Errorf("it has %d bytes, want at most %d", size, TrimBytes)
	}
	if !slices.Contains(podfacts.References(out), fakes.Key("ns/secret/"+longest)) {
		t.Errorf("references = %v, want also the longest name", podfacts.References(out))
	}
}
