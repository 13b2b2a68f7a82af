package v1alpha2

import (
	"math"
	"time"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/edgecore-io/edgecore/pkg/apis/strict/keytable"
)

// The uses of keys, as the rows name them.
const (
	ignored     = keytable.Ignored
	absent      = keytable.Absent
	restart     = keytable.Restart
	reload      = keytable.Reload
	zeroIsValue = keytable.ZeroIsValue
)

// table has the rows of the configuration's keys.
type table struct{ keytable.Table }

// keys is the table of the configuration's keys. A row has the key's name, the field, the default, what comes of a
// change, and which values are allowed. A part that acts on another key, or applies its changes while the agent runs,
// says so here; a test of edged/agentconfig fails if nothing comes of it. A key without a row is accepted and ignored,
// and its default is its zero. A default of a rare type is set before the row. Checks of several keys together are in
// validate*.go.
func (t *table) keys(e *EdgeCore) {
	t.Section("", true)
	t.Row("apiVersion", restart)
	t.Row("kind", restart)
	t.Row("edgecoreVersion", restart) // a note by KubeEdge, without effect

	t.Section("database.", true)
	t.String("driverName", &e.Database.DriverName, "sqlite3", restart).OneOf("sqlite3") // there is only one driver
	t.String("aliasName", &e.Database.AliasName, "default", restart)
	t.String("dataSource", &e.Database.DataSource, DefaultDataSource, restart).Absolute()

	m := &e.Modules
	t.edged(&m.Edged)
	t.kubelet(&m.Edged.TailoredKubeletConfig, m.Edged.Enable)
	t.edgeHub(&m.EdgeHub)
	t.eventBus(&m.EventBus)
	t.metaManager(&m.MetaManager)

	t.Section("modules.deviceTwin.", m.DeviceTwin.Enable)
	t.Bool("enable", &m.DeviceTwin.Enable, true, restart)
	t.String("dmiSockPath", &m.DeviceTwin.DMISockPath, DefaultDMIDir, restart).Absolute()
	t.String("dmiSockGroup", &m.DeviceTwin.DMISockGroup, DefaultDMIGroup, restart)

	t.edgeStream(&m.EdgeStream)

	t.Section("modules.serviceBus.", m.ServiceBus.Enable)
	t.Row("enable", absent)
	t.String("server", &m.ServiceBus.Server, local, ignored)
	t.Int32("port", &m.ServiceBus.Port, 9060, ignored).Within(1, math.MaxUint16)
	t.Int32("timeout", &m.ServiceBus.Timeout, 60, ignored).AtLeast(1)
	t.Section("modules.", true)
	t.Row("dbTest.enable", absent)
	t.Row("taskManager.enable", absent)
}

func (t *table) edged(e *Edged) {
	t.Section("modules.edged.", e.Enable)
	t.Bool("enable", &e.Enable, true, restart)
	t.Bool("reportEvent", &e.ReportEvent, true, reload)
	t.Row("customInterfaceName", restart)
	t.String("registerNodeNamespace", &e.RegisterNodeNamespace, "default", ignored).By(checkNamespace)
	t.String("hostnameOverride", &e.HostnameOverride, defaultNodeName(), restart).By(checkNodeName)
	t.String("nodeIP", &e.NodeIP, "", restart).IfSet().By(checkNodeIP)
	// The sandbox image is a setting of the container runtime.
	t.String("podSandboxImage", &e.PodSandboxImage, "kubeedge/pause:3.6", ignored)
	t.String("rootDirectory", &e.RootDirectory, DefaultRootDirectory, restart).Absolute()
	keytable.Check(t.Row("nodeLabels", restart), e.NodeLabels, checkLabels)
	t.Duration("minimumGCAge", &e.MinimumGCAge, 0, reload).NotNegative()
	t.Int32("maxPerPodContainerCount", &e.MaxPerPodContainerCount, 1, reload)
	t.Int32("maxContainerCount", &e.MaxContainerCount, -1, reload)
	t.Bool("registerSchedulable", &e.RegisterSchedulable, true, restart)
	t.Row("seccompDefault", restart)
	t.Row("experimentalNodeAllocatableIgnoreEvictionThreshold", restart)
	t.String("serverAddress", &e.ServerAddress, "", restart).IfSet().Address()
}

