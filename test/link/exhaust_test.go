package link

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-yamux/v5"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/bench/load"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestOneNodeExhaustsNothing: one hostile node, and somebody who reaches cloudcore's ports, try to exhaust the memory
// of a cloudcore with the limit of the Deployment, 1 GiB, on a real kube-apiserver, and to overload that API server.
// cloudcore lives on, and serves another node.
func TestOneNodeExhaustsNothing(t *testing.T) {
	cgroup := memoryCgroup(t, 1<<30)
	c := env.StartCluster(t, &programs.Set{Edge: built.Edge, Cloud: inCgroup(t, cgroup)}, env.ClusterOptions{
		Hub:     map[string]any{"nodeLimit": 1000},
		Modules: map[string]any{"cloudStream": map[string]any{"address": "127.0.0.1"}},
	})
	issuer, err := load.NewIssuer(t.Context(), c.API)
	env.Must(t, err)
	a := &attack{t: t, Cluster: c, issuer: issuer, cgroup: cgroup, pid: c.Cloud.PID()}
	a.honest()
	for _, part := range []struct {
		name string
		run  func()
	}{
		{"at rest", func() {}},
		{"silent connections", a.silent},
		{"unread streams", a.unread},
		{"reports of 400 devices", a.reports},
		{"20 reconnects a second", a.reconnects},
	} {
		part.run()
		if pid := c.Cloud.PID(); pid != a.pid {
			t.Fatalf("%s: cloudcore has ended (process %d, was %d)", part.name, pid, a.pid)
		}
		a.served(part.name)
		t.Logf("%s: at most %d MiB of memory so far", part.name, a.peak()>>20)
	}
}

// attack is the hostile node and what it attacks.
type attack struct {
	*env.Cluster
	t      *testing.T
	issuer *load.Issuer
	cgroup string
	pid    int
	// arrived are the names of what the honest node got.
	mu      sync.Mutex
	arrived map[string]bool
}

// memoryCgroup makes a memory cgroup with a limit, of v1 or v2, which is removed when the test ends.
func memoryCgroup(t *testing.T, limit int64) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	env.Must(t, err)
	parent, file := "", ""
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) < 3:
		case parts[1] == "memory":
			parent, file = filepath.Join("/sys/fs/cgroup/memory", parts[2]), "memory.limit_in_bytes"
		case parts[1] == "" && parent == "":
			parent, file = "/sys/fs/cgroup", "memory.max"
		}
	}
	dir, err := os.MkdirTemp(parent, "ec-")
	env.Must(t, err)
	t.Cleanup(func() { // after the processes in it have ended
		wait.Until(t, "the cgroup to be empty", func() error { return os.Remove(dir) })
	})
	env.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0o644))
	return dir
}

// inCgroup returns a cloudcore that runs in a cgroup. It has no race detector, which takes several times the memory.
func inCgroup(t *testing.T, cgroup string) string {
	t.Helper()
	dir := t.TempDir()
	program, script := filepath.Join(dir, "program"), filepath.Join(dir, "cloudcore")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/cloudcore")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build cloudcore: %v\n%s", err, out)
	}
	text := fmt.Sprintf("#!/bin/sh\necho $$ > %s/cgroup.procs || exit 1\nexec %s \"$@\"\n", cgroup, program)
	env.Must(t, os.WriteFile(script, []byte(text), 0o755))
	return script
}

// peak is the most memory that the cgroup has had.
func (a *attack) peak() int64 {
	for _, file := range []string{"memory.max_usage_in_bytes", "memory.peak", "memory.current"} {
		if text, err := os.ReadFile(filepath.Join(a.cgroup, file)); err == nil {
			n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			env.Must(a.t, err)
			return n
		}
	}
	a.t.Fatalf("%s says nothing about its memory", a.cgroup)
	return 0
}

