package kube

import "testing"

// Two reservations never give one port, and a released one may be had again.
func TestReservePort(t *testing.T) {
	dir := t.TempDir()
	p, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.release(); err != nil {
			t.Error(err)
		}
	}()
	first, err := tryPort(dir, p.number)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tryPort(dir, p.number); err == nil {
		t.Errorf("port %d was given twice", p.number)
	}
	if err := first.release(); err != nil {
		t.Fatal(err)
	}
	again, err := tryPort(dir, p.number)
	if err != nil {
		t.Fatalf("a released port: %v", err)
	}
	if err := again.release(); err != nil {
		t.Fatal(err)
	}
}
