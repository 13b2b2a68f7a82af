package health

import "time"

// Severity says how much a condition matters.
type Severity string

// The severities.
const (
	// Warning: the agent works, but needs attention.
	Warning Severity = "Warning"
	// Error: part of the agent's work has stopped.
	Error Severity = "Error"
)

// Code names a condition.
type Code string

// The conditions of the agent. Each is documented by its entry in known.
const (
	RuntimeDown           Code = "RuntimeDown"
	RuntimeNetwork        Code = "RuntimeNetworkNotReady"
	RuntimeNotReady       Code = "RuntimeNotReady"
	ClockNotSet           Code = "ClockNotSet"
	StoreRecovered        Code = "StoreRecovered"
	StoreRolledBack       Code = "StoreRolledBack"
	StoreFailing          Code = "StoreFailing"
	ReportTooLarge        Code = "ReportTooLarge"
	ObjectTooLarge        Code = "ObjectTooLarge"
	StaticPodBad          Code = "StaticPodBad"
	CgroupsIncomplete     Code = "CgroupControllersMissing"
	CgroupsFailing        Code = "CgroupsFailing"
	ReadOnlyServerStopped Code = "ReadOnlyServerStopped"
	ServerStopped         Code = "ServerStopped"
	ServingCertificate    Code = "ServingCertificate"
	ClientCABad           Code = "ClientCABad"
	ImagesFillDisk        Code = "ImagesFillDisk"
	ImageDamaged          Code = "ImageDamaged"
	MemoryPressure        Code = "MemoryPressure"
	DiskPressure          Code = "DiskPressure"
	PIDPressure           Code = "PIDPressure"
	CloudUnreachable      Code = "CloudUnreachable"
	QUICUnavailable       Code = "QUICUnavailable"
	CertificateExpired    Code = "CertificateExpired"
	CertificateEnding     Code = "CertificateEnding"
	NotJoined             Code = "NotJoined"
	ConfigurationBad      Code = "ConfigurationBad"
	RestartNeeded         Code = "RestartNeeded"
	ShutdownUnnoticed     Code = "ShutdownUnnoticed"
	LabelsLeftOut         Code = "LabelsLeftOut"
	NodeAddressMissing    Code = "NodeAddressMissing"
	ModuleFailing         Code = "ModuleFailing"
	FilesNotWatched       Code = "FilesNotWatched"
	SocketFailing         Code = "SocketFailing"
	MQTTBrokerUnreachable Code = "MQTTBrokerUnreachable"
	APIEndpointFailing    Code = "APIEndpointFailing"
)

// entry describes a condition.
type entry struct {
	Title    string
	Severity Severity
	// Remedy says what a person can do.
	Remedy string
	// After is how long the condition must last before it is shown: some resolve themselves.
	After time.Duration
}

