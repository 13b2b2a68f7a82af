package v1alpha1

import (
	"net"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Default paths: KubeEdge's.
const (
	DefaultConfigFile  = "/etc/kubeedge/config/cloudcore.yaml"
	DefaultUnixSocket  = "unix:///var/lib/kubeedge/kubeedge.sock"
	DefaultMonitorBind = "127.0.0.1:9091"
	DefaultNodeLimit   = 500
	// defaultLookupsPerSource lets 300 devices behind one address join in two and a half minutes.
	defaultLookupsPerSource = 20

	caFile    = "/etc/kubeedge/ca/rootCA.crt"
	caKeyFile = "/etc/kubeedge/ca/rootCA.key"
	certFile  = "/etc/kubeedge/certs/server.crt"
	keyFile   = "/etc/kubeedge/certs/server.key"
	anyIPv4   = "0.0.0.0"

	// ContentTypeProtobuf and ContentTypeJSON are the encodings of kube-apiserver's answers.
	ContentTypeProtobuf = "application/vnd.kubernetes.protobuf"
	ContentTypeJSON     = "application/json"

	// requests a second that a node may cause
	qpsPerNode, burstPerNode = 5, 10
	// queue is the length of most of KubeEdge's queues.
	queue = 1024
)

// Default returns the configuration of an empty file.
func Default() *CloudCore { return defaultFor(DefaultNodeLimit) }

// defaultFor returns the defaults for a node limit: some grow with it.
func defaultFor(nodeLimit int32) *CloudCore {
	return &CloudCore{
		TypeMeta:     metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind},
		CommonConfig: CommonConfig{TunnelPort: 10350, MonitorServer: MonitorServer{BindAddress: DefaultMonitorBind}},
		KubeAPIConfig: KubeAPIConfig{
			ContentType: ContentTypeProtobuf, QPS: times(nodeLimit, qpsPerNode), Burst: times(nodeLimit, burstPerNode),
		},
		Modules: Modules{
			CloudHub: defaultCloudHub(nodeLimit),
			EdgeController: EdgeController{
				Enable:              true,
				NodeUpdateFrequency: 10,
				Buffer:              defaultBuffer(nodeLimit),
				Load:                defaultLoad(nodeLimit),
			},
			DeviceController: DeviceController{
				Enable:              true,
				StatusInterval:      1,
				StatusWritesPerNode: 20,
				Buffer: DeviceControllerBuffer{
					UpdateDeviceTwins:  queue,
					UpdateDeviceStatus: queue,
					DeviceEvent:        1,
					DeviceModelEvent:   1,
					DeviceStatusEvent:  1,
				},
				Load: DeviceControllerLoad{UpdateDeviceStatusWorkers: 1},
			},
			TaskManager: TaskManager{
				Buffer: TaskManagerBuffer{TaskStatus: queue, TaskEvent: 1}, Load: TaskManagerLoad{TaskWorkers: 1},
			},
			SyncController: Switch{Enable: true},
			CloudStream: CloudStream{
				Enable:                  true,
				Tunnel:                  TunnelAlways,
				FirstPort:               20000,
				LastPort:                29999,
				StreamsPerNode:          256,
				TunnelPort:              10004,
				StreamPort:              10003,
				TLSTunnelCAFile:         caFile,
				TLSTunnelCertFile:       certFile,
				TLSTunnelPrivateKeyFile: keyFile,
				TLSStreamCAFile:         "/etc/kubeedge/ca/streamCA.crt",
				TLSStreamCertFile:       "/etc/kubeedge/certs/stream.crt",
				TLSStreamPrivateKeyFile: "/etc/kubeedge/certs/stream.key",
			},
			Router:          Router{Address: anyIPv4, Port: 9443, RestTimeout: 60},
			IPTablesManager: IPTablesManager{Enable: true, Mode: "internal"},
		},
	}
}

