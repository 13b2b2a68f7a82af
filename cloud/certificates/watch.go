package certificates

import (
	"context"
	"errors"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// watchSecrets watches the Secrets of the namespace until ctx ends, and applies changes of the link's Secrets. One
// watch covers all; other Secrets are ignored.
func (a *Authority) watchSecrets(ctx context.Context) {
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return a.secrets.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return a.secrets.Watch(ctx, o)
			},
		}, a.secrets),
		ObjectType: &v1.Secret{},
		Transform:  trimForeign,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { a.apply(obj, false) },
			UpdateFunc: func(_, obj any) { a.apply(obj, false) },
			DeleteFunc: func(obj any) { a.apply(obj, true) },
		},
	})
	var synced sync.WaitGroup
	defer synced.Wait()
	synced.Go(func() {
		// No event reports what was deleted between New and the first list.
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			a.refreshSoon()
		}
	})
	informer.RunWithContext(ctx)
}

// trimForeign empties Secrets that are not the link's before they are cached.
func trimForeign(obj any) (any, error) {
	secret, ok := obj.(*v1.Secret)
	if !ok {
		return obj, nil
	}
	slim := &v1.Secret{ObjectMeta: metav1.ObjectMeta{
		Name:            secret.Name,
		Namespace:       secret.Namespace,
		UID:             secret.UID,
		ResourceVersion: secret.ResourceVersion,
	}}
	switch secret.Name {
	case revocationsSecret, caSecret.name, serverSecret.name, tokenKeySecret:
		slim.Data = secret.Data
	}
	return slim, nil
}

// apply applies a changed Secret. It does not block.
func (a *Authority) apply(obj any, deleted bool) {
	if missed, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = missed.Obj
	}
	secret, ok := obj.(*v1.Secret)
	if !ok {
		return
	}
	switch secret.Name {
	case revocationsSecret:
		data := secret.Data
		if deleted {
			data = nil
		}
		a.setRevocations(data)
		a.changed.callSubscribers()
	case caSecret.name:
		if deleted {
			klog.ErrorS(errors.New("the secret was deleted"),
				"CA of the link kept in memory; restore the secret before cloudcore starts again",
				"secret", secret.Name)
			return
		}
		a.applyCA(secret.Data)
	case serverSecret.name:
		if !deleted {
			a.applyServer(secret.Data)
		}
	case tokenKeySecret:
		if deleted {
			a.refreshSoon()
			return
		}
		a.applyTokenKey(secret.Data)
	}
}

// listener is a function that may be set while others call it.
type listener struct {
	mu sync.Mutex
	f  func()
}

func (l *listener) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.f = f
}

func (l *listener) callSubscribers() {
	l.mu.Lock()
	f := l.f
	l.mu.Unlock()
	if f != nil {
		f()
	}
}

// OnChange sets a function that is called when Check may answer differently than before: f must recheck what Check
// accepted. It runs in the goroutine of the watch and must not block.
func (a *Authority) OnChange(f func()) { a.changed.set(f) }
