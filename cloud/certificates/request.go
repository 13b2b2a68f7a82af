package certificates

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

const (
	// defaultTokenTTL is how long a token for a node lasts if the request does not say.
	defaultTokenTTL = 24 * time.Hour
	// maxTokenTTL is long enough for a batch of devices that is shipped, and short enough to be forgotten.
	maxTokenTTL = 90 * 24 * time.Hour
)

// TokenRequest is what `cloudcore gettoken` asks for. The zero value asks for the general token.
type TokenRequest struct {
	// Node is the only node that the token is for; "" is any.
	Node string
	// TTL is how long the token lasts. Zero is a day for a token of a node, and the general token if there is no node.
	TTL time.Duration
	// Replace revokes the certificates that the node has.
	Replace bool
}

// Check returns what is wrong with the request, in terms of the command's flags.
func (r *TokenRequest) Check() error {
	if faults := validation.IsDNS1123Subdomain(r.Node); r.Node != "" && len(faults) > 0 {
		return fmt.Errorf("--node %q is not the name of a node: %s", r.Node, faults[0])
	}
	if r.TTL < 0 || r.TTL > maxTokenTTL {
		return fmt.Errorf("--ttl %s: want more than 0s, and %s at most", r.TTL, maxTokenTTL)
	}
	if r.Replace && r.Node == "" {
		return errors.New("--replace: which node? name it with --node NAME")
	}
	return nil
}

// Issue returns the token, made from the secrets alone. It revokes the node first if the request says so.
func (r *TokenRequest) Issue(ctx context.Context, secrets Secrets, now time.Time) (*certs.Token, error) {
	if r.Replace {
		if _, err := Revoke(ctx, secrets, r.Node, now); err != nil {
			return nil, err
		}
	}
	switch {
	case r.Node == "" && r.TTL == 0:
		return ReadToken(ctx, secrets, now)
	case r.TTL == 0:
		return NewNodeToken(ctx, secrets, r.Node, now.Add(defaultTokenTTL))
	}
	return NewNodeToken(ctx, secrets, r.Node, now.Add(r.TTL))
}