func defaultCloudHub(nodeLimit int32) CloudHub {
	listen := func(enable bool, port int32) Listener { return Listener{Enable: enable, Address: anyIPv4, Port: port} }
	return CloudHub{
		Enable: true, KeepaliveInterval: 30, NodeLimit: nodeLimit, WriteTimeout: 30,
		AdvertiseAddress: []string{HostIP()}, DNSNames: []string{""},
		TLSCAFile: caFile, TLSCAKeyFile: caKeyFile, TLSCertFile: certFile, TLSPrivateKeyFile: keyFile,
		EdgeCertSigningDuration: 365, TokenRefreshDuration: 12, LookupsPerSource: defaultLookupsPerSource,
		Quic:          Quic{Listener: listen(false, 10001), MaxIncomingStreams: 10000},
		WebSocket:     listen(true, 10000),
		UnixSocket:    UnixSocket{Enable: true, Address: DefaultUnixSocket},
		HTTPS:         listen(true, 10002),
		Authorization: Authorization{Debug: true, Modes: []AuthorizationMode{{Node: Switch{Enable: true}}}},
	}
}

func defaultBuffer(nodeLimit int32) EdgeControllerBuffer {
	return EdgeControllerBuffer{
		ProcessEvent: queue, UpdatePodStatus: queue, UpdateNodeStatus: queue, QueryConfigMap: queue, QuerySecret: queue,
		QueryPersistentVolume: queue, QueryPersistentVolumeClaim: queue, QueryVolumeAttachment: queue,
		CreateNode: queue, PatchNode: plus(queue, nodeLimit/2), QueryNode: plus(queue, nodeLimit), UpdateNode: queue,
		PatchPod: queue, DeletePod: queue, CreatePod: queue, CreateLease: plus(queue, nodeLimit), QueryLease: queue,
		ServiceAccountToken: queue, CertificateSigningRequest: queue,
		PodEvent: 1, ConfigMapEvent: 1, SecretEvent: 1, RulesEvent: 1, RuleEndpointsEvent: 1,
	}
}

func defaultLoad(nodeLimit int32) EdgeControllerLoad {
	return EdgeControllerLoad{
		UpdatePodStatusWorkers:            1,
		UpdateNodeStatusWorkers:           1,
		ProcessEventWorkers:               4,
		QueryConfigMapWorkers:             100,
		QuerySecretWorkers:                100,
		QueryPersistentVolumeWorkers:      4,
		QueryPersistentVolumeClaimWorkers: 4,
		QueryVolumeAttachmentWorkers:      4,
		CreateNodeWorkers:                 100,
		PatchNodeWorkers:                  plus(100, nodeLimit/50),
		QueryNodeWorkers:                  nodeLimit,
		UpdateNodeWorkers:                 4,
		PatchPodWorkers:                   100,
		DeletePodWorkers:                  100,
		CreatePodWorks:                    4,
		CreateLeaseWorkers:                nodeLimit,
		QueryLeaseWorkers:                 100,
		UpdateRuleStatusWorkers:           4,
		ServiceAccountTokenWorkers:        100,
		CertificateSigningRequestWorkers:  4,
	}
}

const maxInt32 = 1<<31 - 1

// times and plus limit results to the range of the file's numbers.
func times(a, b int32) int32 { return int32(min(int64(a)*int64(b), maxInt32)) }
func plus(a, b int32) int32  { return int32(min(int64(a)+int64(b), maxInt32)) }

// HostIP returns the address that this host would send from, if it has a route; it sends nothing to find it.
func HostIP() string {
	for _, target := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		conn, err := net.Dial("udp", target)
		if err != nil {
			continue
		}
		defer conn.Close()
		if addr, ok := conn.LocalAddr().(*net.UDPAddr); ok && addr.IP.IsGlobalUnicast() {
			return addr.IP.String()
		}
	}
	addrs, _ := net.InterfaceAddrs() // without addresses there is none
	return chooseIP(addrs)
}

// chooseIP returns an address that others may reach, IPv4 before IPv6, or else a loopback address.
func chooseIP(addrs []net.Addr) string {
	chosen := ""
	for _, a := range addrs {
		network, ok := a.(*net.IPNet)
		switch {
		case !ok || !network.IP.IsGlobalUnicast():
		case network.IP.To4() != nil:
			return network.IP.String()
		case chosen == "":
			chosen = network.IP.String()
		}
	}
	if chosen == "" {
		return "127.0.0.1"
	}
	return chosen
}
