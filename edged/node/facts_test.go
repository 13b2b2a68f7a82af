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
	if n, err := memTotal(file); err != nil || n != 512<<20 {
		t.Errorf("%d, %v", n, err)
	}
	capacity := v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("512Mi")}
	got, err := Allocatable(capacity, map[string]string{"cpu": "500m", "memory": "1Gi"}, map[string]string{"cpu": "100m", "pid": "10"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("1400m 0", got.Cpu().String()+" "+got.Memory().String()); diff != "" {
		t.Error(diff)
	}
	if _, err := Allocatable(capacity, map[string]string{"cpu": "much"}); err == nil {
		t.Error("no error for what is no quantity")
	}
	if real, err := Capacity(7); err != nil || real.Memory().Value() < 1<<20 || real.Pods().Value() != 7 || real.Cpu().IsZero() {
		t.Errorf("%v, %v", real, err)
	}
}
