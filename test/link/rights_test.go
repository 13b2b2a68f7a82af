package link

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestLostRights: somebody removes cloudcore's ClusterRoleBinding, and later its RoleBinding. cloudcore is not ready
// and says why, at the default level once; it is ready again when the rights are back. Meanwhile it is alive, its
// endpoints stay in the Service, and the link carries changes to the device.
func TestLostRights(t *testing.T) {
	t.Parallel()
	c := startCluster(t, kube.Options{})
	e := startEdge(t, c, nil)
	e.apply(e.pod("one", env.Forever))
	e.running("one")
	links := e.Metric("edgecore_link_connects_total")
	e.access("[+]api-access ok")

	c.Kubectl("delete", "clusterrolebinding", "cloudcore")
	e.access("[-]api-access failed: ", "lease refused", "deploy/cloudcore/base/rbac.yaml")
	for _, path := range []string{"/healthz", readinessPath(t)} {
		if _, err := c.Cloud.Get(t.Context(), path); err != nil {
			t.Errorf("%s while rights are lost: %v, want 200", path, err)
		}
	}
	const line = "kube-apiserver refuses what cloudcore needs"
	wait.Until(t, "the log to say so", func() error { return e.errorLines(line, 1) })
	c.Kubectl("delete", "pod", "one", "-n", e.NodeName, "--wait=false")
	e.containersGone("one")

	c.Kubectl("apply", "-f", "../../deploy/cloudcore/base/rbac.yaml")
	e.access("[+]api-access ok")
	e.cloudLogs("kube-apiserver accepts again what cloudcore needs")
	e.gone("one")
	c.NodeUntil(e.NodeName, "to be Ready", env.Ready)
	if now := e.Metric("edgecore_link_connects_total"); now != links {
		t.Errorf("the device has connected %v times, want %v: the same link", now, links)
	}

	c.Kubectl("delete", "rolebinding", "cloudcore", "-n", "kubeedge")
	e.access("[-]api-access failed: ", "leases", "deploy/cloudcore/base/rbac.yaml")
	c.Kubectl("apply", "-f", "../../deploy/cloudcore/base/rbac.yaml")
	e.access("[+]api-access ok")
}

// readinessPath returns the path of the readinessProbe in the Deployment.
func readinessPath(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../deploy/cloudcore/base/deployment.yaml")
	env.Must(t, err)
	found := regexp.MustCompile(`readinessProbe:\s+httpGet: \{path: "([^"]+)"`).FindSubmatch(data)
	if found == nil {
		t.Fatal("deployment.yaml has no readinessProbe with a path, want one")
	}
	return string(found[1])
}

// access waits until one line of cloudcore's readyz has all texts.
func (e *edge) access(texts ...string) {
	e.T.Helper()
	wait.Until(e.T, "readyz with "+strings.Join(texts, ", "), func() error {
		text, err := e.cluster.Cloud.Get(e.T.Context(), "/readyz?verbose")
		if err != nil {
			text = err.Error()
		}
		for line := range strings.Lines(text) {
			if holdsAll(line, texts) {
				return nil
			}
		}
		return errors.New(text)
	})
}

func holdsAll(line string, texts []string) bool {
	for _, text := range texts {
		if !strings.Contains(line, text) {
			return false
		}
	}
	return true
}

// errorLines checks how many errors with a text cloudcore has logged.
func (e *edge) errorLines(text string, want int) error {
	data, err := os.ReadFile(e.cluster.Cloud.Log())
	if err != nil {
		return err
	}
	got := 0
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "E") && strings.Contains(line, text) {
			got++
		}
	}
	if got != want {
		return fmt.Errorf("%d errors with %q, want %d", got, text, want)
	}
	return nil
}
