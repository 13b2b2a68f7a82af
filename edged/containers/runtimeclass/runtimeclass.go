// Package runtimeclass finds the handler of a pod's RuntimeClass.
package runtimeclass

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/runtime"
)

var errNoHandler = errors.New("it names no handler")

// Resolver finds handlers.
type Resolver struct {
	// Class returns a RuntimeClass by its name.
	Class func(ctx context.Context, name string) (*nodev1.RuntimeClass, error)
	// Features are those of the runtime, which is asked if it was not yet.
	Features func(ctx context.Context) (runtime.Features, error)
}

// Handler returns the handler of a pod's RuntimeClass; "" is the runtime's default. If the class is unknown here and
// the cloud is unreachable, the handler of the same name is used, if there is one.
func (r Resolver) Handler(ctx context.Context, pod *v1.Pod) (string, error) {
	name := ptr.Deref(pod.Spec.RuntimeClassName, "")
	if name == "" {
		return "", nil
	}
	class, err := r.Class(ctx, name)
	if err == nil && class.Handler != "" {
		return class.Handler, nil
	}
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf(
			"failed to get sandbox runtime: runtimeclass.node.k8s.io %q not found; make it, or remove "+
				"runtimeClassName from the pod", name)
	}
	if err == nil {
		err = errNoHandler
	}
	f, askErr := r.Features(ctx)
	if askErr != nil {
		return "", askErr
	}
	return handlerByName(name, f, err)
}

// handlerByName chooses a handler for a class when only its name is known, because of cause.
func handlerByName(name string, f runtime.Features, cause error) (string, error) {
	if _, ok := f.Handlers[name]; ok {
		return name, nil
	}
	return "", fmt.Errorf(
		"failed to get sandbox runtime: runtime class %q: %w; and the runtime %s has no handler of this name (it "+
			"has: %s)",
		name, cause, f.Runtime(), strings.Join(f.HandlerNames(), ", "))
}
