package v1alpha2

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// Default paths: KubeEdge's, but for the folder of dmi.sock.
const (
	DefaultConfigFile    = "/etc/kubeedge/config/edgecore.yaml"
	DefaultDataSource    = "/var/lib/kubeedge/edgecore.db"
	DefaultRootDirectory = "/var/lib/kubelet"
	DefaultManifests     = "/etc/kubeedge/manifests"
	DefaultCRISocket     = "unix:///run/containerd/containerd.sock"
	// DefaultDMIDir is the folder of dmi.sock, which has nothing else, and DefaultDMIGroup the group that may use it: a
	// number that Linux distributions give to nobody. Mappers run in that group, and mount that folder.
	DefaultDMIDir   = "/run/edgecore/dmi"
	DefaultDMIGroup = "65530"
	// KubeEdgeDMIDir is where KubeEdge's mappers look for dmi.sock.
	KubeEdgeDMIDir = "/etc/kubeedge"
	// DefaultReadOnlyPort is the kubelet's; KubeEdge's files set 10350.
	DefaultReadOnlyPort = 10255
	// DefaultPort is the kubelet API's port, with TLS.
	DefaultPort = 10250

	caFile   = "/etc/kubeedge/ca/rootCA.crt"
	certFile = "/etc/kubeedge/certs/server.crt"
	keyFile  = "/etc/kubeedge/certs/server.key"
	local    = "127.0.0.1"
)

// Default returns the configuration of an empty file.
func Default() *EdgeCore {
	return &EdgeCore{
		TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind},
		Database: Database{DriverName: "sqlite3", AliasName: "default", DataSource: DefaultDataSource},
		Modules: Modules{
			Edged:       defaultEdged(),
			EdgeHub:     defaultEdgeHub(),
			EventBus:    defaultEventBus(),
			MetaManager: defaultMetaManager(),
			ServiceBus:  ServiceBus{Server: local, Port: 9060, Timeout: 60},
			DeviceTwin:  DeviceTwin{Enable: true, DMISockPath: DefaultDMIDir, DMISockGroup: DefaultDMIGroup},
			EdgeStream: EdgeStream{
				Server:                  local + ":10004",
				TLSTunnelCAFile:         caFile,
				TLSTunnelCertFile:       certFile,
				TLSTunnelPrivateKeyFile: keyFile,
				HandshakeTimeout:        30,
				ReadDeadline:            15,
				WriteDeadline:           15,
			},
		},
	}
}

// complete sets values that depend on others or have a second spelling.
func (e *EdgeCore) complete() {
	edged := &e.Modules.Edged
	if edged.HostnameOverride == "" {
		edged.HostnameOverride = defaultNodeName()
	}
	kubelet := &edged.TailoredKubeletConfig
	for _, endpoint := range []*string{&kubelet.ContainerRuntimeEndpoint, &kubelet.ImageServiceEndpoint} {
		if strings.HasPrefix(*endpoint, "/") { // the kubelet accepts a bare path, too
			*endpoint = strict.UnixScheme + *endpoint
		}
	}
	completeKubelet(kubelet)
}

// completeKubelet sets the kubelet's settings that are empty or zero to their defaults, as the kubelet does: kubeadm
// writes files that are full of 0s.
func completeKubelet(k *kubeletconfig.KubeletConfiguration) {
	if k.SerializeImagePulls == nil { // see adaptDefaults
		k.SerializeImagePulls = ptr.To(k.MaxParallelImagePulls == nil || *k.MaxParallelImagePulls < 2)
	}
	// The kubelet sets no limit for 0, and takes any negative number for -1.
	if limit := k.PodPidsLimit; limit != nil && *limit <= 0 {
		k.PodPidsLimit = ptr.To[int64](-1)
	}
	defaults := defaultKubelet()
	fillZeros(reflect.ValueOf(k).Elem(), reflect.ValueOf(defaults))
	if flush := &k.Logging.FlushFrequency; flush.Duration.Duration == 0 { // it has two forms
		*flush = defaults.Logging.FlushFrequency
	}
	k.Logging.FlushFrequency.SerializeAsString = true
}

