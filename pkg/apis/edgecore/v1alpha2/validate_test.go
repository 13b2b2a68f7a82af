package v1alpha2

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
)

// named is Default on a host whose name is a node's name.
func named() *EdgeCore {
	e := Default()
	e.Modules.Edged.HostnameOverride = "edge1"
	return e
}

func TestValidate(t *testing.T) {
	if err := named().Validate(); err != nil {
		t.Fatalf("the default is not allowed: %v", err)
	}
	for path, set := range map[string]func(*EdgeCore){
		"database.driverName": func(e *EdgeCore) { e.Database.DriverName = "mysql" },
		"database.dataSource": func(e *EdgeCore) { e.Database.DataSource = "edgecore.db" },
		"modules.edged.hostnameOverride": func(e *EdgeCore) {
			e.Modules.Edged.HostnameOverride = strings.Repeat("a", 254)
		},
		"modules.edged.nodeIP":                func(e *EdgeCore) { e.Modules.Edged.NodeIP = "192.0.2.1,192.0.2.2" },
		"modules.edged.registerNodeNamespace": func(e *EdgeCore) { e.Modules.Edged.RegisterNodeNamespace = "A" },
		"modules.edged.rootDirectory":         func(e *EdgeCore) { e.Modules.Edged.RootDirectory = "" },
		"modules.edged.serverAddress":         func(e *EdgeCore) { e.Modules.Edged.ServerAddress = "localhost" },
		"modules.edged.nodeLabels[-a]": func(e *EdgeCore) {
			e.Modules.Edged.NodeLabels = map[string]string{"-a": "b"}
		},
		"modules.edged.nodeLabels[a.b/c]": func(e *EdgeCore) {
			e.Modules.Edged.NodeLabels = map[string]string{"a.b/c": "b!"}
		},
		"modules.edged.minimumGCAge":         func(e *EdgeCore) { e.Modules.Edged.MinimumGCAge.Duration = -1 },
		"modules.edgeHub.websocket.enable":   func(e *EdgeCore) { e.Modules.EdgeHub.WebSocket.Enable = false },
		"modules.edgeHub.quic.enable":        func(e *EdgeCore) { e.Modules.EdgeHub.Quic.Enable = true },
		"modules.edgeHub.heartbeat":          func(e *EdgeCore) { e.Modules.EdgeHub.Heartbeat = 0 },
		"modules.edgeHub.messageQPS":         func(e *EdgeCore) { e.Modules.EdgeHub.MessageQPS = -1 },
		"modules.edgeHub.messageBurst":       func(e *EdgeCore) { e.Modules.EdgeHub.MessageBurst = -1 },
		"modules.edgeHub.configTrialSeconds": func(e *EdgeCore) { e.Modules.EdgeHub.ConfigTrialSeconds = -1 },
		"modules.edgeHub.websocket.server": func(e *EdgeCore) {
			e.Modules.EdgeHub.WebSocket.Server = "192.0.2.1"
		},
		"modules.edgeHub.websocket.readDeadline": func(e *EdgeCore) { e.Modules.EdgeHub.WebSocket.ReadDeadline = -1 },
		"modules.eventBus.mqttMode":              mqtt(func(b *EventBus) { b.MqttMode = 3 }),
		"modules.eventBus.mqttQOS":               mqtt(func(b *EventBus) { b.MqttQOS = 3 }),
		"modules.eventBus.mqttSessionQueueSize":  mqtt(func(b *EventBus) { b.MqttSessionQueueSize = -1 }),
		"modules.eventBus.mqttPasswordFile":      mqtt(func(b *EventBus) { b.MqttPasswordFile = "users" }),
		"modules.eventBus.mqttServerExternal":    mqtt(func(b *EventBus) { b.MqttServerExternal = "http://a" }),
		"modules.eventBus.mqttServerInternal": mqtt(func(b *EventBus) {
			b.MqttMode, b.MqttServerInternal = 0, "127.0.0.1:1884"
		}),
		"modules.metaManager.remoteQueryTimeout": func(e *EdgeCore) { e.Modules.MetaManager.RemoteQueryTimeout = 0 },
		"modules.metaManager.metaServer.server": func(e *EdgeCore) {
			e.Modules.MetaManager.MetaServer.Enable, e.Modules.MetaManager.MetaServer.Server = true, ":0"
		},
		"modules.metaManager.metaServer.dummyServer": func(e *EdgeCore) {
			e.Modules.MetaManager.MetaServer.Enable, e.Modules.MetaManager.MetaServer.DummyServer = true, "127.0.0.1:1"
		},
		"modules.metaManager.metaServer.podAccess": func(e *EdgeCore) {
			e.Modules.MetaManager.MetaServer.Enable, e.Modules.MetaManager.MetaServer.PodAccess = true, "Some"
		},
		"modules.serviceBus.port": func(e *EdgeCore) {
			e.Modules.ServiceBus.Enable, e.Modules.ServiceBus.Port = true, 0
		},
		"modules.edgeStream.server": func(e *EdgeCore) {
			e.Modules.EdgeStream.Enable, e.Modules.EdgeStream.Server = true, "a:99999"
		},
	} {
		t.Run(path, func(t *testing.T) {
			e := named()
			set(e)
			wantProblem(t, e.Validate(), path)
		})
	}
}

