package dmi

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/edgecore-io/edgecore/devicetwin/twin"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
	testmapper "github.com/edgecore-io/edgecore/test/testenv/mapper"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const podA = "/kubepods.slice/kubepods-burstable.slice/" +
	"kubepods-burstable-pod0f6f2f55_6a0b_4b57_9a0e_6a2f7b3d1c11.slice"

// TestOwnerCgroup: the pod or the service that a process belongs to, on both versions of cgroups.
func TestOwnerCgroup(t *testing.T) {
	for content, want := range map[string]string{
		"0::" + podA + "/cri-containerd-ab.scope\n": podA,
		"12:pids:/kubepods/besteffort/pod0f6f2f55-6a0b-4b57-9a0e-6a2f7b3d1c11/ab\n0::/\n": "/kubepods/besteffort/" +
			"pod0f6f2f55-6a0b-4b57-9a0e-6a2f7b3d1c11",
		"0::/kubepods/pod0123456789abcdef0123456789abcdef/ab\n": "/kubepods/pod0123456789abcdef0123456789abcdef",
		"0::/system.slice/modbus.service\n":                     "/system.slice/modbus.service",
		"0::/system.slice/modbus.service/worker\n":              "/system.slice/modbus.service",
		"0::/user.slice/user-0.slice/session-3.scope\n":         "",
		"0::/\n":         "",
		"0::/a/pod1/b\n": "",
		"":               "",
		"damaged":        "",
	} {
		if got := ownerCgroup(content); got != want {
			t.Errorf("ownerCgroup(%q) = %q, want %q", content, got, want)
		}
	}
}

// plant is a node with a device for each of two protocols.
type plant struct{ reports []string }

func (p *plant) Report(_ context.Context, _, name string, _ []twin.Report) error {
	p.reports = append(p.reports, name)
	return nil
}

func (p *plant) ReportState(_ context.Context, _, name, _, _ string) error {
	p.reports = append(p.reports, name)
	return nil
}

func (p *plant) Served(string) ([]*devices.DeviceModel, []*devices.Device) { return nil, nil }

func (p *plant) Protocol(_, name string) (string, error) {
	protocol, ok := map[string]string{"drive": "modbus", "lamp": "dali"}[name]
	if !ok {
		return "", ErrNoDevice
	}
	return protocol, nil
}

// as is the context of a call.
func as(t *testing.T, who identity) context.Context {
	return peer.NewContext(t.Context(), &peer.Peer{Addr: peerAddr{&net.UnixAddr{}, 1, who}})
}

