package dmi

import (
	"context"
	"fmt"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// identity is who is at the other end of a connection. It stays the same when a mapper, or its container, restarts.
type identity struct {
	UID uint32 `json:"uid"`
	// Cgroup is the cgroup of the process's pod, or of its systemd service; "" if it is in neither.
	Cgroup string `json:"cgroup,omitempty"`
}

func (i identity) String() string {
	if i.Cgroup == "" {
		return fmt.Sprintf("user %d outside of pods and services", i.UID)
	}
	return fmt.Sprintf("user %d in cgroup %s", i.UID, i.Cgroup)
}

// identify returns the identity of a process. The cgroup is "" if the process has ended.
func identify(pid int32, uid uint32) identity {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(int(pid)) + "/cgroup") // see above
	return identity{UID: uid, Cgroup: ownerCgroup(string(data))}
}

// ownerCgroup returns the cgroup of the pod or the service that a process belongs to; content is its /proc/PID/cgroup.
// A pod's cgroup outlives its containers, and a service's name is the same after a restart.
func ownerCgroup(content string) string {
	// The UID of a static pod has no dashes.
	pod := regexp.MustCompile(`(^|-)pod([0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(\.slice)?$`)
	for line := range strings.Lines(content) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		levels := strings.Split(parts[2], "/")
		for i, level := range levels {
			if pod.MatchString(level) {
				return strings.Join(levels[:i+1], "/")
			}
		}
		for i := len(levels) - 1; i >= 0; i-- {
			if strings.HasSuffix(levels[i], ".service") {
				return strings.Join(levels[:i+1], "/")
			}
		}
	}
	return ""
}

// present reports whether the pod or the service of an identity is still there. It is false if the identity has none.
func present(i identity) bool {
	if i.Cgroup == "" {
		return false
	}
	for _, hierarchy := range []string{"", "systemd", "unified", "memory", "pids"} { // cgroup v2, and v1
		if _, err := os.Stat(path.Join("/sys/fs/cgroup", hierarchy, i.Cgroup)); err == nil {
			return true
		}
	}
	return false
}

// caller returns the identity of the process that makes a call; false if it is unknown.
func caller(ctx context.Context) (identity, bool) {
	if p, ok := peer.FromContext(ctx); ok {
		if a, is := p.Addr.(peerAddr); is {
			return a.identity, true
		}
	}
	return identity{}, false
}

// mayReport returns why the caller may not report on a device: only the mapper of its protocol may. A caller that has
// never registered may report where there is no mapper: KubeEdge's mappers do not register again when the agent has
// lost its store.
func (s *Server) mayReport(ctx context.Context, namespace, name string) error {
	protocol, err := s.opts.Twins.Protocol(namespace, name)
	if err != nil {
		return statusOf(err)
	}
	me, known := caller(ctx)
	if !known {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.mappers[protocol]; m != nil {
		if m.owner == nil || *m.owner == me { // an older agent has not stored an owner
			return nil
		}
		return status.Errorf(codes.PermissionDenied, "device %s/%s has protocol %s, which mapper %s serves (%s); the "+
			"report is of %s: register for the protocol when that mapper is gone", namespace, name, protocol, m.name,
			m.owner, me)
	}
	for _, m := range s.mappers {
		if m.owner != nil && *m.owner == me {
			return status.Errorf(codes.PermissionDenied, "device %s/%s has protocol %s, and the mapper is registered "+
				"for %s: register for the protocol first", namespace, name, protocol, m.protocol)
		}
	}
	return nil
}

// mayRegister returns why the caller may not become the mapper of a protocol that old serves: another pod or service
// may not use the moment in which the mapper restarts.
func (s *Server) mayRegister(me identity, old *mapper) error {
	if old == nil || old.owner == nil || *old.owner == me || !s.present(*old.owner) {
		return nil
	}
	return status.Errorf(codes.AlreadyExists, "protocol %s is served by mapper %s, %s, which is still there, and the "+
		"caller is %s: delete the pod or stop the service of that mapper first", old.protocol, old.name, old.owner, me)
}