// honest connects a node that only wants its pods.
func (a *attack) honest() {
	a.arrived = map[string]bool{}
	fleet, err := load.New(load.Options{
		Servers: []string{a.address(a.Cloud.Link)}, Issuer: a.issuer, Nodes: 1,
		Arrived: func(_ string, m *model.Message, _ time.Time) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.arrived[m.Route.Resource] = true
		},
	})
	env.Must(a.t, err)
	fleet.Start(a.t.Context())
	a.t.Cleanup(fleet.Stop)
	wait.True(a.t, "the honest node to be registered", fleet.Settled)
}

// served checks that the honest node gets a new pod, and that the pod's status arrives.
func (a *attack) served(after string) {
	a.t.Helper()
	name := "after-" + strings.ReplaceAll(after, " ", "-")
	_, err := a.API.CoreV1().Pods("default").Create(a.t.Context(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{
			NodeName:   load.NodeName(0),
			Containers: []v1.Container{{Name: "c", Image: "example.com/none"}},
		},
	}, metav1.CreateOptions{})
	env.Must(a.t, err)
	wait.True(a.t, "the honest node to get pod "+name, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.arrived["default/pod/"+name]
	})
	wait.Until(a.t, "the status of pod "+name, func() error {
		pod, err := a.API.CoreV1().Pods("default").Get(a.t.Context(), name, metav1.GetOptions{})
		if err == nil && pod.Status.Phase != v1.PodRunning {
			err = fmt.Errorf("its phase is %q", pod.Status.Phase)
		}
		return err
	})
}

func (a *attack) address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// dialOptions are those of a hostile node with a valid certificate.
func (a *attack) dialOptions(node string) wire.DialOptions {
	config, err := a.issuer.TLS(node)
	env.Must(a.t, err)
	header := http.Header{}
	header.Set(wire.HeaderNodeID, node)
	header.Set(wire.HeaderProjectID, "default")
	header.Set(wire.HeaderUse, wire.UseMessages)
	features := wire.AllFeatures()
	features.Tunnel = true
	return wire.DialOptions{
		URL: "wss://" + a.address(a.Cloud.Link) + "/default/" + node + "/events", TLS: config, Header: header,
		Features: features, Instance: wire.NewInstance(),
	}
}

// connect connects a hostile node, and registers it.
func (a *attack) connect(node string) (wire.Conn, wire.DialOptions) {
	a.t.Helper()
	o := a.dialOptions(node)
	conn, err := wire.DialWebSocket(a.t.Context(), o)
	env.Must(a.t, err)
	a.t.Cleanup(func() { _ = conn.Close(wire.CloseNormal, "") })
	content, err := json.Marshal(v1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: node},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.9.8.7"}}},
	})
	env.Must(a.t, err)
	env.Must(a.t, conn.Write(model.New(model.ModuleEdged, model.GroupMeta, model.OpInsert, "null/node/"+node, content)))
	wait.Until(a.t, "the Node of "+node, func() error {
		_, err := a.API.CoreV1().Nodes().Get(a.t.Context(), node, metav1.GetOptions{})
		return err
	})
	return conn, o
}

// silent opens 8,000 connections to each of the ports that anybody reaches, and sends the beginning of a ClientHello.
func (a *attack) silent() {
	for _, port := range []int{a.Cloud.Link, a.Cloud.Bootstrap, a.Cloud.Stream} {
		var conns []net.Conn
		for range 8000 {
			c, err := net.Dial("tcp", a.address(port))
			env.Must(a.t, err)
			_, _ = c.Write([]byte{22, 3, 1, 1, 0}) // fails if it was closed
			conns = append(conns, c)
		}
		a.served("silent " + strconv.Itoa(port))
		for _, c := range conns {
			_ = c.Close()
		}
	}
}