// known holds all conditions.
var known = map[Code]entry{
	ShutdownUnnoticed: {
		"A device shutdown will not wait for pods", Warning, "shutdownGracePeriod needs systemd-logind and the " +
			"system's D-Bus: check systemctl status dbus systemd-logind, or remove the setting.", 10 * time.Second,
	},
	LabelsLeftOut: {
		"The cloud did not take all labels of this node", Warning, "A node may not give itself these labels: remove " +
			"them from modules.edged.nodeLabels, and have an administrator set them (kubectl label node NAME " +
			"KEY=VALUE) if they are needed.", 0,
	},
	NodeAddressMissing: {
		"No interface of this device has the node's address", Warning, "Correct modules.edged.nodeIP, or remove it: " +
			"the address is then that of the default route. The cluster reaches neither the node's port nor its pods " +
			"on the node's network by this one.", 30 * time.Second,
	},
	ModuleFailing: {
		"A part of the agent fails and is started again", Error, "The detail is its error: correct what it names. If " +
			"it names nothing that you can correct, report it with the agent's log (journalctl -u edgecore). Pods " +
			"keep running.", 10 * time.Second,
	},
	FilesNotWatched: {
		"Changes of files are noticed late", Warning, "Raise the sysctl that the detail names (sysctl -w NAME=VALUE, " +
			"and a file in /etc/sysctl.d to keep it), or stop the program that uses up the limit. Until then files " +
			"are read periodically: a change of a manifest, the configuration or a plugin takes up to 30 seconds.", 0,
	},
	MQTTBrokerUnreachable: {
		"There is no connection to the MQTT broker", Warning, "Check that the broker runs, and mqttServerExternal, " +
			"mqttUsername and mqttPassword in modules.eventBus. Messages for it wait on the disk.", 10 * time.Second,
	},
	APIEndpointFailing: {
		"The Kubernetes API for pods is not served as it should be", Error,
		"The object is the address or the CA. Correct what the detail names, or server and dummyServer in " +
			"modules.metaManager.metaServer; the agent tries again every minute. Until then pods that use the API on " +
			"this device may not reach it. Pods keep running.", 10 * time.Second,
	},
	SocketFailing: {
		"A socket of the agent cannot be opened", Error,
		"The object is the socket. Stop the program that uses it, or " +
			"correct what the detail names; the agent tries again every minute. Until then no device mapper, device " +
			"plugin, MQTT client or monitoring agent that needs this socket reaches the node. Pods keep running.",
		2 * time.Second,
	},
	RuntimeDown: {
		"The container runtime does not answer", Error, "Check the runtime's service (systemctl status containerd) " +
			"and containerRuntimeEndpoint in the configuration. Running containers are not affected; the agent " +
			"continues when the runtime answers.", 2 * time.Second,
	},
	RuntimeNetwork: {
		"The container runtime has no pod network", Error, "Install a CNI configuration (/etc/cni/net.d) and the CNI " +
			"plugins that it names. Pods with hostNetwork do not need them.", 5 * time.Second,
	},
	RuntimeNotReady: {
		"The container runtime is not ready", Error, "Check the runtime's service and log (systemctl status " +
			"containerd, journalctl -u containerd). The detail is the runtime's own message.", 5 * time.Second,
	},
	ClockNotSet: {
		"The clock of this device is not set", Warning, "Pods keep running, but times in pods and logs are wrong, " +
			"and the cloud may be unreachable. Set the clock (timedatectl set-ntp true, or date -s).", 0,
	},
	MemoryPressure: {
		"The node is short of memory", Warning, "Pods that use more memory than they request are evicted, and " +
			"BestEffort pods are not admitted. Set memory requests and limits, or run fewer pods here.", 0,
	},
	DiskPressure: {
		"The node is short of disk", Warning, "Unused images and containers were removed; pods that fill the disk " +
			"are evicted, and new pods are not admitted. Find what fills the disk (du -x), set ephemeral-storage " +
			"limits, or use a larger disk.", 0,
	},
	PIDPressure: {
		"The node is short of processes", Warning, "Pods with many processes are evicted, and new pods are not " +
			"admitted. Set podPidsLimit in the configuration.", 0,
	},
	StoreRecovered: {
		"The store was damaged and has been recovered", Warning,
		"The damaged file is kept next to the new one. Check the health of the disk (SD card).", 0,
	},
	StoreRolledBack: {
		"The store was written by a newer version and has been rolled back", Warning, "Pods keep running, and the " +
			"condition ends when the cloud has sent what this version could not read. The newer store is kept next " +
			"to the new one. If the downgrade was not intended, install the newer version again.", 0,
	},
	StoreFailing: {
		"The store cannot be written", Error, "Free space on the disk, or replace it if it fails. Pods keep running; " +
			"nothing that was acknowledged is lost.", 0,
	},
	ReportTooLarge: {
		"The cloud refuses a report of this node as too large", Warning,
		"The API keeps the last status that was accepted. " +
			"Reduce what the object reports, as the detail says: fewer containers, volumes or conditions in one pod.",
		0,
	},
	ObjectTooLarge: {
		"An object does not fit on this node", Warning,
		"A pod that does not fit has failed; a ConfigMap or Secret stays as this node has it, and pods that need it " +
			"wait. Make the object smaller, or delete others, as the detail says.", 0,
	},
	StaticPodBad: {
		"A static pod manifest is invalid", Error, "Correct the file. The pods of its last valid version keep running.",
		0,
	},
	CgroupsIncomplete: {
		"The kernel lacks cgroup controllers", Warning, "Enable them on the kernel command line. Until then pods run " +
			"without the limits that these controllers enforce.", 0,
	},
	CgroupsFailing: {
		"The pod cgroups cannot be created", Error,
		"Check cgroupDriver and cgroupRoot in the configuration; the driver must match the container runtime's.", 0,
	},
	CloudUnreachable: {
		"The cloud cannot be reached", Warning,
		"Pods keep running; reports wait in the store. The detail names the cause and the remedy.", 10 * time.Second,
	},
	QUICUnavailable: {
		"The cloud cannot be reached over QUIC; WebSocket is used instead", Warning,
		"Allow UDP to the port of modules.edgeHub.quic.server, or set modules.edgeHub.quic.enable to false.", 0,
	},
	CertificateExpired: {
		"The node's certificate has expired", Error, "Pods run on. Run \"edgecore join\" with a fresh token " +
			"(cloudcore gettoken); nothing on the device is lost by it.", 0,
	},
	NotJoined: {
		"The node has no certificate for the cloud", Error,
		"Static pods keep running. The detail names the cause and the remedy.", 0,
	},
	ConfigurationBad: {
		"The configuration file is not used", Warning, "Correct the file (\"edgecore config validate\" lists the " +
			"problems). The last good configuration stays in effect, also at the next start (\"edgecore config print " +
			"--effective\" shows it).", 0,
	},
	RestartNeeded: {
		"Configuration changes need a restart of the agent", Warning,
		"Restart edgecore (systemctl restart edgecore); pods keep running meanwhile. Or revert the changes.", 0,
	},
	CertificateEnding: {
		"The node's certificate could not be renewed and expires soon", Warning,
		"Make sure that port 10002 of the cloud is reachable (modules.edgeHub.httpServer), or run \"edgecore join\" " +
			"with a fresh token.", 0,
	},
	ImagesFillDisk: {
		"The image disk is over its threshold, and no image can be removed", Warning,
		"Run \"edgecore images list\" to see what holds each image: remove pods, keep list entries or ended " +
			"containers that are no longer needed, or give the runtime a larger disk. Images that pods of this " +
			"device use are never removed.", 0,
	},
	ImageDamaged: {
		"An image is damaged on this device", Warning, "It is repaired automatically from intact layers, its " +
			"registry or an archive. Connect the device to the registry, put an archive (docker save) into " +
			"image-archives in rootDirectory, or import one with edgecore images import.", 0,
	},
	ServerStopped: {
		"The authenticated server cannot listen", Error, "Free the port, or change port in the configuration. Until " +
			"then kubectl logs and exec do not reach this node; pods keep running.", 2 * time.Second,
	},
	ServingCertificate: {
		"The authenticated server is not using its intended certificate", Warning,
		"It uses the previous certificate, or a self-signed one. The detail names the cause; approve a pending " +
			"request with kubectl certificate approve.", time.Minute,
	},
	ClientCABad: {
		"The file of client CAs cannot be used", Warning, "Correct authentication.x509.clientCAFile, or put the file " +
			"there. Until then the node's port refuses the certificates that these CAs have signed.", 2 * time.Second,
	},
	ReadOnlyServerStopped: {
		"The read-only server cannot listen", Error,
		"Free the port, or change address and readOnlyPort in the configuration.", 2 * time.Second,
	},
}
