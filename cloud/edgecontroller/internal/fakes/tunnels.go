package fakes

import (
	"errors"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Ports are tunnels with the ports from 20000 to 20009.
type Ports struct{}

// Endpoint says that no node is connected here.
func (Ports) Endpoint(string, []netip.Addr) (string, int32, bool) { return "", 0, false }

// Restore does nothing.
func (Ports) Restore(string, time.Time) {}

// NodeChanged does nothing.
func (Ports) NodeChanged(string) {}

// Adopt refuses.
func (Ports) Adopt(string, int32, time.Time) (string, int32, error) {
	return "", 0, errors.New("no ports")
}

// Port reports whether a port is in the range.
func (Ports) Port(port int32) bool { return port >= 20000 && port < 20010 }

// NodeAt returns a Node with addresses and the port of its kubelet.
func NodeAt(port int32, addresses ...string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "e"}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
	}
	n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: "e"})
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	return n
}
