// Package lookups asks the API server, in cloudcore's own name, for what the caches lack: whole pods, the contents of
// ConfigMaps and Secrets, and whether an object is really gone. It limits how much is asked at a time, and keeps the
// contents that were read last.
package lookups

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/slots"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Timeout is the timeout for asking the API server whether an object is really gone.
const Timeout = 5 * time.Second

// maxConfirms limits concurrent requests to the API server about objects that may be gone.
const maxConfirms = 16

// maxWholeReads limits how many large pods are read at a time. Each takes several times its size meanwhile.
const maxWholeReads = 4

// ErrPodsMissing means that the watch is about to bring other versions of pods.
var ErrPodsMissing = errors.New("the API server has them in other versions than its watch brought so far")

// Lookups asks the API server, in cloudcore's own name, for what the caches lack, or have only a part of.
type Lookups struct {
	Own                  kubernetes.Interface
	confirms, wholeReads slots.Semaphore
	ctx                  context.Context // set by Start
}

// New makes lookups with a client that acts as cloudcore itself.
func New(own kubernetes.Interface) *Lookups {
	return &Lookups{
		Own:        own,
		confirms:   make(slots.Semaphore, maxConfirms),
		wholeReads: make(slots.Semaphore, maxWholeReads),
	}
}

// Start must return before the first lookup. All end with the context.
func (l *Lookups) Start(ctx context.Context) { l.ctx = ctx }

// Confirmed asks the API server for an object that the caches lack, or have only a part of; nil if it does not exist.
func Confirmed[T any](
	l *Lookups, key resource.Key, get func(context.Context, string, metav1.GetOptions) (*T, error),
) (*T, error) {
	ctx, cancel := context.WithTimeout(l.ctx, Timeout)
	defer cancel()
	leave, err := l.confirms.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the API server whether %s is gone: %w", key, err)
	}
	defer leave()
	obj, err := get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("ask the API server whether %s is gone: %w", key, err)
	}
	return obj, nil
}

// LargePod reads a large pod as it is now and calls use with it; with nil if it does not exist. Few are in use at a
// time.
func (l *Lookups) LargePod(ctx context.Context, key resource.Key, use func(*v1.Pod) error) error {
	leave, err := l.wholeReads.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	defer leave()
	whole, err := Confirmed(l, key, l.Own.CoreV1().Pods(key.Namespace).Get)
	if err != nil {
		return err
	}
	return use(whole)
}

// Whole returns the whole of a pod that may be trimmed; see WholePod.
func (l *Lookups) Whole(ctx context.Context, pod *v1.Pod) (*v1.Pod, error) {
	if !caches.IsTrimmed(pod) {
		return pod, nil
	}
	return l.WholePod(ctx, pod)
}

// WholePod reads the whole of a trimmed pod from the API server: the same version of it, or a later one that is not
// larger.
func (l *Lookups) WholePod(ctx context.Context, pod *v1.Pod) (*v1.Pod, error) {
	key := caches.PodKey(pod)
	var found *v1.Pod
	err := l.LargePod(ctx, key, func(whole *v1.Pod) error {
		if whole == nil || whole.UID != pod.UID || !atLeast(whole.ResourceVersion, pod.ResourceVersion) {
			return fmt.Errorf("read %s: %w", key, ErrPodsMissing) // the watch is about to tell
		}
		whole.ManagedFields = nil
		if size := caches.ContentSize(whole); size > caches.SizeOf(pod) {
			return fmt.Errorf("read %s: it has grown from %d to %d bytes: %w", key, caches.SizeOf(pod), size,
				ErrPodsMissing)
		}
		found = whole
		return nil
	})
	return found, err
}

// A node's pods are listed listPage at a time, which are all that a node has; or largePage if its large pods have more
// than listedBytes together.
const (
	listPage    = 500
	largePage   = 5
	listedBytes = 4 << 20
)

// ListPods lists a node's current pods, large ones trimmed: without a resourceVersion the API server answers with
// nothing older. large is the size of its large pods together, as far as it is known. version is the list's; 0 if it is
// not a number.
func (l *Lookups) ListPods(node string, large int) (pods []*v1.Pod, version uint64, err error) {
	page := int64(listPage)
	if large > listedBytes {
		leave, err := l.wholeReads.Acquire(l.ctx)
		if err != nil {
			return nil, 0, err
		}
		defer leave()
		page = largePage
	}
	for from := ""; ; {
		list, err := l.PodsOf(node, page, from)
		if err != nil {
			return nil, 0, err
		}
		for i := range list.Items {
			pod := list.Items[i] // a copy: the page is not kept
			pods = append(pods, caches.TrimIfLarge(&pod))
		}
		if from = list.Continue; from == "" {
			version, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
			if err != nil {
				version = 0
			}
			return pods, version, nil
		}
	}
}

// PodsOf lists a page of a node's pods, of at most limit. from is the list's Continue of the page before.
func (l *Lookups) PodsOf(node string, limit int64, from string) (*v1.PodList, error) {
	ctx, cancel := context.WithTimeout(l.ctx, Timeout)
	defer cancel()
	leave, err := l.confirms.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return l.Own.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(), Limit: limit, Continue: from,
	})
}
