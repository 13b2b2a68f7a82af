package cloudhub

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestStaleStatus: a KubeEdge edgecore gets a pod again whose status changes soon after the pod was sent, and so in the
// end has the status that the API has. Others do not.
func TestStaleStatus(t *testing.T) {
	t.Parallel()
	const pod = "default/pod/web"
	tests := map[string]struct {
		ours, acksLate bool
		after          time.Duration
		want           bool
	}{
		"soon":             {after: time.Second, want: true},
		"before it stores": {acksLate: true, after: time.Second, want: true},
		"much later":       {after: staleWindow + time.Second},
		"ours":             {ours: true, after: time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := startInMemory(t, nil)
				e := newEdge(t, "n1")
				if test.ours {
					e.dialOurs(c)
				} else {
					e.dialUpstream(c)
				}
				settled(t, c, e)
				e.setMute(test.acksLate)
				c.cluster.set("n1", pod, "u-web", "a")
				wait.True(t, "the pod to be sent", func() bool { return e.received(pod) > 0 })
				time.Sleep(test.after)
				version := c.cluster.status("n1", pod)
				time.Sleep(time.Second)
				e.setMute(false)
				settled(t, c, e)
				if got := e.version(pod) == version; got != test.want {
					t.Errorf("the node has the newest status: %v, want %v", got, test.want)
				}
				key, _ := resource.Parse(pod)
				sent := e.received(pod)
				c.hub.StatusChanged("n1", key) // says nothing new
				time.Sleep(time.Second)
				if now := e.received(pod); now != sent {
					t.Errorf("the pod was sent %d times without a change, want none", now-sent)
				}
				c.cluster.remove("n1", pod)
				c.hub.Holds("n1", resource.Key{Namespace: "default", Type: "pod", Name: "invented"}, "u")
				settled(t, c, e)
				s := c.hub.session("n1")
				s.mu.Lock()
				defer s.mu.Unlock()
				if len(s.podsSent) > 0 {
					t.Errorf("cloudcore remembers when it sent %v, want nothing of pods that are gone", s.podsSent)
				}
			})
		})
	}
}
