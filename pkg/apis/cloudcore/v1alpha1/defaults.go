package v1alpha1

import (
	"math"
	"net"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/apis/strict/keytable"
)

// Default paths: KubeEdge's.
const (
	DefaultConfigFile  = "/etc/kubeedge/config/cloudcore.yaml"
	DefaultUnixSocket  = "unix:///var/lib/kubeedge/kubeedge.sock"
	DefaultMonitorBind = "127.0.0.1:9091"
	DefaultNodeLimit   = 500

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
	c := &CloudCore{TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind}}
	(&table{keytable.Table{Pass: keytable.SetDefaults}}).keys(c, nodeLimit)
	return c
}

// times and plus limit results to the range of the file's numbers.
func times(a, b int32) int32 { return int32(min(int64(a)*int64(b), math.MaxInt32)) }
func plus(a, b int32) int32  { return int32(min(int64(a)+int64(b), math.MaxInt32)) }

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
