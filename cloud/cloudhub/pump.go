package cloudhub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/queue"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Most lookups of what a node must have read a cache. If the API server must be asked, one may take seconds: after
// patience, other lookups start in parallel. They never delay the node's answers.
const (
	patience = 50 * time.Millisecond
	// lookupsMax limits concurrent lookups, doubtfulMax those of objects that only the node has named.
	lookupsMax  = 4
	doubtfulMax = 2
)

// A node may claim to hold any number of objects that it must not have. For each, the API server is asked whether the
// object is really gone. These limits, per second and at once, hold for a node over all of its sessions.
const (
	doubtfulRate  = 10
	doubtfulBurst = 200
)

// lookup is an object being looked up, and the result.
type lookup struct {
	key      resource.Key
	doubtful bool
	began    time.Time
	object   *Object
	recorded bool // the node did not hold the object, and the records now say that it may
	err      error
}

// kick starts the pump if it is not running and has work. s.mu is held.
func (s *session) kick() {
	if s.pumping || s.ended || len(s.answers) == 0 && len(s.looked) == 0 && !s.mayLookUp(time.Now()) {
		return
	}
	s.pumping = true
	s.work.Go(s.pump)
}

// mayLookUp reports whether one more lookup may start now. If not, the pump starts when another lookup ends or exceeds
// patience. s.mu is held.
func (s *session) mayLookUp(now time.Time) bool {
	return s.lookups == 0 || s.lookups < lookupsMax && now.Sub(s.lookedUp) >= patience
}

// pump writes what is due, answers first, and returns when nothing is. It runs in one goroutine at a time: during a
// lookup, another may take over.
func (s *session) pump() {
	for {
		s.mu.Lock()
		switch {
		case s.ended:
			s.pumping = false
			s.mu.Unlock()
			return
		case len(s.answers) > 0:
			a := s.answers[0]
			if s.answers = s.answers[1:]; len(s.answers) == 0 {
				s.answers = nil
			}
			s.mu.Unlock()
			s.write(a)
			continue
		case len(s.looked) > 0:
			l := s.looked[0]
			if s.looked = s.looked[1:]; len(s.looked) == 0 {
				s.looked = nil
			}
			s.mu.Unlock()
			s.push(l)
			continue
		}
		l, ok := s.nextLookup(time.Now())
		s.pumping = false
		s.mu.Unlock()
		if !ok || !s.lookUp(l) {
			return
		}
	}
}

// lookUp finds out what the node must have of an object. It reports whether the caller is still the pump afterwards.
func (s *session) lookUp(l lookup) bool {
	s.sending(l.key)
	relief := time.AfterFunc(patience, s.onSlowLookup)
	l.object, l.err = s.hub.opts.Downstream.Object(s.node, l.key)
	if l.err == nil && l.object != nil {
		l.recorded, l.err = s.recordFirst(l.object)
	}
	relief.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookups--
	if s.lookedUp.Equal(l.began) {
		s.lookedUp = time.Time{}
	}
	if l.doubtful {
		s.doubtfulLookups--
	}
	if s.ended {
		l.object.callDone()
		return false
	}
	s.looked = append(s.looked, l)
	if s.pumping {
		return false
	}
	s.pumping = true
	return true
}

// recordTimeout is the timeout for recording an object before it is sent.
const recordTimeout = 20 * time.Second

// errNotRecorded means that the node deleted the object during the lookup.
var errNotRecorded = errors.New("the node held it before")

// recordFirst records an object that the node does not hold yet. It reports whether that was necessary.
func (s *session) recordFirst(object *Object) (recorded bool, err error) {
	if s.features.Inventory {
		return false, nil
	}
	s.mu.Lock()
	_, held := s.queue.Held(object.Key)
	s.mu.Unlock()
	if held {
		return false, nil
	}
	s.hub.kinds.saw(object.Ref)
	ctx, cancel := context.WithTimeout(s.ctx, recordTimeout)
	defer cancel()
	if err := s.hub.opts.Records.Sending(ctx, s.node, s.hub.ref(object.Key, object.UID, "0")); err != nil {
		return false, fmt.Errorf("record that the node may hold it: %w", err)
	}
	return true, nil
}

// onSlowLookup lets other lookups start when one takes long.
func (s *session) onSlowLookup() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kick()
}

// nextLookup starts the lookup of the next object. If there is none, it sets the timer for the next; s.mu is held.
func (s *session) nextLookup(now time.Time) (lookup, bool) {
	if !s.ready || !s.mayLookUp(now) {
		return lookup{}, false
	}
	l, ok := lookup{}, false
	allowed := s.doubtful.TokensAt(now) >= 1
	if allowed && s.doubtfulLookups < doubtfulMax {
		if l.key, ok = s.queue.NextDoubtful(now); ok {
			s.doubtful.AllowN(now, 1)
			l.doubtful = true
			s.doubtfulLookups++
		}
	}
	if !ok {
		l.key, ok = s.queue.Next(now)
	}
	if ok {
		s.lookups++
		l.began, s.lookedUp = now, now
		return l, true
	}
	at := s.queue.Wake(now)
	if !allowed && s.queue.Doubtful() {
		if more := now.Add(time.Second / doubtfulRate); at.IsZero() || more.Before(at) {
			at = more
		}
	}
	switch {
	case at.IsZero():
		if s.wake != nil {
			s.wake.Stop()
			s.wake = nil
		}
	case s.wake == nil:
		s.wake = time.AfterFunc(at.Sub(now), s.onWake)
	case !at.Equal(s.wakeAt):
		s.wake.Reset(at.Sub(now))
	}
	s.wakeAt = at
	return lookup{}, false
}

