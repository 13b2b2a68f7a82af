package broker

import (
	"cmp"
	"slices"
	"sync"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/eventbus/topic"
)

// hook applies Limits and passwords. The server calls it from the goroutines of its clients.
type hook struct {
	mqtt.HookBase
	broker *Broker

	mu       sync.Mutex
	clients  map[*mqtt.Client]*client
	retained map[string]int // topics, and the bytes of each
	bytes    int            // of all retained messages
}

// client is what the hook knows about a client that has a session.
type client struct {
	pace *rate.Limiter
	// receive is how many messages the client accepts before it has confirmed one.
	receive int
	// inflight are the sizes of messages that it has not confirmed, by packet id.
	inflight map[uint16]int
	bytes    int
	// stale is set when the server dropped one of them without a call of the hook.
	stale bool
	// sent is the packet id of the last message to the client.
	sent uint16
	// asked is the packet id of the request that the client waits for, and alias the one that the server knows.
	asked, alias uint16
}

func newHook(b *Broker) *hook {
	return &hook{broker: b, clients: map[*mqtt.Client]*client{}, retained: map[string]int{}}
}

// ID implements mqtt.Hook.
func (h *hook) ID() string { return "limits" }

// Provides implements mqtt.Hook.
func (h *hook) Provides(b byte) bool {
	switch b {
	case mqtt.OnConnect, mqtt.OnConnectAuthenticate, mqtt.OnSessionEstablish, mqtt.OnDisconnect, mqtt.OnClientExpired,
		mqtt.OnPacketRead, mqtt.OnPacketEncode, mqtt.OnACLCheck, mqtt.OnSubscribe, mqtt.OnPublish, mqtt.OnWill,
		mqtt.OnPublishDropped, mqtt.OnQosPublish, mqtt.OnQosComplete, mqtt.OnQosDropped, mqtt.OnRetainedExpired:
		return true
	}
	return false
}

// refuse counts why a client is refused, and logs it at most a few times a minute.
func (h *hook) refuse(cl *mqtt.Client, cause dropCause, what string) {
	h.broker.count.drop(cause)
	if h.broker.log.Allow() {
		klog.InfoS("MQTT broker refused what a client asked for", "client", cl.ID, "address", cl.Net.Remote,
			"cause", causes()[cause], "what", what)
	}
}

// OnPacketRead checks a packet before the server does anything with it.
func (h *hook) OnPacketRead(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	switch pk.FixedHeader.Type {
	case packets.Connect:
		if will := pk.Connect; will.WillFlag {
			if len(will.WillPayload) > h.broker.limits.PayloadBytes {
				h.refuse(cl, dropPayload, "will")
				return pk, packets.ErrRejectPacket
			}
			if topic.CheckName(will.WillTopic) != nil || !mqtt.IsValidFilter(will.WillTopic, true) {
				h.refuse(cl, dropTopic, "will")
				return pk, packets.ErrRejectPacket
			}
			if !h.mayPublish(will.WillTopic) {
				h.refuse(cl, dropForbidden, "will to "+will.WillTopic)
				return pk, packets.ErrRejectPacket
			}
		}
	case packets.Publish:
		if len(pk.Payload) > h.broker.limits.PayloadBytes {
			h.refuse(cl, dropPayload, "publish")
			return pk, h.disconnect(cl, packets.ErrPacketTooLarge)
		}
		if pk.TopicName != "" && topic.CheckName(pk.TopicName) != nil {
			h.refuse(cl, dropTopic, "publish")
			return pk, h.disconnect(cl, packets.ErrTopicNameInvalid)
		}
		if pk.FixedHeader.Qos == 1 {
			h.setAlias(cl, &pk)
		}
		return pk, h.wait(cl, 1)
	case packets.Subscribe, packets.Unsubscribe:
		h.setAlias(cl, &pk)
		return pk, h.wait(cl, 1) // and the filters with wildcards in OnSubscribe
	case packets.Pingreq:
		return pk, h.wait(cl, 1)
	}
	return pk, nil
}

