package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestNodeFacts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "meminfo")
	if err := os.WriteFile(file, []byte("Buffers: 1 kB\nMemTotal:   524288 kB\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err := memInfo(file, "MemTotal"); err != nil || n != 512<<20 {
		t.Errorf("%d, %v; want 512 MiB, no error", n, err)
	}
	if n, err := memInfo(file, "SwapTotal"); err == nil {
		t.Errorf("memInfo(no SwapTotal) = %d, nil, want an error", n)
	}
	capacity := v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("512Mi")}
	got, err := Allocatable(capacity, map[string]string{"cpu": "500m", "memory": "1Gi"},
		map[string]string{"cpu": "100m", "pid": "10"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("1400m 0", got.Cpu().String()+" "+got.Memory().String()); diff != "" {
		t.Errorf("capacity mismatch (-want +got):\n%s", diff)
	}
	if got, err := Allocatable(capacity, map[string]string{"cpu": "much"}); err == nil {
		t.Errorf("Allocatable(cpu: much) = %v, nil, want an error", got)
	}
	if real, err := Capacity(7, filepath.Join(t.TempDir(), "not", "yet")); err != nil ||
		real.StorageEphemeral().Value() < 1<<20 || real.Memory().Value() < 1<<20 || real.Pods().Value() != 7 ||
		real.Cpu().IsZero() {
		t.Errorf("Capacity() = %v, %v; want at least 1 MiB of storage and memory, 7 pods and some CPU", real, err)
	}
}

func TestHugePages(t *testing.T) {
	dir := t.TempDir()
	for name, count := range map[string]string{
		"hugepages-2048kB": "5\n", "hugepages-1048576kB": "0\n", "hugepages-64kB": "many", "hugepages-x": "1",
		"other": "1",
	} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "nr_hugepages"), []byte(count), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[int64]int64{2 << 20: 5, 1 << 30: 0}, hugePages(dir)); diff != "" {
		t.Errorf("huge pages mismatch (-want +got):\n%s", diff)
	}
	if got := hugePages(filepath.Join(dir, "none")); got != nil {
		t.Errorf("hugePages(no folder) = %v, want nil", got)
	}
	if got := string(hugeName(2<<20)) + " " + string(hugeName(1<<30)) + " " +
		string(hugeName(64<<10)); got != "hugepages-2Mi hugepages-1Gi hugepages-64Ki" {
		t.Errorf("hugeName() = %q, want \"hugepages-2Mi hugepages-1Gi hugepages-64Ki\"", got)
	}
	left, err := Allocatable(v1.ResourceList{
		v1.ResourceMemory: resource.MustParse("512Mi"), "hugepages-2Mi": resource.MustParse("100Mi"),
	}, map[string]string{"memory": "12Mi"})
	if err != nil || left.Memory().String() != "400Mi" {
		t.Errorf("Allocatable() = %v, %v; want 400Mi of memory", left, err)
	}
}

// TestOutward: a node without a default route is not known by the address of its pods' bridge.
func TestOutward(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{
		"eth0/device", "docker0/bridge", "docker0/lower_veth1", "veth1/master", "br0/bridge", "br0/lower_eth0",
		"vlan7/lower_eth0",
		"flannel.1/statistics", "ring/lower_ring",
	} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	hardware, others := externalInterfaces(dir, []string{"docker0", "veth1", "flannel.1", "ring", "vlan7", "br0",
		"eth0"})
	if diff := cmp.Diff([]string{"vlan7", "br0", "eth0"}, hardware); diff != "" {
		t.Errorf("interfaces with hardware (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"flannel.1", "ring"}, others); diff != "" {
		t.Errorf("other interfaces (-want +got):\n%s", diff)
	}
}
