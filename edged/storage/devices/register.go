package devices

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/edgecore-io/edgecore/pkg/pluginrpc"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// service is the Registration service.
type service struct {
	api.UnimplementedRegistrationServer
	manager *Manager
}

// Register implements api.RegistrationServer.
func (s service) Register(ctx context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	if err := check(r.ResourceName, []string{r.Version}); err != nil {
		return nil, refused(err)
	}
	if r.Endpoint == "" || filepath.Base(r.Endpoint) != r.Endpoint || r.Endpoint == "." || r.Endpoint == ".." ||
		r.Endpoint == socketName {
		return nil, refused(fmt.Errorf("endpoint %q of device plugin %s: want the name of a socket in %s", r.Endpoint,
			r.ResourceName, s.manager.opts.Dir))
	}
	if err := s.manager.connect(ctx, r.ResourceName, s.manager.path(r.Endpoint), r.Options); err != nil {
		klog.ErrorS(err, "Device plugin refused", "resource", r.ResourceName)
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &api.Empty{}, nil
}

func refused(err error) error {
	klog.ErrorS(err, "Device plugin refused")
	return status.Error(codes.InvalidArgument, err.Error())
}

// check refuses a resource that no plugin may have, and a version of the API that this agent does not speak.
func check(resource string, versions []string) error {
	known := func(v string) bool { return slices.Contains(api.SupportedVersions[:], v) }
	if !slices.ContainsFunc(versions, known) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q",
			strings.Join(versions, ", "), api.SupportedVersions)
	}
	if !extended(resource) {
		return fmt.Errorf("the ResourceName %q is invalid: want the name of an extended resource, such as "+
			"example.com/device", resource)
	}
	return nil
}

// extended reports whether a name can be that of an extended resource.
func extended(name string) bool {
	domain, _, found := strings.Cut(name, "/")
	return found && domain != "" && !strings.HasPrefix(name, v1.DefaultResourceRequestsPrefix) &&
		domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") &&
		len(validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix+name)) == 0
}

// serve serves the registration socket until ctx ends, and tries again while it cannot.
func (m *Manager) serve(ctx context.Context) {
	retry.Until(ctx, time.Second, time.Minute, m.serveOnce, func(err error, again time.Duration) {
		m.listening(err)
		klog.ErrorS(err, "Device plugins cannot register; trying again", "socket", m.path(socketName), "in", again)
	})
}

func (m *Manager) listening(err error) {
	if m.opts.Listening != nil {
		m.opts.Listening(m.path(socketName), err)
	}
}

func (m *Manager) serveOnce(ctx context.Context) error {
	if err := m.clean(); err != nil {
		return err
	}
	socket, err := net.Listen("unix", m.path(socketName))
	if err != nil {
		return err
	}
	m.listening(nil)
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(64<<10),
		grpc.MaxHeaderListSize(pluginrpc.MaxHeader),
		grpc.MaxConcurrentStreams(16),
		grpc.ConnectionTimeout(10*time.Second),
	)
	api.RegisterRegistrationServer(server, service{manager: m})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	defer server.Stop()
	return server.Serve(socket)
}

// clean makes the folder, and removes the sockets in it: plugins watch for that, and register again.
func (m *Manager) clean() error {
	if err := os.MkdirAll(m.opts.Dir, 0o750); err != nil {
		return err
	}
	entries, err := os.ReadDir(m.opts.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket == 0 {
			continue
		}
		if err := os.Remove(m.path(e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Validate implements plugins.Handler: plugins that announce themselves in the folder of all plugins.
func (m *Manager) Validate(name, _ string, versions []string) error { return check(name, versions) }

// Register implements plugins.Handler.
func (m *Manager) Register(ctx context.Context, name, endpoint string, _ []string) error {
	return m.connect(ctx, name, endpoint, nil)
}

// Deregister implements plugins.Handler.
func (m *Manager) Deregister(name, endpoint string) { m.disconnect(name, endpoint) }
