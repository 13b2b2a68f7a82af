package node

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// hugePagesDir is where the kernel lists its huge pages: a folder "hugepages-<size>kB" for each size.
const hugePagesDir = "/sys/kernel/mm/hugepages"

// HugePageSizes are the sizes that the kernel has, in bytes.
func HugePageSizes() []int64 {
	return slices.Sorted(maps.Keys(hugePages(hugePagesDir)))
}

// hugePages returns how many pages of each size, in bytes, are set aside. A kernel without them has no sizes.
func hugePages(dir string) map[int64]int64 {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	pages := map[int64]int64{}
	for _, e := range entries {
		text, ok := strings.CutPrefix(e.Name(), "hugepages-")
		text, kb := strings.CutSuffix(text, "kB")
		size, err := strconv.ParseInt(text, 10, 64)
		if !ok || !kb || err != nil || size <= 0 || size > 1<<40 {
			continue
		}
		count, err := strconv.ParseInt(line(filepath.Join(dir, e.Name(), "nr_hugepages")), 10, 64)
		if err != nil || count < 0 {
			continue
		}
		pages[size<<10] = count
	}
	return pages
}

// hugeName is the name of the resource: "hugepages-2Mi".
func hugeName(size int64) v1.ResourceName {
	return v1.ResourceName(v1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
}