// meaningfulZeros are the fields of the kubelet's configuration whose zero value turns something off, and which the
// kubelet leaves as they are.
func meaningfulZeros() []string { return []string{"StaticPodPath", "ReadOnlyPort", "ClusterDomain"} }

// fillZeros sets the fields of a struct that are zero to those of another one. A pointer to a zero and an empty list
// that is not nil are values.
func fillZeros(into, from reflect.Value) {
	for i := range into.NumField() {
		field, def := into.Field(i), from.Field(i)
		_, ownForm := field.Addr().Interface().(json.Unmarshaler)
		switch {
		case slices.Contains(meaningfulZeros(), into.Type().Field(i).Name):
		case field.Kind() == reflect.Struct && !ownForm:
			fillZeros(field, def)
		case field.IsZero():
			field.Set(def)
		}
	}
}

// defaultAuthentication returns the kubelet's default for a configuration file: no anonymous access.
func defaultAuthentication() kubeletconfig.KubeletAuthentication {
	var a kubeletconfig.KubeletAuthentication
	a.Anonymous.Enabled, a.Webhook.Enabled = ptr.To(false), ptr.To(true)
	a.Webhook.CacheTTL.Duration = 2 * time.Minute
	return a
}

// defaultAuthorization delegates to the cluster.
func defaultAuthorization() kubeletconfig.KubeletAuthorization {
	a := kubeletconfig.KubeletAuthorization{Mode: kubeletconfig.KubeletAuthorizationModeWebhook}
	a.Webhook.CacheAuthorizedTTL.Duration, a.Webhook.CacheUnauthorizedTTL.Duration = 5*time.Minute, 30*time.Second
	return a
}

// defaultNodeName is the host's name, in lower case as nodes' names are.
func defaultNodeName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "edge-node"
	}
	return strings.ToLower(name)
}

func defaultEdged() Edged {
	return Edged{
		Enable: true, ReportEvent: true, RegisterNodeNamespace: "default", HostnameOverride: defaultNodeName(),
		PodSandboxImage: "kubeedge/pause:3.6", RootDirectory: DefaultRootDirectory,
		MaxPerPodContainerCount: 1, MaxContainerCount: -1, RegisterSchedulable: true,
		TailoredKubeletConfig: defaultKubelet(),
	}
}

func defaultEdgeHub() EdgeHub {
	transport := func(port string, enable bool) Transport {
		return Transport{
			Enable:           enable,
			Server:           local + ":" + port,
			HandshakeTimeout: 30,
			ReadDeadline:     15,
			WriteDeadline:    15,
		}
	}
	return EdgeHub{
		Enable: true, Heartbeat: 15, MessageQPS: 30, MessageBurst: 60, ProjectID: "e632aba927ea4ac2b575ec1603d56f10",
		HTTPServer: "https://" + local + ":10002", RotateCertificates: true, ConfigTrialSeconds: 600,
		TLSCAFile: caFile, TLSCertFile: certFile, TLSPrivateKeyFile: keyFile,
		WebSocket: transport("10000", true), Quic: transport("10001", false),
	}
}

func defaultEventBus() EventBus {
	return EventBus{
		MqttSessionQueueSize: 100,
		MqttServerInternal:   "tcp://127.0.0.1:1884",
		MqttServerExternal:   "tcp://127.0.0.1:1883",
		MqttMode:             2,
		TLS: EventBusTLS{
			TLSMqttCAFile: caFile, TLSMqttCertFile: certFile, TLSMqttPrivateKeyFile: keyFile,
		},
	}
}

func defaultMetaManager() MetaManager {
	return MetaManager{
		Enable:             true,
		ContextSendGroup:   "hub",
		ContextSendModule:  "websocket",
		RemoteQueryTimeout: 60,
		MetaServer: MetaServer{
			Server:                local + ":10550",
			DummyServer:           "169.254.30.10:10550",
			TLSCaFile:             caFile,
			TLSCertFile:           certFile,
			TLSPrivateKeyFile:     keyFile,
			ServiceAccountIssuers: []string{"https://kubernetes.default.svc.cluster.local"},
		},
	}
}

