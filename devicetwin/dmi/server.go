// Package dmi serves KubeEdge's device mapper interface: mappers register here, report the values of their devices, and
// get the devices of their protocol.
//
// It promises:
//
//   - One mapper serves a protocol. Another one is refused while the first one answers on its socket, so that nothing
//     can take over its devices. A mapper whose socket is gone is replaced, but not by another pod or service while its
//     own is still there. Only the mapper of a protocol may report on its devices.
//   - A mapper has, in the end, exactly the devices and models of its protocol: each difference is sent, with a
//     deadline, and again with a growing pause until the mapper accepts it. This holds for mappers that come late, die,
//     hang or return, and across restarts of the agent. A device that a mapper refuses delays no other device.
//   - A report is acknowledged after it is stored.
//   - A mapper is a pod, and not trusted: its messages are bounded in bytes, elements and rate, per process.
package dmi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/devicetwin/twin"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/pluginrpc"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// SocketName is the name of the socket in its folder.
const SocketName = "dmi.sock"

// MappersDir is the folder for the sockets of mappers. Only there may those that are not root make files: the folder of
// dmi.sock stays root's, so that no mapper can replace it.
const MappersDir = "mappers"

// Limits of what mappers send.
const (
	maxMessage  = 2 << 20
	maxElements = 10 * devices.MaxProperties
	maxConns    = 256
	maxMappers  = 64
	// callRate is how many calls a second a mapper may make, and callBurst how many at once: a device that is read
	// every millisecond does not reach it.
	callRate  = 2000
	callBurst = 4000
	// maxObject is the most bytes of a device or model that a mapper gets, and maxAnswer of all those in the answer to
	// a registration: gRPC takes 4 MiB at a time. Mappers get the others one by one.
	maxObject = 1 << 20
	maxAnswer = 2 << 20
	// maxPeers is how many processes have a rate of their own at a time.
	maxPeers = 1024
)

// Twins is what mappers report to, and where their devices come from.
type Twins interface {
	// Report stores what a mapper has read of a device; it returns when that is on the disk.
	Report(ctx context.Context, namespace, name string, reports []twin.Report) error
	// ReportState stores the state of a device, and the message that says why it is in it. The message may have any
	// bytes.
	ReportState(ctx context.Context, namespace, name, state, message string) error
	// Served returns the devices of a protocol, with the desired values that they should have, and their models.
	Served(protocol string) ([]*devices.DeviceModel, []*devices.Device)
	// Protocol returns the protocol of a device; the error is ErrNoDevice if the node does not have it.
	Protocol(namespace, name string) (string, error)
}

// Options configure a Server. Twins, Load and Save are required.
type Options struct {
	// Dir is the folder of the socket. It also gets the folder MappersDir.
	Dir string
	// OtherDir is a second folder with such a socket, where KubeEdge's mappers look for it; "" is none. A pod that
	// mounts that folder does not see Dir, so that a link would lead nowhere.
	OtherDir string
	// Group returns the group that may use the sockets in addition to root; 0 is none. It is asked when they are made,
	// and again after an error. nil: there is none.
	Group func() (int, error)
	Twins Twins
	// Load returns the mappers that were saved, by protocol, and Save stores one of them; nil data deletes it.
	Load func(ctx context.Context) (map[string][]byte, error)
	Save func(ctx context.Context, protocol string, data []byte) error
	// Now is the wall clock.
	Now func() time.Time
	// Listening is called with the error that keeps a socket from being opened, and with nil once it is; it may be nil.
	Listening func(socket string, err error)
}

// Server serves mappers. Make it with New.
type Server struct {
	dmi.UnimplementedDeviceManagerServiceServer
	opts Options
	// present reports whether the pod or the service of a mapper is still there.
	present func(identity) bool

	mu      sync.Mutex
	ctx     context.Context // nil while it does not run
	mappers map[string]*mapper
	running sync.WaitGroup
	peers   map[int32]*rate.Limiter
}

