package metamanager

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/metamanager/tokens"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// followDelay is how long changes of tokens are collected: pods come with several, and many pods at once.
const followDelay = 250 * time.Millisecond

// digest is that of the value of a row.
type digest [sha256.Size]byte

// FollowTokens calls stored for each token of a service account in the store, with the row that it is in, and whether
// it was requested without audiences; then for each that comes or is renewed, and removed for each that goes. It
// returns when ctx ends, or with an error if the store cannot be read. Only one caller at a time.
func (m *Module) FollowTokens(
	ctx context.Context, stored func(row string, tokenRequest []byte, noAudience bool), removed func(row string),
) error {
	for known := map[string]digest{}; ; {
		found := map[string]digest{}
		err := m.store.Each(ctx, resource.TypeServiceAccountToken, func(row store.Meta) error {
			is := sha256.Sum256(row.Value)
			if was, ok := known[row.Key]; !ok || was != is {
				stored(row.Key, row.Value, tokens.HasNoAudience(row.Key))
			}
			found[row.Key] = is
			return nil
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("follow the tokens of service accounts: %w", err)
		}
		for row := range known {
			if _, ok := found[row]; !ok {
				removed(row)
			}
		}
		known = found
		select {
		case <-m.tokensChanged:
		case <-ctx.Done():
			return nil
		}
		if !retry.Sleep(ctx, followDelay) {
			return nil
		}
	}
}
