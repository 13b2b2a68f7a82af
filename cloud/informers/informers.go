// Package informers has what cloudcore's controllers share about informers.
package informers

import "k8s.io/client-go/tools/cache"

// Handler returns an event handler that calls f with the object before and after a change. old is nil for a new object,
// now for a deleted one, also if the watch missed its deletion. Objects of other types are left out.
func Handler[T any](f func(old, now *T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if now, ok := obj.(*T); ok {
				f(nil, now)
			}
		},
		UpdateFunc: func(before, obj any) {
			old, was := before.(*T)
			now, is := obj.(*T)
			if was && is {
				f(old, now)
			}
		},
		DeleteFunc: func(obj any) {
			if missed, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = missed.Obj
			}
			if old, ok := obj.(*T); ok {
				f(old, nil)
			}
		},
	}
}