// unread has the node fill 256 streams of its tunnel, which nobody reads, with frames of 32 and 1 bytes.
func (a *attack) unread() {
	const node, callers, each = "hostile-streams", 256, 1 << 20
	conn, o := a.connect(node)
	opened := make(chan struct{}, callers)
	ctx, cancel := context.WithCancel(a.t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		defer context.AfterFunc(ctx, func() { _ = conn.Close(wire.CloseNormal, "") })()
		for {
			m, err := conn.Read()
			if err != nil {
				return
			}
			if m.Route.Source != tunnel.Source {
				continue
			}
			r, err := tunnel.ParseRequest(m)
			if err != nil {
				a.t.Error(err)
				return
			}
			running.Go(func() { a.flood(ctx, o, r.Token, each, opened) })
		}
	})
	var port int32
	wait.Until(a.t, "the port of "+node, func() error {
		n, err := a.API.CoreV1().Nodes().Get(a.t.Context(), node, metav1.GetOptions{})
		if err == nil {
			if port = n.Status.DaemonEndpoints.KubeletEndpoint.Port; port == 0 {
				err = errors.New("it has none yet")
			}
		}
		return err
	})
	for i := range callers {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i%2))}}
		c, err := d.DialContext(a.t.Context(), "tcp", a.address(int(port)))
		env.Must(a.t, err)
		defer c.Close()
		env.Must(a.t, c.(*net.TCPConn).SetReadBuffer(4096))
		_, err = io.WriteString(c, "hello")
		env.Must(a.t, err)
	}
	for range callers {
		wait.Receive(a.t, "a stream that was filled, or ended", opened)
	}
	a.served("streams are full")
}

// flood serves a tunnel: it fills each stream until it blocks for a time, or is ended.
func (a *attack) flood(ctx context.Context, o wire.DialOptions, token string, each int, filled chan<- struct{}) {
	conn, err := wire.DialTunnel(ctx, o, token)
	if err != nil {
		a.t.Error(err)
		return
	}
	config := yamux.DefaultConfig()
	config.LogOutput = io.Discard
	session, err := yamux.Server(conn, config, nil)
	if err != nil {
		a.t.Error(err)
		return
	}
	defer context.AfterFunc(ctx, func() { _ = session.Close() })()
	var streams sync.WaitGroup
	defer streams.Wait()
	for {
		s, err := session.AcceptStream()
		if err != nil {
			return
		}
		streams.Go(func() {
			one, many := []byte{0}, bytes.Repeat([]byte{0}, 32)
			sent := 0
			for next := 0; sent < each; next++ {
				_ = s.SetWriteDeadline(time.Now().Add(20 * time.Second)) // its window is full
				n, err := s.Write([][]byte{many, one}[next%2])
				if sent += n; err != nil {
					break
				}
			}
			filled <- struct{}{}
			<-ctx.Done()
		})
	}
}

// reports has the node report 2 MiB of junk for each of 400 devices, twice.
func (a *attack) reports() {
	const node, count = "hostile-reports", 400
	conn, _ := a.connect(node)
	var manifests strings.Builder
	manifests.WriteString(deviceModel)
	for i := range count {
		fmt.Fprintf(&manifests, "\n---\napiVersion: devices.kubeedge.io/v1beta1\nkind: Device\n"+
			"metadata: {name: d-%d}\nspec:\n  deviceModelRef: {name: lamp}\n  nodeName: %s\n"+
			"  protocol: {protocolName: dali}\n  properties:\n  - {name: temp, reportToCloud: true}", i, node)
	}
	a.Apply(manifests.String())
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			if _, err := conn.Read(); err != nil {
				return
			}
		}
	})
	defer reading.Wait()
	defer func() { _ = conn.Close(wire.CloseNormal, "") }()
	junk := strings.Repeat("A", 1900<<10)
	for n := range 2 {
		for i := range count {
			m := model.New(devicemsg.Source, model.GroupResource, model.OpUpdate,
				fmt.Sprintf("device/default/d-%d/twin/edge_updated", i), json.RawMessage(fmt.Sprintf(
					`{"twin":{"temp":{"actual":{"value":"%d"}}},"junk":"%s"}`, n, junk)))
			if err := conn.Write(m); err != nil {
				return // cloudcore has ended the link, which it may
			}
		}
	}
	a.served("reports are sent")
}

