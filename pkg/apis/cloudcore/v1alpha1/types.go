// Package v1alpha1 is the configuration file of cloudcore, cloudcore.config.kubeedge.io/v1alpha1, with every key that
// KubeEdge has, so that a KubeEdge user's file works unchanged. Load is strict: an unknown key is an error, one that
// this version does not act on is a warning.
//
// Times are numbers of seconds unless their comment says otherwise.
package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The identity of the file.
const (
	APIVersion = "cloudcore.config.kubeedge.io/v1alpha1"
	Kind       = "CloudCore"
	// helmVersion is what KubeEdge's chart writes for the same form.
	helmVersion = "cloudcore.config.kubeedge.io/v1alpha2"
)

// CloudCore is the file.
type CloudCore struct {
	metav1.TypeMeta `json:",inline"`

	CommonConfig  CommonConfig  `json:"commonConfig"`
	KubeAPIConfig KubeAPIConfig `json:"kubeAPIConfig"`
	// FeatureGates of KubeEdge.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	Modules      Modules         `json:"modules"`
}

// CommonConfig holds settings that belong to no module.
type CommonConfig struct {
	TunnelPort    int32         `json:"tunnelPort"`
	MonitorServer MonitorServer `json:"monitorServer"`
}

// MonitorServer answers /metrics, /healthz and /readyz.
type MonitorServer struct {
	// BindAddress is an address and a port; empty switches it off.
	BindAddress     string `json:"bindAddress"`
	EnableProfiling bool   `json:"enableProfiling"`
}

// KubeAPIConfig configures access to kube-apiserver: by kubeconfig, whose server master overrides; or, if both are
// empty, by the service account of cloudcore's pod.
type KubeAPIConfig struct {
	Master      string `json:"master"`
	KubeConfig  string `json:"kubeConfig"`
	ContentType string `json:"contentType"`
	// QPS and Burst limit the requests a second; by default 5 and 10 for each node of nodeLimit.
	QPS   int32 `json:"qps"`
	Burst int32 `json:"burst"`
}

// Modules are the parts of cloudcore.
type Modules struct {
	CloudHub          CloudHub         `json:"cloudHub"`
	EdgeController    EdgeController   `json:"edgeController"`
	DeviceController  DeviceController `json:"deviceController"`
	TaskManager       TaskManager      `json:"taskManager"`
	SyncController    Switch           `json:"syncController"`
	DynamicController Switch           `json:"dynamicController"`
	CloudStream       CloudStream      `json:"cloudStream"`
	Router            Router           `json:"router"`
	IPTablesManager   IPTablesManager  `json:"iptablesManager"`
}

// Switch is a module that can only be on or off.
type Switch struct {
	Enable bool `json:"enable"`
}

// CloudHub is the cloud's end of the link.
type CloudHub struct {
	Enable bool `json:"enable"`
	// KeepaliveInterval is how long an edge may be silent.
	KeepaliveInterval int32 `json:"keepaliveInterval"`
	// NodeLimit is how many nodes may be connected at a time.
	NodeLimit int32 `json:"nodeLimit"`
	// WriteTimeout is how long a message may take to be written; 0 is the link's own.
	WriteTimeout int32 `json:"writeTimeout"`
	// AdvertiseAddress are the IP addresses at which edges reach cloudcore, DNSNames the names: the server's
	// certificate is made for them.
	AdvertiseAddress []string `json:"advertiseAddress"`
	DNSNames         []string `json:"dnsNames"`

	TLSCAFile         string `json:"tlsCAFile"`
	TLSCAKeyFile      string `json:"tlsCAKeyFile"`
	TLSCertFile       string `json:"tlsCertFile"`
	TLSPrivateKeyFile string `json:"tlsPrivateKeyFile"`
	// EdgeCertSigningDuration is how long the certificate of an edge lasts, in days.
	EdgeCertSigningDuration int32 `json:"edgeCertSigningDuration"`
	// TokenRefreshDuration is how often the join token is replaced, in hours; a token is valid for twice as long.
	TokenRefreshDuration int32 `json:"tokenRefreshDuration"`
	// LegacyCertificates lets edges in that use the one certificate that KubeEdge before v1.16 gave to all. KubeEdge
	// has no such key. Anyone with that certificate can impersonate any node, and get a certificate of any node.
	LegacyCertificates bool `json:"legacyCertificates"`
	// LookupsPerSource is how many API server lookups a second the nodes behind one address may cause before they are
	// registered; a join takes about five. KubeEdge has no such key.
	LookupsPerSource int32 `json:"lookupsPerSource"`

	Quic          Quic          `json:"quic"`
	WebSocket     Listener      `json:"websocket"`
	UnixSocket    UnixSocket    `json:"unixsocket"`
	HTTPS         Listener      `json:"https"`
	Authorization Authorization `json:"authorization"`
}