// onWake runs when a message must be sent again, or a pause is over.
func (s *session) onWake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeAt = time.Time{}
	s.kick()
}

// write sends an answer.
func (s *session) write(a answer) {
	err := s.conn.Write(a.m)
	if err != nil && fatal(err) {
		s.closeLink(wire.CloseGoingAway, err.Error())
	}
	if a.written != nil {
		a.written <- err
	}
}

// fatal reports whether a write error ended the link; other errors concern only the message.
func fatal(err error) bool {
	var large *wire.TooLarge
	var invalid *json.MarshalerError
	return !errors.As(err, &large) && !errors.As(err, &invalid)
}

// repeatedly is how many failures of an object are logged: stale caches catch up soon.
const repeatedly = 3

// push sends what a node needs of an object that was looked up, if anything.
func (s *session) push(l lookup) {
	key, object := l.key, l.object
	now := time.Now()
	s.mu.Lock()
	if l.err == nil && object != nil && !s.ended && s.queue.Awaited(object.After) {
		s.later = append(s.later, l)
		s.mu.Unlock()
		return
	}
	defer object.callDone()
	s.looked, s.later = append(s.looked, s.later...), nil // this may be what they wait for
	if _, held := s.queue.Held(key); !held && l.err == nil && object != nil && !l.recorded && !s.features.Inventory {
		l.err = errNotRecorded
	}
	if w, ok := errors.AsType[*WithheldError](l.err); ok {
		if held, ok := s.queue.Held(key); ok && held.UID != "" && held.UID != w.UID {
			l.err = nil // what it has is gone
		}
	}
	if errors.Is(l.err, ErrNotServed) || errors.Is(l.err, ErrWithheld) {
		s.queue.Leave(key)
		s.syncedNow()
		s.mu.Unlock()
		return
	}
	if l.err != nil {
		failures := s.queue.Fail(key, now)
		s.mu.Unlock()
		if failures == repeatedly {
			klog.InfoS("Object cannot be sent; it is tried again", "node", s.node, "object", key.String(), "err", l.err)
		}
		return
	}
	if object == nil {
		delete(s.podsSent, key)
	}
	want := desiredState(object)
	if held, ok := s.queue.Held(key); ok && key.Type == resource.TypeNode && (want == nil || want.UID != held.UID) {
		s.queue.Drop(key) // a node's deletion is never sent (docs/wire.md, Registration)
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

func desiredState(object *Object) *queue.Desired {
	if object == nil {
		return nil
	}
	return &queue.Desired{
		State:    queue.State{UID: object.UID, Version: object.Version, ResourceVersion: object.ResourceVersion},
		Deleting: object.Deleting,
	}
}

// staleWindow is how long a KubeEdge edgecore may take to store a pod that it was sent, also again.
const staleWindow = time.Minute

// sending records when a KubeEdge edgecore is sent a pod, or may be. push forgets pods that the node must not have.
func (s *session) sending(key resource.Key) {
	if s.features.Inventory || key.Type != resource.TypePod {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.podsSent == nil {
		s.podsSent = map[resource.Key]time.Time{}
	}
	s.podsSent[key] = time.Now()
}

// statusChanged sends a pod again if a KubeEdge edgecore may store it with an older status than the API's: it reports
// only what differs from the stored status, and so would keep back what it believes the API to have.
func (s *session) statusChanged(pod resource.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent, ok := s.podsSent[pod]
	if ok && time.Since(sent) < staleWindow {
		s.queue.Refresh(pod)
		s.kick()
		return
	}
	delete(s.podsSent, pod)
}

// send writes the message of an action.
func (s *session) send(key resource.Key, act queue.Action, object *Object) {
	var m *model.Message
	if object != nil && act.Op != queue.Delete {
		s.sending(key)
		s.hub.kinds.saw(object.Ref)
		m = pushMessage(key, act, object.JSON, object.APIVersion, object.Kind)
	} else {
		apiVersion, kind := s.hub.kinds.ofType(key.Type)
		var last json.RawMessage
		if s.hub.opts.Removed != nil {
			last = s.hub.opts.Removed(key, act.State.UID)
		}
		m = pushMessage(key, act, last, apiVersion, kind)
	}
	if act.Resend {
		s.hub.metrics.resends.Inc()
	}
	err := s.conn.Write(m)
	switch {
	case err == nil:
	case fatal(err):
		s.closeLink(wire.CloseGoingAway, err.Error())
	default:
		s.mu.Lock()
		s.queue.Nack(act.ID, time.Now())
		s.mu.Unlock()
		klog.InfoS("Object cannot be sent over the link; it is tried again", "node", s.node, "object", key.String(),
			"err", err)
	}
}

// acked handles an ack: the peer has stored a message.
func (s *session) acked(id string) {
	s.mu.Lock()
	a, ok := s.queue.Ack(id, time.Now())
	if ok {
		s.syncedNow()
		s.kick()
	}
	s.mu.Unlock()
	if !ok {
		return // an answer to an answer, or to a message that a newer state replaced
	}
	s.hub.metrics.latency.Observe(a.Took.Seconds())
	s.record(a, a.State.Version)
}

// record passes to the records what a KubeEdge edgecore holds.
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

// refused handles a nack: the peer could not store a message.
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
		klog.InfoS("Node refused an object; it is sent again with growing pauses", "node", s.node,
			"object", a.Key.String(), "operation", a.Op.String(), "err", clip(string(m.ContentData()), 256))
	}
}

// clip limits a peer's text for the log.
func clip(text string, n int) string {
	if len(text) > n {
		return text[:n] + "..."
	}
	return text
}
