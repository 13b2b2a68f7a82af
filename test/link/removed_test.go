package link

import (
	"path/filepath"
	"strings"
	"testing"

	manifests "github.com/edgecore-io/edgecore/deploy/cloudcore"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// TestRemoved: an operator removes cloudcore with kubectl delete -k while a device is connected, and applies it again.
// cloudcore comes back with the same CA and Devices, and the device connects by itself, with the certificate that it
// has. Its containers run on.
func TestRemoved(t *testing.T) {
	t.Parallel()
	c := startCluster(t, kube.Options{})
	e := startEdge(t, c, nil)
	e.apply(deviceModel, e.device("one"), e.pod("one", env.Forever))
	e.running("one")
	overlay := filepath.Join("..", "..", "deploy", "cloudcore", manifests.HostNetwork)
	uid := func() string {
		t.Helper()
		return c.Kubectl("-n", e.NodeName, "get", "device", "one", "-o", "jsonpath={.metadata.uid}")
	}
	ca := func() string { // a token begins with the hash of the CA
		t.Helper()
		token, err := c.Cloud.Token(t.Context())
		env.Must(t, err)
		hash, _, _ := strings.Cut(token, ".")
		return hash
	}
	c.Kubectl("apply", "-k", overlay)
	device, hash, containers := uid(), ca(), e.RunningContainers()

	c.Kubectl("delete", "-k", overlay)
	c.StopCloud()
	if got := uid(); got != device {
		t.Errorf("the Device's UID is %q after delete -k, want still %q", got, device)
	}

	c.Kubectl("apply", "-k", overlay)
	_, err := c.Kube.AddServiceAccount(t.Context(), "kubeedge", "cloudcore") // the file that cloudcore reads
	env.Must(t, err)
	env.Must(t, c.Cloud.Start(t.Context()))
	if got := ca(); got != hash || hash == "" {
		t.Errorf("the CA's hash is %q, want still %q", got, hash)
	}
	e.apply(e.pod("two", env.Forever))
	e.running("two")
	if got := uid(); got != device {
		t.Errorf("the Device's UID is %q, want still %q", got, device)
	}
	e.unchanged(containers, "cloudcore was removed and installed again")
}
