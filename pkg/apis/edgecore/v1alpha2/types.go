// Package v1alpha2 is the configuration file of edgecore, edgecore.config.kubeedge.io/v1alpha2, with every key that
// KubeEdge has, so that a KubeEdge user's file works unchanged. Load is strict: an unknown key is an error, one that
// this version does not act on is a warning.
//
// Durations without a unit are in seconds.
package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// The identity of the file.
const (
	APIVersion = "edgecore.config.kubeedge.io/v1alpha2"
	Kind       = "EdgeCore"
)

// EdgeCore is the file.
type EdgeCore struct {
	metav1.TypeMeta `json:",inline"`

	// Database configures the store.
	Database Database `json:"database"`
	Modules  Modules  `json:"modules"`
	// FeatureGates of KubeEdge.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// EdgeCoreVersion is written by KubeEdge; it has no effect.
	EdgeCoreVersion string `json:"edgecoreVersion,omitempty"`
}

// Database is the store.
type Database struct {
	DriverName string `json:"driverName"`
	AliasName  string `json:"aliasName"`
	// DataSource is the path of the SQLite file.
	DataSource string `json:"dataSource"`
}

// Modules are the parts of edgecore.
type Modules struct {
	Edged       Edged       `json:"edged"`
	EdgeHub     EdgeHub     `json:"edgeHub"`
	EventBus    EventBus    `json:"eventBus"`
	MetaManager MetaManager `json:"metaManager"`
	ServiceBus  ServiceBus  `json:"serviceBus"`
	DeviceTwin  DeviceTwin  `json:"deviceTwin"`
	DBTest      Switch      `json:"dbTest"`
	EdgeStream  EdgeStream  `json:"edgeStream"`
	TaskManager Switch      `json:"taskManager"`
}

// Switch is a module that can only be on or off.
type Switch struct {
	Enable bool `json:"enable"`
}

// Edged runs the pods.
type Edged struct {
	Enable      bool `json:"enable"`
	ReportEvent bool `json:"reportEvent"`
	// CustomInterfaceName is the interface whose address is the node's if nodeIP is empty.
	CustomInterfaceName   string `json:"customInterfaceName,omitempty"`
	RegisterNodeNamespace string `json:"registerNodeNamespace"`

	// HostnameOverride is the name of the node.
	HostnameOverride string `json:"hostnameOverride"`
	// NodeIP is the node's address; if empty, it is detected.
	NodeIP          string            `json:"nodeIP,omitempty"`
	RuntimeCgroups  string            `json:"runtimeCgroups,omitempty"`
	PodSandboxImage string            `json:"podSandboxImage"`
	RootDirectory   string            `json:"rootDirectory"`
	NodeLabels      map[string]string `json:"nodeLabels,omitempty"`

	MinimumGCAge            metav1.Duration `json:"minimumGCAge"`
	MaxPerPodContainerCount int32           `json:"maxPerPodContainerCount"`
	MaxContainerCount       int32           `json:"maxContainerCount"`
	RegisterSchedulable     bool            `json:"registerSchedulable"`
	SeccompDefault          bool            `json:"seccompDefault"`

	ExperimentalMounterPath                            string `json:"experimentalMounterPath,omitempty"`
	ExperimentalNodeAllocatableIgnoreEvictionThreshold bool   `json:"experimentalNodeAllocatableIgnoreEvictionThreshold,omitempty"`
	WindowsService                                     bool   `json:"windowsService,omitempty"`
	WindowsPriorityClass                               string `json:"windowsPriorityClass,omitempty"`

	// ServerAddress is where the kubelet's API listens (tailoredKubeletConfig.port), 127.0.0.1 for programs of this
	// device only. Empty is tailoredKubeletConfig.address, or all addresses if that is a loopback address.
	ServerAddress string `json:"serverAddress,omitempty"`

	// TailoredKubeletConfig has the names and meanings of the kubelet's configuration. A key that is empty, zero or
	// null has its default there, but for staticPodPath, readOnlyPort and clusterDomain.
	TailoredKubeletConfig kubeletconfig.KubeletConfiguration `json:"tailoredKubeletConfig"`
}

// EdgeHub is the edge's end of the link.
type EdgeHub struct {
	Enable    bool  `json:"enable"`
	Heartbeat int32 `json:"heartbeat"`
	// MessageQPS and MessageBurst limit the messages per second to KubeEdge's cloudcore; 0 means no limit. Messages to
	// cloudcore of this project are not limited.
	MessageQPS         int32     `json:"messageQPS"`
	MessageBurst       int32     `json:"messageBurst"`
	ProjectID          string    `json:"projectID"`
	Token              string    `json:"token"`
	HTTPServer         string    `json:"httpServer"`
	RotateCertificates bool      `json:"rotateCertificates"`
	TLSCAFile          string    `json:"tlsCaFile"`
	TLSCertFile        string    `json:"tlsCertFile"`
	TLSPrivateKeyFile  string    `json:"tlsPrivateKeyFile"`
	WebSocket          Transport `json:"websocket"`
	Quic               Transport `json:"quic"`
	// ConfigTrialSeconds is how long a changed configuration may take to reach the cloud and the container runtime
	// before the agent goes back to the one before, if it has reached them with that; 0 means never. It is ours, not
	// KubeEdge's.
	ConfigTrialSeconds int32 `json:"configTrialSeconds"`
}

