package results

import (
	"slices"
	"strings"
)

// Unit is what samples of a metric are in.
type Unit string

// The units.
const (
	Seconds Unit = "s"
	Bytes   Unit = "bytes"
	// BytesAMinute are bytes in a minute.
	BytesAMinute Unit = "bytes/min"
	// Percent is of one core.
	Percent Unit = "% of a core"
)

// The metrics.
const (
	CreateToken = "create-running-token"
	CreatePlain = "create-running-plain"
	DeleteToken = "delete-gone-token"
	DeletePlain = "delete-gone-plain"
	CreateFull  = "create-running-full"
	DeleteFull  = "delete-gone-full"

	CreateStatic    = "create-running-static"
	DeleteStatic    = "delete-gone-static"
	BurstStaticLast = "burst-last-running-static"
	BurstStaticGone = "burst-all-gone-static"
	Adopt           = "adopt-ready"
	RestartFirst    = "restart-first-running"
	RestartLast     = "restart-last-running"
	CPUProbes       = "cpu-probes"

	BurstFirst   = "burst-first-running"
	BurstLast    = "burst-last-running"
	BurstGone    = "burst-all-gone"
	BurstCPU     = "burst-cpu"
	BurstCloud   = "burst-cpu-cloudcore"
	BurstMachine = "burst-cpu-machine"

	RSS       = "rss"
	Anonymous = "anonymous"
	PSS       = "pss"
	CPU       = "cpu-idle"
	Written   = "written-idle"
	Wire      = "wire-idle"

	CloudRSS         = "cloud-rss"
	CloudLive        = "cloud-live-per-node"
	CloudCPU         = "cloud-cpu-idle"
	CloudRegister    = "cloud-register"
	CloudRegisterCPU = "cloud-register-cpu-per-node"
	CloudP50         = "cloud-update-p50"
	CloudP99         = "cloud-update-p99"
	CloudStorm       = "cloud-storm"
)

// Metric describes a metric. Lower is better for all metrics.
type Metric struct {
	Name  string
	Title string
	Unit  Unit
	// Command measures it.
	Command string
}

const (
	podsCommand  = "go run ./test/bench/peers --parts token,plain,full"
	aloneCommand = "go run ./test/bench/peers --parts static,probes,restarts"
	burstCommand = "go run ./test/bench/peers --parts bursts"
	idleCommand  = "go run ./test/bench/peers --parts idle --levels 0,10,30,60,110,250"
	linkCommand  = "go run ./test/bench/link --parts memory,updates,storm --nodes 100,1000,5000,10000"
)

// Metrics returns all metrics.
func Metrics() []Metric {
	return []Metric{
		{CreateToken, "create → Running, default pod (token volume)", Seconds, podsCommand},
		{CreatePlain, "create → Running, without token", Seconds, podsCommand},
		{DeleteToken, "delete → gone, default pod that takes 1 s to end", Seconds, podsCommand},
		{DeletePlain, "delete → gone, without token, 1 s to end", Seconds, podsCommand},
		{CreateFull, "create → Running, with token, ConfigMap, Secret and emptyDir", Seconds, podsCommand},
		{DeleteFull, "delete → gone, with token, ConfigMap, Secret and emptyDir, 1 s to end", Seconds, podsCommand},
		{CreateStatic, "manifest → Running, no cloud", Seconds, aloneCommand},
		{DeleteStatic, "manifest removed → gone, no cloud, 1 s to end", Seconds, aloneCommand},
		{BurstStaticLast, "burst, last Running, from manifests, no cloud", Seconds, aloneCommand},
		{BurstStaticGone, "burst, all removed, from manifests, no cloud, each takes 1 s to end", Seconds, aloneCommand},
		{Adopt, "agent killed and started again, until all its pods are Ready, no cloud", Seconds, aloneCommand},
		{RestartFirst, "power cut, from the agent's start to the first Running, no cloud", Seconds, aloneCommand},
		{RestartLast, "power cut, from the agent's start to the last Running, no cloud", Seconds, aloneCommand},
		{CPUProbes, "CPU of 100 HTTP probes a second", Percent, aloneCommand},
		{BurstFirst, "burst, first Running", Seconds, burstCommand},
		{BurstLast, "burst, last Running", Seconds, burstCommand},
		{BurstGone, "burst, all deleted, each takes 1 s to end", Seconds, burstCommand},
		{BurstCPU, "CPU of the agent for one burst, with its deletion", Seconds, burstCommand},
		{BurstCloud, "CPU of cloudcore for one burst, with its deletion", Seconds, burstCommand},
		{BurstMachine, "CPU of the whole machine for one burst, with its deletion", Seconds, burstCommand},
		{RSS, "RSS of the agent", Bytes, idleCommand},
		{Anonymous, "anonymous memory of the agent", Bytes, idleCommand},
		{PSS, "PSS of the agent", Bytes, idleCommand},
		{CPU, "CPU of the idle agent", Percent, idleCommand},
		{Written, "written to disk in an idle minute", BytesAMinute, idleCommand},
		{Wire, "on the wire in an idle minute, both ways", BytesAMinute, idleCommand},
		{CloudRSS, "RSS of each cloudcore", Bytes, linkCommand},
		{CloudLive, "live heap and stacks per node", Bytes, linkCommand},
		{CloudCPU, "CPU of all cloudcores, nodes at rest", Percent, linkCommand},
		{CloudRegister, "first registration of all nodes", Seconds, linkCommand},
		{CloudRegisterCPU, "CPU of all programs per node, until its first status is stored", Seconds, linkCommand},
		{CloudP50, "200 updates a second, API → node, p50", Seconds, linkCommand},
		{CloudP99, "200 updates a second, API → node, p99", Seconds, linkCommand},
		{CloudStorm, "all links cut, until all nodes are in sync", Seconds, linkCommand},
	}
}

// MetricOf finds a metric by its name.
func MetricOf(name string) (Metric, bool) {
	list := Metrics()
	i := slices.IndexFunc(list, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return Metric{}, false
	}
	return list[i], true
}

// IsBurst reports whether the floor of a metric depends on the number of pods at a time.
func IsBurst(metric string) bool { return strings.HasPrefix(metric, "burst-") }
