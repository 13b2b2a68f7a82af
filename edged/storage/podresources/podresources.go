// Package podresources serves the PodResourcesLister API (k8s.io/kubelet, podresources v1), by which monitoring agents
// learn which devices which container has. It owns the socket <root>/pod-resources/kubelet.sock, which only the
// superuser may open, and answers from memory; callers share a rate, as with the kubelet.
//
// This agent gives no container cores or memory of its own, so that of those nothing is ever said.
package podresources

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/edgecore-io/edgecore/edged/storage/devices"
	"github.com/edgecore-io/edgecore/pkg/pluginrpc"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// qps and burst are the kubelet's.
	qps, burst  = 100, 10
	maxMessage  = 16 << 20
	connectTime = 10 * time.Second
)

// Devices is what is known of devices; package devices has it.
type Devices interface {
	Held(uid types.UID, container string) []devices.Held
	All() []devices.Held
}

// Options configure a Server.
type Options struct {
	// Dir is the folder of the socket.
	Dir string
	// Pods returns the pods that have been admitted and have not ended.
	Pods    func() []*v1.Pod
	Devices Devices
	// Listening is called with the error that keeps the socket from being opened, and with nil once it is; it may be
	// nil.
	Listening func(socket string, err error)
}

// Server is the API. Its methods may be called from any goroutine.
type Server struct {
	api.UnimplementedPodResourcesListerServer
	opts  Options
	limit *rate.Limiter
}

// New makes a Server.
func New(opts Options) *Server {
	if opts.Listening == nil {
		opts.Listening = func(string, error) {}
	}
	return &Server{opts: opts, limit: rate.NewLimiter(qps, burst)}
}

// Run serves the socket until ctx ends, and tries again while it cannot.
func (s *Server) Run(ctx context.Context) error {
	retry.Until(ctx, time.Second, time.Minute, s.serve, func(err error, again time.Duration) {
		s.opts.Listening(s.socket(), err)
		klog.ErrorS(err, "Pod resources API not served; trying again", "socket", s.socket(),
			"in", again)
	})
	return nil
}

func (s *Server) socket() string { return filepath.Join(s.opts.Dir, "kubelet.sock") }

func (s *Server) serve(ctx context.Context) error {
	if err := os.MkdirAll(s.opts.Dir, 0o750); err != nil {
		return err
	}
	if err := os.Remove(s.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	socket, err := net.Listen("unix", s.socket())
	if err != nil {
		return err
	}
	if err := os.Chmod(s.socket(), 0o600); err != nil {
		return errors.Join(err, socket.Close())
	}
	s.opts.Listening(s.socket(), nil)
	server := grpc.NewServer(grpc.UnaryInterceptor(s.limited), grpc.MaxRecvMsgSize(64<<10),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxHeaderListSize(pluginrpc.MaxHeader), grpc.MaxConcurrentStreams(32), grpc.ConnectionTimeout(connectTime))
	api.RegisterPodResourcesListerServer(server, s)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	defer server.Stop()
	return server.Serve(socket)
}

// limited refuses what comes too fast.
func (s *Server) limited(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if !s.limit.Allow() {
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	return handle(ctx, req)
}

// List implements api.PodResourcesListerServer.
func (s *Server) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	out := &api.ListPodResourcesResponse{}
	for _, pod := range s.opts.Pods() {
		out.PodResources = append(out.PodResources, s.resources(pod))
	}
	return out, nil
}

// Get implements api.PodResourcesListerServer.
func (s *Server) Get(_ context.Context, r *api.GetPodResourcesRequest) (*api.GetPodResourcesResponse, error) {
	pods := s.opts.Pods()
	i := slices.IndexFunc(pods, func(p *v1.Pod) bool { return p.Namespace == r.PodNamespace && p.Name == r.PodName })
	if i < 0 {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("pod %s in namespace %s not found", r.PodName,
			r.PodNamespace))
	}
	return &api.GetPodResourcesResponse{PodResources: s.resources(pods[i])}, nil
}

// GetAllocatableResources implements api.PodResourcesListerServer.
func (s *Server) GetAllocatableResources(
	context.Context, *api.AllocatableResourcesRequest,
) (*api.AllocatableResourcesResponse, error) {
	return &api.AllocatableResourcesResponse{Devices: containerDevices(s.opts.Devices.All())}, nil
}

// resources are what a pod's containers have: those that run as long as the pod.
func (s *Server) resources(pod *v1.Pod) *api.PodResources {
	out := &api.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	add := func(c *v1.Container) {
		out.Containers = append(out.Containers, &api.ContainerResources{
			Name: c.Name, Devices: containerDevices(s.opts.Devices.Held(pod.UID, c.Name)),
		})
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil &&
			*c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

func containerDevices(held []devices.Held) []*api.ContainerDevices {
	var out []*api.ContainerDevices
	for _, h := range held {
		d := &api.ContainerDevices{ResourceName: h.Resource, DeviceIds: h.IDs}
		for _, n := range h.NUMA {
			if d.Topology == nil {
				d.Topology = &api.TopologyInfo{}
			}
			d.Topology.Nodes = append(d.Topology.Nodes, &api.NUMANode{ID: n})
		}
		out = append(out, d)
	}
	return out
}