// TestIdentities: only the mapper of a protocol reports on its devices, and no other pod takes the protocol over while
// the mapper's pod is there, also after a restart of the agent.
func TestIdentities(t *testing.T) {
	modbus, dali := identity{UID: 0, Cgroup: podA}, identity{UID: 0, Cgroup: "/kubepods/pod-b"}
	there := map[identity]bool{modbus: true, dali: true}
	p, saved := &plant{}, map[string][]byte{}
	var mu sync.Mutex
	start := func() *Server {
		t.Helper()
		s := New(Options{
			Twins: p, Dir: t.TempDir(),
			Load: func(context.Context) (map[string][]byte, error) { return saved, nil },
			Save: func(_ context.Context, protocol string, data []byte) error {
				mu.Lock()
				defer mu.Unlock()
				saved[protocol] = data
				return nil
			},
		})
		s.present = func(i identity) bool { return there[i] }
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Errorf("Run = %v, want no error", err)
			}
		})
		t.Cleanup(func() {
			cancel()
			running.Wait()
		})
		wait.True(t, "the server to run", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.ctx != nil
		})
		return s
	}
	s := start()
	register := func(who identity, protocol string) error {
		_, err := s.MapperRegister(as(t, who), &dmi.MapperRegisterRequest{Mapper: &dmi.MapperInfo{
			Name:     protocol + "-mapper",
			Protocol: protocol,
			Address:  []byte("/run/none/" + strings.TrimPrefix(who.Cgroup, "/")[:8]),
		}})
		return err
	}
	report := func(who identity, device string) error {
		_, err := s.ReportDeviceStates(as(t, who), &dmi.ReportDeviceStatesRequest{DeviceName: device, State: "online"})
		if err != nil {
			return err
		}
		_, err = s.ReportDeviceStatus(as(t, who), &dmi.ReportDeviceStatusRequest{
			DeviceName: device,
			ReportedDevice: &dmi.DeviceStatus{
				Twins: []*dmi.Twin{{PropertyName: "a", Reported: &dmi.TwinProperty{}}},
			},
		})
		return err
	}
	expect := func(what string, err error, want codes.Code) {
		t.Helper()
		if status.Code(err) != want {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	expect("a report before any registration", report(modbus, "drive"), codes.OK)
	expect("register", register(modbus, "modbus"), codes.OK)
	expect("a report of another", report(dali, "drive"), codes.PermissionDenied)
	expect("a report on a device of a protocol without a mapper", report(modbus, "lamp"), codes.PermissionDenied)
	expect("register", register(dali, "dali"), codes.OK)
	for range 2 {
		expect("own report", report(modbus, "drive"), codes.OK)
		expect("own report", report(dali, "lamp"), codes.OK)
		expect("a report of another", report(dali, "drive"), codes.PermissionDenied)
		expect("a report of another", report(modbus, "lamp"), codes.PermissionDenied)
		expect("a report on no device", report(modbus, "none"), codes.NotFound)
		expect("another takes the protocol while the mapper restarts", register(dali, "modbus"), codes.AlreadyExists)
		expect("another user of the pod", register(identity{7, podA}, "modbus"), codes.AlreadyExists)
		expect("own registration again", register(modbus, "modbus"), codes.OK)
		s = start() // with what is saved
	}
	there[modbus] = false
	expect("another takes the protocol when the pod is gone", register(dali, "modbus"), codes.OK)
	expect("a report of the former one", report(modbus, "drive"), codes.PermissionDenied)
}

// TestFormerMapper: nothing of a mapper's former registration comes after its new one.
func TestFormerMapper(t *testing.T) {
	dir := t.TempDir()
	twins := &growing{}
	var mu sync.Mutex
	var saves []string
	blocked := make(chan struct{}, 1)
	s := New(Options{
		Twins: twins, Dir: dir,
		Load: func(context.Context) (map[string][]byte, error) { return nil, nil },
		Save: func(ctx context.Context, _ string, data []byte) error {
			var r record
			if err := json.Unmarshal(data, &r); err != nil {
				return err
			}
			mu.Lock()
			first := len(saves) == 1
			mu.Unlock()
			what := "registration"
			if first {
				blocked <- struct{}{}
				<-ctx.Done() // the goroutine of the former registration is told to stop
				what = "former"
			}
			mu.Lock()
			defer mu.Unlock()
			saves = append(saves, what)
			return nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run = %v, want no error", err)
		}
	})
	defer func() {
		cancel()
		running.Wait()
	}()
	m := testmapper.Start(t, t.TempDir(), s.Path(), "dali")
	m.AwaitRegister()
	twins.grow()
	s.Changed("dali")
	wait.Receive(t, "the former registration to be saved", blocked)
	if err := m.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(saves, " "); got != "registration former registration" {
		t.Errorf("saved: %s; want the new registration last", got)
	}
}

// growing has a device once grow was called.
type growing struct {
	plant
	mu   sync.Mutex
	list []*devices.Device
}

func (g *growing) grow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := &devices.Device{}
	d.Namespace, d.Name, d.Spec.Protocol.ProtocolName = "shop", "one", "dali"
	g.list = append(g.list, d)
}

func (g *growing) Served(string) ([]*devices.DeviceModel, []*devices.Device) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return nil, g.list
}

// TestHostileFolder: what a mapper that may write the folder puts in the socket's place is not touched, and does not
// stop the socket from being made.
func TestHostileFolder(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, SocketName)
	for _, p := range []string{path, path + ".new"} {
		if err := os.MkdirAll(filepath.Join(p, "full"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l, err := listen(t.Context(), path, 65530)
	if err != nil {
		t.Fatalf("listen with folders in the way: %v, want no error", err)
	}
	defer l.Close()
	check(t, path, os.ModeSocket|0o660, 65530)
	link := filepath.Join(dir, "link")
	if err := os.Symlink(victim, link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{link, victim} {
		if err := share(p, 65530); err == nil || !strings.Contains(err.Error(), "not the socket") {
			t.Errorf("share(%s) = %v, want that it is not the socket", p, err)
		}
	}
	check(t, victim, 0o600, 0)
	alone, err := listen(t.Context(), filepath.Join(dir, "alone"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	check(t, filepath.Join(dir, "alone"), os.ModeSocket|0o600, 0)
}