// kubelet has the keys of the kubelet's configuration. They allow what the kubelet allows, according to the
// documentation of KubeletConfiguration v1beta1.
func (t *table) kubelet(k *kubeletconfig.KubeletConfiguration, on bool) {
	t.Section("modules.edged.tailoredKubeletConfig.", on)
	t.Row("apiVersion", restart)
	t.Row("kind", restart)
	t.String("staticPodPath", &k.StaticPodPath, DefaultManifests, restart|zeroIsValue).AbsoluteOrNone()
	t.String("podLogsDir", &k.PodLogsDir, "/var/log/pods", restart).Absolute()
	t.Duration("syncFrequency", &k.SyncFrequency, time.Minute, restart).Positive()
	t.Duration("fileCheckFrequency", &k.FileCheckFrequency, 20*time.Second, restart).Positive()
	t.Duration("runtimeRequestTimeout", &k.RuntimeRequestTimeout, 2*time.Minute, restart).Positive()
	t.String("containerRuntimeEndpoint", &k.ContainerRuntimeEndpoint, DefaultCRISocket, restart).By(checkSocket)
	t.String("imageServiceEndpoint", &k.ImageServiceEndpoint, "", restart).IfSet().By(checkSocket)
	t.String("address", &k.Address, local, restart).Address()
	t.Int32("readOnlyPort", &k.ReadOnlyPort, DefaultReadOnlyPort, restart|zeroIsValue).
		Between(0, math.MaxUint16, "a port from 1 to 65535, or 0 for none")
	keytable.Check(t.Row("clusterDNS", reload), k.ClusterDNS, checkAddresses)
	t.String("clusterDomain", &k.ClusterDomain, "cluster.local", reload|zeroIsValue).By(checkDomain)
	if t.Sets(k.ResolverConfig == nil, reload) {
		k.ResolverConfig = new("/etc/resolv.conf")
	}
	keytable.Check(t.Row("resolvConf", reload), k, checkResolvConf)
	t.String("podCIDR", &k.PodCIDR, "", restart).IfSet().By(checkSubnets)
	t.api(k)
	t.images(k)
	t.pods(k)
	t.node(k)
	t.unused(k)
}

// api has the keys of the authenticated port.
func (t *table) api(k *kubeletconfig.KubeletConfiguration) {
	t.BoolPtr("enableServer", &k.EnableServer, true, restart)
	t.Int32("port", &k.Port, DefaultPort, restart).
		Between(1, math.MaxUint16, "a port from 1 to 65535; enableServer: false is none")
	t.String("tlsCertFile", &k.TLSCertFile, "", restart).AbsoluteOrNone()
	t.String("tlsPrivateKeyFile", &k.TLSPrivateKeyFile, "", restart).AbsoluteOrNone()
	t.String("tlsMinVersion", &k.TLSMinVersion, "", restart).IfSet().OneOf("VersionTLS12 VersionTLS13")
	keytable.Check(t.Row("tlsCipherSuites", restart), k.TLSCipherSuites, checkCipherSuites)
	t.Row("serverTLSBootstrap", restart)
	who, may := &k.Authentication, &k.Authorization
	t.String("authentication.x509.clientCAFile", &who.X509.ClientCAFile, "", restart).AbsoluteOrNone()
	t.BoolPtr("authentication.anonymous.enabled", &who.Anonymous.Enabled, false, restart)
	t.BoolPtr("authentication.webhook.enabled", &who.Webhook.Enabled, true, restart)
	t.Duration("authentication.webhook.cacheTTL", &who.Webhook.CacheTTL, 2*time.Minute, restart).NotNegative()
	t.String("authorization.mode", (*string)(&may.Mode), "Webhook", restart).OneOf("Webhook AlwaysAllow")
	t.Duration("authorization.webhook.cacheAuthorizedTTL", &may.Webhook.CacheAuthorizedTTL, 5*time.Minute, restart).
		NotNegative()
	t.Duration("authorization.webhook.cacheUnauthorizedTTL", &may.Webhook.CacheUnauthorizedTTL, 30*time.Second,
		restart).NotNegative()
	t.BoolPtr("enableDebuggingHandlers", &k.EnableDebuggingHandlers, true, restart)
	t.BoolPtr("enableProfilingHandler", &k.EnableProfilingHandler, true, restart)
	t.BoolPtr("enableDebugFlagsHandler", &k.EnableDebugFlagsHandler, true, restart)
	t.BoolPtr("enableSystemLogHandler", &k.EnableSystemLogHandler, true, restart)
	t.Duration("streamingConnectionIdleTimeout", &k.StreamingConnectionIdleTimeout, 4*time.Hour, restart).Positive()
}

