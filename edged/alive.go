package edged

import "context"

// Alive implements beehive.Prober: it returns once the locks that all pods share have been had. The runtime is not asked:
// one that hangs is a condition of its own, which no restart of this module mends.
func (e *Edged) Alive(context.Context) error {
	if !e.built.Load() {
		return nil
	}
	func() { // that it can be had is all that is asked
		e.admitMu.Lock()
		defer e.admitMu.Unlock()
	}()
	e.Pods()
	e.pool.UIDs()
	e.recorder.List()
	return nil
}
