package v1alpha2

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// kubelet checks what several keys of the kubelet's configuration say together.
func (c *checker) kubelet(p string, k *kubeletconfig.KubeletConfiguration) {
	if k.Port == k.ReadOnlyPort && k.Port >= 1 && k.Port <= 65535 {
		c.Fail(p+".port", k.Port, "another port than readOnlyPort")
	}
	if (k.TLSCertFile == "") != (k.TLSPrivateKeyFile == "") {
		c.Fail(p+".tlsCertFile", k.TLSCertFile, "tlsCertFile and tlsPrivateKeyFile together, or neither")
	}
	c.images(p, k)
	c.reservedCgroups(p, k)
	for _, signal := range strict.SortedKeys(k.EvictionSoft) {
		if _, ok := k.EvictionSoftGracePeriod[signal]; !ok {
			c.Fail(strict.Entry(p+".evictionSoft", signal), k.EvictionSoft[signal],
				"an evictionSoftGracePeriod for it, too")
		}
	}
	c.shutdown(p, k)
}

func (c *checker) images(p string, k *kubeletconfig.KubeletConfiguration) {
	if n := k.MaxParallelImagePulls; n != nil && *n > 1 && (k.SerializeImagePulls == nil || *k.SerializeImagePulls) {
		c.Fail(p+".maxParallelImagePulls", *n, "1, or serializeImagePulls: false")
	}
	if n := len(k.PreloadedImagesVerificationAllowlist); n > 0 &&
		k.ImagePullCredentialsVerificationPolicy != "NeverVerifyAllowlistedImages" {
		c.Fail(p+".preloadedImagesVerificationAllowlist", n,
			"none, or imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages")
	}
	if low, high := k.ImageGCLowThresholdPercent, k.ImageGCHighThresholdPercent; low != nil && high != nil &&
		*low >= *high {
		c.Fail(p+".imageGCLowThresholdPercent", *low, fmt.Sprintf("less than imageGCHighThresholdPercent, %d", *high))
	}
}

// reservedCgroups checks that what enforceNodeAllocatable names has a cgroup.
func (c *checker) reservedCgroups(p string, k *kubeletconfig.KubeletConfiguration) {
	for _, group := range []struct{ what, key, cgroup string }{
		{"system-reserved", "systemReservedCgroup", k.SystemReservedCgroup},
		{"kube-reserved", "kubeReservedCgroup", k.KubeReservedCgroup},
	} {
		compressible := slices.Contains(k.EnforceNodeAllocatable, group.what+"-compressible")
		whole := slices.Contains(k.EnforceNodeAllocatable, group.what)
		if (whole || compressible) && group.cgroup == "" {
			c.Fail(p+"."+group.key, group.cgroup, "the cgroup to which enforceNodeAllocatable applies "+group.what+
				", such as /system.slice")
		}
		if whole && compressible {
			c.Fail(p+".enforceNodeAllocatable", strings.Join(k.EnforceNodeAllocatable, ", "),
				group.what+" with or without -compressible, not both")
		}
	}
}

func checkSocket(c *strict.Checker, path, value string) { c.Socket(path, value, DefaultCRISocket) }

func checkAddresses(c *strict.Checker, path string, list []string) {
	for i, ip := range list {
		c.Address(fmt.Sprintf("%s[%d]", path, i), ip)
	}
}

func checkCipherSuites(c *strict.Checker, path string, suites []string) {
	var names []string
	for _, s := range tls.CipherSuites() {
		names = append(names, s.Name)
	}
	for i, name := range suites {
		c.OneOf(fmt.Sprintf("%s[%d]", path, i), name, names...)
	}
}

func checkDomain(c *strict.Checker, path, value string) {
	if domain := strings.TrimSuffix(value, "."); domain != "" && len(validation.IsDNS1123Subdomain(domain)) > 0 {
		c.Fail(path, value, "a DNS domain, such as cluster.local")
	}
}

func checkResolvConf(c *strict.Checker, path string, k *kubeletconfig.KubeletConfiguration) {
	if k.ResolverConfig != nil {
		c.AbsoluteOrNone(path, *k.ResolverConfig)
	}
}

func checkSubnets(c *strict.Checker, path, value string) {
	for _, cidr := range strings.Split(value, ",") {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			c.Fail(path, value, "a subnet, such as 10.88.0.0/16")
			return
		}
	}
}

func checkPodPids(c *strict.Checker, path string, k *kubeletconfig.KubeletConfiguration) {
	if n := k.PodPidsLimit; n != nil && *n != -1 && *n < 1 {
		c.Fail(path, *n, "a number of processes of 1 or more, or -1 for the node's limit")
	}
}

func checkCgroup(c *strict.Checker, path, value string) {
	if strings.Contains("/"+value+"/", "/../") {
		c.Fail(path, value, "a cgroup such as /edge, without '..'")
	}
}

func checkMemoryThrottling(c *strict.Checker, path string, k *kubeletconfig.KubeletConfiguration) {
	if f := k.MemoryThrottlingFactor; f != nil && (*f <= 0 || *f > 1) {
		c.Fail(path, *f, "a number above 0, up to 1")
	}
}

func checkEnforced(c *strict.Checker, path string, list []string) {
	for i, what := range list {
		c.OneOf(fmt.Sprintf("%s[%d]", path, i), what, "none", "pods", "system-reserved",
			"system-reserved-compressible", "kube-reserved", "kube-reserved-compressible")
	}
	if slices.Contains(list, "none") && len(list) > 1 {
		c.Fail(path, strings.Join(list, ", "), "none alone, or the others without it")
	}
}

func checkReserved(c *strict.Checker, p string, list map[string]string) {
	for _, key := range strict.SortedKeys(list) {
		c.OneOf(strict.Entry(p, key), key, "cpu", "memory", "ephemeral-storage", "pid")
		checkQuantity(c, strict.Entry(p, key), list[key])
	}
}

func checkThresholds(c *strict.Checker, path string, list map[string]string) {
	for _, signal := range strict.SortedKeys(list) {
		at := strict.Entry(path, signal)
		checkSignal(c, at, signal)
		checkThreshold(c, at, list[signal])
	}
}

func checkGracePeriods(c *strict.Checker, path string, list map[string]string) {
	for _, signal := range strict.SortedKeys(list) {
		at := strict.Entry(path, signal)
		checkSignal(c, at, signal)
		if d, err := time.ParseDuration(list[signal]); err != nil || d < 0 {
			c.Fail(at, list[signal], "a duration, such as 30s")
		}
	}
}

func checkSignal(c *strict.Checker, path, signal string) {
	signals := []string{
		"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree",
		"containerfs.available", "containerfs.inodesFree", "allocatableMemory.available", "pid.available",
	}
	if !slices.Contains(signals, signal) {
		best, _ := strict.Nearest(signal, signals)
		c.Fail(path, signal, fmt.Sprintf("an eviction signal; did you mean %q?", best))
	}
}

func checkTaints(c *strict.Checker, path string, k *kubeletconfig.KubeletConfiguration) {
	for i, taint := range k.RegisterWithTaints {
		at := fmt.Sprintf("%s[%d]", path, i)
		if len(validation.IsQualifiedName(taint.Key)) > 0 {
			c.Fail(at+".key", taint.Key, "a taint's key, such as example.com/gpu")
		}
		if len(validation.IsValidLabelValue(taint.Value)) > 0 {
			c.Fail(at+".value", taint.Value, "a label's value")
		}
		c.OneOf(at+".effect", string(taint.Effect), "NoSchedule", "PreferNoSchedule", "NoExecute")
	}
}
