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
)

// TestTheirEdge: KubeEdge's edgecore is a node of our cloudcore.
func TestTheirEdge(t *testing.T) {
	each(t, func(t *testing.T, version string) {
		s := newSite(t, version)
		c, token := s.startCloud(nil)
		edge := s.joinTheirs(token, c.Link, c.Bootstrap)
		s.until("the node is Ready", s.nodeReady)
		s.life()

		s.restarts(
			func() error { return errors.Join(c.Kill9(t.Context()), c.Start(t.Context())) },
			func() error { return errors.Join(edge.Kill9(t.Context()), edge.Start()) },
		)
		s.end()
	})
}

// TestTheirCloud: our edgecore is a node of KubeEdge's cloudcore.
func TestTheirCloud(t *testing.T) {
	each(t, func(t *testing.T, version string) {
		s := newSite(t, version)
		c, token := s.startTheirCloud()
		edge := testenv.StartAgent(t, s.ctrd, agent.Options{
			Binary: built.Edge, NodeName: node, Kubelet: map[string]any{"nodeStatusUpdateFrequency": "2s", "syncFrequency": "5s"},
			EdgeHub: map[string]any{
				"enable": true, "token": token, "httpServer": "https://127.0.0.1:" + strconv.Itoa(c.Bootstrap),
				"websocket": map[string]any{"enable": true, "server": "127.0.0.1:" + strconv.Itoa(c.Link)},
			},
		})
		s.until("the node is Ready", s.nodeReady)
		s.life()

		s.restarts(
			func() error {
				if err := c.Stop(t.Context()); err != nil {
					return err
				}
				_, err := c.Start(t.Context())
				return err
			},
			func() error { return errors.Join(edge.Kill9(t.Context()), edge.Start(t.Context())) },
		)
		s.end()
	})
}

// TestCloudFirst: cloudcore takes the place of KubeEdge's, and the edges and their pods go on without a new certificate.
func TestCloudFirst(t *testing.T) {
	each(t, func(t *testing.T, version string) {
		s := newSite(t, version)
		before, token := s.startTheirCloud()
		s.joinTheirs(token, before.Link, before.Bootstrap)
		s.until("the node is Ready", s.nodeReady)
		s.apply(full("web"))
		s.until("the pod is ready", s.is("web", true))
		run := s.containers()
		s.must(before.Stop(t.Context()))

		at := func(port int) map[string]any {
			return map[string]any{"enable": true, "address": "127.0.0.1", "port": port}
		}
		// The certificate of 1.12 names no node.
		s.startCloud(map[string]any{"websocket": at(before.Link), "https": at(before.Bootstrap), "legacyCertificates": version == "1.12"})
		s.must(s.sees("web", "touch /scratch/unready", "")())
		s.until("a status arrives", s.is("web", false))
		s.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {key: second}}`)
		s.until("a change arrives", s.sees("web", "cat /conf/key", "second"))
		if now := s.containers(); !maps.Equal(run, now) {
			t.Errorf("containers %v, before %v", now, run)
		}
		s.end()
	})
}

// life is a pod's until it runs and has seen a change.
func (s *site) life() {
	s.t.Helper()
	s.apply(full("web"))
	s.until("the pod is ready", s.is("web", true))
	s.must(s.sees("web", `cat /conf/key /sec/key; echo " $FROM"; test -s /var/run/secrets/kubernetes.io/serviceaccount/token`, "firsthidden first")())
	s.must(s.sees("web", "touch /scratch/unready", "")())
	s.until("it is not ready any more", s.is("web", false))
	s.must(s.sees("web", "rm /scratch/unready", "")())
	s.until("it is ready again", s.is("web", true))
	s.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {key: second}}`)
	s.until("the change of a configmap arrives", s.sees("web", "cat /conf/key", "second"))
	lease, err := s.api.CoordinationV1().Leases("kube-node-lease").Get(s.t.Context(), node, metav1.GetOptions{})
	s.must(err)
	s.until("the lease is renewed", func() error {
		now, err := s.api.CoordinationV1().Leases("kube-node-lease").Get(s.t.Context(), node, metav1.GetOptions{})
		if err == nil && !now.Spec.RenewTime.After(lease.Spec.RenewTime.Time) {
			err = fmt.Errorf("it is of %v", now.Spec.RenewTime)
		}
		return err
	})
	if s.version == "1.12" {
		return // neither its edge nor its cloud has events
	}
	s.until("events arrive", func() error {
		events, err := s.api.CoreV1().Events("default").List(s.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=web"})
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
		return fmt.Errorf("there are [%s]", strings.Join(reasons, " "))
	})
}

// restarts ends either program and starts it again: what the other says arrives, and no container is touched.
func (s *site) restarts(cloud, edge func() error) {
	s.t.Helper()
	before := s.containers()
	s.must(cloud())
	s.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {key: third}}`)
	s.until("after cloudcore ended, a change arrives", s.sees("web", "cat /conf/key", "third"))
	s.must(edge())
	s.must(s.sees("web", "touch /scratch/unready", "")())
	s.until("after edgecore ended, a status arrives", s.is("web", false))
	if after := s.containers(); !maps.Equal(before, after) {
		s.t.Errorf("containers %v, before %v", after, before)
	}
}

// end deletes the pod, and waits until it is gone in the API and on the node.
func (s *site) end() {
	s.t.Helper()
	s.must(s.api.CoreV1().Pods("default").Delete(s.t.Context(), "web", metav1.DeleteOptions{}))
	s.until("the deleted pod is gone", s.gone("web"))
	s.until("its container is gone", func() error {
		if left := s.containers(); len(left) != 0 {
			return fmt.Errorf("containers %v", left)
		}
		return nil
	})
}