// Listener is a TCP server.
type Listener struct {
	Enable  bool   `json:"enable"`
	Address string `json:"address"`
	Port    int32  `json:"port"`
}

// Quic is the UDP server.
type Quic struct {
	Listener           `json:",inline"`
	MaxIncomingStreams int32 `json:"maxIncomingStreams"`
}

// UnixSocket is the server for CSI drivers on the same host.
type UnixSocket struct {
	Enable  bool   `json:"enable"`
	Address string `json:"address"`
}

// Authorization of what nodes send.
type Authorization struct {
	Enable bool                `json:"enable"`
	Debug  bool                `json:"debug"`
	Modes  []AuthorizationMode `json:"modes"`
}

// AuthorizationMode is a way to decide.
type AuthorizationMode struct {
	Node Switch `json:"node"`
}

// EdgeController sends objects to the edges and their reports to the API.
type EdgeController struct {
	Enable              bool                 `json:"enable"`
	NodeUpdateFrequency int32                `json:"nodeUpdateFrequency"`
	Buffer              EdgeControllerBuffer `json:"buffer"`
	Load                EdgeControllerLoad   `json:"load"`
}

// EdgeControllerBuffer are lengths of KubeEdge's queues.
type EdgeControllerBuffer struct {
	ProcessEvent               int32 `json:"processEvent"`
	UpdatePodStatus            int32 `json:"updatePodStatus"`
	UpdateNodeStatus           int32 `json:"updateNodeStatus"`
	QueryConfigMap             int32 `json:"queryConfigMap"`
	QuerySecret                int32 `json:"querySecret"`
	QueryPersistentVolume      int32 `json:"queryPersistentVolume"`
	QueryPersistentVolumeClaim int32 `json:"queryPersistentVolumeClaim"`
	QueryVolumeAttachment      int32 `json:"queryVolumeAttachment"`
	CreateNode                 int32 `json:"createNode"`
	PatchNode                  int32 `json:"patchNode"`
	QueryNode                  int32 `json:"queryNode"`
	UpdateNode                 int32 `json:"updateNode"`
	PatchPod                   int32 `json:"patchPod"`
	DeletePod                  int32 `json:"deletePod"`
	CreatePod                  int32 `json:"createPod"`
	CreateLease                int32 `json:"createLease"`
	QueryLease                 int32 `json:"queryLease"`
	ServiceAccountToken        int32 `json:"serviceAccountToken"`
	CertificateSigningRequest  int32 `json:"certificateSigningRequest"`
	PodEvent                   int32 `json:"podEvent"`
	ConfigMapEvent             int32 `json:"configMapEvent"`
	SecretEvent                int32 `json:"secretEvent"`
	RulesEvent                 int32 `json:"rulesEvent"`
	RuleEndpointsEvent         int32 `json:"ruleEndpointsEvent"`
}

// EdgeControllerLoad are the sizes of KubeEdge's pools of workers.
type EdgeControllerLoad struct {
	UpdatePodStatusWorkers            int32 `json:"updatePodStatusWorkers"`
	UpdateNodeStatusWorkers           int32 `json:"updateNodeStatusWorkers"`
	ProcessEventWorkers               int32 `json:"processEventWorkers"`
	QueryConfigMapWorkers             int32 `json:"queryConfigMapWorkers"`
	QuerySecretWorkers                int32 `json:"querySecretWorkers"`
	QueryPersistentVolumeWorkers      int32 `json:"queryPersistentVolumeWorkers"`
	QueryPersistentVolumeClaimWorkers int32 `json:"queryPersistentVolumeClaimWorkers"`
	QueryVolumeAttachmentWorkers      int32 `json:"queryVolumeAttachmentWorkers"`
	CreateNodeWorkers                 int32 `json:"createNodeWorkers"`
	PatchNodeWorkers                  int32 `json:"patchNodeWorkers"`
	QueryNodeWorkers                  int32 `json:"queryNodeWorkers"`
	UpdateNodeWorkers                 int32 `json:"updateNodeWorkers"`
	PatchPodWorkers                   int32 `json:"patchPodWorkers"`
	DeletePodWorkers                  int32 `json:"deletePodWorkers"`
	CreatePodWorks                    int32 `json:"CreatePodWorks"`
	CreateLeaseWorkers                int32 `json:"createLeaseWorkers"`
	QueryLeaseWorkers                 int32 `json:"queryLeaseWorkers"`
	UpdateRuleStatusWorkers           int32 `json:"UpdateRuleStatusWorkers"`
	ServiceAccountTokenWorkers        int32 `json:"ServiceAccountTokenWorkers"`
	CertificateSigningRequestWorkers  int32 `json:"certificateSigningRequestWorkers"`
}

