package metamanager

import "context"

// Alive implements beehive.Prober: it returns once the store and the locks of the module have answered. The store's
// answer does not matter: a failing disk has a condition of its own, and a restart would not help.
func (m *Module) Alive(ctx context.Context) error {
	m.link.get()
	m.outbox.Queues()
	_, _ = m.store.Get(ctx, "null/alive/alive")
	return nil
}
