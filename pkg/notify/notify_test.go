package notify

import "testing"

func TestSignal(t *testing.T) {
	s := NewSignal()
	for range 3 {
		s.Notify()
	}
	got := 0
	for {
		select {
		case <-s:
			got++
			continue
		default:
		}
		break
	}
	if got != 1 {
		t.Errorf("notifications received = %d, want 1 for 3 that came before it looked", got)
	}
}
