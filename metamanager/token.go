package metamanager

import (
	"encoding/json"
	"fmt"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// tokenSpec is what a token was asked for, of an authentication.k8s.io/v1 TokenRequest.
type tokenSpec struct {
	Audiences         []string `json:"audiences"`
	ExpirationSeconds int64    `json:"expirationSeconds"`
	BoundObjectRef    boundRef `json:"boundObjectRef"`
}

type boundRef struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

// rowKey is where an object is in the store: under its name on the wire, but a token under what it was asked for,
// since a service account has many.
func rowKey(key resource.Key, content []byte) (string, error) {
	if key.Type != resource.TypeServiceAccountToken {
		return key.String(), nil
	}
	var request struct {
		Spec *tokenSpec `json:"spec"`
	}
	if err := json.Unmarshal(content, &request); err != nil {
		return "", fmt.Errorf("%s: content is not a TokenRequest: %w", key, err)
	}
	if request.Spec == nil {
		return "", fmt.Errorf("%s: content is not a TokenRequest: it has no spec", key)
	}
	return tokenKey(key, request.Spec), nil
}

// tokenKey is the key that KubeEdge gives the same request (docs/wire.md, Local store), so that a device that changes
// over keeps its tokens: Go's way of writing its parts, spelled out here, as no one else's change of a type may
// change where tokens are.
func tokenKey(key resource.Key, spec *tokenSpec) string {
	ref := spec.BoundObjectRef
	return fmt.Sprintf("%q/%q/%#v/%d/v1.BoundObjectReference{Kind:%q, APIVersion:%q, Name:%q, UID:%q}",
		key.Name, key.Namespace, spec.Audiences, spec.ExpirationSeconds, ref.Kind, ref.APIVersion, ref.Name, ref.UID)
}

// boundPod is the pod with which a token ends; it is empty for what is bound to none.
func boundPod(token []byte) boundRef {
	var request struct {
		Spec tokenSpec `json:"spec"`
	}
	if json.Unmarshal(token, &request) != nil || request.Spec.BoundObjectRef.Kind != "Pod" {
		return boundRef{}
	}
	return request.Spec.BoundObjectRef
}

// deleteTokens are the operations that delete a pod's tokens.
func deleteTokens(rows []store.Meta, uid string) []store.Op {
	var ops []store.Op
	for _, row := range rows {
		if boundPod(row.Value).UID == uid {
			ops = append(ops, store.Delete(row.Key))
		}
	}
	return ops
}