// DeviceController connects devices of the API with the nodes that they are bound to.
type DeviceController struct {
	Enable bool `json:"enable"`
	// StatusInterval is the shortest time between two writes of one device's status. KubeEdge has no such key.
	StatusInterval int32 `json:"statusInterval"`
	// StatusWritesPerNode is how many status writes a second the reports of one node may cause, with bursts of five
	// times as many. KubeEdge has no such key.
	StatusWritesPerNode int32 `json:"statusWritesPerNode"`

	Buffer DeviceControllerBuffer `json:"buffer"`
	Load   DeviceControllerLoad   `json:"load"`
}

// DeviceControllerBuffer are lengths of KubeEdge's queues.
type DeviceControllerBuffer struct {
	UpdateDeviceTwins  int32 `json:"updateDeviceTwins"`
	UpdateDeviceStatus int32 `json:"updateDeviceStatus"`
	DeviceEvent        int32 `json:"deviceEvent"`
	DeviceModelEvent   int32 `json:"deviceModelEvent"`
	DeviceStatusEvent  int32 `json:"deviceStatusEvent"`
}

// DeviceControllerLoad are the sizes of KubeEdge's pools of workers.
type DeviceControllerLoad struct {
	UpdateDeviceStatusWorkers int32 `json:"updateDeviceStatusWorkers"`
}

// TaskManager runs tasks on nodes.
type TaskManager struct {
	Enable bool              `json:"enable"`
	Buffer TaskManagerBuffer `json:"buffer"`
	Load   TaskManagerLoad   `json:"load"`
}

// TaskManagerBuffer are lengths of KubeEdge's queues.
type TaskManagerBuffer struct {
	TaskStatus int32 `json:"taskStatus"`
	TaskEvent  int32 `json:"taskEvent"`
}

// TaskManagerLoad are the sizes of KubeEdge's pools of workers.
type TaskManagerLoad struct {
	TaskWorkers int32 `json:"taskWorkers"`
}

// Values of CloudStream.Tunnel.
const (
	// TunnelAlways: every node that can open a tunnel.
	TunnelAlways = "always"
	// TunnelAuto: those whose connection does not come from an address of their own, as behind NAT.
	TunnelAuto = "auto"
	// TunnelNever: none. Callers connect to the nodes' own addresses.
	TunnelNever = "never"
)

// CloudStream carries connections to the kubelet APIs of nodes: kubectl logs, exec and the like.
type CloudStream struct {
	Enable bool `json:"enable"`
	// Tunnel is which nodes are reached through cloudcore: TunnelAlways, TunnelAuto or TunnelNever. Nodes of KubeEdge's
	// cannot be reached otherwise: they are while they have a stream tunnel, which they open at TunnelPort.
	Tunnel string `json:"tunnel"`
	// Address is the IP address at which kube-apiserver reaches this cloudcore, ListenAddress where cloudcore listens;
	// "" is the address of this host or pod, and Address. FirstPort to LastPort are the ports, one for each node.
	// KubeEdge has no such keys, and none of those below.
	Address       string `json:"address"`
	ListenAddress string `json:"listenAddress"`
	FirstPort     int32  `json:"firstPort"`
	LastPort      int32  `json:"lastPort"`
	// StreamsPerNode is how many connections a node may have at a time.
	StreamsPerNode int32 `json:"streamsPerNode"`
	// BytesPerSecondPerNode limits what is carried for a node in each direction; 0 is no limit.
	BytesPerSecondPerNode int64 `json:"bytesPerSecondPerNode"`

	TunnelPort              int32  `json:"tunnelPort"`
	StreamPort              int32  `json:"streamPort"`
	TLSTunnelCAFile         string `json:"tlsTunnelCAFile"`
	TLSTunnelCertFile       string `json:"tlsTunnelCertFile"`
	TLSTunnelPrivateKeyFile string `json:"tlsTunnelPrivateKeyFile"`
	TLSStreamCAFile         string `json:"tlsStreamCAFile"`
	TLSStreamCertFile       string `json:"tlsStreamCertFile"`
	TLSStreamPrivateKeyFile string `json:"tlsStreamPrivateKeyFile"`
}

// Router carries messages of rules.
type Router struct {
	Enable      bool   `json:"enable"`
	Address     string `json:"address"`
	Port        int32  `json:"port"`
	RestTimeout int32  `json:"restTimeout"`
}

// IPTablesManager redirects requests for nodes into the stream's tunnel.
type IPTablesManager struct {
	Enable bool   `json:"enable"`
	Mode   string `json:"mode"`
}
