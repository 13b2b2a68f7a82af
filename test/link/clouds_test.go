package link

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv/cloud"
)

// TestTwoCloudcores: two of them serve one cluster with one CA. The edge moves from one to the other, and nothing
// restarts, nothing is sent again, and what is new arrives.
func TestTwoCloudcores(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.apply(confAndKey)
	s.apply(full("one"))
	s.until("it runs", s.running("one"))
	before := s.lives()
	second, err := cloud.New(cloud.Options{Binary: built.Cloud, Dir: filepath.Join(t.TempDir(), "second"), Kubeconfig: s.cloud.Kubeconfig})
	s.must(err)
	s.must(second.Start(t.Context()))
	defer func() { s.must(second.Stop(t.Context())) }()
	for round, c := range []*cloud.Cloud{second, s.cloud, second} {
		s.cable.Retarget(net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Link)))
		name := fmt.Sprintf("new-%d", round)
		s.apply(full(name))
		s.until("a new pod runs", s.running(name))
	}
	// The first one ends for good; the API's view is kept by the second.
	s.must(s.cloud.Stop(t.Context()))
	s.must(s.api.CoreV1().Pods("default").Delete(t.Context(), "new-0", metav1.DeleteOptions{}))
	s.until("a deleted pod is gone", s.gone("new-0"))
	s.until("the node is Ready", s.nodeReady)
	after := s.lives()
	for id, at := range before {
		if after[id] != at {
			t.Error("to change the cloudcore restarted a container")
		}
	}
}
