// Package crirecord is a proxy on a runtime's socket that records the calls that change pods. Whatever it does not
// know, streams too, it passes on unchanged.
package crirecord

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessage is the largest message that a runtime or an agent sends, in bytes.
const maxMessage = 64 << 20

// Call is one call that changed a pod's sandbox or containers.
type Call struct {
	// Method is the method's name, such as "RunPodSandbox".
	Method string
	// Container is the name of the container that the call is about; empty for a sandbox.
	Container string
	Request   proto.Message
	// Err is the runtime's answer.
	Err error
}

// Recorder is a proxy that runs until Close.
type Recorder struct {
	server  *grpc.Server
	backend *grpc.ClientConn
	served  chan error

	mu sync.Mutex
	// calls are kept by the UID of the pod.
	calls map[string][]Call
	// owners are the pods of sandboxes and containers, names the names of containers; by ID.
	owners, names map[string]string
}

// Start listens on a socket, and passes all calls on to the runtime at another one.
func Start(socket, runtime string) (*Recorder, error) {
	backend, err := grpc.NewClient("unix://"+runtime,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(maxMessage),
			grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, errors.Join(err, backend.Close())
	}
	r := &Recorder{
		backend: backend,
		served:  make(chan error, 1),
		calls:   map[string][]Call{},
		owners:  map[string]string{},
		names:   map[string]string{},
	}
	r.server = grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(r.handle),
		grpc.MaxRecvMsgSize(maxMessage))
	go func() { r.served <- r.server.Serve(l) }()
	return r, nil
}

// Close ends all calls and removes the socket.
func (r *Recorder) Close() error {
	r.server.Stop()
	return errors.Join(<-r.served, r.backend.Close())
}

// Calls returns the calls of a pod in the order in which the runtime answered them.
func (r *Recorder) Calls(uid string) []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Call(nil), r.calls[uid]...)
}

// handle passes one call on, and records it.
func (r *Recorder) handle(_ any, in grpc.ServerStream) error {
	full, ok := grpc.MethodFromServerStream(in)
	if !ok {
		return errors.New("a call without a method")
	}
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	out, err := r.backend.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, full)
	if err != nil {
		return err
	}
	// Every call of the CRI has one request.
	var request, answer []byte
	if err := in.RecvMsg(&request); err != nil {
		return err
	}
	if err := errors.Join(out.SendMsg(&request), out.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return err // with io.EOF, RecvMsg has the reason
	}
	for {
		err := out.RecvMsg(&answer)
		if errors.Is(err, io.EOF) {
			r.record(path.Base(full), request, answer, nil)
			return nil
		}
		if err != nil {
			r.record(path.Base(full), request, answer, err)
			return err
		}
		if err := in.SendMsg(&answer); err != nil {
			return err
		}
	}
}

// changes reports whether a method changes a sandbox or a container, or fetches an image for one.
func changes(method string) bool {
	switch method {
	case "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "UpdatePodSandboxResources", "CreateContainer",
		"StartContainer",
		"StopContainer", "RemoveContainer", "UpdateContainerResources", "PullImage":
		return true
	}
	return false
}

// record keeps a call that changes a pod, and learns the IDs of its sandboxes and containers.
func (r *Recorder) record(method string, request, answer []byte, callErr error) {
	if !changes(method) {
		return
	}
	req, resp, err := decode(method, request, answer)
	if err != nil {
		req, callErr = nil, errors.Join(callErr, err)
	}
	call := Call{Method: method, Request: req, Err: callErr}
	r.mu.Lock()
	defer r.mu.Unlock()
	uid := ""
	switch m := req.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		uid = m.GetConfig().GetMetadata().GetUid()
		r.owners[resp.(*runtimeapi.RunPodSandboxResponse).GetPodSandboxId()] = uid
	case *runtimeapi.CreateContainerRequest:
		uid, call.Container = m.GetSandboxConfig().GetMetadata().GetUid(), m.GetConfig().GetMetadata().GetName()
		id := resp.(*runtimeapi.CreateContainerResponse).GetContainerId()
		r.owners[id], r.names[id] = uid, call.Container
	case *runtimeapi.PullImageRequest:
		uid = m.GetSandboxConfig().GetMetadata().GetUid()
	case interface{ GetContainerId() string }:
		uid, call.Container = r.owners[m.GetContainerId()], r.names[m.GetContainerId()]
	case interface{ GetPodSandboxId() string }:
		uid = r.owners[m.GetPodSandboxId()]
	}
	r.calls[uid] = append(r.calls[uid], call)
}

// decode reads the request and the answer of a method.
func decode(method string, request, answer []byte) (req, resp proto.Message, err error) {
	service := "runtime.v1.RuntimeService"
	if method == "PullImage" {
		service = "runtime.v1.ImageService"
	}
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, nil, err
	}
	m := found.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method))
	if m == nil {
		return nil, nil, fmt.Errorf("%s has no method %s", service, method)
	}
	if req, err = unmarshal(m.Input(), request); err != nil {
		return nil, nil, err
	}
	resp, err = unmarshal(m.Output(), answer)
	return req, resp, err
}

func unmarshal(d protoreflect.MessageDescriptor, data []byte) (proto.Message, error) {
	typ, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return nil, err
	}
	m := typ.New().Interface()
	return m, proto.Unmarshal(data, m)
}

// raw is a codec that leaves messages as bytes.
type raw struct{}

func (raw) Name() string { return "raw" }

func (raw) Marshal(v any) ([]byte, error) {
	data, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("send a %T, want *[]byte", v)
	}
	return *data, nil
}

func (raw) Unmarshal(data []byte, v any) error {
	to, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("receive a %T, want *[]byte", v)
	}
	*to = append([]byte(nil), data...)
	return nil
}
