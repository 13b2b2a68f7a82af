// Package peer is a cloud with one node, for tests that switch that node's machine off and for benchmarks that have no
// API in between: the API is a map, and what was sent, acknowledged and reported stays known here when the machine is
// gone. To the edge it is a cloud of KubeEdge that has no features of ours, with one link at a time.
//
// It promises that a version counts as sent before the first byte of it leaves, and as acknowledged only when the
// edge's answer has come; what is not acknowledged is sent again over the next link.
package peer

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

const (
	source = "edgecontroller"
	// window is how many messages may wait for their acknowledgement.
	window = 32
)

// Cloud is the cloud's end. Its methods may be called at any time, from anywhere.
type Cloud struct {
	node     string
	server   *http.Server
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	version int
	objects map[string]*object
	order   []string // in which they were made
	lease   json.RawMessage
	nodeObj json.RawMessage
	conn    wire.Conn
	waiting map[string]push // by message id, over the link that is there
	wake    chan struct{}
	told    chan struct{} // see Told
	refused []string
}

// object is one of the API's.
type object struct {
	Entry
	key     resource.Key
	uid     types.UID
	data    json.RawMessage
	version int
	refused int          // the version that the edge did not take over this link
	status  v1.PodStatus // as reported
}

// push is a message that waits for its acknowledgement.
type push struct {
	name    string
	version int
	deleted bool
}

// Listen opens the cloud's port on an address of this machine.
func Listen(config *tls.Config, addr, node string) (*Cloud, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &Cloud{
		node:     node,
		listener: l,
		version:  100,
		objects:  map[string]*object{},
		wake:     make(chan struct{}, 1),
		told:     make(chan struct{}),
	}
	c.server = &http.Server{Handler: http.HandlerFunc(c.accept), TLSConfig: config, ReadHeaderTimeout: time.Minute}
	c.wg.Go(func() { _ = c.server.ServeTLS(l, "", "") }) // ends with Close
	return c, nil
}

// Port is where it listens.
func (c *Cloud) Port() int { return c.listener.Addr().(*net.TCPAddr).Port }

// Close ends the link and the port.
func (c *Cloud) Close() error {
	err := c.server.Close()
	c.take(nil)
	c.wg.Wait()
	return err
}

// take makes a link the one that counts; the one before ends.
func (c *Cloud) take(conn wire.Conn) {
	c.mu.Lock()
	before := c.conn
	c.conn, c.waiting = conn, map[string]push{}
	for _, o := range c.objects {
		o.refused = 0
	}
	c.mu.Unlock()
	if before != nil {
		_ = before.Close(wire.CloseReplaced, "") // it is no longer looked at
	}
}

// Connected reports whether there is a link.
func (c *Cloud) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn != nil
}

// Put makes or changes a pod, a configmap or a secret, and returns its version. A pod is given its node and a UID.
func (c *Cloud) Put(obj metav1.Object) (int, error) {
	key, err := keyOf(obj)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	name := key.String()
	o := c.objects[name]
	if o == nil {
		o = &object{key: key, uid: types.UID(model.NewID())}
		c.objects[name], c.order = o, append(c.order, name)
	}
	if o.Deleted {
		return 0, fmt.Errorf("%s is deleted: names are used once", name)
	}
	c.version++
	obj.SetUID(o.uid)
	obj.SetResourceVersion(strconv.Itoa(c.version))
	if pod, ok := obj.(*v1.Pod); ok {
		pod.Spec.NodeName = c.node
		if pod.DeletionTimestamp != nil && o.Ending == 0 {
			o.Ending = c.version
		}
	}
	if o.data, err = json.Marshal(obj); err != nil {
		return 0, err
	}
	o.version = c.version
	c.nudge()
	return o.version, nil
}

func keyOf(obj metav1.Object) (resource.Key, error) {
	key := resource.Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	switch obj.(type) {
	case *v1.Pod:
		key.Type = resource.TypePod
	case *v1.ConfigMap:
		key.Type = resource.TypeConfigMap
	case *v1.Secret:
		key.Type = resource.TypeSecret
	default:
		return key, fmt.Errorf("%T is not an object for an edge", obj)
	}
	return key, nil
}

// Delete deletes an object: a pod is told to end, and is gone when the edge has said that it has.
func (c *Cloud) Delete(name string) error {
	c.mu.Lock()
	o := c.objects[name]
	if o == nil || o.Deleted {
		c.mu.Unlock()
		return fmt.Errorf("%s: not found", name)
	}
	if o.key.Type != resource.TypePod {
		o.Deleted = true
		c.nudge()
		c.mu.Unlock()
		return nil
	}
	data := o.data
	c.mu.Unlock()
	var pod v1.Pod
	if err := json.Unmarshal(data, &pod); err != nil {
		return err
	}
	now := metav1.Now()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, pod.Spec.TerminationGracePeriodSeconds
	_, err := c.Put(&pod)
	return err
}