// TestOpenBroker: a broker in the agent to which anybody could connect is refused.
func TestOpenBroker(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(b *EventBus)
		open bool
	}{
		"of this device alone":  {func(b *EventBus) { b.MqttServerInternal = "tcp://127.0.0.1:1883" }, false},
		"by the name of it":     {func(b *EventBus) { b.MqttServerInternal = "tcp://localhost:1883" }, false},
		"of IPv6":               {func(b *EventBus) { b.MqttServerInternal = "tcp://[::1]:1883" }, false},
		"all addresses":         {func(*EventBus) {}, true},
		"with a user":           {func(b *EventBus) { b.MqttUsername, b.MqttPassword = "a", "b" }, false},
		"with a password file":  {func(b *EventBus) { b.MqttPasswordFile = "/etc/users" }, false},
		"with TLS alone":        {func(b *EventBus) { b.TLS.Enable, b.TLS.TLSMqttCAFile = true, "" }, true},
		"with client CAs":       {func(b *EventBus) { b.TLS.Enable, b.TLS.TLSMqttCAFile = true, "/etc/ca.crt" }, false},
		"only the external one": {func(b *EventBus) { b.MqttMode = 2 }, false},
		"the module is off":     {func(b *EventBus) { b.Enable = false }, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := named()
			mqtt(func(b *EventBus) {
				b.MqttMode, b.MqttServerInternal, b.MqttServerExternal = 0, "tcp://0.0.0.0:1883", "tcp://192.0.2.1:1883"
				c.set(b)
			})(e)
			if !c.open {
				if err := e.Validate(); err != nil {
					t.Errorf("Validate = %v, want no problem", err)
				}
				return
			}
			wantProblem(t, e.Validate(), "modules.eventBus.mqttServerInternal")
		})
	}
}

// mqtt switches eventBus on, and changes it.
func mqtt(set func(b *EventBus)) func(e *EdgeCore) {
	return func(e *EdgeCore) {
		e.Modules.EventBus.Enable = true
		set(&e.Modules.EventBus)
	}
}

// wantProblem: there is one problem, at path, and it says what is allowed.
func wantProblem(t *testing.T, err error, path string) {
	t.Helper()
	var problems Problems
	if !errors.As(err, &problems) || len(problems) != 1 {
		t.Fatalf("got %v, want one problem", err)
	}
	if problems[0].Path != path || !strings.Contains(problems[0].Text, " is not allowed; want ") {
		t.Errorf("got %v, want what is allowed at %s", problems[0], path)
	}
}

