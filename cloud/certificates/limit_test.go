package certificates

import (
	"testing"
	"time"
)

func TestLimiter(t *testing.T) {
	c := newClock()
	l := newLimiter(2, 3, c.now)
	allowed := func(remote string, tries int) (n int) {
		for range tries {
			if l.allow(remote) {
				n++
			}
		}
		return n
	}
	if got := allowed("192.0.2.1:1", 10); got != 3 {
		t.Errorf("%d at once, want 3", got)
	}
	if got := allowed("192.0.2.1:2", 10); got != 0 {
		t.Errorf("%d from another port of the address, want 0", got)
	}
	if got := allowed("[::ffff:192.0.2.1]:2", 10); got != 0 {
		t.Errorf("%d from the IPv6 spelling of the address, want 0", got)
	}
	if got := allowed("192.0.2.2:1", 10); got != 3 {
		t.Errorf("another address has %d, want 3", got)
	}
	if got := allowed("[2001:db8::1]:1", 10) + allowed("[2001:db8::2]:1", 10); got != 3 {
		t.Errorf("one network has %d, want 3", got)
	}
	if got := allowed("nonsense", 10) + allowed("more", 10); got != 3 {
		t.Errorf("what has no address has %d, want 3 for all", got)
	}
	c.add(time.Second)
	if got := allowed("192.0.2.1:1", 10); got != 2 {
		t.Errorf("%d after a second, want 2", got)
	}
	if off := newLimiter(-1, 0, c.now); off != nil || !off.allow("192.0.2.1:1") {
		t.Errorf("a switched-off limiter is %v and does not allow, want nil, which does", off)
	}
}

func TestTooManyRequests(t *testing.T) {
	a := newTestAuthority(t, newFakeSecrets(), newClock(), func(o *Options) { o.RequestsPerSecond, o.Burst = 0.001, 2 })
	d := &device{t: t, address: serve(t, a, fakeNodes{}), a: a}
	for i, want := range []int{200, 200, 429} {
		got := d.get("/ca.crt", nil, nil)
		if got.status != want || want == 429 && got.header.Get("Retry-After") == "" {
			t.Errorf("request %d: %d, want %d", i, got.status, want)
		}
	}
}
