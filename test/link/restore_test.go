package link

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestRestoredEtcd: etcd is restored from a backup, so that resource versions begin again at a lower number. The node
// gets the state of the backup, and every change after it, while what the node has is of a higher version. Pods that
// were the same before and after are not restarted. Where a watch of cloudcore goes on as if nothing had happened,
// cloudcore notices that itself and ends; the test starts it again, as its Deployment does.
func TestRestoredEtcd(t *testing.T) {
	t.Parallel()
	c := startCluster(t, kube.Options{})
	e := startEdge(t, c, nil)
	e.apply(confAndKey, e.full("stays"), e.full("deleted"))
	e.running("stays", "deleted")
	wait.Until(t, "all objects to be acknowledged", e.settled)
	before := e.stays()
	backup := filepath.Join(t.TempDir(), "etcd")
	env.Must(t, c.Kube.Backup(t.Context(), backup))

	// What the backup does not have: a configmap of now, a pod that was deleted, a pod that is new.
	for n := range 30 { // versions that the restored cluster does not reach in this test
		e.apply(confAndKey, strings.Replace(confAndKey, "a: one", fmt.Sprintf("a: later-%d", n), 1))
	}
	e.delete("deleted", 1)
	e.gone("deleted")
	e.apply(e.full("new"))
	e.running("new")
	e.confInPod("later-29")

	env.Must(t, c.Kube.Restore(t.Context(), backup))
	e.confInPod("one")
	e.running("stays", "deleted")
	e.containersGone("new")
	e.apply(strings.Replace(confAndKey, "a: one", "a: three", 1))
	e.confInPod("three")
	e.unchanged(before, "a restore of etcd")
	wait.Until(t, "the API server, the store and the runtime to agree", e.agree)
}

// stays returns when the containers of the pod "stays" started, by their ids.
func (e *edge) stays() map[string]int64 {
	e.T.Helper()
	p := e.cluster.PodUntil(e.NodeName, "stays", "to be there", func(*v1.Pod) error { return nil })
	id := containerID(p)
	return map[string]int64{id: e.RunningContainers()[id]}
}

// confInPod waits until the configmap that the pod "stays" has mounted says a text.
func (e *edge) confInPod(want string) {
	e.T.Helper()
	wait.Until(e.T, "the configmap in the pod to say "+want, func() error {
		if e.cluster.Cloud.PID() == 0 {
			e.cloudLogs("went back from")
			env.Must(e.T, e.cluster.Cloud.Start(e.T.Context()))
		}
		out, err := e.ExecIn("stays", "cat", "/conf/a")
		if err == nil && out != want {
			c, _ := e.cluster.API.CoreV1().ConfigMaps(e.NodeName).Get(e.T.Context(), "conf", metav1.GetOptions{})
			err = fmt.Errorf("it is %q, want %q; resourceVersion at the API server %s", out, want,
				c.GetResourceVersion())
		}
		return err
	})
}
