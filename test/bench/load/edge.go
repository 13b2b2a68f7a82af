package load

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// The pauses before dials, as edgehub has them.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// edge is one node. Only its own goroutine touches what is not atomic.
type edge struct {
	fleet        *Fleet
	server, node string
	tls          *tls.Config
	// instance is the run of the agent, which is never started again.
	instance wire.Instance

	held       map[string]wire.Held
	registered bool
	// The messages whose answers mean something; empty: none is on its way.
	registration, inventory string

	// conn is there while connected.
	conn atomic.Pointer[connection]
	// socket is that of the last dial.
	socket net.Conn
	// synced is set from the answer to the inventory until the link ends.
	synced atomic.Bool
	// reportAt is when the next status is due, Unix ns.
	reportAt atomic.Int64
	// report is the message of the last status; reported is set when one was answered.
	report   atomic.Pointer[string]
	reported bool
}

// connection is one with the socket below.
type connection struct {
	wire.Conn
	socket net.Conn
}

// run keeps the link until ctx ends.
func (e *edge) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		if began, ok := e.link(ctx); ok && time.Since(began) >= e.fleet.opts.Heartbeat {
			failures = 0
		}
		limit := min(lastPause, firstPause<<min(failures+1, 30))
		failures++
		select {
		case <-ctx.Done():
		case <-time.After(firstPause + rand.N(limit-firstPause+1)):
		}
	}
}

// link dials once, and serves until the link ends.
func (e *edge) link(ctx context.Context) (began time.Time, connected bool) {
	f := e.fleet
	leave, ok := f.places.enter(ctx)
	if !ok {
		return began, false
	}
	conn, err := e.dial(ctx)
	leave()
	if err != nil {
		f.failed(fmt.Errorf("%s: %w", e.node, err))
		return began, false
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close(wire.CloseGoingAway, "") })
	defer stop()
	began = time.Now()
	e.conn.Store(&connection{conn, e.socket})
	f.connected.Add(1)
	err = e.serve(conn)
	if ctx.Err() == nil && !f.cutting.Load() {
		f.failed(fmt.Errorf("%s: %w", e.node, err))
	}
	_ = conn.Close(wire.CloseCode(err))
	e.conn.Store(nil)
	f.connected.Add(-1)
	if e.synced.Swap(false) {
		f.synced.Add(-1)
	}
	return began, true
}

func (e *edge) dial(ctx context.Context) (wire.Conn, error) {
	header := http.Header{}
	header.Set(wire.HeaderNodeID, e.node)
	header.Set(wire.HeaderProjectID, "default")
	header.Set(wire.HeaderUse, wire.UseMessages)
	features := wire.AllFeatures()
	features.Tunnel = true // nobody asks for one; cloudcore opens a port for each node
	return wire.DialWebSocket(ctx, wire.DialOptions{
		URL:      "wss://" + e.server + "/default/" + e.node + "/events",
		TLS:      e.tls,
		Header:   header,
		Features: features,
		Instance: e.instance,
		Limits:   wire.Limits{ReadTimeout: e.fleet.opts.Heartbeat * 7 / 4},
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{KeepAlive: -1}).DialContext(ctx, network, addr)
			e.socket = c
			return c, err
		},
	})
}

// serve does what an edge does: it tells what it holds, registers, and takes what comes.
func (e *edge) serve(conn wire.Conn) error {
	held := make([]wire.Held, 0, len(e.held))
	for _, h := range e.held {
		held = append(held, h)
	}
	inventory, err := wire.NewInventory(held)
	if err != nil {
		return err
	}
	e.inventory, e.registration = inventory.Header.ID, ""
	if e.registered && !e.reported {
		e.reportAt.Store(time.Now().UnixNano())
	}
	if err := conn.Write(inventory); err != nil {
		return err
	}
	if !e.registered {
		m := request(model.OpInsert, "null/node/"+e.node, nodeObject(e.node))
		e.registration = m.Header.ID
		if err := conn.Write(m); err != nil {
			return err
		}
	}
	for {
		m, err := conn.Read()
		if err != nil {
			return err
		}
		if err := e.take(conn, m); err != nil {
			return err
		}
	}
}

