package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/devicetwin"
	"github.com/edgecore-io/edgecore/devicetwin/twin"
	"github.com/edgecore-io/edgecore/edged/podstate/metaclient"
	"github.com/edgecore-io/edgecore/edgehub"
	"github.com/edgecore-io/edgecore/metamanager"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestEdge: what our edge sends to a cloud of KubeEdge, and takes from one. A file whose name begins with "ours" is
// about a cloud of ours; one that begins with "device" has devices.
func TestEdge(t *testing.T) {
	for _, file := range files(t, "edge") {
		t.Run(nameOf(file), func(t *testing.T) {
			t.Parallel()
			converse(t, file, newEdge(t, nameOf(file)))
		})
	}
}

// edgeEnd is metamanager with its store and edgehub, and devicetwin if it has devices; the test is edged, the mappers
// and the cloud.
type edgeEnd struct {
	t      *testing.T
	bus    *beehive.Bus
	client *metaclient.Client
	store  *store.Store
	twins  *devicetwin.Module
	ws     *websocket.Conn
	came   chan string
	// results are those of calls, in the order in which they were made.
	results chan chan string
}

// reportedAt is when conversations about devices begin.
var reportedAt = time.UnixMilli(1760000000000).UTC()

// edged takes what metamanager forwards; the first is that there is a link.
type edged struct {
	bus   *beehive.Bus
	ready chan struct{}
}

func (edged) Name() string  { return model.ModuleEdged }
func (edged) Group() string { return model.GroupEdged }
func (e edged) Run(ctx context.Context) error {
	for tell := sync.OnceFunc(func() { close(e.ready) }); ; tell() {
		if _, err := e.bus.Receive(ctx, e.Name()); err != nil {
			return nil
		}
	}
}

func newEdge(t *testing.T, name string) *edgeEnd {
	t.Helper()
	ours := strings.HasPrefix(name, "ours")
	ca, dir := wiretest.NewCA(t), t.TempDir()
	e := &edgeEnd{t: t, bus: beehive.New(), came: make(chan string, 100), results: make(chan chan string, 10)}
	server, accepted := e.cloud(ca, ours)
	ready := make(chan struct{})
	db, _, err := store.Open(t.Context(), filepath.Join(dir, "edgecore.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.store, e.client = db, metaclient.New(e.bus)
	files := ca.Write(t, dir, ca.Node(t, node, time.Now().Add(time.Hour)))
	hub, err := edgehub.New(edgehub.Options{
		Node: node, Bus: e.bus, Features: &wire.Features{Inventory: true, Report: true},
		Config: v1alpha2.EdgeHub{
			Enable:            true,
			Heartbeat:         15,
			MessageQPS:        30,
			MessageBurst:      60,
			ProjectID:         "e632aba927ea4ac2b575ec1603d56f10",
			TLSCAFile:         files.CA,
			TLSCertFile:       files.Cert,
			TLSPrivateKeyFile: files.Key,
			WebSocket: v1alpha2.Transport{
				Enable:           true,
				Server:           server,
				HandshakeTimeout: 30,
				ReadDeadline:     15,
				WriteDeadline:    15,
			},
		},
		Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
		Watch: func(ctx context.Context, _ func()) error { <-ctx.Done(); return nil },
	})
	if err == nil && strings.HasPrefix(name, "device") {
		began := time.Now()
		e.twins = devicetwin.New(devicetwin.Options{
			Bus: e.bus, Store: db, SocketDir: filepath.Join(dir, "dmi"),
			Now: func() time.Time { return reportedAt.Add(time.Since(began)) },
		})
		err = e.bus.Add(e.twins)
	}
	if err == nil {
		err = errors.Join(e.bus.Add(metamanager.New(e.bus, db, metamanager.Options{})), e.bus.Add(edged{e.bus, ready}),
			e.bus.Add(hub))
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.bus.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	e.ws = wait.Receive(t, "the edge to connect", accepted)
	wait.Closed(t, "the edge to be ready", ready)
	return e
}

// cloud serves one edge as KubeEdge's cloud does: it checks the headers, and neither compresses nor pings.
func (e *edgeEnd) cloud(ca *wiretest.CA, ours bool) (addr string, accepted chan *websocket.Conn) {
	accepted = make(chan *websocket.Conn, 1)
	var reading sync.WaitGroup
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.handshake(r)
		header := http.Header{}
		if ours {
			header.Set(wire.HeaderFeatures, "inventory,report")
		}
		upgrader := websocket.Upgrader{}
		ws, err := upgrader.Upgrade(w, r, header)
		if err != nil {
			e.t.Error(err)
			return
		}
		reading.Add(1)
		defer reading.Done()
		accepted <- ws
		for {
			kind, data, err := ws.ReadMessage()
			if err != nil {
				_ = ws.Close()
				return
			}
			if kind != websocket.TextMessage {
				e.t.Errorf("type of a frame = %d, want %d", kind, websocket.TextMessage)
			}
			e.came <- string(data)
		}
	}))
	server.TLS = ca.ServerTLS(e.t)
	server.StartTLS()
	e.t.Cleanup(func() {
		reading.Wait()
		server.Close()
	})
	return server.Listener.Addr().String(), accepted
}

