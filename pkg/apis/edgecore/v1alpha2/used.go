package v1alpha2

import "github.com/edgecore-io/edgecore/pkg/apis/strict"

// live are the keys that this version acts on; a part that makes another one work adds it here, and a test
// of cmd/edgecore fails when one of these changes nothing. A mapping that is named is live as a whole.
//
// podSandboxImage is not one of them: the sandbox's image is a setting of the container runtime.
func live() map[string]bool {
	keys := map[string]bool{
		"apiVersion": true, "kind": true,
		"edgecoreVersion":     true,                             // a note by KubeEdge on the file, for nobody to act on
		"database.driverName": true, "database.aliasName": true, // there is only one driver
		"database.dataSource":        true,
		"modules.metaManager.enable": true, "modules.metaManager.remoteQueryTimeout": true,
	}
	for _, k := range []string{
		"enable", "heartbeat", "messageQPS", "messageBurst", "projectID", "token", "httpServer", "rotateCertificates",
		"tlsCaFile", "tlsCertFile", "tlsPrivateKeyFile",
		"websocket.enable", "websocket.server", "websocket.handshakeTimeout", "websocket.writeDeadline",
		"quic.enable", "quic.server", "quic.handshakeTimeout", "quic.writeDeadline",
	} {
		keys["modules.edgeHub."+k] = true
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

// LiveKeys returns the keys that this version acts on, in order. Their own keys are live with them.
func LiveKeys() []string { return strict.SortedKeys(live()) }

// absent are the switches of the modules that this version does not have. To switch one on, even where that
// is the default, is worth a warning: what the file says is on is not.
func absent() map[string]bool {
	keys := map[string]bool{"modules.metaManager.metaServer.enable": true}
	for _, m := range []string{"eventBus", "serviceBus", "deviceTwin", "dbTest", "edgeStream", "taskManager"} {
		keys["modules."+m+".enable"] = true
	}
	return keys
}

// formerDefaults are the defaults of older KubeEdge versions: a file printed by one of them asks for nothing.
func formerDefaults() map[string]string {
	return map[string]string{
		"modules.deviceTwin.dmiSockPath": "/etc/kubeedge/dmi.sock",
		"modules.edged.podSandboxImage":  "kubeedge/pause:3.1",
	}
}
