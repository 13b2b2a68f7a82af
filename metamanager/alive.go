package metamanager

import "context"

// Alive implements beehive.Prober: it returns once the store and the locks of the module have answered. What the store
// answers is no matter: a disk that fails is a condition of its own, which no restart mends.
func (m *Module) Alive(ctx context.Context) error {
	m.link.get()
	m.drain.drop(nil)
	_, _ = m.store.Get(ctx, "null/alive/alive")
	return nil
}