func (t *table) images(k *kubeletconfig.KubeletConfiguration) {
	t.Int32Ptr("registryPullQPS", &k.RegistryPullQPS, 5, reload).AtLeast(0)
	t.Int32("registryBurst", &k.RegistryBurst, 10, reload).AtLeast(0)
	t.BoolPtr("serializeImagePulls", &k.SerializeImagePulls, true, reload)
	t.Row("maxParallelImagePulls", reload).NumberIfSet(k.MaxParallelImagePulls).AtLeast(1)
	verify := (*string)(&k.ImagePullCredentialsVerificationPolicy)
	t.String("imagePullCredentialsVerificationPolicy", verify, "", restart).IfSet().
		OneOf("NeverVerify NeverVerifyPreloadedImages NeverVerifyAllowlistedImages AlwaysVerify")
	t.Row("preloadedImagesVerificationAllowlist", restart)
	t.Int32Ptr("imageGCHighThresholdPercent", &k.ImageGCHighThresholdPercent, 85, reload).Within(0, 100)
	t.Int32Ptr("imageGCLowThresholdPercent", &k.ImageGCLowThresholdPercent, 80, reload).Within(0, 100)
	t.Duration("imageMinimumGCAge", &k.ImageMinimumGCAge, 2*time.Minute, reload).NotNegative()
	t.Duration("imageMaximumGCAge", &k.ImageMaximumGCAge, 0, reload).NotNegative()
}

// pods has the keys of pods, their logs and their cgroups.
func (t *table) pods(k *kubeletconfig.KubeletConfiguration) {
	t.Int32("maxPods", &k.MaxPods, 110, restart).AtLeast(1)
	if t.Sets(k.PodPidsLimit == nil, restart) {
		k.PodPidsLimit = new(int64(-1))
	}
	keytable.Check(t.Row("podPidsLimit", restart), k, checkPodPids)
	t.Row("crashLoopBackOff.maxContainerRestartPeriod", reload).
		PeriodIfSet(k.CrashLoopBackOff.MaxContainerRestartPeriod).
		Between(time.Second, 5*time.Minute, "a duration from 1s to 5m")
	t.BoolPtr("seccompDefault", &k.SeccompDefault, false, restart)
	t.Row("allowedUnsafeSysctls", restart)
	t.String("containerLogMaxSize", &k.ContainerLogMaxSize, "10Mi", reload).By(checkQuantity)
	t.Int32Ptr("containerLogMaxFiles", &k.ContainerLogMaxFiles, 5, reload).AtLeast(2)
	t.Int32Ptr("containerLogMaxWorkers", &k.ContainerLogMaxWorkers, 1, restart).AtLeast(1)
	t.DurationPtr("containerLogMonitorInterval", &k.ContainerLogMonitorInterval, 10*time.Second, restart).
		Between(3*time.Second, math.MaxInt64, "a duration of 3s or more")
	const want = "a duration of 1s or more, or 0 for none"
	t.Duration("shutdownGracePeriod", &k.ShutdownGracePeriod, 0, restart).NoneOrAtLeast(time.Second, want)
	t.Duration("shutdownGracePeriodCriticalPods", &k.ShutdownGracePeriodCriticalPods, 0, restart).
		NoneOrAtLeast(time.Second, want)
	t.Row("shutdownGracePeriodByPodPriority", restart)

	t.String("cgroupDriver", &k.CgroupDriver, "cgroupfs", restart).OneOf("cgroupfs systemd")
	t.String("cgroupRoot", &k.CgroupRoot, "", restart).By(checkCgroup)
	t.BoolPtr("cgroupsPerQOS", &k.CgroupsPerQOS, true, restart)
	t.BoolPtr("cpuCFSQuota", &k.CPUCFSQuota, true, restart)
	t.DurationPtr("cpuCFSQuotaPeriod", &k.CPUCFSQuotaPeriod, 100*time.Millisecond, restart).
		Between(time.Millisecond, time.Second, "a duration from 1ms to 1s")
	t.Int32Ptr("oomScoreAdj", &k.OOMScoreAdj, -999, restart).Within(-1000, 1000)
	t.Row("singleProcessOOMKill", restart)
	t.String("memorySwap.swapBehavior", &k.MemorySwap.SwapBehavior, "", restart).IfSet().OneOf("NoSwap LimitedSwap")
	keytable.Check(t.Row("systemReserved", restart), k.SystemReserved, checkReserved)
	keytable.Check(t.Row("kubeReserved", restart), k.KubeReserved, checkReserved)
	if t.Sets(k.EnforceNodeAllocatable == nil, restart) {
		k.EnforceNodeAllocatable = []string{"pods"}
	}
	keytable.Check(t.Row("enforceNodeAllocatable", restart), k.EnforceNodeAllocatable, checkEnforced)
	t.Row("systemReservedCgroup", restart)
	t.Row("kubeReservedCgroup", restart)
}