// setAlias gives a request an id that no message to the client has: both sides count for themselves, but the server
// keeps one table. It would refuse a subscription with the id of a message that is not confirmed, and forget that
// message at a publication with its id. The answer is sent before the client's next packet is read.
func (h *hook) setAlias(cl *mqtt.Client, pk *packets.Packet) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.clients[cl]
	if c == nil || pk.PacketID == 0 { // the server refuses it
		return
	}
	c.asked = pk.PacketID
	c.alias = c.sent ^ 0x8000 // no message has it soon
	for used := true; used; {
		if _, used = cl.State.Inflight.Get(c.alias); used || c.alias == 0 {
			c.alias, used = c.alias+1, true
		}
	}
	pk.PacketID = c.alias
}

// OnPacketEncode puts the client's own id back into the answer.
func (h *hook) OnPacketEncode(cl *mqtt.Client, pk packets.Packet) packets.Packet {
	switch pk.FixedHeader.Type {
	case packets.Suback, packets.Unsuback, packets.Puback:
		h.mu.Lock()
		defer h.mu.Unlock()
		if c := h.clients[cl]; c != nil && c.alias == pk.PacketID {
			pk.PacketID = c.asked
		}
	}
	return pk
}

func (h *hook) disconnect(cl *mqtt.Client, code packets.Code) error {
	if cl.Properties.ProtocolVersion == 5 {
		_ = h.broker.server.DisconnectClient(cl, code)
	}
	return packets.ErrRejectPacket
}

// wait slows a client down to its rate. It runs in the goroutine that reads the client's packets.
func (h *hook) wait(cl *mqtt.Client, n int) error {
	c := h.clientOf(cl)
	if c == nil || c.pace.AllowN(time.Now(), n) {
		return nil
	}
	if !sleep(cl, c.pace.ReserveN(time.Now(), n).Delay()) {
		return packets.ErrRejectPacket
	}
	return nil
}

func (h *hook) clientOf(cl *mqtt.Client) *client {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clients[cl]
}

// OnConnect refuses client ids that would harm others.
func (h *hook) OnConnect(cl *mqtt.Client, _ packets.Packet) error {
	if cl.ID == mqtt.InlineClientId || len(cl.ID) > maxClientID {
		h.refuse(cl, dropUnauthorized, "client id")
		return packets.ErrClientIdentifierNotValid
	}
	return nil
}

// OnConnectAuthenticate checks the password, or the certificate that TLS has verified.
func (h *hook) OnConnectAuthenticate(cl *mqtt.Client, pk packets.Packet) bool {
	if h.broker.users == nil || verified(cl) ||
		h.broker.users.Check(string(pk.Connect.Username), pk.Connect.Password) {
		return true
	}
	h.refuse(cl, dropUnauthorized, "connect")
	return false
}

// OnSessionEstablish prepares a client that may connect, and makes room for one more session.
func (h *hook) OnSessionEstablish(cl *mqtt.Client, pk packets.Packet) {
	h.mu.Lock()
	h.clients[cl] = &client{
		pace:     rate.NewLimiter(rate.Limit(h.broker.limits.MessagesPerSecond), h.broker.limits.Burst),
		receive:  int(pk.Properties.ReceiveMaximum),
		inflight: map[uint16]int{},
		stale:    true, // it may inherit a session
	}
	h.mu.Unlock()
	// The server's own flow control towards clients takes a lock twice in one goroutine (Inflight.NextImmediate), which
	// deadlocks if a message is published meanwhile. OnACLCheck keeps the client's receive maximum instead.
	cl.Properties.Props.ReceiveMaximum = 0
	cl.State.Inflight.ResetSendQuota(0)
	// Aliases of topics and wills with a delay would cost memory that nothing bounds.
	cl.Properties.Props.TopicAliasMaximum = 0
	cl.State.TopicAliases.Outbound = mqtt.NewOutboundTopicAliases(0)
	cl.Properties.Will.WillDelayInterval = 0

	h.sweep()
	server := h.broker.server
	if before, known := server.Clients.Get(cl.ID); known {
		h.remove(before)
		return
	}
	if server.Clients.Len() <= h.broker.limits.Sessions { // the agent itself is one of them
		return
	}
	var away []*mqtt.Client
	for _, other := range server.Clients.GetAll() {
		if other.StopTime() > 0 {
			away = append(away, other)
		}
	}
	if len(away) > 0 {
		h.forget(slices.MinFunc(away, func(a, b *mqtt.Client) int { return cmp.Compare(a.StopTime(), b.StopTime()) }))
	}
}

