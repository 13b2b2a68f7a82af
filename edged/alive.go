package edged

// askLocks returns once the locks that all pods share have been had.
func (e *Edged) askLocks() {
	func() { // that it can be had is all that is asked
		e.admitMu.Lock()
		defer e.admitMu.Unlock()
	}()
	e.shown.Pods()
	e.pool.UIDs()
	e.recorder.List()
}
