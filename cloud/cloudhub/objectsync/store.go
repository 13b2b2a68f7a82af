// Package objectsync stores in the API what KubeEdge's edgecores have acked, as KubeEdge does (docs/wire.md, Delivery):
// one ObjectSync or ClusterObjectSync per node and object, named <node>.<uid>.
//
// It promises: acks are written soon and without blocking the caller, but the record that an object will be sent is
// written before the object is. Frequent changes are written once; failed writes are retried forever. It never claims
// that a node holds more than it acked. Several cloudcores may write: each writes only for the nodes connected to it,
// and never replaces a newer version with an older one.
package objectsync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/queue"
	"github.com/edgecore-io/edgecore/pkg/apis/reliablesyncs/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Delays of writing, by what is written.
const (
	// ackDelay batches the acks of an object.
	ackDelay = 200 * time.Millisecond
	// moveDelay is for objects where only the resource version changed, as with each status of a pod.
	moveDelay = time.Minute
	// repairDelay is for objects without a status that this process did not create.
	repairDelay = 5 * time.Second
)

const (
	workers  = 4
	minRetry = 100 * time.Millisecond
	maxRetry = time.Minute
)

// intent is the desired state of a sync object.
type intent struct {
	ref      cloudhub.Ref // the object that it is about
	rv       string
	version  string
	deleted  bool
	made     bool      // the sync object was created
	recreate bool      // it was deleted, though the watch may not show it yet
	at       time.Time // when the status is due
	change   int       // counts changes of the intent
}

// repairs reports whether the intent was made for a sync object from the watch, which may be gone by now.
func (in *intent) repairs() bool { return in.ref.Kind == "" }

// Store reads and writes the sync objects.
type Store struct {
	client    dynamic.Interface
	informers [2]cache.SharedIndexInformer // namespaced, cluster-scoped
	work      workqueue.TypedRateLimitingInterface[id]

	mu      sync.Mutex
	pending map[id]*intent
	making  map[id]chan struct{} // closed when the sync object exists; a sender waits for it
}

var _ cloudhub.Records = (*Store)(nil)

// New makes a store; Run starts it.
func New(client dynamic.Interface) (*Store, error) {
	s := &Store{
		client:  client,
		pending: map[id]*intent{},
		making:  map[id]chan struct{}{},
		work: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[id](minRetry,
			maxRetry)),
	}
	for i, gvr := range []schema.GroupVersionResource{v1alpha1.ObjectSyncs, v1alpha1.ClusterObjectSyncs} {
		informer := dynamicinformer.NewFilteredDynamicInformer(client, gvr, "", 0, indexers, nil).Informer()
		if err := informer.SetTransform(trim); err != nil {
			return nil, fmt.Errorf("watch %s: %w", gvr.Resource, err)
		}
		if err := informer.SetWatchErrorHandlerWithContext(watchFailed(gvr.Resource)); err != nil {
			return nil, fmt.Errorf("watch %s: %w", gvr.Resource, err)
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: s.repair}); err != nil {
			return nil, fmt.Errorf("watch %s: %w", gvr.Resource, err)
		}
		s.informers[i] = informer
	}
	return s, nil
}

// watchFailed logs why sync objects cannot be read, at most once a minute.
func watchFailed(what string) cache.WatchErrorHandlerWithContext {
	var mu sync.Mutex
	var said time.Time
	return func(ctx context.Context, r *cache.Reflector, err error) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil || isRoutine(err) || time.Since(said) < time.Minute {
			return
		}
		said = time.Now()
		klog.InfoS("Sync objects cannot be watched; until then KubeEdge's edges get no objects: apply "+
			"deploy/cloudcore/crds and check cloudcore's role", "resource", what, "err", err)
	}
}

// isRoutine reports whether an error is part of a normal long watch: it expired, or is too old to resume, and restarts.
func isRoutine(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF)
}

// Run runs the store until the context ends, then writes what is pending. What cannot be written is lost: its objects
// are sent again after the next start.
func (s *Store) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, informer := range s.informers {
		wg.Go(func() { informer.RunWithContext(ctx) })
	}
	for range workers {
		wg.Go(func() { s.worker(ctx) })
	}
	<-ctx.Done()
	s.work.ShutDown()
	wg.Wait()
	s.flush()
	return ctx.Err()
}

// Synced reports whether both caches have synced.
func (s *Store) Synced() bool { return s.informers[0].HasSynced() && s.informers[1].HasSynced() }

