package health

import "time"

// Severity says how much a condition matters.
type Severity string

// The severities.
const (
	// Warning: the agent does its work, but somebody should look.
	Warning Severity = "Warning"
	// Error: part of the agent's work stands still.
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
	StoreFailing          Code = "StoreFailing"
	ReportTooLarge        Code = "ReportTooLarge"
	StaticPodBad          Code = "StaticPodBad"
	CgroupsIncomplete     Code = "CgroupControllersMissing"
	CgroupsFailing        Code = "CgroupsFailing"
	ReadOnlyServerStopped Code = "ReadOnlyServerStopped"
	ServerStopped         Code = "ServerStopped"
	ServingCertificate    Code = "ServingCertificate"
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
)

// entry is what is to be known of a condition.
type entry struct {
	Title    string
	Severity Severity
	// Remedy says what a person can do.
	Remedy string
	// After is how long the condition has to last before it is shown: some pass by themselves.
	After time.Duration
}

// known holds all conditions.
var known = map[Code]entry{
	ShutdownUnnoticed: {"A shutdown of the device would not wait for the pods", Warning, "shutdownGracePeriod needs systemd-logind and the system's D-Bus: look at systemctl status dbus systemd-logind, or leave the setting out.", 10 * time.Second},
	RuntimeDown:       {"The container runtime does not answer", Error, "Look at the runtime's service (systemctl status containerd) and at containerRuntimeEndpoint in the configuration. Running containers are not affected; the agent goes on when the runtime does.", 2 * time.Second},
	RuntimeNetwork:    {"The container runtime has no pod network", Error, "Put a CNI configuration into the runtime's CNI folder (/etc/cni/net.d) and its plugins beside it. Pods with hostNetwork run without.", 5 * time.Second},
	RuntimeNotReady:   {"The container runtime is not ready", Error, "Look at the runtime's service and log (systemctl status containerd, journalctl -u containerd). The detail is what it says of itself.", 5 * time.Second},
	ClockNotSet:       {"The clock of this device is not set", Warning, "Pods run on; what they and the logs say of the time is wrong, and the cloud may not be reached. Set the clock (timedatectl set-ntp true, or date -s).", 0},
	MemoryPressure:    {"The node is short of memory", Warning, "Pods that use more than they asked for end, and BestEffort ones are not taken. Give pods memory requests and limits, or run fewer of them here.", 0},
	DiskPressure:      {"The node is short of disk", Warning, "What nobody needs was removed; pods that fill the disk end, and no others are taken. Look for what fills it (du -x), give pods limits of ephemeral-storage, or use a larger disk.", 0},
	PIDPressure:       {"The node is short of processes", Warning, "Pods with many processes end, and no others are taken. Set podPidsLimit in the configuration.", 0},
	StoreRecovered:    {"The store was damaged and has been recovered", Warning, "The damaged file is kept beside the new one. Check the disk (SD card) for its health.", 0},
	StoreFailing:      {"The store cannot be written", Error, "Make room on the disk, or replace it if it fails. Pods run on; nothing that was acknowledged is lost.", 0},
	ReportTooLarge: {"The cloud refuses a report of this node as too large", Warning, "The API keeps the last status that was accepted. " +
		"Reduce what the object reports, as the detail says: fewer containers, volumes or conditions in one pod.", 0},
	StaticPodBad:          {"A static pod manifest is of no use", Error, "Correct the file that is named. The pods that it held before run on.", 0},
	CgroupsIncomplete:     {"The kernel lacks cgroup controllers", Warning, "Switch them on at the kernel's command line. Pods run without the limits that they enforce.", 0},
	CgroupsFailing:        {"The pod cgroups cannot be made", Error, "Look at cgroupDriver and cgroupRoot in the configuration; the driver has to be the runtime's.", 0},
	CloudUnreachable:      {"The cloud cannot be reached", Warning, "Pods run on; reports wait in the store. The detail names the cause and what to do about it.", 10 * time.Second},
	QUICUnavailable:       {"QUIC does not reach the cloud, and WebSocket is used", Warning, "Let UDP through to the port of modules.edgeHub.quic.server, or set modules.edgeHub.quic.enable to false.", 0},
	CertificateExpired:    {"The node's certificate has expired", Error, "Pods run on. Run \"edgecore join\" with a fresh token (cloudcore gettoken); nothing on the device is lost by it.", 0},
	NotJoined:             {"The node has no certificate for the cloud", Error, "Pods of the device itself run. The detail names the cause and what to do about it.", 0},
	ConfigurationBad:      {"The configuration file is of no use", Warning, "Correct the file (\"edgecore config validate\" names all that is wrong with it). The configuration before it is in force.", 0},
	RestartNeeded:         {"Changes of the configuration wait for a restart of the agent", Warning, "Restart edgecore (systemctl restart edgecore) when it suits: the pods run on meanwhile. Or take the changes back.", 0},
	CertificateEnding:     {"The node's certificate could not be renewed, and ends soon", Warning, "See that port 10002 of the cloud can be reached (modules.edgeHub.httpServer), or run \"edgecore join\" with a fresh token.", 0},
	ImagesFillDisk:        {"The disk of the images is full beyond its threshold, and no image can go", Warning, "Look at the images with \"edgecore images list\": take those away that pods, the keep list or ended containers hold and nobody needs, or give the runtime a larger disk. Images that pods of this device need are never removed.", 0},
	ImageDamaged:          {"An image is damaged on this device", Warning, "It is repaired by itself where its layers, its registry or an archive of it can be reached. Connect the device to the registry, put an archive (docker save) into image-archives in rootDirectory, or import one with edgecore images import.", 0},
	ServerStopped:         {"The authenticated server cannot listen", Error, "Free the port, or change port in the configuration. Until then kubectl logs and exec do not reach this node; pods run on.", 2 * time.Second},
	ServingCertificate:    {"The authenticated server has not the certificate that it should have", Warning, "It serves with the one it had, or with its own. The detail names the cause; a request that waits is approved with kubectl certificate approve.", time.Minute},
	ReadOnlyServerStopped: {"The read-only server cannot listen", Error, "Free the port, or change address and readOnlyPort in the configuration.", 2 * time.Second},
}
