package v1alpha2

import (
	"math"
	"time"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// keys is the table of the configuration's keys. A row has the key's name, the field, the default, what comes of a
// change, and which values are allowed. A part that acts on another key, or applies its changes while the agent runs,
// says so here; a test of edged/agentconfig fails if nothing comes of it. A key without a row is accepted and ignored,
// and its default is its zero. A default of a rare type is set before the row. Checks of several keys together are in
// validate*.go.
func (t *table) keys(e *EdgeCore) {
	t.section("", true)
	t.row("apiVersion", restart)
	t.row("kind", restart)
	t.row("edgecoreVersion", restart) // a note by KubeEdge, without effect

	t.section("database.", true)
	t.string("driverName", &e.Database.DriverName, "sqlite3", restart).oneOf("sqlite3") // there is only one driver
	t.string("aliasName", &e.Database.AliasName, "default", restart)
	t.string("dataSource", &e.Database.DataSource, DefaultDataSource, restart).absolute()

	m := &e.Modules
	t.edged(&m.Edged)
	t.kubelet(&m.Edged.TailoredKubeletConfig, m.Edged.Enable)
	t.edgeHub(&m.EdgeHub)
	t.eventBus(&m.EventBus)
	t.metaManager(&m.MetaManager)

	t.section("modules.deviceTwin.", m.DeviceTwin.Enable)
	t.bool("enable", &m.DeviceTwin.Enable, true, restart)
	t.string("dmiSockPath", &m.DeviceTwin.DMISockPath, DefaultDMIDir, restart).absolute()
	t.string("dmiSockGroup", &m.DeviceTwin.DMISockGroup, DefaultDMIGroup, restart)

	t.edgeStream(&m.EdgeStream)

	t.section("modules.serviceBus.", m.ServiceBus.Enable)
	t.row("enable", absent)
	t.string("server", &m.ServiceBus.Server, local, ignored)
	t.int32("port", &m.ServiceBus.Port, 9060, ignored).within(1, math.MaxUint16)
	t.int32("timeout", &m.ServiceBus.Timeout, 60, ignored).atLeast(1)
	t.section("modules.", true)
	t.row("dbTest.enable", absent)
	t.row("taskManager.enable", absent)
}

func (t *table) edged(e *Edged) {
	t.section("modules.edged.", e.Enable)
	t.bool("enable", &e.Enable, true, restart)
	t.bool("reportEvent", &e.ReportEvent, true, reload)
	t.row("customInterfaceName", restart)
	t.string("registerNodeNamespace", &e.RegisterNodeNamespace, "default", ignored).by((*checker).namespace)
	t.string("hostnameOverride", &e.HostnameOverride, defaultNodeName(), restart).by((*checker).nodeName)
	t.string("nodeIP", &e.NodeIP, "", restart).ifSet().by((*checker).nodeIP)
	// The sandbox image is a setting of the container runtime.
	t.string("podSandboxImage", &e.PodSandboxImage, "kubeedge/pause:3.6", ignored)
	t.string("rootDirectory", &e.RootDirectory, DefaultRootDirectory, restart).absolute()
	t.row("nodeLabels", restart).entries(e.NodeLabels, (*checker).labels)
	t.duration("minimumGCAge", &e.MinimumGCAge, 0, reload).notNegative()
	t.int32("maxPerPodContainerCount", &e.MaxPerPodContainerCount, 1, reload)
	t.int32("maxContainerCount", &e.MaxContainerCount, -1, reload)
	t.bool("registerSchedulable", &e.RegisterSchedulable, true, restart)
	t.row("seccompDefault", restart)
	t.row("experimentalNodeAllocatableIgnoreEvictionThreshold", restart)
	t.string("serverAddress", &e.ServerAddress, "", restart).ifSet().address()
}

// kubelet has the keys of the kubelet's configuration. They allow what the kubelet allows, according to the
// documentation of KubeletConfiguration v1beta1.
func (t *table) kubelet(k *kubeletconfig.KubeletConfiguration, on bool) {
	t.section("modules.edged.tailoredKubeletConfig.", on)
	t.row("apiVersion", restart)
	t.row("kind", restart)
	t.string("staticPodPath", &k.StaticPodPath, DefaultManifests, restart|zeroIsValue).absoluteOrNone()
	t.string("podLogsDir", &k.PodLogsDir, "/var/log/pods", restart).absolute()
	t.duration("syncFrequency", &k.SyncFrequency, time.Minute, restart).positive()
	t.duration("fileCheckFrequency", &k.FileCheckFrequency, 20*time.Second, restart).positive()
	t.duration("runtimeRequestTimeout", &k.RuntimeRequestTimeout, 2*time.Minute, restart).positive()
	t.string("containerRuntimeEndpoint", &k.ContainerRuntimeEndpoint, DefaultCRISocket, restart).by((*checker).socket)
	t.string("imageServiceEndpoint", &k.ImageServiceEndpoint, "", restart).ifSet().by((*checker).socket)
	t.string("address", &k.Address, local, restart).address()
	t.int32("readOnlyPort", &k.ReadOnlyPort, DefaultReadOnlyPort, restart|zeroIsValue).
		between(0, math.MaxUint16, "a port from 1 to 65535, or 0 for none")
	t.row("clusterDNS", reload).texts(k.ClusterDNS, (*checker).addresses)
	t.string("clusterDomain", &k.ClusterDomain, "cluster.local", reload|zeroIsValue).by((*checker).domain)
	if t.sets(k.ResolverConfig == nil, reload) {
		k.ResolverConfig = new("/etc/resolv.conf")
	}
	t.row("resolvConf", reload).by(k, (*checker).resolvConf)
	t.string("podCIDR", &k.PodCIDR, "", restart).ifSet().by((*checker).subnets)
	t.api(k)
	t.images(k)
	t.pods(k)
	t.node(k)
	t.unused(k)
}

// api has the keys of the authenticated port.
func (t *table) api(k *kubeletconfig.KubeletConfiguration) {
	t.boolPtr("enableServer", &k.EnableServer, true, restart)
	t.int32("port", &k.Port, DefaultPort, restart).
		between(1, math.MaxUint16, "a port from 1 to 65535; enableServer: false is none")
	t.string("tlsCertFile", &k.TLSCertFile, "", restart).absoluteOrNone()
	t.string("tlsPrivateKeyFile", &k.TLSPrivateKeyFile, "", restart).absoluteOrNone()
	t.string("tlsMinVersion", &k.TLSMinVersion, "", restart).ifSet().oneOf("VersionTLS12 VersionTLS13")
	t.row("tlsCipherSuites", restart).texts(k.TLSCipherSuites, (*checker).cipherSuites)
	t.row("serverTLSBootstrap", restart)
	who, may := &k.Authentication, &k.Authorization
	t.string("authentication.x509.clientCAFile", &who.X509.ClientCAFile, "", restart).absoluteOrNone()
	t.boolPtr("authentication.anonymous.enabled", &who.Anonymous.Enabled, false, restart)
	t.boolPtr("authentication.webhook.enabled", &who.Webhook.Enabled, true, restart)
	t.duration("authentication.webhook.cacheTTL", &who.Webhook.CacheTTL, 2*time.Minute, restart).notNegative()
	t.string("authorization.mode", (*string)(&may.Mode), "Webhook", restart).oneOf("Webhook AlwaysAllow")
	t.duration("authorization.webhook.cacheAuthorizedTTL", &may.Webhook.CacheAuthorizedTTL, 5*time.Minute, restart).
		notNegative()
	t.duration("authorization.webhook.cacheUnauthorizedTTL", &may.Webhook.CacheUnauthorizedTTL, 30*time.Second,
		restart).notNegative()
	t.boolPtr("enableDebuggingHandlers", &k.EnableDebuggingHandlers, true, restart)
	t.boolPtr("enableProfilingHandler", &k.EnableProfilingHandler, true, restart)
	t.boolPtr("enableDebugFlagsHandler", &k.EnableDebugFlagsHandler, true, restart)
	t.boolPtr("enableSystemLogHandler", &k.EnableSystemLogHandler, true, restart)
	t.duration("streamingConnectionIdleTimeout", &k.StreamingConnectionIdleTimeout, 4*time.Hour, restart).positive()
}

func (t *table) images(k *kubeletconfig.KubeletConfiguration) {
	t.int32Ptr("registryPullQPS", &k.RegistryPullQPS, 5, reload).atLeast(0)
	t.int32("registryBurst", &k.RegistryBurst, 10, reload).atLeast(0)
	t.boolPtr("serializeImagePulls", &k.SerializeImagePulls, true, reload)
	t.row("maxParallelImagePulls", reload).numberIfSet(k.MaxParallelImagePulls).atLeast(1)
	verify := (*string)(&k.ImagePullCredentialsVerificationPolicy)
	t.string("imagePullCredentialsVerificationPolicy", verify, "", restart).ifSet().
		oneOf("NeverVerify NeverVerifyPreloadedImages NeverVerifyAllowlistedImages AlwaysVerify")
	t.row("preloadedImagesVerificationAllowlist", restart)
	t.int32Ptr("imageGCHighThresholdPercent", &k.ImageGCHighThresholdPercent, 85, reload).within(0, 100)
	t.int32Ptr("imageGCLowThresholdPercent", &k.ImageGCLowThresholdPercent, 80, reload).within(0, 100)
	t.duration("imageMinimumGCAge", &k.ImageMinimumGCAge, 2*time.Minute, reload).notNegative()
	t.duration("imageMaximumGCAge", &k.ImageMaximumGCAge, 0, reload).notNegative()
}

// pods has the keys of pods, their logs and their cgroups.
func (t *table) pods(k *kubeletconfig.KubeletConfiguration) {
	t.int32("maxPods", &k.MaxPods, 110, restart).atLeast(1)
	if t.sets(k.PodPidsLimit == nil, restart) {
		k.PodPidsLimit = new(int64(-1))
	}
	t.row("podPidsLimit", restart).by(k, (*checker).podPids)
	t.row("crashLoopBackOff.maxContainerRestartPeriod", reload).
		periodIfSet(k.CrashLoopBackOff.MaxContainerRestartPeriod).
		between(time.Second, 5*time.Minute, "a duration from 1s to 5m")
	t.boolPtr("seccompDefault", &k.SeccompDefault, false, restart)
	t.row("allowedUnsafeSysctls", restart)
	t.string("containerLogMaxSize", &k.ContainerLogMaxSize, "10Mi", reload).by((*checker).quantity)
	t.int32Ptr("containerLogMaxFiles", &k.ContainerLogMaxFiles, 5, reload).atLeast(2)
	t.int32Ptr("containerLogMaxWorkers", &k.ContainerLogMaxWorkers, 1, restart).atLeast(1)
	t.durationPtr("containerLogMonitorInterval", &k.ContainerLogMonitorInterval, 10*time.Second, restart).
		between(3*time.Second, math.MaxInt64, "a duration of 3s or more")
	const want = "a duration of 1s or more, or 0 for none"
	t.duration("shutdownGracePeriod", &k.ShutdownGracePeriod, 0, restart).noneOrAtLeast(time.Second, want)
	t.duration("shutdownGracePeriodCriticalPods", &k.ShutdownGracePeriodCriticalPods, 0, restart).
		noneOrAtLeast(time.Second, want)
	t.row("shutdownGracePeriodByPodPriority", restart)

	t.string("cgroupDriver", &k.CgroupDriver, "cgroupfs", restart).oneOf("cgroupfs systemd")
	t.string("cgroupRoot", &k.CgroupRoot, "", restart).by((*checker).cgroup)
	t.boolPtr("cgroupsPerQOS", &k.CgroupsPerQOS, true, restart)
	t.boolPtr("cpuCFSQuota", &k.CPUCFSQuota, true, restart)
	t.durationPtr("cpuCFSQuotaPeriod", &k.CPUCFSQuotaPeriod, 100*time.Millisecond, restart).
		between(time.Millisecond, time.Second, "a duration from 1ms to 1s")
	t.int32Ptr("oomScoreAdj", &k.OOMScoreAdj, -999, restart).within(-1000, 1000)
	t.row("singleProcessOOMKill", restart)
	t.string("memorySwap.swapBehavior", &k.MemorySwap.SwapBehavior, "", restart).ifSet().oneOf("NoSwap LimitedSwap")
	t.row("systemReserved", restart).entries(k.SystemReserved, (*checker).reserved)
	t.row("kubeReserved", restart).entries(k.KubeReserved, (*checker).reserved)
	if t.sets(k.EnforceNodeAllocatable == nil, restart) {
		k.EnforceNodeAllocatable = []string{"pods"}
	}
	t.row("enforceNodeAllocatable", restart).texts(k.EnforceNodeAllocatable, (*checker).enforced)
	t.row("systemReservedCgroup", restart)
	t.row("kubeReservedCgroup", restart)
}

// node has the keys of evictions, and of the Node.
func (t *table) node(k *kubeletconfig.KubeletConfiguration) {
	if t.sets(k.EvictionHard == nil, restart) {
		k.EvictionHard = map[string]string{
			"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
			"imagefs.available": "15%", "imagefs.inodesFree": "5%",
		}
	}
	t.row("evictionHard", restart).entries(k.EvictionHard, (*checker).thresholds)
	t.row("evictionSoft", reload).entries(k.EvictionSoft, (*checker).thresholds)
	t.row("evictionMinimumReclaim", reload).entries(k.EvictionMinimumReclaim, (*checker).thresholds)
	t.row("evictionSoftGracePeriod", reload).entries(k.EvictionSoftGracePeriod, (*checker).gracePeriods)
	t.duration("evictionPressureTransitionPeriod", &k.EvictionPressureTransitionPeriod, 5*time.Minute, reload).
		notNegative()
	t.int32("evictionMaxPodGracePeriod", &k.EvictionMaxPodGracePeriod, 0, reload).atLeast(0)
	t.row("mergeDefaultEvictionSettings", restart)
	t.row("kernelMemcgNotification", restart)

	t.boolPtr("registerNode", &k.RegisterNode, true, restart)
	t.row("registerWithTaints", restart).by(k, (*checker).taints)
	t.duration("nodeStatusUpdateFrequency", &k.NodeStatusUpdateFrequency, 10*time.Second, restart).positive()
	t.duration("nodeStatusReportFrequency", &k.NodeStatusReportFrequency, 5*time.Minute, restart).positive()
	t.int32("nodeLeaseDurationSeconds", &k.NodeLeaseDurationSeconds, 40, restart).atLeast(1)
	t.int32Ptr("nodeStatusMaxImages", &k.NodeStatusMaxImages, 0, restart).atLeast(-1)
	t.int32Ptr("eventRecordQPS", &k.EventRecordQPS, 50, reload).atLeast(0)
	t.int32("eventBurst", &k.EventBurst, 100, reload).atLeast(0)
}

// unused has keys of the kubelet that this version does not act on: their defaults are printed, and a value that the
// kubelet would refuse is refused.
func (t *table) unused(k *kubeletconfig.KubeletConfiguration) {
	t.string("hairpinMode", &k.HairpinMode, "promiscuous-bridge", ignored).
		oneOf("promiscuous-bridge hairpin-veth none")
	t.int32("podsPerCore", &k.PodsPerCore, 0, ignored).atLeast(0)
	t.row("memoryThrottlingFactor", ignored).by(k, (*checker).memoryThrottling)
	// This agent does not place containers on cores and NUMA nodes as the kubelet does: a pod that relies on it would
	// run without it.
	t.string("cpuManagerPolicy", &k.CPUManagerPolicy, "none", ignored).only("none",
		"this agent gives no container cores of its own; leave it out, and give containers cpu requests and limits")
	t.string("memoryManagerPolicy", &k.MemoryManagerPolicy, "None", ignored).only("None",
		"this agent gives no container memory of a NUMA node of its own; leave it out")
	t.string("topologyManagerPolicy", &k.TopologyManagerPolicy, "none", ignored).only("none",
		"this agent does not align devices with cores; leave it out")
	t.string("topologyManagerScope", &k.TopologyManagerScope, "container", ignored).oneOf("container pod")
	t.duration("cpuManagerReconcilePeriod", &k.CPUManagerReconcilePeriod, 10*time.Second, ignored)
	detect := (*string)(&k.ConfigMapAndSecretChangeDetectionStrategy)
	t.string("configMapAndSecretChangeDetectionStrategy", detect, "Get", ignored).oneOf("Get Cache Watch")
	if t.sets(k.MaxOpenFiles == 0, ignored) {
		k.MaxOpenFiles = 1000000
	}
	t.row("maxOpenFiles", ignored).number(k.MaxOpenFiles).atLeast(0)
	t.duration("volumeStatsAggPeriod", &k.VolumeStatsAggPeriod, time.Minute, ignored)
	t.string("contentType", &k.ContentType, "application/json", ignored)
	t.boolPtr("enableControllerAttachDetach", &k.EnableControllerAttachDetach, true, ignored)
	t.boolPtr("makeIPTablesUtilChains", &k.MakeIPTablesUtilChains, true, ignored)
	t.int32Ptr("iptablesMasqueradeBit", &k.IPTablesMasqueradeBit, 14, ignored)
	t.int32Ptr("iptablesDropBit", &k.IPTablesDropBit, 15, ignored)
	t.boolPtr("failSwapOn", &k.FailSwapOn, false, ignored)
	t.boolPtr("failCgroupV1", &k.FailCgroupV1, false, ignored)
	t.boolPtr("localStorageCapacityIsolation", &k.LocalStorageCapacityIsolation, true, ignored)
	t.string("volumePluginDir", &k.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/", ignored)
	t.string("logging.format", &k.Logging.Format, "text", ignored)
	t.duration("logging.flushFrequency", &k.Logging.FlushFrequency.Duration, 5*time.Second, ignored)
}

func (t *table) edgeHub(h *EdgeHub) {
	t.section("modules.edgeHub.", h.Enable)
	t.bool("enable", &h.Enable, true, restart)
	t.int32("heartbeat", &h.Heartbeat, 15, reload).atLeast(1)
	t.int32("messageQPS", &h.MessageQPS, 30, reload).atLeast(0)
	t.int32("messageBurst", &h.MessageBurst, 60, reload).atLeast(0)
	t.string("projectID", &h.ProjectID, "e632aba927ea4ac2b575ec1603d56f10", reload)
	t.row("token", restart)
	t.string("httpServer", &h.HTTPServer, "https://"+local+":10002", restart)
	t.bool("rotateCertificates", &h.RotateCertificates, true, restart)
	t.string("tlsCaFile", &h.TLSCAFile, caFile, restart)
	t.string("tlsCertFile", &h.TLSCertFile, certFile, restart)
	t.string("tlsPrivateKeyFile", &h.TLSPrivateKeyFile, keyFile, restart)
	t.int32("configTrialSeconds", &h.ConfigTrialSeconds, 600, restart).atLeast(0)

	t.section("modules.edgeHub.websocket.", h.Enable && h.WebSocket.Enable)
	t.transport(&h.WebSocket, true, local+":10000")
	t.section("modules.edgeHub.quic.", h.Enable && h.Quic.Enable)
	t.transport(&h.Quic, false, local+":10001")
}

func (t *table) transport(w *Transport, on bool, server string) {
	t.bool("enable", &w.Enable, on, reload)
	t.string("server", &w.Server, server, reload).hostPort()
	t.int32("handshakeTimeout", &w.HandshakeTimeout, 30, reload).atLeast(0)
	t.int32("readDeadline", &w.ReadDeadline, 15, ignored).atLeast(0)
	t.int32("writeDeadline", &w.WriteDeadline, 15, reload).atLeast(0)
}

func (t *table) eventBus(b *EventBus) {
	t.section("modules.eventBus.", b.Enable)
	t.row("enable", restart)
	t.row("mqttQOS", ignored).number(int64(b.MqttQOS)).within(0, 2)
	t.row("mqttRetain", restart)
	t.int32("mqttSessionQueueSize", &b.MqttSessionQueueSize, 100, restart).atLeast(0)
	t.string("mqttServerInternal", &b.MqttServerInternal, "tcp://127.0.0.1:1884", restart)
	t.string("mqttServerExternal", &b.MqttServerExternal, "tcp://127.0.0.1:1883", restart)
	t.row("mqttSubClientID", restart)
	t.row("mqttUsername", restart)
	t.row("mqttPassword", restart)
	t.string("mqttPasswordFile", &b.MqttPasswordFile, "", restart).absoluteOrNone()
	t.int32("mqttMode", &b.MqttMode, 2, restart).within(0, 2)
	t.row("eventBusTLS.enable", restart)
	t.string("eventBusTLS.tlsMqttCAFile", &b.TLS.TLSMqttCAFile, caFile, restart)
	t.string("eventBusTLS.tlsMqttCertFile", &b.TLS.TLSMqttCertFile, certFile, restart)
	t.string("eventBusTLS.tlsMqttPrivateKeyFile", &b.TLS.TLSMqttPrivateKeyFile, keyFile, restart)
}

func (t *table) metaManager(m *MetaManager) {
	t.section("modules.metaManager.", m.Enable)
	t.bool("enable", &m.Enable, true, restart)
	t.string("contextSendGroup", &m.ContextSendGroup, "hub", ignored)
	t.string("contextSendModule", &m.ContextSendModule, "websocket", ignored)
	t.int32("remoteQueryTimeout", &m.RemoteQueryTimeout, 60, restart).atLeast(1)

	s := &m.MetaServer
	t.section("modules.metaManager.metaServer.", m.Enable && s.Enable)
	t.row("enable", absent)
	t.string("server", &s.Server, local+":10550", ignored).hostPort()
	t.string("dummyServer", &s.DummyServer, "169.254.30.10:10550", ignored).hostPort()
	t.string("tlsCaFile", &s.TLSCaFile, caFile, ignored)
	t.string("tlsCertFile", &s.TLSCertFile, certFile, ignored)
	t.string("tlsPrivateKeyFile", &s.TLSPrivateKeyFile, keyFile, ignored)
	if t.sets(s.ServiceAccountIssuers == nil, ignored) {
		s.ServiceAccountIssuers = []string{"https://kubernetes.default.svc.cluster.local"}
	}
	t.row("serviceAccountIssuers", ignored)
}

func (t *table) edgeStream(s *EdgeStream) {
	t.section("modules.edgeStream.", s.Enable)
	t.row("enable", restart)
	t.string("server", &s.Server, local+":10004", restart).hostPort()
	t.string("tlsTunnelCAFile", &s.TLSTunnelCAFile, caFile, ignored)
	t.string("tlsTunnelCertFile", &s.TLSTunnelCertFile, certFile, ignored)
	t.string("tlsTunnelPrivateKeyFile", &s.TLSTunnelPrivateKeyFile, keyFile, ignored)
	t.int32("handshakeTimeout", &s.HandshakeTimeout, 30, ignored).atLeast(0)
	t.int32("readDeadline", &s.ReadDeadline, 15, ignored).atLeast(0)
	t.int32("writeDeadline", &s.WriteDeadline, 15, ignored).atLeast(0)
}