func defaultKubelet() kubeletconfig.KubeletConfiguration {
	duration := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	k := kubeletconfig.KubeletConfiguration{
		StaticPodPath:                  DefaultManifests,
		PodLogsDir:                     "/var/log/pods",
		SyncFrequency:                  duration(time.Minute),
		FileCheckFrequency:             duration(20 * time.Second),
		Address:                        local,
		ReadOnlyPort:                   DefaultReadOnlyPort,
		EnableServer:                   ptr.To(true),
		Port:                           DefaultPort,
		Authentication:                 defaultAuthentication(),
		Authorization:                  defaultAuthorization(),
		RegistryPullQPS:                ptr.To[int32](5),
		RegistryBurst:                  10,
		EventRecordQPS:                 ptr.To[int32](50),
		EventBurst:                     100,
		EnableDebuggingHandlers:        ptr.To(true),
		OOMScoreAdj:                    ptr.To[int32](-999),
		ClusterDomain:                  "cluster.local",
		StreamingConnectionIdleTimeout: duration(4 * time.Hour),
		NodeStatusUpdateFrequency:      duration(10 * time.Second),
		NodeStatusReportFrequency:      duration(5 * time.Minute),
		NodeLeaseDurationSeconds:       40,
		ImageMinimumGCAge:              duration(2 * time.Minute),
		ImageGCHighThresholdPercent:    ptr.To[int32](85),
		ImageGCLowThresholdPercent:     ptr.To[int32](80),
		VolumeStatsAggPeriod:           duration(time.Minute),
		CgroupsPerQOS:                  ptr.To(true),
		CgroupDriver:                   "cgroupfs",
		CPUManagerPolicy:               "none",
		CPUManagerReconcilePeriod:      duration(10 * time.Second),
		MemoryManagerPolicy:            "None",
		TopologyManagerPolicy:          "none",
		TopologyManagerScope:           "container",
		RuntimeRequestTimeout:          duration(2 * time.Minute),
		HairpinMode:                    "promiscuous-bridge",
		MaxPods:                        110,
		PodPidsLimit:                   ptr.To[int64](-1),
		ResolverConfig:                 ptr.To("/etc/resolv.conf"),
		CPUCFSQuota:                    ptr.To(true),
		CPUCFSQuotaPeriod:              &metav1.Duration{Duration: 100 * time.Millisecond},
		NodeStatusMaxImages:            ptr.To[int32](0),
		MaxOpenFiles:                   1000000,
		ContentType:                    "application/json",
		SerializeImagePulls:            ptr.To(true),
		EvictionHard: map[string]string{"memory.available": "100Mi", "nodefs.available": "10%",
			"nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%"},
		EvictionPressureTransitionPeriod:          duration(5 * time.Minute),
		EnableControllerAttachDetach:              ptr.To(true),
		MakeIPTablesUtilChains:                    ptr.To(true),
		IPTablesMasqueradeBit:                     ptr.To[int32](14),
		IPTablesDropBit:                           ptr.To[int32](15),
		FailSwapOn:                                ptr.To(false),
		ContainerLogMaxSize:                       "10Mi",
		ContainerLogMaxFiles:                      ptr.To[int32](5),
		ContainerLogMaxWorkers:                    ptr.To[int32](1),
		ContainerLogMonitorInterval:               &metav1.Duration{Duration: 10 * time.Second},
		ConfigMapAndSecretChangeDetectionStrategy: kubeletconfig.GetChangeDetectionStrategy,
		EnforceNodeAllocatable:                    []string{"pods"},
		VolumePluginDir:                           "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/",
		EnableSystemLogHandler:                    ptr.To(true),
		EnableProfilingHandler:                    ptr.To(true),
		EnableDebugFlagsHandler:                   ptr.To(true),
		SeccompDefault:                            ptr.To(false),
		RegisterNode:                              ptr.To(true),
		LocalStorageCapacityIsolation:             ptr.To(true),
		FailCgroupV1:                              ptr.To(false),
		ContainerRuntimeEndpoint:                  DefaultCRISocket,
	}
	k.Logging.Format = "text"
	k.Logging.FlushFrequency.Duration = duration(5 * time.Second)
	k.Logging.FlushFrequency.SerializeAsString = true
	return k
}
