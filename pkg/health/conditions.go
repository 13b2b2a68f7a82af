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
	StoreRecovered        Code = "StoreRecovered"
	StoreFailing          Code = "StoreFailing"
	StaticPodBad          Code = "StaticPodBad"
	CgroupsIncomplete     Code = "CgroupControllersMissing"
	CgroupsFailing        Code = "CgroupsFailing"
	ReadOnlyServerStopped Code = "ReadOnlyServerStopped"
	CloudUnreachable      Code = "CloudUnreachable"
	QUICUnavailable       Code = "QUICUnavailable"
	CertificateExpired    Code = "CertificateExpired"
	CertificateEnding     Code = "CertificateEnding"
	NotJoined             Code = "NotJoined"
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
	RuntimeDown:           {"The container runtime does not answer", Error, "Look at the runtime's service (systemctl status containerd) and at containerRuntimeEndpoint in the configuration. Running containers are not affected; the agent goes on when the runtime does.", 2 * time.Second},
	RuntimeNetwork:        {"The container runtime has no pod network", Error, "Put a CNI configuration into the runtime's CNI folder (/etc/cni/net.d) and its plugins beside it. Pods with hostNetwork run without.", 5 * time.Second},
	StoreRecovered:        {"The store was damaged and has been recovered", Warning, "The damaged file is kept beside the new one. Check the disk (SD card) for its health.", 0},
	StoreFailing:          {"The store cannot be written", Error, "Make room on the disk, or replace it if it fails. Pods run on; nothing that was acknowledged is lost.", 0},
	StaticPodBad:          {"A static pod manifest is of no use", Error, "Correct the file that is named. The pods that it held before run on.", 0},
	CgroupsIncomplete:     {"The kernel lacks cgroup controllers", Warning, "Switch them on at the kernel's command line. Pods run without the limits that they enforce.", 0},
	CgroupsFailing:        {"The pod cgroups cannot be made", Error, "Look at cgroupDriver and cgroupRoot in the configuration; the driver has to be the runtime's.", 0},
	CloudUnreachable:      {"The cloud cannot be reached", Warning, "Pods run on; reports wait in the store. The detail names the cause and what to do about it.", 10 * time.Second},
	QUICUnavailable:       {"QUIC does not reach the cloud, and WebSocket is used", Warning, "Let UDP through to the port of modules.edgeHub.quic.server, or set modules.edgeHub.quic.enable to false.", 0},
	CertificateExpired:    {"The node's certificate has expired", Error, "Pods run on. Run \"edgecore join\" with a fresh token (cloudcore gettoken); nothing on the device is lost by it.", 0},
	NotJoined:             {"The node has no certificate for the cloud", Error, "Pods of the device itself run. The detail names the cause and what to do about it.", 0},
	CertificateEnding:     {"The node's certificate could not be renewed, and ends soon", Warning, "See that port 10002 of the cloud can be reached (modules.edgeHub.httpServer), or run \"edgecore join\" with a fresh token.", 0},
	ReadOnlyServerStopped: {"The read-only server cannot listen", Error, "Free the port, or change address and readOnlyPort in the configuration.", 2 * time.Second},
}