// request is one as edged makes it.
func request(operation, resource string, content json.RawMessage) *model.Message {
	return model.New(model.ModuleEdged, model.GroupMeta, operation, resource, content)
}

// take sees to one message.
func (e *edge) take(conn wire.Conn, m *model.Message) error {
	if m.IsResponse() {
		return e.answered(m)
	}
	at := time.Now()
	if err := e.store(m); err != nil {
		return conn.Write(m.RespondError(model.ModuleMetaManager, err))
	}
	if err := conn.Write(m.Respond(model.OK)); err != nil {
		return err
	}
	if e.fleet.opts.Arrived != nil {
		e.fleet.opts.Arrived(e.node, m, at)
	}
	if m.Route.Operation == model.OpInsert {
		if key, err := resource.Parse(m.Route.Resource); err == nil && key.Type == resource.TypePod {
			return e.runs(conn, key, m)
		}
	}
	return nil
}

func (e *edge) answered(m *model.Message) error {
	switch m.Header.ParentID {
	case e.inventory:
		if m.Route.Operation != model.OpResponse {
			return fmt.Errorf("inventory refused: %s", m.Content)
		}
		if !e.synced.Swap(true) {
			e.fleet.synced.Add(1)
		}
	case e.registration:
		if reason, err := refusal(m); err != nil || reason != "" && reason != metav1.StatusReasonAlreadyExists {
			return fmt.Errorf("registration refused: %s", m.Content)
		}
		e.registered = true
		e.fleet.registered.Add(1)
		e.reportAt.Store(time.Now().UnixNano()) // the first status follows with the next beat
	default:
		e.statusAnswered(m)
	}
	return nil
}

// refusal returns why a request was refused, or "" if it was not; an error is an answer of another kind.
func refusal(m *model.Message) (metav1.StatusReason, error) {
	var answer struct {
		Err *struct{ ErrStatus metav1.Status }
	}
	if err := json.Unmarshal(m.ContentData(), &answer); err != nil {
		return "", err
	}
	switch {
	case m.Route.Operation != model.OpResponse:
		return "", fmt.Errorf("operation %q, want %q", m.Route.Operation, model.OpResponse)
	case answer.Err != nil:
		return answer.Err.ErrStatus.Reason, nil
	}
	return "", nil
}

// statusAnswered takes note of the answer to the first status. A status that was refused is sent again.
func (e *edge) statusAnswered(m *model.Message) {
	if id := e.report.Load(); e.reported || id == nil || *id != m.Header.ParentID {
		return
	}
	if reason, err := refusal(m); err != nil || reason != "" {
		e.fleet.failed(fmt.Errorf("%s: status refused: %s", e.node, m.Content))
		e.reportAt.Store(time.Now().UnixNano())
		return
	}
	e.reported = true
	e.fleet.reported.Add(1)
}

// store keeps what an inventory tells of an object.
func (e *edge) store(m *model.Message) error {
	var object struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	data := m.ContentData()
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	name := m.Route.Resource
	if m.Route.Operation == model.OpDelete {
		if e.held[name].UID == object.Metadata.UID {
			delete(e.held, name)
		}
		return nil
	}
	version, err := wire.Version(data)
	if err != nil {
		return err
	}
	e.held[name] = wire.Held{Key: name, UID: object.Metadata.UID, Version: version}
	return nil
}

// runs reports a pod as running.
func (e *edge) runs(conn wire.Conn, key resource.Key, m *model.Message) error {
	patch, err := podPatch(m.ContentData(), time.Now())
	if err != nil {
		return err
	}
	key.Type = resource.TypePodPatch
	return conn.Write(request(model.OpPatch, key.String(), patch))
}

// beat is called at each heartbeat.
func (e *edge) beat(now time.Time) {
	conn := e.conn.Load()
	if conn == nil {
		return
	}
	if conn.Ping() != nil { // reading fails, too
		return
	}
	if due := e.reportAt.Load(); due != 0 && now.UnixNano() >= due {
		e.reportAt.Store(now.Add(e.fleet.opts.Report).UnixNano())
		m := request(model.OpPatch, "null/nodepatch/"+e.node, nodePatch(now))
		e.report.Store(&m.Header.ID)
		_ = conn.Write(m)
	}
}
