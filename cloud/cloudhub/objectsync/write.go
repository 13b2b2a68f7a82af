package objectsync

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/apihealth"
	"github.com/edgecore-io/edgecore/pkg/apis/reliablesyncs/v1alpha1"
)

// writeTimeout is the timeout of one write.
const writeTimeout = 30 * time.Second

// flushTimeout is the timeout of the writes at shutdown.
const flushTimeout = 5 * time.Second

func (s *Store) worker(ctx context.Context) {
	for {
		i, down := s.work.Get()
		if down {
			return
		}
		s.process(ctx, i)
		s.work.Done(i)
	}
}

// process writes the next change of one sync object.
func (s *Store) process(ctx context.Context, i id) {
	s.mu.Lock()
	in := s.pending[i]
	if in == nil {
		s.mu.Unlock()
		return
	}
	now := *in
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	done, err := s.write(ctx, i, &now)
	s.mu.Lock()
	defer s.mu.Unlock()
	in = s.pending[i]
	if in.deleted == now.deleted && in.repairs() == now.repairs() {
		in.made, in.recreate = now.made, now.recreate
	}
	if waiting := s.making[i]; waiting != nil && !now.deleted && !now.repairs() && (err == nil || now.made) {
		delete(s.making, i)
		close(waiting)
	}
	switch {
	case err != nil && ctx.Err() == nil:
		if s.work.NumRequeues(i) == 3 {
			klog.InfoS("Sync object cannot be written; it is tried again", "object", i.String(), "err", err)
		}
		s.work.AddRateLimited(i)
		return
	case err != nil: // timeout, or shutdown
		s.work.AddRateLimited(i)
		return
	}
	s.work.Forget(i)
	switch {
	case in.change != now.change:
		s.work.AddAfter(i, time.Until(in.at))
	case done:
		delete(s.pending, i)
		delete(s.making, i) // it was deleted: callers that wait for it try again
	default:
		s.work.AddAfter(i, time.Until(in.at))
	}
}

// flush writes at shutdown what would be due soon.
func (s *Store) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	s.mu.Lock()
	ids := make(chan id, len(s.pending))
	for i, in := range s.pending {
		in.at = time.Time{}
		ids <- i
	}
	s.mu.Unlock()
	close(ids)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range ids {
				s.process(ctx, i)
			}
		})
	}
	wg.Wait()
}

// write does the next step; done is set if it was the last.
func (s *Store) write(ctx context.Context, i id, in *intent) (done bool, err error) {
	node, _, _ := v1alpha1.SplitName(i.name)
	ctx = apihealth.ForNode(ctx, node)
	client := s.clientFor(i)
	r := s.known(i)
	if in.deleted {
		err := client.Delete(ctx, i.name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return true, err
	}
	if !in.made && (r == nil || in.recreate) {
		made, err := s.create(ctx, client, i, in)
		if !made || err != nil {
			return true, err
		}
		in.made = true
	}
	if time.Now().Before(in.at) {
		return false, nil
	}
	if r != nil && !in.recreate && !needs(r, in) {
		return true, nil
	}
	err = patch(ctx, client, i, in)
	if apierrors.IsNotFound(err) { // it was deleted, whatever the watch shows
		in.made, in.recreate = false, true
	}
	return true, err
}

// needs reports whether a sync object must be written: it never goes back.
func needs(r *record, in *intent) bool {
	switch {
	case r.rv == "":
		return true
	case in.rv == v1alpha1.NeverAcked, r.rv == in.rv && r.version == in.version:
		return false
	}
	return r.rv == in.rv || !older(in.rv, r.rv)
}

// older reports whether resource version a is a number before b.
func older(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	return errA == nil && errB == nil && x < y
}

func (s *Store) clientFor(i id) dynamic.ResourceInterface {
	if i.namespace == "" {
		return s.client.Resource(v1alpha1.ClusterObjectSyncs)
	}
	return s.client.Resource(v1alpha1.ObjectSyncs).Namespace(i.namespace)
}

// create creates a sync object. made is false if there can be none: the object's namespace is terminating, its name
// would be too long, or only the UID is known.
func (s *Store) create(ctx context.Context, client dynamic.ResourceInterface, i id, in *intent) (made bool, err error) {
	if in.ref.Kind == "" {
		return false, nil
	}
	kind := v1alpha1.KindObjectSync
	if i.namespace == "" {
		kind = v1alpha1.KindClusterObjectSync
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(),
		"kind":       kind,
		"metadata":   map[string]any{"name": i.name},
		"spec": map[string]any{
			"objectAPIVersion": in.ref.APIVersion,
			"objectKind":       in.ref.Kind,
			"objectName":       in.ref.Key.Name,
		},
	}}
	if i.namespace != "" {
		o.SetNamespace(i.namespace)
	}
	_, err = client.Create(ctx, o, metav1.CreateOptions{})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return true, nil
	case apierrors.IsNotFound(err) && i.namespace != "" && !noSuchKind(err),
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return false, nil
	case apierrors.IsInvalid(err):
		klog.InfoS("No sync object can be created; the object is sent again after each restart of cloudcore",
			"object", i.String(), "err", err)
		return false, nil
	}
	return false, fmt.Errorf("create %s %s: %w", kind, i, err)
}

// noSuchKind distinguishes a missing CRD from a missing namespace.
func noSuchKind(err error) bool {
	status, ok := err.(apierrors.APIStatus)
	return !ok || status.Status().Details == nil || status.Status().Details.Kind != "namespaces"
}

// patch writes the status.
func patch(ctx context.Context, client dynamic.ResourceInterface, i id, in *intent) error {
	var version *string // null removes what another version of this process wrote
	if in.version != "" {
		version = &in.version
	}
	text, err := json.Marshal(map[string]any{
		"status": map[string]any{"objectResourceVersion": in.rv, "objectVersion": version},
	})
	if err != nil {
		return fmt.Errorf("encode the status of %s: %w", i, err)
	}
	if _, err := client.Patch(ctx, i.name, types.MergePatchType, text, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("write the status of %s: %w", i, err)
	}
	return nil
}