// reconnects connects 400 times, 20 times a second, and sends 1,000 requests each time, while another node is served.
// All links together may cause as many requests at the API server as one link (docs/link.md): 50 a second, and 1,000
// at once. Fewer links would not cause more than that even if each had a burst of its own.
func (a *attack) reconnects() {
	const node, perSecond, atLeast, rate, burst = "hostile-reconnects", 20, 400, 50, 1000
	first, o := a.connect(node)
	_ = first.Close(wire.CloseNormal, "")
	ctx, cancel := context.WithCancel(a.t.Context())
	before, began := a.lookups(), time.Now()
	var links, sent atomic.Int64
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(time.Second / perSecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if n := hitAndRun(ctx, o, tick.C); n > 0 {
				links.Add(1)
				sent.Add(int64(n))
			}
		}
	})
	stop := func() {
		cancel()
		running.Wait()
	}
	defer stop()
	a.served("some reconnects")
	wait.Until(a.t, "the Lease of the honest node to be renewed", func() error {
		lease, err := a.API.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(a.t.Context(), load.NodeName(0),
			metav1.GetOptions{})
		if err == nil && (lease.Spec.RenewTime == nil || !lease.Spec.RenewTime.After(began)) {
			err = fmt.Errorf("it was renewed at %v", lease.Spec.RenewTime)
		}
		return err
	})
	wait.True(a.t, fmt.Sprintf("%d reconnects", atLeast), func() bool { return links.Load() >= atLeast })
	stop()
	asked, elapsed := a.lookups()-before, time.Since(began)
	a.t.Logf("%d links in %.1f s sent %d requests; %.0f of them reached the API server", links.Load(),
		elapsed.Seconds(), sent.Load(), asked)
	if most := burst + rate*elapsed.Seconds(); asked > most {
		a.t.Errorf("%.0f requests of a node that reconnects reached the API server, want at most %.0f", asked, most)
	}
	if asked == 0 {
		a.t.Error("no request of the node that reconnects reached the API server, so this shows nothing")
	}
}

// hitAndRun connects, asks for 1,000 Services that do not exist, and breaks the link off at the next tick, no matter
// how many requests cloudcore has read. It returns how many it has sent.
func hitAndRun(ctx context.Context, o wire.DialOptions, tick <-chan time.Time) (sent int) {
	var socket net.Conn
	o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		socket = c
		return c, err
	}
	conn, err := wire.DialWebSocket(ctx, o)
	var writing sync.WaitGroup
	if err == nil { // cloudcore may refuse the link
		writing.Go(func() {
			for i := range 1000 {
				resource := fmt.Sprintf("default/service/none-%d", i)
				if conn.Write(model.New(model.ModuleEdged, model.GroupMeta, model.OpQuery, resource, nil)) != nil {
					return
				}
				sent++
			}
		})
	}
	select {
	case <-ctx.Done():
	case <-tick:
	}
	if err == nil {
		_ = socket.Close()
		writing.Wait()
		_ = conn.Close(wire.CloseNormal, "")
	}
	return sent
}

// lookups is how often the API server was asked for a Service and did not return one. The attack asks for Services
// that do not exist. A node may read all Services, so cloudcore asks in the node's name, once for each request. The
// code is 404, or another one if the link ended before the answer.
func (a *attack) lookups() (sum float64) {
	text, err := a.API.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(a.t.Context())
	env.Must(a.t, err)
	for line := range strings.Lines(string(text)) {
		labels, ok := strings.CutPrefix(line, "apiserver_request_total{")
		if ok && !strings.Contains(labels, `code="200"`) && strings.Contains(labels, `resource="services"`) &&
			strings.Contains(labels, `verb="GET"`) {
			fields := strings.Fields(labels)
			n, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			env.Must(a.t, err)
			sum += n
		}
	}
	return sum
}