// TestManagersAreRefused: what places containers on cores and NUMA nodes is refused with its name, value and remedy.
func TestManagersAreRefused(t *testing.T) {
	for path, set := range map[string]func(*kubeletconfig.KubeletConfiguration) string{
		"cpuManagerPolicy": func(k *kubeletconfig.KubeletConfiguration) string {
			k.CPUManagerPolicy = "static"
			return `"static" is not allowed; want none (this agent gives no container cores of its own; leave it out`
		},
		"memoryManagerPolicy": func(k *kubeletconfig.KubeletConfiguration) string {
			k.MemoryManagerPolicy = "Static"
			return `"Static" is not allowed; want None (`
		},
		"topologyManagerPolicy": func(k *kubeletconfig.KubeletConfiguration) string {
			k.TopologyManagerPolicy = "single-numa-node"
			return `"single-numa-node" is not allowed; want none (this agent does not align devices with cores; leave it out)`
		},
	} {
		cfg := named()
		want := set(&cfg.Modules.Edged.TailoredKubeletConfig)
		var problems Problems
		if err := cfg.Validate(); !errors.As(err, &problems) || len(problems) != 1 ||
			problems[0].Path != "modules.edged.tailoredKubeletConfig."+path ||
			!strings.Contains(problems[0].Text, want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
}

func TestValidateKubelet(t *testing.T) {
	type config = kubeletconfig.KubeletConfiguration
	duration := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	for path, set := range map[string]func(*config){
		"staticPodPath":         func(k *config) { k.StaticPodPath = "manifests" },
		"podLogsDir":            func(k *config) { k.PodLogsDir = "" },
		"syncFrequency":         func(k *config) { k.SyncFrequency = duration(0) },
		"fileCheckFrequency":    func(k *config) { k.FileCheckFrequency = duration(-time.Second) },
		"runtimeRequestTimeout": func(k *config) { k.RuntimeRequestTimeout = duration(0) },
		"containerRuntimeEndpoint": func(k *config) {
			k.ContainerRuntimeEndpoint = "tcp://127.0.0.1:1234"
		},
		"imageServiceEndpoint": func(k *config) { k.ImageServiceEndpoint = "unix://run/x.sock" },
		"address":              func(k *config) { k.Address = "localhost" },
		"readOnlyPort":         func(k *config) { k.ReadOnlyPort = 65536 },
		"clusterDNS[1]":        func(k *config) { k.ClusterDNS = []string{"fd00::10", "dns"} },
		"clusterDomain":        func(k *config) { k.ClusterDomain = "Cluster.local" },
		"resolvConf":           func(k *config) { k.ResolverConfig = ptr.To("resolv.conf") },
		"podCIDR":              func(k *config) { k.PodCIDR = "10.0.0.0" },
		"hairpinMode":          func(k *config) { k.HairpinMode = "veth" },
		"registryPullQPS":      func(k *config) { k.RegistryPullQPS = ptr.To[int32](-1) },
		"imagePullCredentialsVerificationPolicy": func(k *config) {
			k.ImagePullCredentialsVerificationPolicy = "Sometimes"
		},
		"preloadedImagesVerificationAllowlist": func(k *config) {
			k.PreloadedImagesVerificationAllowlist = []string{"example.com/a"}
		},
		"registryBurst":         func(k *config) { k.RegistryBurst = -1 },
		"maxParallelImagePulls": func(k *config) { k.MaxParallelImagePulls = ptr.To[int32](2) },
		"imageGCHighThresholdPercent": func(k *config) {
			k.ImageGCHighThresholdPercent = ptr.To[int32](101)
		},
		"imageGCLowThresholdPercent": func(k *config) { k.ImageGCLowThresholdPercent = ptr.To[int32](85) },
		"imageMinimumGCAge":          func(k *config) { k.ImageMinimumGCAge = duration(-1) },
		"imageMaximumGCAge":          func(k *config) { k.ImageMaximumGCAge = duration(-1) },
		"maxPods":                    func(k *config) { k.MaxPods = 0 },
		"podsPerCore":                func(k *config) { k.PodsPerCore = -1 },
		"podPidsLimit":               func(k *config) { k.PodPidsLimit = ptr.To[int64](0) },
		"crashLoopBackOff.maxContainerRestartPeriod": func(k *config) {
			k.CrashLoopBackOff.MaxContainerRestartPeriod = ptr.To(duration(time.Hour))
		},
		"containerLogMaxSize":    func(k *config) { k.ContainerLogMaxSize = "10 MB" },
		"containerLogMaxFiles":   func(k *config) { k.ContainerLogMaxFiles = ptr.To[int32](1) },
		"containerLogMaxWorkers": func(k *config) { k.ContainerLogMaxWorkers = ptr.To[int32](0) },
		"containerLogMonitorInterval": func(k *config) {
			k.ContainerLogMonitorInterval = new(duration(time.Second))
		},
		"shutdownGracePeriod": func(k *config) {
			k.ShutdownGracePeriod = duration(time.Millisecond)
		},
		"shutdownGracePeriodByPodPriority": func(k *config) {
			k.ShutdownGracePeriod = duration(time.Minute)
			k.ShutdownGracePeriodByPodPriority = []kubeletconfig.ShutdownGracePeriodByPodPriority{
				{Priority: 1, ShutdownGracePeriodSeconds: 1},
			}
		},
		"shutdownGracePeriodByPodPriority[1].priority": func(k *config) {
			k.ShutdownGracePeriodByPodPriority = []kubeletconfig.ShutdownGracePeriodByPodPriority{{Priority: 1},
				{Priority: 1}}
		},
		"shutdownGracePeriodByPodPriority[0].shutdownGracePeriodSeconds": func(k *config) {
			k.ShutdownGracePeriodByPodPriority = []kubeletconfig.ShutdownGracePeriodByPodPriority{
				{ShutdownGracePeriodSeconds: -1},
			}
		},
		"shutdownGracePeriodCriticalPods": func(k *config) {
			k.ShutdownGracePeriodCriticalPods = duration(time.Second)
		},
		"cgroupDriver":      func(k *config) { k.CgroupDriver = "" },
		"cgroupRoot":        func(k *config) { k.CgroupRoot = "/a/../../b" },
		"cpuCFSQuotaPeriod": func(k *config) { k.CPUCFSQuotaPeriod = ptr.To(duration(time.Minute)) },
		"oomScoreAdj":       func(k *config) { k.OOMScoreAdj = ptr.To[int32](1001) },
		"systemReserved[memory]": func(k *config) {
			k.SystemReserved = map[string]string{"memory": "64 megs"}
		},
		"kubeReserved[mem]":    func(k *config) { k.KubeReserved = map[string]string{"mem": "64Mi"} },
		"systemReservedCgroup": func(k *config) { k.EnforceNodeAllocatable = []string{"system-reserved"} },
		"kubeReservedCgroup": func(k *config) {
			k.EnforceNodeAllocatable = []string{"kube-reserved-compressible"}
		},
		"enforceNodeAllocatable[0]": func(k *config) { k.EnforceNodeAllocatable = []string{"all"} },
		"enforceNodeAllocatable":    func(k *config) { k.EnforceNodeAllocatable = []string{"none", "pods"} },
		"memoryThrottlingFactor":    func(k *config) { k.MemoryThrottlingFactor = ptr.To(1.1) },
		"cpuManagerPolicy":          func(k *config) { k.CPUManagerPolicy = "dynamic" },
		"memoryManagerPolicy":       func(k *config) { k.MemoryManagerPolicy = "none" },
		"topologyManagerPolicy":     func(k *config) { k.TopologyManagerPolicy = "best" },
		"topologyManagerScope":      func(k *config) { k.TopologyManagerScope = "node" },
		"memorySwap.swapBehavior":   func(k *config) { k.MemorySwap.SwapBehavior = "UnlimitedSwap" },
		"evictionHard[memory.available]": func(k *config) {
			k.EvictionHard = map[string]string{"memory.available": "101%"}
		},
		"evictionHard[memory.avail]": func(k *config) {
			k.EvictionHard = map[string]string{"memory.avail": "1%"}
		},
		"evictionSoft[memory.available]": func(k *config) {
			k.EvictionSoft = map[string]string{"memory.available": "1%"}
		},
		"evictionPressureTransitionPeriod": func(k *config) { k.EvictionPressureTransitionPeriod = duration(-1) },
		"evictionMaxPodGracePeriod":        func(k *config) { k.EvictionMaxPodGracePeriod = -1 },
		"evictionSoftGracePeriod[memory.available]": func(k *config) {
			k.EvictionSoft, k.EvictionSoftGracePeriod = map[string]string{"memory.available": "1Gi"},
				map[string]string{"memory.available": "30"}
		},
		"nodeStatusUpdateFrequency": func(k *config) { k.NodeStatusUpdateFrequency = duration(0) },
		"nodeLeaseDurationSeconds":  func(k *config) { k.NodeLeaseDurationSeconds = 0 },
		"nodeStatusMaxImages":       func(k *config) { k.NodeStatusMaxImages = ptr.To[int32](-2) },
		"eventRecordQPS":            func(k *config) { k.EventRecordQPS = ptr.To[int32](-1) },
		"configMapAndSecretChangeDetectionStrategy": func(k *config) {
			k.ConfigMapAndSecretChangeDetectionStrategy = "Poll"
		},
		"registerWithTaints[0].effect": func(k *config) {
			k.RegisterWithTaints = []v1.Taint{{Key: "a", Effect: "No"}}
		},
	} {
		t.Run(path, func(t *testing.T) {
			e := named()
			set(&e.Modules.Edged.TailoredKubeletConfig)
			wantProblem(t, e.Validate(), "modules.edged.tailoredKubeletConfig."+path)
		})
	}
}

func TestValidateAllows(t *testing.T) {
	for name, set := range map[string]func(*EdgeCore){
		"edged off, and wrong": func(e *EdgeCore) { e.Modules.Edged = Edged{} },
		"hub off, and wrong":   func(e *EdgeCore) { e.Modules.EdgeHub = EdgeHub{} },
		"dual stack":           func(e *EdgeCore) { e.Modules.Edged.NodeIP = "192.0.2.1,2001:db8::1" },
		"quic": func(e *EdgeCore) {
			e.Modules.EdgeHub.Quic.Enable, e.Modules.EdgeHub.WebSocket.Enable = true, false
		},
		"the edges": func(e *EdgeCore) {
			k := &e.Modules.Edged.TailoredKubeletConfig
			k.StaticPodPath, k.ReadOnlyPort, k.Address, k.ResolverConfig = "", 0, "::", ptr.To("")
			k.SerializeImagePulls, k.MaxParallelImagePulls = ptr.To(false), ptr.To[int32](5)
			k.EvictionHard = map[string]string{
				"memory.available": "0%", "imagefs.available": "100%", "nodefs.available": "1.5Gi",
			}
			k.CrashLoopBackOff.MaxContainerRestartPeriod = &metav1.Duration{Duration: time.Second}
			k.EvictionSoft, k.EvictionSoftGracePeriod = map[string]string{"memory.available": "5%"},
				map[string]string{"memory.available": "1m30s"}
		},
	} {
		e := named()
		set(e)
		if err := e.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNodeIP: an address by which no other node reaches this one is ignored with a warning: a device that ran with it
// must not be left without its agent.
func TestNodeIP(t *testing.T) {
	for ip, want := range map[string]struct{ usable, warning string }{
		"192.0.2.1":              {"192.0.2.1", ""},
		"2001:db8::1":            {"2001:db8::1", ""},
		"192.0.2.1, 2001:db8::1": {"192.0.2.1,2001:db8::1", ""},
		"::":                     {"::", ""},
		"0.0.0.0":                {"0.0.0.0", ""},
		"127.0.0.1":              {"", "127.0.0.1 is ignored: it is a loopback address"},
		"::1":                    {"", "::1 is ignored: it is a loopback address"},
		"::ffff:127.0.0.1":       {"", "it is a loopback address"},
		"224.0.0.1":              {"", "it is a multicast address"},
		"ff02::1":                {"", "it is a multicast address"},
		"169.254.1.1":            {"", "it is an address of one link"},
		"fe80::1":                {"", "it is an address of one link"},
		"2001:db8::1%eth0":       {"", "it is an address of one link"},
		"192.0.2.1,::1":          {"192.0.2.1", "::1 is ignored"},
		"192.0.2.1,::":           {"192.0.2.1", ":: is ignored: 0.0.0.0 and :: stand alone"},
	} {
		cfg, warnings, err := Parse([]byte(head + "modules: {edged: {nodeIP: " + strconv.Quote(ip) + "}}\n"))
		if err != nil {
			t.Errorf("nodeIP %q: %v, want no error", ip, err)
			continue
		}
		text := strings.Join(warnings, "\n")
		if got := NodeIPs(cfg.Modules.Edged.NodeIP); got != want.usable || (text == "") != (want.warning == "") ||
			!strings.Contains(text, want.warning) {
			t.Errorf("nodeIP %q: %q usable, warnings %q; want %q and %q", ip, got, text, want.usable, want.warning)
		}
	}
	for _, ip := range []string{"edge-1", "192.0.2.1,192.0.2.2", "192.0.2.1,2001:db8::1,2001:db8::2"} {
		e := named()
		e.Modules.Edged.NodeIP = ip
		wantProblem(t, e.Validate(), "modules.edged.nodeIP")
	}
}

// TestClusterDNS: a server with a zone leads nowhere in a pod, and is ignored with a warning.
func TestClusterDNS(t *testing.T) {
	cfg, warnings, err := Parse([]byte(head + `
modules: {edged: {tailoredKubeletConfig: {clusterDNS: ["fe80::1%eth0", 10.96.0.10]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	got := ClusterDNS(cfg.Modules.Edged.TailoredKubeletConfig.ClusterDNS)
	if !slices.Equal(got, []string{"10.96.0.10"}) || len(warnings) != 1 ||
		!strings.Contains(warnings[0], "clusterDNS[0]: fe80::1%eth0 is ignored") {
		t.Errorf("servers %q, warnings %q; want 10.96.0.10 and a warning of the other one", got, warnings)
	}
}

// TestNodeName: who has written a name that is none is told one that would do.
func TestNodeName(t *testing.T) {
	got := map[string]string{}
	want := map[string]string{"Edge1": "edge1", "my_host": "my-host", "-a-": "a", "Bürо": "b-r", "": "", "___": "",
		"a..b": ""}
	for name := range want {
		got[name] = nodeName(name)
		e := named()
		e.Modules.Edged.HostnameOverride = name
		err := e.Validate()
		wantProblem(t, err, "modules.edged.hostnameOverride")
		if told := strings.Contains(err.Error(), " would do"); told != (want[name] != "") {
			t.Errorf("%q: error %q proposes a name: %v, want %v", name, err, told, want[name] != "")
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
