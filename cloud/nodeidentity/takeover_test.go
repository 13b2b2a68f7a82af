package nodeidentity

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	ktesting "k8s.io/client-go/testing"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/fakemeta"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestTakeOverServer: a certificate for a name without a Node is let in, and its session begins only when a server has
// registered under that name. It is ended, and the server's Node is not touched.
func TestTakeOverServer(t *testing.T) {
	e := newEnv(t)
	e.api.PrependWatchReactor("nodes", func(a ktesting.Action) (bool, watch.Interface, error) {
		w, err := e.api.Tracker().Watch(a.GetResource(), "")
		if err != nil {
			return true, nil, err
		}
		return true, watch.Filter(w, func(in watch.Event) (watch.Event, bool) { // as the selector of the caches
			node, ok := in.Object.(*v1.Node)
			if !ok {
				return in, true
			}
			_, edge := node.Labels[marks.EdgeLabel]
			return in, edge
		}), nil
	})
	c, err := edgecontroller.New(edgecontroller.Options{
		Clients: impersonate.Clients{Own: e.api, AsNode: e.api, Metadata: fakemeta.Of(e.api)},
		LocalIP: "192.0.2.1",
	})
	e.must(err)
	guard := New(Options{Revoked: e.authority.Check, Edge: c.EdgeNode, Nodes: e.api.CoreV1().Nodes()})
	e.must(c.OnEdgeNode(guard.NodeChanged))
	hub, err := cloudhub.New(cloudhub.Options{
		Upstream: guard.Upstream(c), Downstream: guard.Downstream(c), Gate: guard,
	})
	e.must(err)
	guard.SetHub(hub)
	ctx, cancel := context.WithCancel(wait.Context(t))
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait(); c.Wait() })
	e.must(c.Start(ctx, hub))
	l, err := hub.ListenQUIC("127.0.0.1:0",
		cloudhub.TLSConfig(e.authority.ServerTLS(tls.RequireAndVerifyClientCert).GetCertificate, e.authority.Pool()))
	e.must(err)
	all.Go(func() { _ = hub.ServeQUIC(ctx, l) })
	all.Go(func() { _ = hub.Run(ctx) })
	all.Go(func() { _ = guard.Run(ctx) })

	const name = "worker-7"
	cert := e.device(name, false)
	conn, err := quic.DialAddr(ctx, l.Addr().String(), &tls.Config{RootCAs: e.authority.Pool(),
		Certificates: []tls.Certificate{*cert}, NextProtos: []string{"edgecore/1"}, ServerName: "127.0.0.1"},
		&quic.Config{MaxIdleTimeout: time.Minute})
	e.must(err)
	defer func() { _ = conn.CloseWithError(0, "") }()
	control, err := conn.OpenStreamSync(ctx)
	e.must(err)
	header, err := json.Marshal(map[string][]string{wire.HeaderNodeID: {name}})
	e.must(err)
	e.must(wire.WritePacked(control, model.New("", "", "header", "header", header)))
	_, err = wire.ReadPacked(control, 1<<16)
	e.must(err)

	server := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u1", Labels: map[string]string{"kubernetes.io/os": "linux"}},
	}
	_, err = e.api.CoreV1().Nodes().Create(ctx, server, metav1.CreateOptions{})
	e.must(err)
	stream, err := conn.OpenStreamSync(ctx)
	e.must(err)
	_, err = io.WriteString(stream, "msg")
	e.must(err)
	body, err := json.Marshal(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	e.must(err)
	e.must(wire.WritePacked(stream, model.New(model.ModuleEdged, model.GroupMeta, model.OpInsert, "default/node/"+name,
		body)))
	for err = nil; err == nil; { // until the connection ends
		_, err = wire.ReadPacked(stream, 1<<20)
	}
	wait.True(t, "the session to end", func() bool { return len(hub.Connected()) == 0 })
	node, err := e.api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	e.must(err)
	if len(node.Labels) != 1 || len(node.Annotations) != 0 {
		t.Errorf("the server's Node has labels %v and annotations %v, want those of before alone", node.Labels,
			node.Annotations)
	}
}