// node has the keys of evictions, and of the Node.
func (t *table) node(k *kubeletconfig.KubeletConfiguration) {
	if t.Sets(k.EvictionHard == nil, restart) {
		k.EvictionHard = map[string]string{
			"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
			"imagefs.available": "15%", "imagefs.inodesFree": "5%",
		}
	}
	keytable.Check(t.Row("evictionHard", restart), k.EvictionHard, checkThresholds)
	keytable.Check(t.Row("evictionSoft", reload), k.EvictionSoft, checkThresholds)
	keytable.Check(t.Row("evictionMinimumReclaim", reload), k.EvictionMinimumReclaim, checkThresholds)
	keytable.Check(t.Row("evictionSoftGracePeriod", reload), k.EvictionSoftGracePeriod, checkGracePeriods)
	t.Duration("evictionPressureTransitionPeriod", &k.EvictionPressureTransitionPeriod, 5*time.Minute, reload).
		NotNegative()
	t.Int32("evictionMaxPodGracePeriod", &k.EvictionMaxPodGracePeriod, 0, reload).AtLeast(0)
	t.Row("mergeDefaultEvictionSettings", restart)
	t.Row("kernelMemcgNotification", restart)

	t.BoolPtr("registerNode", &k.RegisterNode, true, restart)
	keytable.Check(t.Row("registerWithTaints", restart), k, checkTaints)
	t.Duration("nodeStatusUpdateFrequency", &k.NodeStatusUpdateFrequency, 10*time.Second, restart).Positive()
	t.Duration("nodeStatusReportFrequency", &k.NodeStatusReportFrequency, 5*time.Minute, restart).Positive()
	t.Int32("nodeLeaseDurationSeconds", &k.NodeLeaseDurationSeconds, 40, restart).AtLeast(1)
	t.Int32Ptr("nodeStatusMaxImages", &k.NodeStatusMaxImages, 0, restart).AtLeast(-1)
	t.Int32Ptr("eventRecordQPS", &k.EventRecordQPS, 50, reload).AtLeast(0)
	t.Int32("eventBurst", &k.EventBurst, 100, reload).AtLeast(0)
}