// New makes a server.
func New(opts Options) *Server {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return &Server{opts: opts, present: present, mappers: map[string]*mapper{}, peers: map[int32]*rate.Limiter{}}
}

// Path returns the path of the socket.
func (s *Server) Path() string { return filepath.Join(s.opts.Dir, SocketName) }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	saved, err := s.opts.Load(ctx)
	if err != nil {
		return fmt.Errorf("read the registered mappers: %w", err)
	}
	s.mu.Lock()
	s.ctx = ctx
	for protocol, data := range saved {
		m, err := restore(s, protocol, data)
		if err != nil {
			klog.ErrorS(err, "Registration of a mapper is lost; it gets its devices when it registers again",
				"protocol", protocol)
			continue
		}
		s.start(m)
	}
	s.mu.Unlock()
	s.listen(ctx)
	s.mu.Lock()
	s.ctx = nil
	for protocol, m := range s.mappers {
		m.stop()
		delete(s.mappers, protocol)
	}
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// start makes a mapper the one of its protocol; s.mu is held.
func (s *Server) start(m *mapper) {
	if old := s.mappers[m.protocol]; old != nil {
		old.stop()
	}
	ctx, cancel := context.WithCancel(s.ctx)
	m.stop, m.ended = cancel, make(chan struct{})
	ended := m.ended
	s.mappers[m.protocol] = m
	s.running.Go(func() {
		defer close(ended)
		m.run(ctx)
	})
}

// pause stops a mapper and waits for its end, so that nothing of it comes after what its successor is sent. resume
// starts it again if it has no successor.
func (s *Server) pause(ctx context.Context, m *mapper) error {
	if m == nil {
		return nil
	}
	s.mu.Lock()
	stop, ended := m.stop, m.ended
	s.mu.Unlock()
	stop()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (s *Server) resume(m *mapper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m != nil && s.ctx != nil && s.mappers[m.protocol] == m {
		s.start(m)
	}
}

// Changed wakes the mapper of a protocol, which is sent what has changed of its devices. It never blocks.
func (s *Server) Changed(protocol string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.mappers[protocol]; m != nil {
		m.wake.Notify()
	}
}

// Mapper is what is known of a mapper, for people.
type Mapper struct {
	Name, Version, Protocol, Address string
	// Problem is why the mapper does not have all its devices; "" if it has.
	Problem string
}

// Mappers lists the registered mappers.
func (s *Server) Mappers() []Mapper {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Mapper, 0, len(s.mappers))
	for _, m := range s.mappers {
		out = append(out, m.describe())
	}
	return out
}

// listen serves all sockets until ctx ends. One that cannot be made is tried again, and delays no other.
func (s *Server) listen(ctx context.Context) {
	var sockets sync.WaitGroup
	for _, dir := range []string{s.opts.Dir, s.opts.OtherDir} {
		if dir == "" {
			continue
		}
		path := filepath.Join(dir, SocketName)
		sockets.Go(func() {
			retry.Until(ctx, time.Second, time.Minute, func(ctx context.Context) error {
				group, err := s.group()
				if err != nil {
					return err
				}
				if dir == s.opts.Dir {
					if err := makeMappersDir(dir, group); err != nil {
						return err
					}
				}
				return s.serve(ctx, path, group)
			}, func(err error, again time.Duration) {
				s.listening(path, err)
				klog.ErrorS(err, "Mappers cannot register; trying again", "socket", path, "in", again)
			})
		})
	}
	sockets.Wait()
}

func (s *Server) group() (int, error) {
	if s.opts.Group == nil {
		return 0, nil
	}
	return s.opts.Group()
}

func (s *Server) listening(path string, err error) {
	if s.opts.Listening != nil {
		s.opts.Listening(path, err)
	}
}

