package cloudhub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// Limits of the CSI driver's socket (docs/wire.md, CSI socket).
const (
	volumeTimeout  = time.Minute
	volumeIdle     = 2 * time.Minute
	volumeRequest  = 1 << 20
	volumeParallel = 64
)

// ListenUnix creates the socket of the CSI driver, for root only. It replaces a socket that a previous process left.
func ListenUnix(address string) (net.Listener, error) {
	path := strings.TrimPrefix(address, "unix://")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create the folder of the CSI socket: %w", err)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove the CSI socket of an earlier process: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on the CSI socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("protect the CSI socket: %w", err)
	}
	return l, nil
}

// ServeUnix forwards the CSI driver's requests to the nodes that they name, and the answers back, until the context
// ends.
func (h *Hub) ServeUnix(ctx context.Context, l net.Listener) error {
	var conns group
	defer conns.wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	places := make(chan struct{}, volumeParallel)
	for {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("serve the CSI socket: %w", err)
		}
		conns.run(func() {
			defer func() { <-places }()
			h.serveVolumes(ctx, c)
		})
	}
}

// serveVolumes answers the requests of one connection in order.
func (h *Hub) serveVolumes(ctx context.Context, c net.Conn) {
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	limit := &io.LimitedReader{R: c}
	in := json.NewDecoder(limit)
	for {
		limit.N = volumeRequest
		_ = c.SetDeadline(time.Now().Add(volumeIdle)) // fails only on a closed socket, which the read reports
		var m model.Message
		if err := in.Decode(&m); err != nil {
			if !errors.Is(err, io.EOF) && ctx.Err() == nil {
				klog.V(2).InfoS("Request on the CSI socket cannot be read", "err", err)
			}
			return
		}
		reply, err := h.volume(ctx, &m)
		if err != nil {
			klog.InfoS("Volume request failed", "resource", clip(m.Route.Resource, 256), "operation", m.Route.Operation,
				"err", err)
			reply = m.RespondError(sourceCloudHub, err)
		}
		if err := json.NewEncoder(c).Encode(reply); err != nil {
			return
		}
	}
}

// volume sends a request to its node and waits for the answer.
func (h *Hub) volume(ctx context.Context, m *model.Message) (*model.Message, error) {
	parts := strings.SplitN(m.Route.Resource, "/", 3)
	if len(parts) != 3 || parts[0] != "node" || !volumeResource.MatchString(parts[2]) {
		return nil, fmt.Errorf("resource %q: want node/<node>/<namespace>/volume/<id>", clip(m.Route.Resource, 256))
	}
	node := parts[1]
	s := h.session(node)
	if s == nil {
		return nil, fmt.Errorf("node %s is not connected to this cloudcore", clip(node, 256))
	}
	request := *m
	request.Route.Resource, request.Header.ParentID = parts[2], ""
	if request.Header.ID == "" {
		request.Header.ID = model.NewID()
	}
	answered := make(chan *model.Message, 1)
	if err := s.expectVolume(request.Header.ID, answered); err != nil {
		return nil, err
	}
	defer s.forgetVolume(request.Header.ID)
	ctx, cancel := context.WithTimeout(ctx, volumeTimeout)
	defer cancel()
	if err := s.deliver(ctx, &request); err != nil {
		return nil, fmt.Errorf("ask node %s: %w", node, err)
	}
	select {
	case reply := <-answered:
		return reply, nil
	case <-s.ctx.Done():
		return nil, fmt.Errorf("ask node %s: %w", node, errEnded)
	case <-ctx.Done():
		return nil, fmt.Errorf("node %s did not answer within %v", node, volumeTimeout)
	}
}

func (s *session) expectVolume(id string, answered chan<- *model.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.volumes[id]; ok {
		return fmt.Errorf("a request with the id %s is under way", clip(id, 64))
	}
	if s.volumes == nil {
		s.volumes = map[string]chan<- *model.Message{}
	}
	s.volumes[id] = answered
	return nil
}

func (s *session) forgetVolume(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.volumes, id); len(s.volumes) == 0 {
		s.volumes = nil
	}
}

// volumeAnswered passes an answer to its waiter. Only the node that was asked can answer.
func (s *session) volumeAnswered(m *model.Message) {
	s.mu.Lock()
	answered := s.volumes[m.Header.ParentID]
	delete(s.volumes, m.Header.ParentID)
	s.mu.Unlock()
	if answered != nil {
		answered <- m
	}
}
