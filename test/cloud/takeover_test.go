package cloud

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudstream"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/replicas"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// replica is a cloudcore with ports for nodes.
type replica struct {
	ctl      *edgecontroller.Controller
	replicas *replicas.Replicas
	stop     func()
}

// replica starts a cloudcore that callers reach at an address.
func (c *cloud) replica(address string, firstPort int) *replica {
	c.t.Helper()
	clients, err := impersonate.New(c.config, c.how)
	if err != nil {
		c.t.Fatal(err)
	}
	ctl, err := edgecontroller.New(edgecontroller.Options{Clients: clients, LocalIP: address})
	if err != nil {
		c.t.Fatal(err)
	}
	stream, err := cloudstream.New(cloudstream.Options{
		Address: netip.MustParseAddr(address), FirstPort: int32(firstPort), LastPort: int32(firstPort + 9),
		Previous: func(node string) int32 { return ctl.Endpoints.TunnelPort(node, address) },
		Send:     func(string, *model.Message) bool { return false },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctl.Endpoints.SetTunnels(stream)
	own, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	r := &replica{ctl: ctl, replicas: replicas.New(own.CoordinationV1().Leases("kubeedge"), address)}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.replicas.Run(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		stream.Close()
		ctl.Wait()
		clients.Close()
	})
	c.t.Cleanup(r.stop)
	if err := ctl.Start(ctx, newHub()); err != nil {
		c.t.Fatal(err)
	}
	wait.Until(c.t, "the lease of "+address, func() error {
		_, err := r.replicas.Dead(c.t.Context(), nil)
		return err
	})
	return r
}

// gone runs a cloudcore that callers reach at an address, without nodes, and stops it.
func (c *cloud) gone(address string) {
	c.t.Helper()
	own, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	leases := own.CoordinationV1().Leases("kubeedge")
	r := replicas.New(leases, address)
	ctx, cancel := context.WithCancel(c.t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	wait.Until(c.t, "the lease of "+address, func() error {
		_, err := r.Dead(ctx, nil)
		return err
	})
	cancel()
	running.Wait()
	lease, err := leases.Get(c.t.Context(), "cloudcore-"+strings.ReplaceAll(address, ".", "-"), metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity != nil {
		c.t.Fatalf("the lease of %s, which has stopped: %v, holder %v; want none", address, err,
			lease.Spec.HolderIdentity)
	}
}

// takeOver has a replica look for nodes to take over, and checks how many it finds.
func (c *cloud) takeOver(r *replica, want int) {
	c.t.Helper()
	if got, err := r.ctl.Endpoints.TakeOverNow(c.t.Context(), r.replicas); got != want || err != nil {
		c.t.Errorf("TakeOverNow = %d, %v; want %d", got, err, want)
	}
}

// node makes the Node of a device with an endpoint, and with the condition Ready.
func (c *cloud) node(name, address string, port int, ready v1.ConditionStatus) {
	c.t.Helper()
	node := edgeNode(name)
	delete(node.Labels, "node-role.kubernetes.io/control-plane")
	node, err := c.admin.CoreV1().Nodes().Create(c.t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	node.Status.Addresses = []v1.NodeAddress{
		{Type: v1.NodeInternalIP, Address: address}, {Type: v1.NodeInternalIP, Address: "10.0.0.7"},
		{Type: v1.NodeHostName, Address: name},
	}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	since := metav1.NewTime(time.Date(2026, 11, 25, 15, 22, 22, 0, time.UTC))
	node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: ready, LastTransitionTime: since}}
	if _, err := c.admin.CoreV1().Nodes().UpdateStatus(c.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// endpoint waits until a replica's caches have a node with an endpoint at an address, and returns the Node.
func (c *cloud) endpoint(r *replica, name, address string) *v1.Node {
	c.t.Helper()
	wait.Until(c.t, "the endpoint of "+name, func() error {
		if r.ctl.Endpoints.TunnelPort(name, address) == 0 {
			return errors.New("the cache has another one")
		}
		return nil
	})
	node, err := c.admin.CoreV1().Nodes().Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return node
}

// TestTakeOver: offline nodes of a cloudcore that has stopped get the endpoint of another cloudcore, once, and their
// callers are told that they are offline. Nodes of a cloudcore that is alive, or of which nothing is known yet, keep
// their endpoints, and so do nodes that are not offline. Offline nodes whose ports are not in the range any longer get
// others.
func TestTakeOver(t *testing.T) {
	c := start(t, kube.Options{}, "base/rbac.yaml")
	wait.Until(t, "cloudcore may act for nodes", func() (err error) {
		c.how, err = impersonate.Choose(t.Context(), c.config)
		return err
	})
	port, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	const gone, unknown = "192.0.2.1", "192.0.2.9"
	c.gone(gone)
	c.node("unknown", unknown, port+2, v1.ConditionUnknown)
	c.node("orphan", gone, port+3, v1.ConditionUnknown)
	const outside = 10 // the range has 10 ports
	c.node("larger", gone, port+outside, v1.ConditionUnknown)
	c.node("smaller", "127.0.0.1", port+outside, v1.ConditionUnknown)
	c.node("online", gone, port+4, v1.ConditionTrue)
	c.node("direct", gone, 10250, v1.ConditionUnknown)
	first, second := c.replica("127.0.0.1", port), c.replica("127.0.0.2", port)
	for _, r := range []*replica{first, second} {
		c.endpoint(r, "orphan", gone)
	}
	versions := map[string]string{"unknown": c.endpoint(first, "unknown", unknown).ResourceVersion}
	for _, name := range []string{"online", "direct"} {
		versions[name] = c.endpoint(first, name, gone).ResourceVersion
	}
	c.endpoint(first, "larger", gone)
	c.endpoint(first, "smaller", "127.0.0.1")
	c.takeOver(first, 3)
	for _, name := range []string{"larger", "smaller"} {
		for _, r := range []*replica{first, second} {
			wait.Until(t, "the port of "+name, func() error {
				if at := r.ctl.Endpoints.TunnelPort(name, "127.0.0.1"); at < int32(port) || at >= int32(port+outside) {
					return fmt.Errorf("it is %d at 127.0.0.1, want one in the range from %d", at, port)
				}
				return nil
			})
		}
		at := int(first.ctl.Endpoints.TunnelPort(name, "127.0.0.1"))
		c.told("127.0.0.1", at, "node "+name+" is offline since 2026-11-25T15:22:22Z")
	}
	node := c.endpoint(second, "orphan", "127.0.0.1")
	want := []v1.NodeAddress{
		{Type: v1.NodeInternalIP, Address: "127.0.0.1"}, {Type: v1.NodeInternalIP, Address: "10.0.0.7"},
		{Type: v1.NodeHostName, Address: "orphan"},
	}
	at := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	if got := node.Status.Addresses; fmt.Sprint(got) != fmt.Sprint(want) || at != int32(port+3) {
		t.Errorf("addresses %v, port %d; want %v, %d", got, at, want, port+3)
	}
	c.told("127.0.0.1", port+3, "node orphan is offline since 2026-11-25T15:22:22Z")

	// Nobody does anything more.
	c.endpoint(first, "orphan", "127.0.0.1")
	versions["orphan"] = node.ResourceVersion
	for range 3 {
		c.takeOver(first, 0)
		c.takeOver(second, 0)
	}
	for name, version := range versions {
		node, err := c.admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || node.ResourceVersion != version {
			t.Errorf("%s: %v, its Node has changed, want it left alone", name, err)
		}
	}

	// The next one that goes leaves its nodes to the one that stays.
	first.stop()
	c.takeOver(second, 3)
	c.endpoint(second, "orphan", "127.0.0.2")
	c.told("127.0.0.2", port+3, "node orphan is offline since 2026-11-25T15:22:22Z")
}

// TestTakeOverRace: if two cloudcores see the same offline Node, one of them takes it over.
func TestTakeOverRace(t *testing.T) {
	c := start(t, kube.Options{}, "base/rbac.yaml")
	wait.Until(t, "cloudcore may act for nodes", func() (err error) {
		c.how, err = impersonate.Choose(t.Context(), c.config)
		return err
	})
	port, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	const nodes, gone = 10, "192.0.2.1"
	c.gone(gone)
	both := []*replica{c.replica("127.0.0.1", port), c.replica("127.0.0.2", port)}
	for i := range nodes {
		name := fmt.Sprintf("edge-%d", i)
		c.node(name, gone, port+i, v1.ConditionUnknown)
		for _, r := range both {
			c.endpoint(r, name, gone)
		}
	}
	var racing sync.WaitGroup
	taken := make([]int, len(both))
	for i, r := range both {
		racing.Go(func() {
			for { // until its cache has what both have done
				n, err := r.ctl.Endpoints.TakeOverNow(t.Context(), r.replicas)
				if err != nil {
					t.Errorf("TakeOverNow: %v, want no error", err)
				}
				taken[i] += n
				left := 0
				for i := range nodes {
					if r.ctl.Endpoints.TunnelPort(fmt.Sprintf("edge-%d", i), gone) != 0 {
						left++
					}
				}
				if left == 0 || err != nil {
					return
				}
			}
		})
	}
	racing.Wait()
	if taken[0]+taken[1] != nodes {
		t.Errorf("the replicas have taken over %v, want %d nodes, each once", taken, nodes)
	}
}

// told checks what callers of a port are told.
func (c *cloud) told(address string, port int, want string) {
	c.t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get(fmt.Sprintf("https://%s:%d/", address, port))
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(text), want) {
		c.t.Errorf("callers are told %q, %v; want %q", text, err, want)
	}
}