// Transport is one way to reach the cloud.
type Transport struct {
	Enable           bool   `json:"enable"`
	Server           string `json:"server"`
	HandshakeTimeout int32  `json:"handshakeTimeout"`
	ReadDeadline     int32  `json:"readDeadline"`
	WriteDeadline    int32  `json:"writeDeadline"`
}

// EventBus talks MQTT.
type EventBus struct {
	Enable               bool   `json:"enable"`
	MqttQOS              uint8  `json:"mqttQOS"`
	MqttRetain           bool   `json:"mqttRetain"`
	MqttSessionQueueSize int32  `json:"mqttSessionQueueSize"`
	MqttServerInternal   string `json:"mqttServerInternal"`
	MqttServerExternal   string `json:"mqttServerExternal"`
	MqttSubClientID      string `json:"mqttSubClientID"`
	MqttPubClientID      string `json:"mqttPubClientID"`
	MqttUsername         string `json:"mqttUsername"`
	MqttPassword         string `json:"mqttPassword"`
	// MqttPasswordFile is a file of mosquitto_passwd with more users of the broker in the agent; "" is none. KubeEdge
	// has no such key.
	MqttPasswordFile string      `json:"mqttPasswordFile"`
	MqttMode         int32       `json:"mqttMode"`
	TLS              EventBusTLS `json:"eventBusTLS"`
}

// EventBusTLS secures MQTT.
type EventBusTLS struct {
	Enable                bool   `json:"enable"`
	TLSMqttCAFile         string `json:"tlsMqttCAFile"`
	TLSMqttCertFile       string `json:"tlsMqttCertFile"`
	TLSMqttPrivateKeyFile string `json:"tlsMqttPrivateKeyFile"`
}

// MetaManager keeps desired state.
type MetaManager struct {
	Enable             bool       `json:"enable"`
	ContextSendGroup   string     `json:"contextSendGroup"`
	ContextSendModule  string     `json:"contextSendModule"`
	RemoteQueryTimeout int32      `json:"remoteQueryTimeout"`
	MetaServer         MetaServer `json:"metaServer"`
}

// MetaServer is the Kubernetes API on the device, for pods.
type MetaServer struct {
	Enable bool `json:"enable"`
	// Server is where programs of the device find it, DummyServer where pods do: the agent puts that address on the
	// loopback interface. DummyServer may be several addresses with commas between, at most one of each family.
	Server      string `json:"server"`
	DummyServer string `json:"dummyServer"`
	// PodAccess says which pods use it, unless their annotation edgecore.io/api-endpoint does: All, Annotated or None.
	// KubeEdge has no such key.
	PodAccess             string   `json:"podAccess"`
	TLSCaFile             string   `json:"tlsCaFile"`
	TLSCertFile           string   `json:"tlsCertFile"`
	TLSPrivateKeyFile     string   `json:"tlsPrivateKeyFile"`
	ServiceAccountIssuers []string `json:"serviceAccountIssuers"`
	APIAudiences          []string `json:"apiAudiences,omitempty"`
	ServiceAccountKeyFile []string `json:"serviceAccountKeyFiles,omitempty"`
}

// ServiceBus calls HTTP services on the edge.
type ServiceBus struct {
	Enable            bool   `json:"enable"`
	Server            string `json:"server"`
	Port              int32  `json:"port"`
	Timeout           int32  `json:"timeout"`
	TLSCertFile       string `json:"tlsCertFile,omitempty"`
	TLSPrivateKeyFile string `json:"tlsPrivateKeyFile,omitempty"`
}

// DeviceTwin keeps the twins of the node's devices, and serves their mappers.
type DeviceTwin struct {
	Enable bool `json:"enable"`
	// DMISockPath is the folder of dmi.sock, on which mappers register. A path that ends in .sock names its folder.
	// With DefaultDMIDir or KubeEdgeDMIDir, both folders have a socket.
	DMISockPath string `json:"dmiSockPath"`
	// DMISockGroup is the name or number of the group that may use the socket in addition to root; "" is none. Its
	// mappers make their own sockets in the folder "mappers" beside it. KubeEdge has no such key.
	DMISockGroup string `json:"dmiSockGroup"`
}

// EdgeStream carries logs and exec.
type EdgeStream struct {
	Enable                  bool   `json:"enable"`
	Server                  string `json:"server"`
	TLSTunnelCAFile         string `json:"tlsTunnelCAFile"`
	TLSTunnelCertFile       string `json:"tlsTunnelCertFile"`
	TLSTunnelPrivateKeyFile string `json:"tlsTunnelPrivateKeyFile"`
	HandshakeTimeout        int32  `json:"handshakeTimeout"`
	ReadDeadline            int32  `json:"readDeadline"`
	WriteDeadline           int32  `json:"writeDeadline"`
}
