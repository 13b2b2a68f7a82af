package tokens

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// spec is what a token was asked for, of an authentication.k8s.io/v1 TokenRequest.
type spec struct {
	Audiences         []string `json:"audiences"`
	ExpirationSeconds int64    `json:"expirationSeconds"`
	BoundObjectRef    Ref      `json:"boundObjectRef"`
}

// Ref is the object with which a token ends.
type Ref struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

// Key returns where a token is in the store: under what it was asked for, since a service account has many. content is
// the TokenRequest.
func Key(account resource.Key, content []byte) (string, error) {
	var request struct {
		Spec *spec `json:"spec"`
	}
	if err := json.Unmarshal(content, &request); err != nil {
		return "", fmt.Errorf("%s: content is not a TokenRequest: %w", account, err)
	}
	if request.Spec == nil {
		return "", fmt.Errorf("%s: content is not a TokenRequest: it has no spec", account)
	}
	return request.Spec.key(account), nil
}

// key is the key that KubeEdge gives the same request (docs/wire.md, Local store), so that a device that changes
// over keeps its tokens: Go's way of writing its parts, spelled out here, as no one else's change of a type may
// change where tokens are.
func (s *spec) key(account resource.Key) string {
	ref := s.BoundObjectRef
	return fmt.Sprintf("%q/%q/%#v/%d/v1.BoundObjectReference{Kind:%q, APIVersion:%q, Name:%q, UID:%q}",
		account.Name, account.Namespace, s.Audiences, s.ExpirationSeconds, ref.Kind, ref.APIVersion, ref.Name, ref.UID)
}

// HasNoAudience reports whether the token of a row was requested without audiences: it is for kube-apiserver, whichever
// audiences that has.
func HasNoAudience(row string) bool {
	_, rest, ok := strings.Cut(row, `"/"`) // between the account's name and its namespace
	_, asked, found := strings.Cut(rest, `"/`)
	return ok && found && (strings.HasPrefix(asked, "[]string(nil)/") || strings.HasPrefix(asked, "[]string{}/"))
}

// BoundPod returns the pod with which a token ends; it is empty for what is bound to none.
func BoundPod(token []byte) Ref {
	var request struct {
		Spec spec `json:"spec"`
	}
	if json.Unmarshal(token, &request) != nil || request.Spec.BoundObjectRef.Kind != "Pod" {
		return Ref{}
	}
	return request.Spec.BoundObjectRef
}

// Delete returns the operations that delete a pod's tokens.
func Delete(rows []store.Meta, uid string) []store.Op {
	var ops []store.Op
	for _, row := range rows {
		if BoundPod(row.Value).UID == uid {
			ops = append(ops, store.Delete(row.Key))
		}
	}
	return ops
}
