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

// Finding out what a node is to have of an object is mostly a look into a cache. Where the API server has to be asked,
// it may take seconds: then others have their turns beside it, once it has lasted for patience. The node's answers
// never wait.
const (
	patience = 50 * time.Millisecond
	// lookupsMax bounds how many objects are looked up at once, doubtfulMax those of them that only the node has named.
	lookupsMax  = 4
	doubtfulMax = 2
)

// A node may claim to hold any number of objects that it is not to have. For each, the API server is asked whether the
// object is really gone. These limits, per second and at once, hold for a node over all of its sessions.
const (
	doubtfulRate  = 10
	doubtfulBurst = 200
)

// lookup is an object whose turn it is, and what was found.
type lookup struct {
	key      resource.Key
	doubtful bool
	began    time.Time
	object   *Object
	recorded bool // the node did not hold the object, and the records know now that it may
	err      error
}

// kick starts the pump if it does not run and has something to do. s.mu is held.
func (s *session) kick() {
	if s.pumping || s.ended || len(s.answers) == 0 && len(s.looked) == 0 && !s.mayLookUp(time.Now()) {
		return
	}
	s.pumping = true
	s.work.Go(s.pump)
}

// mayLookUp reports whether one more object may be looked up now. If not, the end of another lookup or its patience
// starts the pump. s.mu is held.
func (s *session) mayLookUp(now time.Time) bool {
	return s.looking == 0 || s.looking < lookupsMax && now.Sub(s.lookedUp) >= patience
}

// pump writes what there is to write, answers first, and ends when there is nothing. One goroutine at a time does so:
// while it looks an object up, another may take its place.
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

// lookUp finds out what the node is to have of an object. It reports whether the caller is the pump afterwards.
func (s *session) lookUp(l lookup) bool {
	relief := time.AfterFunc(patience, s.relieve)
	l.object, l.err = s.hub.opts.Downstream.Object(s.node, l.key)
	if l.err == nil && l.object != nil {
		l.recorded, l.err = s.recordFirst(l.object)
	}
	relief.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looking--
	if s.lookedUp.Equal(l.began) {
		s.lookedUp = time.Time{}
	}
	if l.doubtful {
		s.lookingDoubtful--
	}
	s.looked = append(s.looked, l)
	if s.pumping || s.ended {
		return false
	}
	s.pumping = true
	return true
}

// recordTimeout bounds the record of an object that is to be sent.
const recordTimeout = 20 * time.Second

// errNotRecorded is of an object that the node has deleted during the lookup.
var errNotRecorded = errors.New("the node held it before")

// recordFirst has an object recorded that the node does not hold yet. It reports whether there was a need to.
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

// relieve runs when a lookup takes long.
func (s *session) relieve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kick()
}

// nextLookup begins the turn of the object that is next. Without one it sets the timer for the next; s.mu is held.
func (s *session) nextLookup(now time.Time) (lookup, bool) {
	if !s.ready || !s.mayLookUp(now) {
		return lookup{}, false
	}
	l, ok := lookup{}, false
	allowed := s.doubtful.TokensAt(now) >= 1
	if allowed && s.lookingDoubtful < doubtfulMax {
		if l.key, ok = s.queue.NextDoubtful(now); ok {
			s.doubtful.AllowN(now, 1)
			l.doubtful = true
			s.lookingDoubtful++
		}
	}
	if !ok {
		l.key, ok = s.queue.Next(now)
	}
	if ok {
		s.looking++
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
		s.wake = time.AfterFunc(at.Sub(now), s.woken)
	case !at.Equal(s.wakeAt):
		s.wake.Reset(at.Sub(now))
	}
	s.wakeAt = at
	return lookup{}, false
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

// fatal reports whether an error of writing ended the link; others concern only the message.
func fatal(err error) bool {
	var large *wire.TooLarge
	var invalid *json.MarshalerError
	return !errors.As(err, &large) && !errors.As(err, &invalid)
}

// repeatedly is how often an object has failed when it is worth a line: caches that are behind catch up soon.
const repeatedly = 3

// push sends what a node needs of an object that was looked up, if it needs anything.
func (s *session) push(l lookup) {
	key, object := l.key, l.object
	now := time.Now()
	s.mu.Lock()
	if _, held := s.queue.Held(key); !held && l.err == nil && object != nil && !l.recorded && !s.features.Inventory {
		l.err = errNotRecorded
	}
	if l.err != nil {
		failures := s.queue.Fail(key, now)
		s.mu.Unlock()
		if failures == repeatedly {
			klog.InfoS("Object cannot be sent; it is tried again", "node", s.node, "object", key.String(), "err", l.err)
		}
		return
	}
	want := wanted(object)
	if held, ok := s.queue.Held(key); ok && key.Type == resource.TypeNode && (want == nil || want.UID != held.UID) {
		s.queue.Drop(key) // the deletion of a node is never sent (docs/wire.md, Registration)
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
	err := s.conn.Write(m)
	switch {
	case err == nil:
	case fatal(err):
		s.end(wire.CloseGoingAway, err.Error())
	default:
		s.mu.Lock()
		s.queue.Nack(act.ID, time.Now())
		s.mu.Unlock()
		klog.InfoS("Object cannot be sent over the link; it is tried again", "node", s.node, "object", key.String(),
			"err", err)
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
		klog.InfoS("Node refused an object; it is sent again with growing pauses", "node", s.node,
			"object", a.Key.String(), "operation", a.Op.String(), "err", clip(string(m.ContentData()), 256))
	}
}

// clip keeps what a peer says fit for a log.
func clip(text string, n int) string {
	if len(text) > n {
		return text[:n] + "..."
	}
	return text
}
