package nodeidentity

import (
	"crypto/x509"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// elsewhere is a hub without sessions, as where a node has its link at another cloudcore.
type elsewhere struct{ rechecked []string }

func (*elsewhere) Certificate(string) *x509.Certificate { return nil }
func (*elsewhere) Disconnect(string, string)            {}
func (*elsewhere) Source(string) netip.Prefix           { return netip.Prefix{} }
func (e *elsewhere) RecheckNode(node string)            { e.rechecked = append(e.rechecked, node) }

// TestChangedNodeIsRechecked: a connection for the API may be here without the node's session, so a changed Node is
// rechecked in any case.
func TestChangedNodeIsRechecked(t *testing.T) {
	hub := &elsewhere{}
	g := New(Options{})
	g.SetHub(hub)
	g.NodeChanged(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	if want := []string{"n1"}; !slices.Equal(hub.rechecked, want) {
		t.Errorf("rechecked %v, want %v", hub.rechecked, want)
	}
}
