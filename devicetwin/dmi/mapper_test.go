package dmi

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
)

// lamps are the devices of a protocol, and the mapper that gets them.
type lamps struct {
	plant
	dmi.DeviceMapperServiceClient

	mu    sync.Mutex
	list  map[string]*devices.Device
	calls []string
	// during, if not nil, runs in each call, which returns its error.
	during func(call string) error
}

// newLamps returns lamps, and the mapper that serves them.
func newLamps() (*lamps, *mapper) {
	l := &lamps{list: map[string]*devices.Device{}}
	s := &Server{opts: Options{
		Twins: l,
		Save:  func(context.Context, string, []byte) error { return nil },
	}}
	m := newMapper(s, "lamps", "v1", "dali", "/none")
	m.dial = func() (dmi.DeviceMapperServiceClient, func(), error) { return l, func() {}, nil }
	return l, m
}

// set sets a lamp's desired level.
func (l *lamps) set(name, uid, level string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := &devices.Device{}
	d.Namespace, d.Name, d.UID, d.Spec.Protocol.ProtocolName = "shop", name, types.UID(uid), "dali"
	d.Spec.Properties = []devices.DeviceProperty{{Name: "level", Desired: &devices.TwinProperty{Value: level}}}
	l.list[name] = d
}

func (l *lamps) remove(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.list, name)
}

func (l *lamps) Served(string) (_ []*devices.DeviceModel, out []*devices.Device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.list {
		out = append(out, d)
	}
	return nil, out
}

func (l *lamps) called(format string, args ...any) error {
	call := fmt.Sprintf(format, args...)
	l.mu.Lock()
	l.calls = append(l.calls, call)
	l.mu.Unlock()
	if l.during != nil {
		return l.during(call)
	}
	return nil
}

// made returns the calls since the last time.
func (l *lamps) made() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls := l.calls
	l.calls = nil
	return strings.Join(calls, ", ")
}

func level(d *dmi.Device) string {
	return d.GetSpec().GetProperties()[0].GetDesired().GetValue()
}

func (l *lamps) RegisterDevice(
	_ context.Context, r *dmi.RegisterDeviceRequest, _ ...grpc.CallOption,
) (*dmi.RegisterDeviceResponse, error) {
	return nil, l.called("register %s %s", r.GetDevice().GetName(), level(r.GetDevice()))
}

func (l *lamps) UpdateDevice(
	_ context.Context, r *dmi.UpdateDeviceRequest, _ ...grpc.CallOption,
) (*dmi.UpdateDeviceResponse, error) {
	return nil, l.called("update %s %s", r.GetDevice().GetName(), level(r.GetDevice()))
}

func (l *lamps) RemoveDevice(
	_ context.Context, r *dmi.RemoveDeviceRequest, _ ...grpc.CallOption,
) (*dmi.RemoveDeviceResponse, error) {
	return nil, l.called("remove %s", r.GetDeviceName())
}

// TestChangedDuringSync: what changes while the mapper is sent something else is sent as it is then.
func TestChangedDuringSync(t *testing.T) {
	l, m := newLamps()
	l.set("a", "a1", "1")
	l.set("b", "b1", "1")
	l.set("c", "c1", "1")
	l.during = func(call string) error {
		if call == "register a 1" {
			l.set("a", "a1", "2")
			l.set("b", "b1", "2")
			l.remove("c")
			l.set("d", "d1", "2")
			m.wake.Notify()
		}
		return nil
	}
	for i, want := range []string{"register a 1, register b 2", "update a 2, register d 2", ""} {
		if _, err := m.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := l.made(); got != want {
			t.Errorf("calls of sync %d: %s; want %s", i+1, got, want)
		}
		if notified := len(m.wake) > 0; notified != (i == 0) {
			t.Errorf("sync %d is to be followed by another one: %v, want %v", i+1, notified, i == 0)
		}
		for len(m.wake) > 0 {
			<-m.wake
		}
	}
}

// TestRefusedDevice: a device that the mapper refuses, or that makes it hang, delays no other one.
func TestRefusedDevice(t *testing.T) {
	for _, tc := range []struct {
		err  error
		text string
	}{
		{status.Error(codes.ResourceExhausted, "too large"), "too large"},
		{status.Error(codes.DeadlineExceeded, "it hangs"), "it hangs"},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, m := newLamps()
			l.set("a", "a1", "1")
			l.set("b", "b1", "1")
			l.during = func(call string) error {
				if strings.HasPrefix(call, "register a") {
					return tc.err
				}
				return nil
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { m.run(ctx) })
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if got := strings.Split(l.made(), ", "); len(got) < 20 || len(got) > 30 || got[1] != "register b 1" {
				t.Errorf("%d calls in 10 minutes, the first ones %s; want 20 to 30, and b among the first",
					len(got), got[:2])
			}
			if p := m.describe().Problem; !strings.Contains(p, "device shop/a: ") || !strings.Contains(p, tc.text) {
				t.Errorf("problem %q, want that a is refused: %s", p, tc.text)
			}
			for level := range 3 { // wherever the pause of a is
				l.set("b", "b1", fmt.Sprint(level+2))
				m.wake.Notify()
				synctest.Wait()
				if got, want := l.made(), fmt.Sprint("update b ", level+2); got != want {
					t.Errorf("calls after the desired value of b changed: %s; want %s", got, want)
				}
			}
			l.set("a", "a1", "2")
			m.wake.Notify()
			synctest.Wait()
			if got := l.made(); got != "register a 2" {
				t.Errorf("calls after a changed: %s; want that it is tried at once", got)
			}
			l.remove("a")
			m.wake.Notify()
			synctest.Wait()
			if p := m.describe().Problem; p != "" {
				t.Errorf("problem %q after a has gone, want none", p)
			}
			cancel()
			running.Wait()
		})
	}
}

// TestReplacedDevice: a mapper is told that a device is another one, also if it was never told of a deletion.
func TestReplacedDevice(t *testing.T) {
	l, m := newLamps()
	expect := func(want string) {
		t.Helper()
		if _, err := m.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := l.made(); got != want {
			t.Errorf("calls: %s; want %s", got, want)
		}
	}
	l.set("a", "a1", "1")
	expect("register a 1")
	l.set("a", "a2", "1")
	expect("remove a, register a 1")
	expect("")
	_, former, _ := strings.Cut(m.known["device shop/a"], ".")
	m.known["device shop/a"] = former // as an earlier version stored it
	expect("update a 1")
	expect("")
}
