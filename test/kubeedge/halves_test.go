package kubeedge

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestTheirEdge: KubeEdge's edgecore is a node of our cloudcore.
func TestTheirEdge(t *testing.T) {
	each(t, func(t *testing.T, version string) {
		f := newFixture(t, version)
		c, token := f.startCloud(nil)
		f.stream = c.Stream
		edge := f.joinTheirs(token, c.Link, c.Bootstrap)
		wait.Until(f.t, "the node is Ready", f.nodeReady)
		f.podLifecycle()
		f.verbs(true, true)
		f.strangers()

		f.restarts(
			func() error { return errors.Join(c.Kill9(t.Context()), c.Start(t.Context())) },
			func() error { return errors.Join(edge.Kill9(t.Context()), edge.Start()) },
		)
		f.verbs(true, true)
		f.end()
	})
}

// TestTheirCloud: our edgecore is a node of KubeEdge's cloudcore.
func TestTheirCloud(t *testing.T) {
	each(t, func(t *testing.T, version string) {
		f := newFixture(t, version)
		c, token := f.startTheirCloud()
		edge := testenv.StartAgent(t, f.ctrd, agent.Options{
			Binary:   built.Edge,
			NodeName: node,
			Kubelet:  map[string]any{"nodeStatusUpdateFrequency": "2s", "syncFrequency": "5s"},
			EdgeHub: map[string]any{
				"enable": true, "token": token, "httpServer": "https://127.0.0.1:" + strconv.Itoa(c.Bootstrap),
				"websocket": map[string]any{"enable": true, "server": "127.0.0.1:" + strconv.Itoa(c.Link)},
			},
			EdgeStream: map[string]any{"enable": true, "server": "127.0.0.1:" + strconv.Itoa(c.Stream)},
		})
		wait.Until(f.t, "the node is Ready", f.nodeReady)
		f.podLifecycle()
		f.verbs(version != "1.12", false)

		f.restarts(
			func() error {
				if err := c.Stop(t.Context()); err != nil {
					return err
				}
				_, err := c.Start(t.Context())
				return err
			},
			func() error { return errors.Join(edge.Kill9(t.Context()), edge.Start(t.Context())) },
		)
		f.end()
	})
}

// TestCloudFirst: cloudcore takes the place of KubeEdge's, and the edges and their pods go on without a new
// certificate.
func TestCloudFirst(t *testing.T) {
	each(t, func(t *testing.T, version string) {
		f := newFixture(t, version)
		before, token := f.startTheirCloud()
		f.joinTheirs(token, before.Link, before.Bootstrap)
		wait.Until(f.t, "the node is Ready", f.nodeReady)
		f.apply(full("web"))
		wait.Until(f.t, "the pod is ready", f.is("web", true))
		run := f.containers()
		env.Must(f.t, before.Stop(t.Context()))

		at := func(port int) map[string]any {
			return map[string]any{"enable": true, "address": "127.0.0.1", "port": port}
		}
		// The certificate of 1.12 names no node.
		f.startCloud(map[string]any{
			"websocket": at(before.Link), "https": at(before.Bootstrap), "legacyCertificates": version == "1.12",
		})
		env.Must(f.t, f.sees("web", "touch /scratch/unready", "")())
		wait.Until(f.t, "a status arrives", f.is("web", false))
		f.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {key: second}}`)
		wait.Until(f.t, "a change arrives", f.sees("web", "cat /conf/key", "second"))
		if now := f.containers(); !maps.Equal(run, now) {
			t.Errorf("containers = %v, want %v as before", now, run)
		}
		f.end()
	})
}

// podLifecycle is a pod's until it runs and has seen a change.
func (f *fixture) podLifecycle() {
	f.t.Helper()
	f.apply(full("web"))
	wait.Until(f.t, "the pod is ready", f.is("web", true))
	env.Must(f.t,
		f.sees("web",
			`cat /conf/key /sec/key; echo " $FROM"; test -s /var/run/secrets/kubernetes.io/serviceaccount/token`,
			"firsthidden first")())
	env.Must(f.t, f.sees("web", "touch /scratch/unready", "")())
	wait.Until(f.t, "it is not ready any more", f.is("web", false))
	env.Must(f.t, f.sees("web", "rm /scratch/unready", "")())
	wait.Until(f.t, "it is ready again", f.is("web", true))
	f.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {key: second}}`)
	wait.Until(f.t, "the change of a configmap arrives", f.sees("web", "cat /conf/key", "second"))
	// KubeEdge's edge makes its lease 10 s after it has registered, if it was too early at first.
	var first *metav1.MicroTime
	wait.Until(f.t, "the lease is renewed", func() error {
		now, err := f.api.CoordinationV1().Leases("kube-node-lease").Get(f.t.Context(), node, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case first == nil:
			first = now.Spec.RenewTime
		}
		if !now.Spec.RenewTime.After(first.Time) {
			return fmt.Errorf("it is of %v", now.Spec.RenewTime)
		}
		return nil
	})
	if f.version == "1.12" {
		return // neither its edge nor its cloud has events
	}
	wait.Until(f.t, "events arrive", func() error {
		events, err := f.api.CoreV1().Events("default").List(f.t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.name=web"})
		if err != nil {
			return err
		}
		var reasons []string
		for _, e := range events.Items {
			if e.Reason == "Started" {
				return nil
			}
			reasons = append(reasons, e.Reason)
		}
		return fmt.Errorf("there are [%s], want Started", strings.Join(reasons, " "))
	})
}

// restarts ends either program and starts it again: what the other says arrives, and no container is touched.
func (f *fixture) restarts(cloud, edge func() error) {
	f.t.Helper()
	before := f.containers()
	env.Must(f.t, cloud())
	f.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {key: third}}`)
	wait.Until(f.t, "after cloudcore ended, a change arrives", f.sees("web", "cat /conf/key", "third"))
	env.Must(f.t, edge())
	env.Must(f.t, f.sees("web", "touch /scratch/unready", "")())
	wait.Until(f.t, "after edgecore ended, a status arrives", f.is("web", false))
	if after := f.containers(); !maps.Equal(before, after) {
		f.t.Errorf("containers = %v, want %v as before", after, before)
	}
}

// end deletes the pod, and waits until it is gone in the API and on the node.
func (f *fixture) end() {
	f.t.Helper()
	env.Must(f.t, f.api.CoreV1().Pods("default").Delete(f.t.Context(), "web", metav1.DeleteOptions{}))
	f.gone("web")
	wait.Until(f.t, "its container is gone", func() error {
		if left := f.containers(); len(left) != 0 {
			return fmt.Errorf("containers %v are left, want none", left)
		}
		return nil
	})
}