// handshake checks the request with which the edge connects.
func (e *edgeEnd) handshake(r *http.Request) {
	if want := "/e632aba927ea4ac2b575ec1603d56f10/" + node + "/events"; r.URL.Path != want || r.ProtoMajor != 1 {
		e.t.Errorf("request = %s %s, want HTTP/1 %s", r.Proto, r.URL.Path, want)
	}
	for name, want := range map[string]string{
		"Node_id": node, "Project_id": "e632aba927ea4ac2b575ec1603d56f10",
		"Connectionuse": "msg",
		"Origin":        "", "Sec-Websocket-Protocol": "", "Sec-Websocket-Extensions": "",
		"Sec-Websocket-Version": "13",
		wire.HeaderFeatures:     "inventory,report",
	} {
		if got := r.Header.Get(name); got != want {
			e.t.Errorf("header %s: %q, want %q", name, got, want)
		}
	}
	if cert := r.TLS.PeerCertificates[0]; cert.Subject.CommonName != "system:node:"+node ||
		cert.Subject.Organization[0] != "system:nodes" {
		e.t.Errorf("subject of the certificate = %s, want system:node:%s of system:nodes", cert.Subject, node)
	}
}

func (e *edgeEnd) peerMark() byte        { return '<' }
func (e *edgeEnd) frames() <-chan string { return e.came }
func (e *edgeEnd) send(text string) error {
	return e.ws.WriteMessage(websocket.TextMessage, []byte(text))
}

func (e *edgeEnd) do(kind byte, text, want string) (string, error) {
	switch kind {
	case '!':
		result := make(chan string, 1)
		e.results <- result
		name, args, _ := strings.Cut(text, " ")
		go func() { result <- e.call(name, args) }()
		return "", nil
	case '=':
		select {
		case one := <-e.results:
			return wait.Receive(e.t, "the result of the call", one), nil
		default:
		}
		return "", errors.New("there is no call whose result is not known yet")
	case '@':
		return waitSteady(e.t, want, func() (string, error) {
			if text == "outbox" {
				waiting, err := e.store.OutboxKeys(e.t.Context())
				return fmt.Sprintf("%d reports", len(waiting)), err
			}
			row, err := e.store.Get(e.t.Context(), text)
			if errors.Is(err, store.ErrNotFound) {
				return "gone", nil
			}
			return string(row.Value), err
		})
	}
	return "", fmt.Errorf("a line of kind %q", kind)
}

// call does what edged does; what it gets comes as JSON, or as the error.
func (e *edgeEnd) call(name, args string) string {
	ctx := e.t.Context()
	out, err := func() (any, error) {
		switch name {
		case "Get":
			key, err := resource.Parse(args)
			if err != nil {
				return nil, err
			}
			return metaclient.Get[map[string]any](ctx, e.client, key)
		case "RegisterNode":
			return withObject(args, func(n *v1.Node) (any, error) { return e.client.RegisterNode(ctx, n) })
		case "UpdateNode":
			return withObject(args, func(n *v1.Node) (any, error) { return "done", e.client.UpdateNode(ctx, n) })
		case "PatchNodeStatus":
			return "done", e.client.PatchNodeStatus(ctx, node, []byte(args))
		case "Lease":
			return e.client.Lease(ctx, node)
		case "CreateLease":
			return withObject(args, func(l *coordinationv1.Lease) (any, error) { return e.client.CreateLease(ctx, l) })
		case "UpdateLease":
			return withObject(args, func(l *coordinationv1.Lease) (any, error) { return e.client.UpdateLease(ctx, l) })
		case "Token":
			return withObject(args, func(r *authenticationv1.TokenRequest) (any, error) {
				return e.client.Token(ctx, "default", "default", r)
			})
		case "ReportStatus":
			return withObject(args, func(p *v1.Pod) (any, error) {
				return "done", e.client.ReportStatus(ctx, p, p.Status)
			})
		case "ReportDeleted":
			return withObject(args, func(p *v1.Pod) (any, error) { return "done", e.client.ReportDeleted(ctx, p) })
		case "ReportDevice": // NAMESPACE NAME PROPERTY VALUE TYPE
			a := strings.Fields(args)
			wait.True(e.t, "devicetwin to have the device", func() bool { return len(e.twins.Devices()) == 1 })
			return "done", e.twins.Report(ctx, a[0], a[1],
				[]twin.Report{{Name: a[2], Value: a[3], Type: a[4], At: reportedAt.UnixMilli()}})
		case "ReportDeviceState": // NAMESPACE NAME STATE MESSAGE
			a := append(strings.SplitN(args, " ", 4), "")
			return "done", e.twins.ReportState(ctx, a[0], a[1], a[2], a[3])
		case "ReportEvent", "ReportEventAgain":
			return withObject(args, func(v *v1.Event) (any, error) {
				return "done", e.client.ReportEvent(ctx, v, name != "ReportEvent")
			})
		}
		return nil, fmt.Errorf("no call %q", name)
	}()
	if err != nil {
		return "error: " + err.Error()
	}
	var text bytes.Buffer
	if err := json.NewEncoder(&text).Encode(out); err != nil {
		return "error: " + err.Error()
	}
	return strings.TrimSpace(text.String())
}

func withObject[T any](text string, do func(*T) (any, error)) (any, error) {
	obj := new(T)
	if err := json.Unmarshal([]byte(text), obj); err != nil {
		return nil, err
	}
	return do(obj)
}