// Journal is what is known now.
func (c *Cloud) Journal() Journal {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := Journal{}
	for name, o := range c.objects {
		j[name] = o.Entry
	}
	return j
}

// AllAcked tells what is not acknowledged yet; nil: everything is.
func (c *Cloud) AllAcked() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range c.order {
		if o := c.objects[name]; !o.Deleted && o.Acked < o.version || o.Deleted && !o.DeleteAcked {
			return fmt.Errorf("%s has version %d, deleted %t; sent %d, acknowledged %d, deletion %t", name, o.version,
				o.Deleted, o.Sent, o.Acked, o.DeleteAcked)
		}
	}
	return nil
}

// Status is what the edge last reported of a pod.
func (c *Cloud) Status(name string) v1.PodStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.objects[name]; o != nil {
		return *o.status.DeepCopy()
	}
	return v1.PodStatus{}
}

// Told is closed when the edge says the next thing, for who waits for something: taken before one looks, it misses
// nothing.
func (c *Cloud) Told() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told
}

// heard wakes those who wait.
func (c *Cloud) heard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.told)
	c.told = make(chan struct{})
}

// Refused is what the edge did not take, and what it asked for in vain: sentences for who looks for the cause of
// something.
func (c *Cloud) Refused() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.refused)
}

// nudge requests that what is new is sent. The lock is held.
func (c *Cloud) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Cloud) accept(w http.ResponseWriter, r *http.Request) {
	if len(r.TLS.PeerCertificates) == 0 || r.TLS.PeerCertificates[0].Subject.CommonName != "system:node:"+c.node {
		http.Error(w, "this is the cloud of the node "+c.node, http.StatusForbidden)
		return
	}
	conn, err := wire.AcceptWebSocket(w, r, wire.AcceptOptions{})
	if err != nil {
		return // answered
	}
	c.take(conn)
	ctx, cancel := context.WithCancel(context.Background())
	c.wg.Go(func() { c.send(ctx, conn) })
	c.wg.Go(func() {
		defer cancel()
		c.read(conn)
	})
}

// read takes what comes over a link until it ends.
func (c *Cloud) read(conn wire.Conn) {
	for {
		m, err := conn.Read()
		if err != nil {
			code, reason := wire.CloseCode(err)
			_ = conn.Close(code, reason) // it has ended
			c.mu.Lock()
			if c.conn == conn {
				c.conn = nil
			}
			c.mu.Unlock()
			return
		}
		if m.IsResponse() {
			c.acknowledged(conn, m)
		} else if answer := c.answer(m); answer != nil {
			_ = conn.Write(answer) // a link that fails ends, and Read says so
		}
		c.heard()
	}
}

func (c *Cloud) acknowledged(conn wire.Conn, m *model.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.waiting[m.Header.ParentID]
	if !ok || c.conn != conn {
		return // the edge acknowledges answers, too
	}
	delete(c.waiting, m.Header.ParentID)
	o := c.objects[p.name]
	switch {
	case m.Route.Operation == model.OpError:
		o.refused = p.version
		c.refused = append(c.refused, fmt.Sprintf("%s, version %d: %s", p.name, p.version, m.ContentData()))
	case p.deleted:
		o.DeleteAcked = true
	default:
		o.Acked = max(o.Acked, p.version)
	}
	c.nudge()
}

// send sends what is new, and over a new link what was not acknowledged over the last.
func (c *Cloud) send(ctx context.Context, conn wire.Conn) {
	for {
		m, current := c.next(conn)
		if !current {
			c.nudge() // it may have been for the other
			return
		}
		if m == nil {
			select {
			case <-ctx.Done():
				return
			case <-c.wake:
			}
			continue
		}
		if err := conn.Write(m); err != nil {
			return // and Read says so
		}
	}
}

// next is the next message to send; nil when there is none, or enough is on its way. A link that another has replaced
// is not current.
func (c *Cloud) next(conn wire.Conn) (m *model.Message, current bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != conn || len(c.waiting) >= window {
		return nil, c.conn == conn
	}
	busy := map[string]bool{}
	for _, p := range c.waiting {
		busy[p.name] = true
	}
	for _, name := range c.order {
		o := c.objects[name]
		if busy[name] || o.DeleteAcked || o.refused == o.version || !o.Deleted && o.Acked >= o.version {
			continue
		}
		operation := model.OpUpdate
		switch {
		case o.Deleted:
			operation, o.DeleteSent = model.OpDelete, true
		case o.Sent == 0:
			operation = model.OpInsert
		}
		if !o.Deleted {
			o.Sent = o.version
		}
		m := model.New(source, model.GroupResource, operation, name, o.data)
		m.Header.ResourceVersion = strconv.Itoa(o.version)
		c.waiting[m.Header.ID] = push{name: name, version: o.version, deleted: o.Deleted}
		return m, true
	}
	return nil, true
}
