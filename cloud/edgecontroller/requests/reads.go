package requests

import (
	"context"
	"errors"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/slots"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// contentHandlers answer queries of ConfigMaps and Secrets.
type contentHandlers struct {
	asNode kubernetes.Interface
	caches Caches
	// content returns a ConfigMap or Secret; nil if it does not exist.
	content func(key resource.Key) (*cloudhub.Object, error)
}

// tokenHandlers get tokens of service accounts for the pods of nodes.
type tokenHandlers struct {
	asNode kubernetes.Interface
	pods   *knownPods
}

// authorizerLag is how long the API server's node authorizer may lag behind the pods known here. A node that starts
// many pods requests all their tokens at once, and a refused request delays its pod until the next try.
const authorizerLag = 3 * time.Second

// retryUnknownPod repeats a request that the API server refuses although the node should be allowed: its authorizer and
// admission learn of a pod a moment after it is bound.
func retryUnknownPod[T any](ctx context.Context, do func() (T, error)) (T, error) {
	until := time.Now().Add(authorizerLag)
	for backoff := retry.NewBackoff(50*time.Millisecond, authorizerLag); ; {
		out, err := do()
		wait := backoff.Next()
		if !isUnknownPod(err) || time.Now().Add(wait).After(until) || !slots.Pause(ctx, wait) {
			return out, err
		}
	}
}

// isUnknownPod reports whether an error may mean that the API server does not know a pod yet.
func isUnknownPod(err error) bool {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok && apierrors.IsNotFound(err) {
		details := status.ErrStatus.Details
		return details != nil && (details.Kind == "pod" || details.Kind == "pods")
	}
	return apierrors.IsForbidden(err)
}

// queryConfigMap answers for all nodes alike if a pod on the node names the ConfigMap. Otherwise, and if the caches
// lack it, it asks the API server in the node's name, which forbids ConfigMaps that no pod names.
func (h *contentHandlers) queryConfigMap(ctx context.Context, r *request) result {
	get := func() (*v1.ConfigMap, error) {
		return h.asNode.CoreV1().ConfigMaps(r.key.Namespace).Get(ctx, r.key.Name, metav1.GetOptions{})
	}
	if !h.caches.Names(r.node, r.key) {
		o, err := get()
		return found(o, err)
	}
	if o := h.known(r.key); o != nil {
		return result{content: o.JSON, version: o.ResourceVersion}
	}
	o, err := retryUnknownPod(ctx, get)
	return found(o, err)
}

// known returns a ConfigMap or Secret that the caches know of; nil if they do not, or it could not be read.
func (h *contentHandlers) known(key resource.Key) *cloudhub.Object {
	if h.caches.Named(key) == nil {
		return nil
	}
	o, err := h.content(key)
	if err != nil {
		klog.V(2).InfoS("Object not read for a node; asking in the node's name", "object", key.String(), "err", err)
		return nil
	}
	return o
}

// querySecret works like queryConfigMap. A Secret of a persistent volume, which no pod names, comes from the API
// server.
func (h *contentHandlers) querySecret(ctx context.Context, r *request) result {
	get := func() (*v1.Secret, error) {
		return h.asNode.CoreV1().Secrets(r.key.Namespace).Get(ctx, r.key.Name, metav1.GetOptions{})
	}
	if !h.caches.Names(r.node, r.key) {
		o, err := get()
		return found(o, err)
	}
	if o := h.known(r.key); o != nil {
		return result{content: o.JSON, version: o.ResourceVersion}
	}
	o, err := retryUnknownPod(ctx, get)
	return found(o, err)
}

// requestToken creates a service account token for a pod on the node that runs as the account. The token is only in the
// answer.
func (h *tokenHandlers) requestToken(ctx context.Context, r *request) result {
	wanted, err := decode[authenticationv1.TokenRequest](r, "TokenRequest")
	if err != nil {
		return failed(err)
	}
	if err := h.mayHaveToken(ctx, r, wanted.Spec.BoundObjectRef); err != nil {
		return failed(err)
	}
	got, err := retryUnknownPod(ctx, func() (*authenticationv1.TokenRequest, error) {
		return h.asNode.CoreV1().ServiceAccounts(r.key.Namespace).CreateToken(ctx, r.key.Name,
			&authenticationv1.TokenRequest{Spec: wanted.Spec}, metav1.CreateOptions{})
	})
	res := found(got, err)
	res.version = ""
	return res
}

// mayHaveToken checks what the API server checks too, before requesting a token.
func (h *tokenHandlers) mayHaveToken(
	ctx context.Context, r *request, ref *authenticationv1.BoundObjectReference,
) error {
	if ref == nil || ref.Kind != "Pod" || ref.APIVersion != "v1" || ref.Name == "" || ref.UID == "" {
		return forbidden(r.key, "a node gets tokens for its pods only; the request names no pod with its UID")
	}
	pod, err := h.pods.podOf(ctx, r.key.Namespace, ref.Name)
	if err != nil {
		return err
	}
	account := ""
	if pod != nil {
		if account = pod.Spec.ServiceAccountName; account == "" {
			account = "default"
		}
	}
	switch {
	case pod == nil || pod.UID != ref.UID:
		return forbidden(r.key, "pod %s/%s with UID %s does not exist", r.key.Namespace, ref.Name, ref.UID)
	case pod.Spec.NodeName != r.node:
		return forbidden(r.key, "pod %s/%s is not bound to node %s", r.key.Namespace, ref.Name, r.node)
	case account != r.key.Name:
		return forbidden(r.key, "pod %s/%s runs as service account %s", r.key.Namespace, ref.Name, account)
	}
	return nil
}
