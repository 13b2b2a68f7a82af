package v1alpha2

import "github.com/edgecore-io/edgecore/pkg/apis/strict"

// live are the keys that this version acts on. A part that supports another key adds it here; a test of cmd/edgecore
// fails if one of these changes nothing. A listed mapping is live as a whole.
//
// podSandboxImage is not listed: the sandbox image is a setting of the container runtime.
func live() map[string]bool {
	keys := map[string]bool{
		"apiVersion": true, "kind": true,
		"edgecoreVersion":     true,                             // a note by KubeEdge, without effect
		"database.driverName": true, "database.aliasName": true, // there is only one driver
		"database.dataSource":        true,
		"modules.metaManager.enable": true, "modules.metaManager.remoteQueryTimeout": true,
		"modules.deviceTwin":        true,
		"modules.edgeStream.enable": true, "modules.edgeStream.server": true,
	}
	for _, k := range []string{
		"enable", "heartbeat", "messageQPS", "messageBurst", "projectID", "token", "httpServer", "rotateCertificates",
		"tlsCaFile", "tlsCertFile", "tlsPrivateKeyFile",
		"websocket.enable", "websocket.server", "websocket.handshakeTimeout", "websocket.writeDeadline",
		"quic.enable", "quic.server", "quic.handshakeTimeout", "quic.writeDeadline",
		"configTrialSeconds",
	} {
		keys["modules.edgeHub."+k] = true
	}
	for _, k := range []string{
		"enable", "mqttMode", "mqttRetain", "mqttSessionQueueSize", "mqttServerInternal", "mqttServerExternal",
		"mqttSubClientID", "mqttUsername", "mqttPassword", "mqttPasswordFile", "eventBusTLS",
	} {
		keys["modules.eventBus."+k] = true
	}
	for _, k := range []string{
		"minimumGCAge", "maxPerPodContainerCount", "maxContainerCount",
		"enable", "reportEvent", "hostnameOverride", "nodeIP", "customInterfaceName", "nodeLabels",
		"registerSchedulable", "rootDirectory", "seccompDefault", "serverAddress",
		"experimentalNodeAllocatableIgnoreEvictionThreshold",
	} {
		keys["modules.edged."+k] = true
	}
	for _, k := range []string{
		"apiVersion", "kind",
		"staticPodPath", "podLogsDir", "syncFrequency", "fileCheckFrequency", "address", "readOnlyPort",
		"enableServer", "port", "tlsCertFile", "tlsPrivateKeyFile", "tlsCipherSuites", "tlsMinVersion",
		"serverTLSBootstrap", "authentication", "authorization",
		"enableDebuggingHandlers", "enableProfilingHandler", "enableDebugFlagsHandler", "enableSystemLogHandler",
		"registryPullQPS", "registryBurst", "serializeImagePulls", "maxParallelImagePulls",
		"imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist",
		"imageMinimumGCAge", "imageMaximumGCAge", "imageGCHighThresholdPercent", "imageGCLowThresholdPercent",
		"clusterDomain", "clusterDNS", "resolvConf", "seccompDefault", "allowedUnsafeSysctls", "oomScoreAdj",
		"cgroupRoot", "cgroupsPerQOS", "cgroupDriver", "cpuCFSQuota", "cpuCFSQuotaPeriod", "podPidsLimit", "memorySwap",
		"singleProcessOOMKill",
		"maxPods", "systemReserved", "kubeReserved", "crashLoopBackOff",
		"enforceNodeAllocatable", "systemReservedCgroup", "kubeReservedCgroup", "kernelMemcgNotification",
		"mergeDefaultEvictionSettings",
		"evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim",
		"evictionPressureTransitionPeriod", "evictionMaxPodGracePeriod",
		"containerRuntimeEndpoint", "imageServiceEndpoint", "runtimeRequestTimeout",
		"registerNode", "registerWithTaints", "podCIDR", "nodeStatusUpdateFrequency", "nodeStatusReportFrequency",
		"nodeLeaseDurationSeconds", "nodeStatusMaxImages",
		"eventRecordQPS", "eventBurst", "streamingConnectionIdleTimeout",
		"containerLogMaxSize", "containerLogMaxFiles", "containerLogMaxWorkers", "containerLogMonitorInterval",
		"shutdownGracePeriod", "shutdownGracePeriodCriticalPods", "shutdownGracePeriodByPodPriority",
	} {
		keys["modules.edged.tailoredKubeletConfig."+k] = true
	}
	return keys
}

// LiveKeys returns the keys that this version acts on, in order. Keys below them are live as well.
func LiveKeys() []string { return strict.SortedKeys(live()) }

// absent are the switches of modules that this version lacks. Switching one on, even if that is the default, gives a
// warning.
func absent() map[string]bool {
	keys := map[string]bool{"modules.metaManager.metaServer.enable": true}
	for _, m := range []string{"serviceBus", "dbTest", "taskManager"} {
		keys["modules."+m+".enable"] = true
	}
	return keys
}

// deprecatedDefaults are the defaults of older KubeEdge versions: a file printed by one of them gets no warnings for
// these.
func deprecatedDefaults() map[string]string {
	return map[string]string{
		"modules.edged.podSandboxImage": "kubeedge/pause:3.1",
	}
}
