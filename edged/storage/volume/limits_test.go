package volume

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func limitedTo(storage string) v1.Container {
	c := v1.Container{Name: "of" + storage}
	if storage != "" {
		c.Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(storage)}
	}
	return c
}

func sidecarOf(c v1.Container) v1.Container {
	c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	return c
}

func TestExceeds(t *testing.T) {
	containers := func(list ...v1.Container) *v1.Pod {
		pod := podWith(emptyDir("", ""))
		pod.Spec.Containers = list
		return pod
	}
	withInit := func(pod *v1.Pod, list ...v1.Container) *v1.Pod {
		pod.Spec.InitContainers = list
		return pod
	}
	withOverhead := func(pod *v1.Pod, bytes string) *v1.Pod {
		pod.Spec.Overhead = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(bytes)}
		return pod
	}
	volume := func(bytes int64) DiskUse { return DiskUse{Volumes: map[string]int64{"v": bytes}} }
	const over = `Usage of EmptyDir volume "v" exceeds the limit "1Mi". `
	for _, tc := range []struct {
		name             string
		pod              *v1.Pod
		use              DiskUse
		want             string
		volumes, storage bool
		limit            Limit
	}{
		{"no limit", podWith(emptyDir("", "")), volume(1 << 40), "", false, false, ""},
		{"at the limit", podWith(emptyDir("", "1Mi")), volume(1 << 20), "", true, false, ""},
		{"above it", podWith(emptyDir("", "1Mi")), volume(1<<20 + 1), over, true, false, LimitVolume},
		{"limit of nothing", podWith(emptyDir("", "0")), volume(1), "", false, false, ""},
		{"in memory", podWith(emptyDir(v1.StorageMediumMemory, "1Mi")), volume(1 << 40), "", false, false, ""},
		{
			"containers with room", containers(limitedTo("1Ki"), limitedTo("2Ki")),
			DiskUse{Volumes: map[string]int64{"v": 1024}, Containers: map[string]int64{"of1Ki": 1000, "of2Ki": 1000},
				Other: 48}, "", false, true, "",
		},
		{
			"all together", containers(limitedTo("1Ki"), limitedTo("2Ki")),
			DiskUse{Volumes: map[string]int64{"v": 2000}, Containers: map[string]int64{"of1Ki": 1000}, Other: 73},
			"Pod ephemeral local storage usage exceeds the total limit of containers 3Ki. ", false, true, LimitPod,
		},
		{
			"one container", containers(limitedTo("1Ki"), limitedTo("2Ki")),
			DiskUse{Containers: map[string]int64{"of1Ki": 1025}},
			`Container of1Ki exceeded its local ephemeral storage limit "1Ki". `, false, true, LimitContainer,
		},
		{
			"logs", containers(limitedTo("1Ki"), limitedTo("2Ki")), DiskUse{Containers: map[string]int64{"of1Ki": 1000},
				Logs: map[string]int64{"of1Ki": 25}},
			`Container of1Ki exceeded its local ephemeral storage limit "1Ki". `, false, true, LimitContainer,
		},
		{
			"images have a file system", containers(limitedTo("1Ki"), limitedTo("2Ki")),
			DiskUse{ImageFS: true, Containers: map[string]int64{"of1Ki": 2000}, Logs: map[string]int64{"of1Ki": 1000}},
			"", false, true, "",
		},
		{
			"images have a file system, all together", containers(limitedTo("1Ki"), limitedTo("2Ki")),
			DiskUse{ImageFS: true, Containers: map[string]int64{"of1Ki": 2073}, Logs: map[string]int64{"of1Ki": 1000}},
			"Pod ephemeral local storage usage exceeds the total limit of containers 3Ki. ", false, true, LimitPod,
		},
		{
			"images have a file system, logs", containers(limitedTo("1Ki"), limitedTo("2Ki")),
			DiskUse{ImageFS: true, Logs: map[string]int64{"of1Ki": 1025}},
			`Container of1Ki exceeded its local ephemeral storage limit "1Ki". `, false, true, LimitContainer,
		},
		{
			"one has a limit", containers(limitedTo("1Ki"), limitedTo("")),
			DiskUse{Containers: map[string]int64{"of": 1025}},
			"Pod ephemeral local storage usage exceeds the total limit of containers 1Ki. ", false, true, LimitPod,
		},
		{"init container", withInit(containers(limitedTo("1Ki")), limitedTo("4Ki")), volume(4096), "", false, true, ""},
		{
			"sidecars count with both", withInit(containers(limitedTo("1Ki")), sidecarOf(limitedTo("2Ki")),
				limitedTo("4Ki")), volume(6 << 10), "", false, true, "",
		},
		{"sidecars alone", withInit(containers(limitedTo("")), sidecarOf(limitedTo("2Ki"))), volume(2<<10 + 1),
			"Pod ephemeral local storage usage exceeds the total limit of containers 2Ki. ", false, true, LimitPod},
		{"overhead", withOverhead(containers(limitedTo("1Ki")), "1Ki"), volume(2048), "", false, true, ""},
		{"overhead alone", withOverhead(containers(limitedTo("")), "1Ki"), volume(4096), "", false, false, ""},
	} {
		if limit, got := Exceeds(tc.pod, tc.use); got != tc.want || limit != tc.limit {
			t.Errorf("%s: %s %q, want %s %q", tc.name, limit, got, tc.limit, tc.want)
		}
		if v, s := LimitedVolumes(tc.pod), LimitedStorage(tc.pod); v != tc.volumes || s != tc.storage {
			t.Errorf("%s: limits of volumes %v, of storage %v; want %v, %v", tc.name, v, s, tc.volumes, tc.storage)
		}
	}
}