// serve listens on a socket until ctx ends.
func (s *Server) serve(ctx context.Context, path string, group int) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	socket, err := listen(ctx, path, group)
	if err != nil {
		return err
	}
	s.listening(path, nil)
	options := append(pluginrpc.ServerOptions(pluginrpc.Limits{Bytes: maxMessage, Elements: maxElements}),
		grpc.MaxConcurrentStreams(64), grpc.ConnectionTimeout(10*time.Second), grpc.UnaryInterceptor(s.limit))
	server := grpc.NewServer(options...)
	dmi.RegisterDeviceManagerServiceServer(server, s)
	defer context.AfterFunc(ctx, server.Stop)()
	defer server.Stop()
	return server.Serve(netutil.LimitListener(peerListener{socket}, maxConns))
}

// limit refuses calls of a process that calls too often.
func (s *Server) limit(
	ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	pid := int32(0)
	if p, ok := peer.FromContext(ctx); ok {
		if a, is := p.Addr.(peerAddr); is {
			pid = a.pid
		}
	}
	if !s.limiter(pid).Allow() {
		return nil, status.Errorf(codes.ResourceExhausted, "process %d makes more than %d calls a "+
			"second", pid, callRate)
	}
	return handle(ctx, request)
}

func (s *Server) limiter(pid int32) *rate.Limiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.peers[pid]
	if l == nil {
		if len(s.peers) >= maxPeers {
			clear(s.peers)
		}
		l = rate.NewLimiter(callRate, callBurst)
		s.peers[pid] = l
	}
	return l
}

// MapperRegister implements DeviceManagerService.
func (s *Server) MapperRegister(
	ctx context.Context, r *dmi.MapperRegisterRequest,
) (*dmi.MapperRegisterResponse, error) {
	info := r.GetMapper()
	address := string(info.GetAddress())
	if err := checkMapper(info, address); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	protocol := info.GetProtocol()
	me, known := caller(ctx)
	s.mu.Lock()
	old, many, running := s.mappers[protocol], len(s.mappers) >= maxMappers, s.ctx != nil
	s.mu.Unlock()
	switch {
	case !running:
		return nil, status.Error(codes.Unavailable, "the agent is stopping; register again in a moment")
	case s.mayRegister(me, old) != nil:
		return nil, s.mayRegister(me, old)
	case old == nil && many:
		return nil, status.Errorf(codes.ResourceExhausted, "%d mappers are registered, which is the limit", maxMappers)
	case old != nil && old.address != address && answers(ctx, old.address):
		return nil, status.Errorf(codes.AlreadyExists, "protocol %s is served by mapper %s at %s, which answers: stop "+
			"that one first, or register for another protocol", protocol, old.name, old.address)
	}
	if err := s.pause(ctx, old); err != nil {
		s.resume(old)
		return nil, err
	}
	m := newMapper(s, info.GetName(), info.GetVersion(), protocol, address)
	if known {
		m.owner = &me
	}
	response := &dmi.MapperRegisterResponse{}
	switch {
	case r.GetWithData():
		response.ModelList, response.DeviceList = m.everything()
	case old != nil && old.address == address:
		m.forget(old)
	}
	if err := m.save(ctx); err != nil {
		s.resume(old)
		return nil, status.Errorf(codes.Unavailable, "mapper %s is not registered: %v", m.name, err)
	}
	s.mu.Lock()
	running, current := s.ctx != nil, s.mappers[protocol]
	if running && current == old {
		s.start(m)
	}
	s.mu.Unlock()
	switch {
	case !running:
		return nil, status.Error(codes.Unavailable, "the agent is stopping; register again in a moment")
	case current != old:
		if err := current.save(ctx); err != nil {
			klog.ErrorS(err, "Mapper is not stored; it gets its devices when it registers again", "mapper",
				current.name)
		}
		return nil, status.Errorf(codes.Unavailable, "another mapper, %s, has registered for protocol %s at the same "+
			"time; register again", current.name, protocol)
	}
	klog.InfoS("Mapper registered", "name", m.name, "protocol", protocol, "socket", address,
		"devices", len(response.DeviceList))
	return response, nil
}