// forget ends the session of a client whose connection is closed.
func (h *hook) forget(cl *mqtt.Client) {
	cl.ClearInflights()
	h.broker.server.UnsubscribeClient(cl)
	h.broker.server.Clients.Delete(cl.ID)
	h.remove(cl)
}

// forgetConn ends the session of the client on a connection: the server does not when it has panicked.
func (h *hook) forgetConn(c *conn) {
	for _, cl := range h.broker.server.Clients.GetAll() {
		if cl.Net.Conn == c {
			h.forget(cl)
		}
	}
}

// sweep forgets connections that have ended and left no session. OnDisconnect does not see all of them: of two
// clients that take the same session over at once, the server forgets one.
func (h *hook) sweep() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for cl, c := range h.clients {
		if now, _ := h.broker.server.Clients.Get(cl.ID); now != cl && cl.Closed() {
			h.broker.inflight.release(c.bytes)
			delete(h.clients, cl)
		}
	}
}

// subscriptions counts those of all sessions. The server's own count is wrong after clients unsubscribed from what they
// had not subscribed to.
func (h *hook) subscriptions() int {
	n := 0
	for _, cl := range h.broker.server.Clients.GetAll() {
		n += cl.State.Subscriptions.Len()
	}
	return n
}

func (h *hook) remove(cl *mqtt.Client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.clients[cl]; c != nil {
		h.broker.inflight.release(c.bytes)
		delete(h.clients, cl)
	}
}

// OnDisconnect forgets a client without a session. Its clearing comes after this call, and then finds nothing.
func (h *hook) OnDisconnect(cl *mqtt.Client, _ error, expire bool) {
	if expire || cl.IsTakenOver() {
		h.remove(cl)
	}
}

// OnClientExpired ends a session: the server itself forgets only the client, not its subscriptions.
func (h *hook) OnClientExpired(cl *mqtt.Client) { h.forget(cl) }

// OnACLCheck is called before each delivery to a client, and before each subscription; OnSubscribe decides those. It
// refuses a delivery when the client has not confirmed so much.
func (h *hook) OnACLCheck(cl *mqtt.Client, _ string, write bool) bool {
	if write {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.clients[cl]
	if c == nil {
		return true
	}
	if c.stale {
		c.stale = false
		h.recount(cl, c)
	}
	most := h.broker.limits.Inflight
	if c.receive > 0 {
		most = min(most, c.receive)
	}
	if len(c.inflight) < most && c.bytes < h.broker.limits.QueueBytes &&
		h.broker.inflight.used.Load() < h.broker.inflight.limit {
		return true
	}
	h.broker.count.drop(dropInflight)
	return false
}

// recount takes from the server what the client has not confirmed. The caller holds mu.
func (h *hook) recount(cl *mqtt.Client, c *client) {
	h.broker.inflight.release(c.bytes)
	clear(c.inflight)
	c.bytes = 0
	for _, pk := range cl.State.Inflight.GetAll(false) {
		h.add(c, pk)
	}
}

func (h *hook) add(c *client, pk packets.Packet) {
	if _, known := c.inflight[pk.PacketID]; known {
		return
	}
	n := len(pk.Payload) + len(pk.TopicName)
	c.inflight[pk.PacketID] = n
	c.bytes += n
	h.broker.inflight.used.Add(int64(n))
}

// OnQosPublish counts a message until the client confirms it.
func (h *hook) OnQosPublish(cl *mqtt.Client, pk packets.Packet, _ int64, _ int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.clients[cl]; c != nil {
		h.add(c, pk)
		if pk.FixedHeader.Type == packets.Publish {
			c.sent = pk.PacketID
		}
	}
}

// OnQosComplete is called when the client has confirmed a message.
func (h *hook) OnQosComplete(cl *mqtt.Client, pk packets.Packet) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.clients[cl]; c != nil {
		n := c.inflight[pk.PacketID]
		delete(c.inflight, pk.PacketID)
		c.bytes -= n
		h.broker.inflight.release(n)
	}
}

// OnQosDropped is called when a message expires or its session ends.
func (h *hook) OnQosDropped(cl *mqtt.Client, pk packets.Packet) { h.OnQosComplete(cl, pk) }