// Held implements cloudhub.Records.
func (s *Store) Held(ctx context.Context, node string) (map[resource.Key]queue.State, error) {
	if !cache.WaitForCacheSync(ctx.Done(), s.informers[0].HasSynced, s.informers[1].HasSynced) {
		return nil, fmt.Errorf("read the sync objects of node %s: %w", node, ctx.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	held := map[resource.Key]queue.State{}
	for _, r := range s.records(node) {
		if s.pending[r.id] == nil && r.object != "" && r.kind != "" {
			put(held, r.key(), r.state())
		}
	}
	for i, in := range s.pending {
		if owner, uid, ok := v1alpha1.SplitName(i.name); ok && owner == node && !in.deleted {
			put(held, in.ref.Key, queue.State{UID: uid, Version: in.version, ResourceVersion: in.rv})
		}
	}
	return held, nil
}

// put keeps the newest of several objects with the same name.
func put(held map[resource.Key]queue.State, key resource.Key, state queue.State) {
	if other, ok := held[key]; !ok || older(other.ResourceVersion, state.ResourceVersion) {
		held[key] = state
	}
}

// records returns a node's records in the API.
func (s *Store) records(node string) []*record {
	var all []*record
	for _, informer := range s.informers {
		found, err := informer.GetIndexer().ByIndex(byNode, node)
		if err != nil { // the index exists
			panic(err)
		}
		for _, o := range found {
			all = append(all, o.(*record))
		}
	}
	return all
}

// known returns a sync object in the API, or nil.
func (s *Store) known(i id) *record {
	informer := s.informers[0]
	if i.namespace == "" {
		informer = s.informers[1]
	}
	o, ok, err := informer.GetIndexer().GetByKey(i.String())
	if err != nil || !ok {
		return nil
	}
	return o.(*record)
}

// Nodes implements cloudhub.Records.
func (s *Store) Nodes() []string {
	if !s.Synced() {
		return nil
	}
	seen := map[string]struct{}{}
	var all []string
	for _, informer := range s.informers {
		for _, node := range informer.GetIndexer().ListIndexFuncValues(byNode) {
			if _, ok := seen[node]; !ok {
				seen[node] = struct{}{}
				all = append(all, node)
			}
		}
	}
	return all
}

func idOf(node string, ref cloudhub.Ref) id {
	i := id{ref.Key.Namespace, v1alpha1.Name(node, ref.UID)}
	if i.namespace == resource.NullNamespace {
		i.namespace = ""
	}
	return i
}

// Sending implements cloudhub.Records: it returns when the API server has the sync object, or cannot have one.
func (s *Store) Sending(ctx context.Context, node string, ref cloudhub.Ref) error {
	made := s.plan(node, ref)
	if made == nil {
		return nil
	}
	select {
	case <-made:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("create the sync object %s: %w", idOf(node, ref), ctx.Err())
	}
}

// plan schedules creating a sync object. The channel it returns is closed when that is done; nil means there is nothing
// to wait for.
func (s *Store) plan(node string, ref cloudhub.Ref) (made <-chan struct{}) {
	i := idOf(node, ref)
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.pending[i]
	switch {
	case ref.Kind == "" || ref.UID == "", in != nil && !in.deleted && in.made && !in.repairs():
		return nil
	case in == nil || in.deleted || in.repairs(): // a sync object that the watch shows may already be deleted
		s.intend(i, intent{ref: ref, rv: v1alpha1.NeverAcked, at: time.Now().Add(ackDelay), recreate: true})
	}
	s.work.Add(i)
	if s.making[i] == nil {
		s.making[i] = make(chan struct{})
	}
	return s.making[i]
}

// Acked implements cloudhub.Records.
func (s *Store) Acked(node string, ref cloudhub.Ref, version string) {
	i := idOf(node, ref)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ref.Kind == "" || ref.UID == "" {
		return
	}
	in, r := s.pending[i], s.known(i)
	next := intent{ref: ref, rv: ref.ResourceVersion, version: version, at: time.Now().Add(ackDelay)}
	switch {
	case in != nil && !in.deleted:
		next.made, next.recreate = in.made, in.recreate
		if in.at.Before(next.at) || in.version == version {
			next.at = in.at
		}
	case r != nil && r.rv == next.rv && r.version == version:
		return
	case r != nil && r.version == version && version != "":
		next.at = time.Now().Add(moveDelay)
	}
	s.intend(i, next)
	s.work.AddAfter(i, time.Until(next.at))
}

// Deleted implements cloudhub.Records.
func (s *Store) Deleted(node string, ref cloudhub.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(idOf(node, ref), ref)
}

// Forget implements cloudhub.Records.
func (s *Store) Forget(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records(node) {
		s.remove(r.id, cloudhub.Ref{Key: r.key(), UID: r.state().UID})
	}
	for i, in := range s.pending {
		if owner, _, ok := v1alpha1.SplitName(i.name); ok && owner == node {
			s.remove(i, in.ref)
		}
	}
}

// remove schedules a deletion. remove and intend are called with the lock held.
func (s *Store) remove(i id, ref cloudhub.Ref) {
	s.intend(i, intent{ref: ref, deleted: true})
	s.work.Add(i)
}

func (s *Store) intend(i id, next intent) {
	if in := s.pending[i]; in != nil {
		next.change = in.change + 1
	}
	s.pending[i] = &next
}

// repair adds the missing status of a sync object: a process may have stopped after creating the object.
func (s *Store) repair(o any) {
	r, ok := o.(*record)
	if !ok || r.rv != "" || r.object == "" || r.kind == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending[r.id] != nil {
		return
	}
	_, uid, ok := v1alpha1.SplitName(r.name)
	if !ok {
		return
	}
	s.intend(r.id, intent{ref: refOf(r, uid), rv: v1alpha1.NeverAcked, made: true, at: time.Now().Add(repairDelay)})
	s.work.AddAfter(r.id, repairDelay)
}

func refOf(r *record, uid types.UID) cloudhub.Ref {
	return cloudhub.Ref{Key: r.key(), UID: uid}
}