// unused has keys of the kubelet that this version does not act on: their defaults are printed, and a value that the
// kubelet would refuse is refused.
func (t *table) unused(k *kubeletconfig.KubeletConfiguration) {
	t.String("hairpinMode", &k.HairpinMode, "promiscuous-bridge", ignored).
		OneOf("promiscuous-bridge hairpin-veth none")
	t.Int32("podsPerCore", &k.PodsPerCore, 0, ignored).AtLeast(0)
	keytable.Check(t.Row("memoryThrottlingFactor", ignored), k, checkMemoryThrottling)
	// This agent does not place containers on cores and NUMA nodes as the kubelet does: a pod that relies on it would
	// run without it.
	t.String("cpuManagerPolicy", &k.CPUManagerPolicy, "none", ignored).Only("none",
		"this agent gives no container cores of its own; leave it out, and give containers cpu requests and limits")
	t.String("memoryManagerPolicy", &k.MemoryManagerPolicy, "None", ignored).Only("None",
		"this agent gives no container memory of a NUMA node of its own; leave it out")
	t.String("topologyManagerPolicy", &k.TopologyManagerPolicy, "none", ignored).Only("none",
		"this agent does not align devices with cores; leave it out")
	t.String("topologyManagerScope", &k.TopologyManagerScope, "container", ignored).OneOf("container pod")
	t.Duration("cpuManagerReconcilePeriod", &k.CPUManagerReconcilePeriod, 10*time.Second, ignored)
	detect := (*string)(&k.ConfigMapAndSecretChangeDetectionStrategy)
	t.String("configMapAndSecretChangeDetectionStrategy", detect, "Get", ignored).OneOf("Get Cache Watch")
	if t.Sets(k.MaxOpenFiles == 0, ignored) {
		k.MaxOpenFiles = 1000000
	}
	t.Row("maxOpenFiles", ignored).Number(k.MaxOpenFiles).AtLeast(0)
	t.Duration("volumeStatsAggPeriod", &k.VolumeStatsAggPeriod, time.Minute, ignored)
	t.String("contentType", &k.ContentType, "application/json", ignored)
	t.BoolPtr("enableControllerAttachDetach", &k.EnableControllerAttachDetach, true, ignored)
	t.BoolPtr("makeIPTablesUtilChains", &k.MakeIPTablesUtilChains, true, ignored)
	t.Int32Ptr("iptablesMasqueradeBit", &k.IPTablesMasqueradeBit, 14, ignored)
	t.Int32Ptr("iptablesDropBit", &k.IPTablesDropBit, 15, ignored)
	t.BoolPtr("failSwapOn", &k.FailSwapOn, false, ignored)
	t.BoolPtr("failCgroupV1", &k.FailCgroupV1, false, ignored)
	t.BoolPtr("localStorageCapacityIsolation", &k.LocalStorageCapacityIsolation, true, ignored)
	t.String("volumePluginDir", &k.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/", ignored)
	t.String("logging.format", &k.Logging.Format, "text", ignored)
	t.Duration("logging.flushFrequency", &k.Logging.FlushFrequency.Duration, 5*time.Second, ignored)
}

func (t *table) edgeHub(h *EdgeHub) {
	t.Section("modules.edgeHub.", h.Enable)
	t.Bool("enable", &h.Enable, true, restart)
	t.Int32("heartbeat", &h.Heartbeat, 15, reload).AtLeast(1)
	t.Int32("messageQPS", &h.MessageQPS, 30, reload).AtLeast(0)
	t.Int32("messageBurst", &h.MessageBurst, 60, reload).AtLeast(0)
	t.String("projectID", &h.ProjectID, "e632aba927ea4ac2b575ec1603d56f10", reload)
	t.Row("token", restart)
	t.String("httpServer", &h.HTTPServer, "https://"+local+":10002", restart)
	t.Bool("rotateCertificates", &h.RotateCertificates, true, restart)
	t.String("tlsCaFile", &h.TLSCAFile, caFile, restart)
	t.String("tlsCertFile", &h.TLSCertFile, certFile, restart)
	t.String("tlsPrivateKeyFile", &h.TLSPrivateKeyFile, keyFile, restart)
	t.Int32("configTrialSeconds", &h.ConfigTrialSeconds, 600, restart).AtLeast(0)

	t.Section("modules.edgeHub.websocket.", h.Enable && h.WebSocket.Enable)
	t.transport(&h.WebSocket, true, local+":10000")
	t.Section("modules.edgeHub.quic.", h.Enable && h.Quic.Enable)
	t.transport(&h.Quic, false, local+":10001")
}

func (t *table) transport(w *Transport, on bool, server string) {
	t.Bool("enable", &w.Enable, on, reload)
	t.String("server", &w.Server, server, reload).HostPort()
	t.Int32("handshakeTimeout", &w.HandshakeTimeout, 30, reload).AtLeast(0)
	t.Int32("readDeadline", &w.ReadDeadline, 15, ignored).AtLeast(0)
	t.Int32("writeDeadline", &w.WriteDeadline, 15, reload).AtLeast(0)
}

func (t *table) eventBus(b *EventBus) {
	t.Section("modules.eventBus.", b.Enable)
	t.Row("enable", restart)
	t.Row("mqttQOS", ignored).Number(int64(b.MqttQOS)).Within(0, 2)
	t.Row("mqttRetain", restart)
	t.Int32("mqttSessionQueueSize", &b.MqttSessionQueueSize, 100, restart).AtLeast(0)
	t.String("mqttServerInternal", &b.MqttServerInternal, "tcp://127.0.0.1:1884", restart)
	t.String("mqttServerExternal", &b.MqttServerExternal, "tcp://127.0.0.1:1883", restart)
	t.Row("mqttSubClientID", restart)
	t.Row("mqttUsername", restart)
	t.Row("mqttPassword", restart)
	t.String("mqttPasswordFile", &b.MqttPasswordFile, "", restart).AbsoluteOrNone()
	t.Int32("mqttMode", &b.MqttMode, 2, restart).Within(0, 2)
	t.Row("eventBusTLS.enable", restart)
	t.String("eventBusTLS.tlsMqttCAFile", &b.TLS.TLSMqttCAFile, caFile, restart)
	t.String("eventBusTLS.tlsMqttCertFile", &b.TLS.TLSMqttCertFile, certFile, restart)
	t.String("eventBusTLS.tlsMqttPrivateKeyFile", &b.TLS.TLSMqttPrivateKeyFile, keyFile, restart)
}

func (t *table) metaManager(m *MetaManager) {
	t.Section("modules.metaManager.", m.Enable)
	t.Bool("enable", &m.Enable, true, restart)
	t.String("contextSendGroup", &m.ContextSendGroup, "hub", ignored)
	t.String("contextSendModule", &m.ContextSendModule, "websocket", ignored)
	t.Int32("remoteQueryTimeout", &m.RemoteQueryTimeout, 60, restart).AtLeast(1)

	s := &m.MetaServer
	t.Section("modules.metaManager.metaServer.", m.Enable && s.Enable)
	t.Row("enable", restart)
	t.String("server", &s.Server, local+":10550", restart).By(checkEndpoint)
	t.String("dummyServer", &s.DummyServer, "169.254.30.10:10550", restart).By(checkPodEndpoints)
	t.String("podAccess", &s.PodAccess, "All", restart).OneOf("All Annotated None")
	t.String("tlsCaFile", &s.TLSCaFile, caFile, ignored)
	t.String("tlsCertFile", &s.TLSCertFile, certFile, ignored)
	t.String("tlsPrivateKeyFile", &s.TLSPrivateKeyFile, keyFile, ignored)
	if t.Sets(s.ServiceAccountIssuers == nil, ignored) {
		s.ServiceAccountIssuers = []string{"https://kubernetes.default.svc.cluster.local"}
	}
	t.Row("serviceAccountIssuers", ignored)
}

func (t *table) edgeStream(s *EdgeStream) {
	t.Section("modules.edgeStream.", s.Enable)
	t.Row("enable", restart)
	t.String("server", &s.Server, local+":10004", restart).HostPort()
	t.String("tlsTunnelCAFile", &s.TLSTunnelCAFile, caFile, ignored)
	t.String("tlsTunnelCertFile", &s.TLSTunnelCertFile, certFile, ignored)
	t.String("tlsTunnelPrivateKeyFile", &s.TLSTunnelPrivateKeyFile, keyFile, ignored)
	t.Int32("handshakeTimeout", &s.HandshakeTimeout, 30, ignored).AtLeast(0)
	t.Int32("readDeadline", &s.ReadDeadline, 15, ignored).AtLeast(0)
	t.Int32("writeDeadline", &s.WriteDeadline, 15, ignored).AtLeast(0)
}
