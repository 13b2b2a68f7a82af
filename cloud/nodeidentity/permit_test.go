package nodeidentity

import (
	"context"
	"crypto/x509"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
)

// noNodes is an API server without Nodes that counts the lookups.
type noNodes struct {
	API
	lookups int
}

func (n *noNodes) Get(_ context.Context, name string, _ metav1.GetOptions) (*v1.Node, error) {
	n.lookups++
	return nil, apierrors.NewNotFound(v1.Resource("nodes"), name)
}

// noCertificates is a hub whose nodes are all at one address.
type noCertificates struct{ Hub }

func (noCertificates) Certificate(string) *x509.Certificate { return nil }
func (noCertificates) Source(string) netip.Prefix           { return netip.MustParsePrefix("192.0.2.1/32") }

// waiting is a controller that lets requests wait before it asks again whether they may be carried out.
type waiting struct {
	cloudhub.Upstream
	guard *Guard
	pause time.Duration
}

func (w *waiting) Handle(ctx context.Context, node string, m *model.Message) *model.Message {
	time.Sleep(w.pause)
	if w.guard.Permit(ctx, node) != nil {
		return nil
	}
	return m
}

// TestPermitOnce: one lookup is enough for a request of an unregistered node that is carried out soon; another request,
// and one that has waited, need another.
func TestPermitOnce(t *testing.T) {
	for name, c := range map[string]struct {
		waits time.Duration
		want  int
	}{
		"soon":  {permitFor - 1, 2},
		"later": {permitFor, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := &noNodes{}
				guard := New(Options{Edge: func(string) *v1.Node { return nil }, Nodes: nodes})
				guard.SetHub(noCertificates{})
				upstream := guard.Upstream(&waiting{guard: guard, pause: c.waits})
				for range 2 {
					if upstream.Handle(t.Context(), "edge1", &model.Message{}) == nil {
						t.Error("the request is refused, want it carried out")
					}
				}
				if nodes.lookups != c.want {
					t.Errorf("%d lookups for two requests, want %d", nodes.lookups, c.want)
				}
			})
		})
	}
}