// OnPublishDropped is called when the server's own queue for a client is full.
func (h *hook) OnPublishDropped(cl *mqtt.Client, _ packets.Packet) {
	h.broker.count.drop(dropQueue)
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.clients[cl]; c != nil {
		c.stale = true
	}
}

// OnSubscribe replaces the filters that are refused by an empty one, which the server answers with a failure.
func (h *hook) OnSubscribe(cl *mqtt.Client, pk packets.Packet) packets.Packet {
	if cl.Net.Inline {
		return pk
	}
	limits := h.broker.limits
	have := cl.State.Subscriptions.GetAll()
	all := h.subscriptions()
	wildcards := 0
	for filter := range have {
		if topic.IsWildcard(filter) {
			wildcards++
		}
	}
	c := h.clientOf(cl)
	for i := range pk.Filters {
		sub := &pk.Filters[i]
		_, known := have[sub.Filter]
		cost, wild := 0, topic.IsWildcard(sub.Filter)
		if wild {
			cost = wildcardCost
		}
		switch {
		case topic.CheckFilter(sub.Filter) != nil:
			h.refuse(cl, dropTopic, "subscribe")
			sub.Filter = ""
		case !known && (len(have) >= limits.Subscriptions || all >= limits.AllSubscriptions ||
			wild && wildcards >= limits.Wildcards):
			h.refuse(cl, dropSubscriptions, "subscribe")
			sub.Filter = ""
		case i > 0 && c != nil && !c.pace.AllowN(time.Now(), 1+cost), // many filters in one packet
			i == 0 && cost > 0 && h.wait(cl, cost) != nil:
			h.refuse(cl, dropSubscriptions, "subscribe")
			sub.Filter = ""
		case !known:
			have[sub.Filter] = *sub
			all++
			if wild {
				wildcards++
			}
		}
	}
	return pk
}

func (h *hook) mayPublish(name string) bool {
	may := h.broker.options.MayPublish
	return may == nil || may(name)
}

// OnPublish drops messages to topics that clients may not publish to. They are confirmed, since MQTT 3.1.1 has no other
// answer but to close the connection.
//
// It keeps the retained messages within their limits: a message beyond them is delivered, but not retained.
func (h *hook) OnPublish(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	if !cl.Net.Inline && !h.mayPublish(pk.TopicName) {
		h.refuse(cl, dropForbidden, "publish to "+pk.TopicName)
		switch {
		case pk.FixedHeader.Qos == 0:
			return pk, packets.ErrRejectPacket
		case pk.FixedHeader.Qos == 1 && cl.Properties.ProtocolVersion == 5:
			return pk, packets.ErrNotAuthorized
		}
		return pk, packets.CodeSuccessIgnore
	}
	if pk.FixedHeader.Retain && !h.retain(pk.TopicName, len(pk.Payload), cl.Net.Inline) {
		h.refuse(cl, dropRetained, "retain")
		pk.FixedHeader.Retain = false
	}
	return pk, nil
}

// OnWill does the same for wills, which the server does not show to OnPublish.
func (h *hook) OnWill(cl *mqtt.Client, will mqtt.Will) (mqtt.Will, error) {
	if will.Retain && !h.retain(will.TopicName, len(will.Payload), false) {
		h.refuse(cl, dropRetained, "will")
		will.Retain = false
	}
	return will, nil
}

// retain counts a message that is about to be retained, or removed if size is 0. The agent's own are always kept.
func (h *hook) retain(name string, size int, own bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, known := h.retained[name]
	if size == 0 {
		delete(h.retained, name)
		h.bytes -= before
		return true
	}
	size += len(name)
	limits := h.broker.limits
	if !own && (!known && len(h.retained) >= limits.Retained || h.bytes-before+size > limits.RetainedBytes) {
		return false
	}
	h.retained[name] = size
	h.bytes += size - before
	return true
}

func (h *hook) retainedNow() (number, bytes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.retained), h.bytes
}

// OnRetainedExpired removes the nodes of the topic from the server's tree, which the server itself leaves there.
func (h *hook) OnRetainedExpired(name string) {
	h.retain(name, 0, true)
	h.broker.server.Topics.RetainMessage(packets.Packet{TopicName: name})
}
