package cgroups

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hugeLimits are the limits on huge pages, in bytes by the kernel's name of a page size. Each size that the node has
// is limited: to what is asked for, or to nothing.
func hugeLimits(list v1.ResourceList, sizes []int64) map[string]uint64 {
	if len(sizes) == 0 {
		return nil
	}
	limits := map[string]uint64{}
	for _, size := range sizes {
		limits[pageSize(size)] = 0
	}
	for name, q := range list {
		text, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
		if !ok {
			continue
		}
		if size, err := resource.ParseQuantity(text); err == nil && q.Sign() > 0 {
			if _, known := limits[pageSize(size.Value())]; known {
				limits[pageSize(size.Value())] = uint64(q.Value())
			}
		}
	}
	return limits
}

// pageSize is the kernel's name of a page size: "2MB", "1GB", "64KB".
func pageSize(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB"}
	i := 0
	for ; bytes >= 1024 && bytes%1024 == 0 && i < len(units)-1; i++ {
		bytes /= 1024
	}
	return fmt.Sprintf("%d%s", bytes, units[i])
}

// criHuge is the CRI form of limits.
func criHuge(limits map[string]uint64) []*runtimeapi.HugepageLimit {
	var out []*runtimeapi.HugepageLimit
	for _, size := range slices.Sorted(maps.Keys(limits)) {
		out = append(out, &runtimeapi.HugepageLimit{PageSize: size, Limit: limits[size]})
	}
	return out
}

// kernelHuge is the form of a pod's cgroup.
func kernelHuge(limits map[string]uint64) []*cgroups.HugepageLimit {
	var out []*cgroups.HugepageLimit
	for _, size := range slices.Sorted(maps.Keys(limits)) {
		out = append(out, &cgroups.HugepageLimit{Pagesize: size, Limit: limits[size]})
	}
	return out
}

// hugetlb reports whether the kernel limits huge pages; many do not.
func hugetlb(mount string) bool {
	if offered, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers")); err == nil {
		return slices.Contains(strings.Fields(string(offered)), "hugetlb")
	}
	_, err := os.Stat(filepath.Join(mount, "hugetlb"))
	return err == nil
}
