package v1alpha2

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// checker gathers what is wrong, each with its path, its value, and what is allowed.
type checker struct{ errs []error }

func (c *checker) fail(path string, value any, want string) {
	c.errs = append(c.errs, fmt.Errorf("%s: %v is of no use; %s", path, quote(value), want))
}

func quote(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprint(v)
}

func (c *checker) oneOf(path, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		c.fail(path, value, "want one of "+strings.Join(allowed, ", "))
	}
}

func (c *checker) atLeast(path string, value, least int64) {
	if value < least {
		c.fail(path, value, fmt.Sprintf("want %d or more", least))
	}
}

func (c *checker) positive(path string, d time.Duration) {
	if d <= 0 {
		c.fail(path, d.String(), "want a duration above 0, such as 10s")
	}
}

func (c *checker) absolute(path, value string) {
	if !filepath.IsAbs(value) {
		c.fail(path, value, "want an absolute path")
	}
}

func (c *checker) socket(path, value string) {
	rest, ok := strings.CutPrefix(value, "unix://")
	if !ok || !filepath.IsAbs(rest) {
		c.fail(path, value, "want a unix socket such as "+DefaultCRISocket)
	}
}

func (c *checker) address(path, value string) {
	if _, err := netip.ParseAddr(value); err != nil {
		c.fail(path, value, "want an IP address")
	}
}

// Validate checks the values; all that is wrong is in the error.
func (e *EdgeCore) Validate() error {
	c := &checker{}
	c.oneOf("database.driverName", e.Database.DriverName, "sqlite3")
	c.absolute("database.dataSource", e.Database.DataSource)
	c.edged("modules.edged", &e.Modules.Edged)
	if h := e.Modules.EdgeHub; h.WebSocket.Enable && h.Quic.Enable {
		c.fail("modules.edgeHub.quic.enable", true, "only one of websocket and quic may be enabled")
	}
	c.atLeast("modules.edgeHub.heartbeat", int64(e.Modules.EdgeHub.Heartbeat), 1)
	return errors.Join(c.errs...)
}

func (c *checker) edged(p string, e *Edged) {
	if faults := validation.IsDNS1123Subdomain(e.HostnameOverride); len(faults) > 0 {
		want := "want a name of lower-case letters, digits, '-' and '.'"
		if lower := strings.ToLower(e.HostnameOverride); len(validation.IsDNS1123Subdomain(lower)) == 0 {
			want += fmt.Sprintf(", such as %q", lower)
		}
		c.fail(p+".hostnameOverride", e.HostnameOverride, want)
	}
	if e.NodeIP != "" {
		c.address(p+".nodeIP", e.NodeIP)
	}
	c.absolute(p+".rootDirectory", e.RootDirectory)
	for _, k := range sortedKeys(e.NodeLabels) {
		if faults := validation.IsQualifiedName(k); len(faults) > 0 {
			c.fail(p+".nodeLabels", k, strings.Join(faults, "; "))
		}
		if faults := validation.IsValidLabelValue(e.NodeLabels[k]); len(faults) > 0 {
			c.fail(p+".nodeLabels."+k, e.NodeLabels[k], strings.Join(faults, "; "))
		}
	}
	c.kubelet(p+".tailoredKubeletConfig", e)
}

func (c *checker) kubelet(p string, e *Edged) {
	k := &e.TailoredKubeletConfig
	if k.StaticPodPath != "" {
		c.absolute(p+".staticPodPath", k.StaticPodPath)
	}
	c.absolute(p+".podLogsDir", k.PodLogsDir)
	c.positive(p+".syncFrequency", k.SyncFrequency.Duration)
	c.positive(p+".fileCheckFrequency", k.FileCheckFrequency.Duration)
	c.positive(p+".runtimeRequestTimeout", k.RuntimeRequestTimeout.Duration)
	c.address(p+".address", k.Address)
	if k.ReadOnlyPort < 0 || k.ReadOnlyPort > 65535 {
		c.fail(p+".readOnlyPort", k.ReadOnlyPort, "want a port from 1 to 65535, or 0 for none")
	}
	if k.RegistryPullQPS != nil {
		c.atLeast(p+".registryPullQPS", int64(*k.RegistryPullQPS), 0)
	}
	c.atLeast(p+".registryBurst", int64(k.RegistryBurst), 0)
	for i, ip := range k.ClusterDNS {
		c.address(fmt.Sprintf("%s.clusterDNS[%d]", p, i), ip)
	}
	c.oneOf(p+".cgroupDriver", k.CgroupDriver, "cgroupfs", "systemd")
	c.atLeast(p+".maxPods", int64(k.MaxPods), 1)
	if period := k.CPUCFSQuotaPeriod; period != nil && (period.Duration < time.Millisecond || period.Duration > time.Second) {
		c.fail(p+".cpuCFSQuotaPeriod", period.Duration.String(), "want a duration from 1ms to 1s")
	}
	if n := k.MaxParallelImagePulls; n != nil {
		c.atLeast(p+".maxParallelImagePulls", int64(*n), 1)
		if *n > 1 && k.SerializeImagePulls != nil && *k.SerializeImagePulls {
			c.fail(p+".maxParallelImagePulls", *n, "want 1, or serializeImagePulls: false")
		}
	}
	if d := k.CrashLoopBackOff.MaxContainerRestartPeriod; d != nil && (d.Duration < time.Second || d.Duration > 5*time.Minute) {
		c.fail(p+".crashLoopBackOff.maxContainerRestartPeriod", d.Duration.String(), "want a duration from 1s to 5m")
	}
	for name, list := range map[string]map[string]string{"systemReserved": k.SystemReserved, "kubeReserved": k.KubeReserved} {
		for _, key := range sortedKeys(list) {
			if q, err := resource.ParseQuantity(list[key]); err != nil || q.Sign() < 0 {
				c.fail(p+"."+name+"."+key, list[key], "want a quantity such as 100m or 64Mi")
			}
		}
	}
	if adj := k.OOMScoreAdj; adj != nil && (*adj < -1000 || *adj > 1000) {
		c.fail(p+".oomScoreAdj", *adj, "want a number from -1000 to 1000")
	}
	c.socket(p+".containerRuntimeEndpoint", k.ContainerRuntimeEndpoint)
	if k.ImageServiceEndpoint != "" {
		c.socket(p+".imageServiceEndpoint", k.ImageServiceEndpoint)
	}
}

// Redacted returns a copy without what must not be shown.
func (e *EdgeCore) Redacted() *EdgeCore {
	out := *e
	hide := func(s *string) {
		if *s != "" {
			*s = "(hidden)"
		}
	}
	hide(&out.Modules.EdgeHub.Token)
	hide(&out.Modules.EventBus.MqttPassword)
	return &out
}
