package client

import (
	"hash/maphash"
	"sync"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"github.com/edgecore-io/edgecore/eventbus/topic"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

// arrival is a message of the broker that waits to be handled.
type arrival struct {
	mqtt.Message
	delivery topic.Delivery
	// again is set when it has arrived before: it only has to be confirmed.
	again bool
}

// confirmedFor is how long a confirmation may be on its way to the broker: the connection is checked twice in it.
const confirmedFor = 2 * keepAlive

// arrivals knows which messages of the agent's session at the broker may be old, and which have arrived before.
//
// A broker keeps the messages that it could not deliver, and delivers them at the next connection. It delivers again
// what was not confirmed. The agent is behind from the loss of a connection until all of that has been handled.
type arrivals struct {
	// quiet is notified when all messages that arrived are handled.
	quiet notify.Signal
	seed  maphash.Seed

	// session is whether the broker keeps a session at all.
	session bool

	mu                sync.Mutex
	behind            bool
	arrived, finished int64
	// known are the messages of the session by packet id, to recognize those that are delivered again.
	known map[uint16]known
}

// known is a message that has arrived. confirmed is when it was; zero if it was not yet.
type known struct {
	content   uint64
	confirmed time.Time
}

// newArrivals returns those of a process that has not connected yet. session is whether the broker keeps a session.
func newArrivals(session bool) *arrivals {
	return &arrivals{
		quiet:   notify.NewSignal(),
		seed:    maphash.MakeSeed(),
		session: session,
		behind:  session,
		known:   map[uint16]known{},
	}
}

func (a *arrivals) content(m mqtt.Message) uint64 {
	var h maphash.Hash
	h.SetSeed(a.seed)
	_, _ = h.WriteString(m.Topic()) // never fails
	_ = h.WriteByte(0)
	_, _ = h.Write(m.Payload())
	return h.Sum64()
}

// addArrival counts a message that has come, and says what it is.
func (a *arrivals) addArrival(m mqtt.Message) arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := arrival{Message: m, delivery: topic.InSession}
	switch {
	case m.Retained():
		out.delivery = topic.Retained
	case a.behind:
		out.delivery = topic.Waiting
	}
	a.arrived++
	if m.Qos() == 0 || !a.session {
		return out
	}
	content := a.content(m)
	if m.Duplicate() {
		k, is := a.known[m.MessageID()]
		out.again = is && k.content == content
	}
	a.known[m.MessageID()] = known{content: content}
	return out
}

// drop takes back a message that will not be handled.
func (a *arrivals) drop(m arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !m.again {
		delete(a.known, m.MessageID())
	}
	a.finished++
	a.notifyIfHandled()
}

// finish counts a message that was handled and confirmed.
func (a *arrivals) finish(m mqtt.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.finished++
	if k, is := a.known[m.MessageID()]; is && m.Qos() > 0 {
		k.confirmed = time.Now()
		a.known[m.MessageID()] = k
	}
	a.notifyIfHandled()
}

// notifyIfHandled notifies when all is handled. mu is held.
func (a *arrivals) notifyIfHandled() {
	if a.finished == a.arrived {
		a.quiet.Notify()
	}
}

// connectionLost is called when a connection ends. The broker has surely received the confirmations of long ago, and
// may use their packet ids for other messages.
func (a *arrivals) connectionLost() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.behind = a.session
	for id, k := range a.known {
		if !k.confirmed.IsZero() && time.Since(k.confirmed) > confirmedFor {
			delete(a.known, id)
		}
	}
}

// renewed is called when the broker has made a new session: nothing has waited in it.
func (a *arrivals) renewed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.behind = false
	clear(a.known)
}

// allHandled returns how many messages have arrived, and whether all of them are handled.
func (a *arrivals) allHandled() (arrived int64, is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.arrived, a.arrived == a.finished
}

// catchUp ends being behind if nothing has arrived since settled returned that number. It reports whether it did.
func (a *arrivals) catchUp(arrived int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.arrived != arrived {
		return false
	}
	a.behind = false
	return true
}
