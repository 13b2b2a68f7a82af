package cloudhub

import (
	"encoding/json"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/queue"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// kick starts the pump if it does not run. s.mu is held.
func (s *session) kick() {
	if s.pumping || s.ended {
		return
	}
	s.pumping = true
	s.work.Go(s.pump)
}

// pump writes what there is to write, answers first, and ends when there is nothing.
func (s *session) pump() {
	for {
		s.mu.Lock()
		if s.ended {
			s.pumping = false
			s.mu.Unlock()
			return
		}
		if len(s.answers) > 0 {
			a := s.answers[0]
			if s.answers = s.answers[1:]; len(s.answers) == 0 {
				s.answers = nil
			}
			s.mu.Unlock()
			s.write(a)
			continue
		}
		key, ok := s.nextKey(time.Now())
		if !ok {
			s.pumping = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		s.push(key)
	}
}

// nextKey is the object whose turn it is. Without one it sets the timer for the next; s.mu is held.
func (s *session) nextKey(now time.Time) (resource.Key, bool) {
	if !s.ready {
		return resource.Key{}, false
	}
	key, ok := s.queue.Next(now)
	if ok {
		return key, true
	}
	at := s.queue.Wake(now)
	switch {
	case at.IsZero():
		if s.wake != nil {
			s.wake.Stop()
			s.wake = nil
		}
	case s.wake == nil:
		s.wake = time.AfterFunc(at.Sub(now), s.woken)
	case !at.Equal(s.wakeAt):
		s.wake.Reset(at.Sub(now))
	}
	s.wakeAt = at
	return key, false
}

// woken runs when a message has to be sent again, or a pause is over.
func (s *session) woken() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeAt = time.Time{}
	s.kick()
}

// write sends an answer.
func (s *session) write(a answer) {
	err := s.conn.Write(a.m)
	if err != nil && fatal(err) {
		s.end(wire.CloseGoingAway, err.Error())
	}
	if a.written != nil {
		a.written <- err
	}
}

// fatal tells whether an error of writing ended the link; others concern only the message.
func fatal(err error) bool {
	var large *wire.TooLarge
	var invalid *json.MarshalerError
	return !errors.As(err, &large) && !errors.As(err, &invalid)
}

// repeatedly is how often an object has failed when it is worth a line: caches that are behind catch up soon.
const repeatedly = 3

// push sends what a node needs of an object, if it needs anything.
func (s *session) push(key resource.Key) {
	object, err := s.hub.opts.Downstream.Object(s.node, key)
	now := time.Now()
	s.mu.Lock()
	if err != nil {
		failures := s.queue.Fail(key, now)
		s.mu.Unlock()
		if failures == repeatedly {
			klog.InfoS("Object cannot be sent; it is tried again", "node", s.node, "object", key.String(), "err", err)
		}
		return
	}
	want := wanted(object)
	if held, ok := s.queue.Held(key); ok && key.Type == resource.TypeNode && (want == nil || want.UID != held.UID) {
		s.queue.Drop(key) // the deletion of a node is never told (protocol section 6.1)
	}
	act := s.queue.Take(key, want, model.NewID, now)
	s.syncedNow()
	s.mu.Unlock()
	if act.Op == queue.None {
		if act.Moved {
			s.record(queue.Acked{Key: key, Op: queue.Update, State: want.State}, want.Version)
		}
		return
	}
	s.send(key, act, object)
}

func wanted(object *Object) *queue.Want {
	if object == nil {
		return nil
	}
	return &queue.Want{
		State:    queue.State{UID: object.UID, Version: object.Version, ResourceVersion: object.ResourceVersion},
		Deleting: object.Deleting,
	}
}

// send writes the message of an action.
func (s *session) send(key resource.Key, act queue.Action, object *Object) {
	var m *model.Message
	if object != nil && act.Op != queue.Delete {
		s.hub.kinds.saw(object.Ref)
		m = pushMessage(key, act, object.JSON, object.APIVersion, object.Kind)
	} else {
		apiVersion, kind := s.hub.kinds.of(key.Type)
		m = pushMessage(key, act, nil, apiVersion, kind)
	}
	if act.Resend {
		s.hub.metrics.resends.Inc()
	}
	if act.First && act.Op != queue.Delete && !s.features.Inventory {
		s.hub.opts.Records.Sent(s.node, s.hub.ref(key, act.State.UID, "0"))
	}
	err := s.conn.Write(m)
	switch {
	case err == nil:
	case fatal(err):
		s.end(wire.CloseGoingAway, err.Error())
	default:
		s.mu.Lock()
		s.queue.Nack(act.ID, time.Now())
		s.mu.Unlock()
		klog.InfoS("Object cannot be sent over the link; it is tried again", "node", s.node, "object", key.String(), "err", err)
	}
}

// acked notes that the peer has stored what a message said.
func (s *session) acked(id string) {
	s.mu.Lock()
	a, ok := s.queue.Ack(id, time.Now())
	if ok {
		s.syncedNow()
		s.kick()
	}
	s.mu.Unlock()
	if !ok {
		return // the answer to an answer, or to what a newer state replaced
	}
	s.hub.metrics.latency.Observe(a.Took.Seconds())
	s.record(a, a.State.Version)
}

// record tells the records what an upstream edge holds.
func (s *session) record(a queue.Acked, version string) {
	if s.features.Inventory {
		return
	}
	ref := s.hub.ref(a.Key, a.State.UID, a.State.ResourceVersion)
	if a.Op == queue.Delete {
		s.hub.opts.Records.Deleted(s.node, ref)
		return
	}
	s.hub.opts.Records.Acked(s.node, ref, version)
}

// refused notes that the peer could not store what a message said.
func (s *session) refused(m *model.Message) {
	s.mu.Lock()
	a, ok := s.queue.Nack(m.Header.ParentID, time.Now())
	if ok {
		s.kick()
	}
	s.mu.Unlock()
	if !ok {
		return
	}
	s.hub.metrics.refusals.Inc()
	if a.Failures == 0 {
		klog.InfoS("Node refused an object; it is sent again with growing pauses", "node", s.node, "object", a.Key.String(), "operation", a.Op.String(), "err", clip(string(m.ContentData()), 256))
	}
}

// clip keeps what a peer says fit for a log.
func clip(text string, n int) string {
	if len(text) > n {
		return text[:n] + "..."
	}
	return text
}