// maxSocketPath is the longest path of a Unix socket.
const maxSocketPath = 107

func checkMapper(info *dmi.MapperInfo, address string) error {
	for _, x := range []struct{ what, text string }{
		{"name", info.GetName()}, {"protocol", info.GetProtocol()}, {"version", info.GetVersion()},
	} {
		switch {
		case x.text == "" && x.what != "version":
			return fmt.Errorf("a mapper has no %s", x.what)
		case len(x.text) > devices.MaxNameBytes || strings.ContainsFunc(x.text, func(r rune) bool {
			return r < ' ' || r == '\x7f'
		}):
			return fmt.Errorf("the %s %.40q of a mapper is invalid: want at most %d printable "+
				"characters", x.what, x.text,
				devices.MaxNameBytes)
		}
	}
	if !filepath.IsAbs(address) || len(address) > maxSocketPath || filepath.Clean(address) != address ||
		strings.ContainsRune(address, 0) {
		return fmt.Errorf("address %.128q of mapper %s is invalid: want the absolute path of its socket on the "+
			"node, at "+
			"most %d characters", address, info.GetName(), maxSocketPath)
	}
	return nil
}

// answers reports whether something listens on a socket.
func answers(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close() // nothing was sent
		return true
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// ReportDeviceStatus implements DeviceManagerService.
func (s *Server) ReportDeviceStatus(
	ctx context.Context, r *dmi.ReportDeviceStatusRequest,
) (*dmi.ReportDeviceStatusResponse, error) {
	now := s.opts.Now().UnixMilli()
	var reports []twin.Report
	for _, t := range r.GetReportedDevice().GetTwins() {
		v := t.GetReported()
		if v == nil {
			continue
		}
		reports = append(reports, twin.Report{
			Name: t.GetPropertyName(), Value: v.GetValue(), Type: v.GetMetadata()[devices.MetaType],
			At: timeOf(v.GetMetadata()[devices.MetaTimestamp], now),
		})
	}
	if len(reports) == 0 {
		return &dmi.ReportDeviceStatusResponse{}, nil
	}
	if err := s.mayReport(ctx, namespaceOr(r.GetDeviceNamespace()), r.GetDeviceName()); err != nil {
		return nil, err
	}
	err := s.opts.Twins.Report(ctx, namespaceOr(r.GetDeviceNamespace()), r.GetDeviceName(), reports)
	return &dmi.ReportDeviceStatusResponse{}, statusOf(err)
}

// timeOf reads a timestamp in milliseconds since 1970; what is none is now.
func timeOf(text string, now int64) int64 {
	at, err := strconv.ParseInt(text, 10, 64)
	if err != nil || at <= 0 {
		return now
	}
	return at
}

// namespaceOr returns a namespace; KubeEdge's older mappers know none.
func namespaceOr(namespace string) string {
	if namespace == "" {
		return "default"
	}
	return namespace
}

// ReportDeviceStates implements DeviceManagerService.
func (s *Server) ReportDeviceStates(
	ctx context.Context, r *dmi.ReportDeviceStatesRequest,
) (*dmi.ReportDeviceStatesResponse, error) {
	if err := s.mayReport(ctx, namespaceOr(r.GetDeviceNamespace()), r.GetDeviceName()); err != nil {
		return nil, err
	}
	err := s.opts.Twins.ReportState(ctx, namespaceOr(r.GetDeviceNamespace()), r.GetDeviceName(), r.GetState(),
		dmi.StateMessage(ctx))
	return &dmi.ReportDeviceStatesResponse{}, statusOf(err)
}

// Errors of Twins.
var (
	// ErrNoDevice: the node has no device of that name.
	ErrNoDevice = errors.New("no such device on this node")
	// ErrNotStored: the report is valid, and could not be stored.
	ErrNotStored = errors.New("not stored")
)

// statusOf gives an error of Twins its gRPC code.
func statusOf(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrNoDevice):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, ErrNotStored):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.InvalidArgument, err.Error())
}
