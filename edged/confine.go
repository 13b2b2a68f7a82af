package edged

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/metaclient"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/runtime"
	"github.com/edgecore-io/edgecore/edged/security"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// This file is what keeps pods apart: the runtime's handlers, and what the node cannot enforce.

// admissionChecks are further reasons to reject a pod.
func (e *Edged) admissionChecks() []func(*v1.Pod) *observed.Reason {
	return []func(*v1.Pod) *observed.Reason{
		e.sysctls.Check,
		e.host.CheckAppArmor,
		e.evictions.Admit,
		func(pod *v1.Pod) *observed.Reason {
			f, known := e.runtime.Known()
			return security.CheckGroups(pod, f.SupplementalGroupsPolicy, known)
		},
	}
}

// runtimeHandler returns the handler of a pod's runtime class. A class that nobody here knows while the cloud cannot be
// asked is taken for the handler of its name, if there is one.
func (e *Edged) runtimeHandler(ctx context.Context, pod *v1.Pod) (string, error) {
	name := ptr.Deref(pod.Spec.RuntimeClassName, "")
	if name == "" {
		return "", nil
	}
	class, err := metaclient.Get[nodev1.RuntimeClass](ctx, e.meta, resource.Key{Namespace: resource.NullNamespace, Type: resource.TypeRuntimeClass, Name: name})
	if err == nil && class.Handler != "" {
		return class.Handler, nil
	}
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("failed to get sandbox runtime: runtimeclass.node.k8s.io %q not found; make it, or remove runtimeClassName from the pod", name)
	}
	if err == nil {
		err = fmt.Errorf("it names no handler")
	}
	f, askErr := e.runtime.Features(ctx)
	if askErr != nil {
		return "", askErr
	}
	return handlerByName(name, f, err)
}

// handlerByName chooses a handler for a class of which no more than the name is known, because of cause.
func handlerByName(name string, f runtime.Features, cause error) (string, error) {
	if _, ok := f.Handlers[name]; ok {
		return name, nil
	}
	return "", fmt.Errorf("failed to get sandbox runtime: runtime class %q: %w; and the runtime %s has no handler of this name (it has: %s)",
		name, cause, f.Runtime(), strings.Join(f.HandlerNames(), ", "))
}
