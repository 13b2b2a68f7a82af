package prober

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/edgecore-io/edgecore/edged/podstate/events"
)

const (
	// eventUnhealthy and eventWarning are the kubelet's reasons.
	eventUnhealthy = "Unhealthy"
	eventWarning   = "ProbeWarning"

	// tries is how often an attempt without a result is repeated at once.
	tries = 3
	// maxOutput is how much of an answer is read and shown.
	maxOutput = 10 << 10
)

// target is a container and where it can be reached.
type target struct {
	pod       *v1.Pod
	container *v1.Container
	address   string
}

// ask is what one attempt is to find out.
type ask struct {
	target
	id   string
	kind kind
	spec *v1.Probe
}

func (a *ask) timeout() time.Duration {
	return time.Duration(max(a.spec.TimeoutSeconds, 1)) * time.Second
}

// attempts makes attempts. What it keeps is the same for all of them.
type attempts struct {
	exec      Execer
	recorder  events.Interface
	userAgent string
	dialer    *net.Dialer
	// transport is that of HTTP probes, http2 of those that ask for HTTP/2 without TLS.
	transport, http2 http.RoundTripper
}

func newAttempts(opts Options) *attempts {
	a := &attempts{
		exec:      opts.Exec,
		recorder:  opts.Recorder,
		userAgent: opts.UserAgent,
		dialer:    &net.Dialer{Control: shortLinger},
	}
	a.transport, a.http2 = &oneShot{a.dialer, newTransport(a.dialer)}, overHTTP2(newTransport(a.dialer))
	return a
}

// shortLinger makes the kernel give up a closed connection after a second: with a probe a second the ones in TIME_WAIT
// would pile up to thousands.
func shortLinger(_, _ string, c syscall.RawConn) error {
	var err error
	ctrl := c.Control(func(fd uintptr) {
		err = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
	})
	if ctrl != nil {
		return ctrl
	}
	return err
}

// attempt makes one attempt, of one or more tries, and records the events that follow from it.
func (a *attempts) attempt(ctx context.Context, q ask) result {
	var got result
	var text string
	var err error
	for range tries {
		if got, text, err = a.tryOnce(ctx, &q); err == nil || ctx.Err() != nil {
			break
		}
	}
	switch {
	case ctx.Err() != nil:
		return unknown
	case err != nil:
		if !isAway(err) {
			a.recorder.ContainerEventf(q.pod, q.container, v1.EventTypeWarning, eventUnhealthy,
				"%s probe errored and resulted in %s state: %s", q.kind, unknown, err)
		}
		return unknown
	case got == failure:
		a.recorder.ContainerEventf(q.pod, q.container, v1.EventTypeWarning, eventUnhealthy, "%s probe failed: %s",
			q.kind, text)
	case got == warning:
		a.recorder.ContainerEventf(q.pod, q.container, v1.EventTypeWarning, eventWarning, "%s probe warning: %s",
			q.kind, text)
	}
	return got
}

// tryOnce makes one try. An error means that the try says nothing about the container.
func (a *attempts) tryOnce(ctx context.Context, q *ask) (result, string, error) {
	switch h := &q.spec.ProbeHandler; {
	case h.Exec != nil:
		return a.runCommand(ctx, q, h.Exec)
	case h.HTTPGet != nil:
		return a.get(ctx, q, h.HTTPGet)
	case h.TCPSocket != nil:
		return a.connect(ctx, q, h.TCPSocket)
	case h.GRPC != nil:
		return a.health(ctx, q, h.GRPC)
	}
	return unknown, "", fmt.Errorf("missing probe handler for %s:%s", q.pod.Namespace+"/"+q.pod.Name, q.container.Name)
}

// connect opens a connection, and closes it.
func (a *attempts) connect(ctx context.Context, q *ask, h *v1.TCPSocketAction) (result, string, error) {
	port, err := portOf(h.Port, q.container)
	if err != nil {
		return unknown, "", err
	}
	d := *a.dialer
	d.Timeout = q.timeout()
	conn, err := d.DialContext(ctx, "tcp", hostPort(h.Host, q.address, port))
	if err != nil {
		return failure, err.Error(), nil
	}
	if err := conn.Close(); err != nil {
		return success, err.Error(), nil // it was open, which is all that was asked
	}
	return success, "", nil
}

func hostPort(host, address string, port int) string {
	if host == "" {
		host = address
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// portOf finds the number of a port, which may be the name of one of the container's.
func portOf(p intstr.IntOrString, c *v1.Container) (int, error) {
	port := p.IntValue()
	if p.Type == intstr.String {
		named := false
		for _, cp := range c.Ports {
			if cp.Name == p.StrVal {
				port, named = int(cp.ContainerPort), true
				break
			}
		}
		if !named && port == 0 {
			return 0, fmt.Errorf("couldn't find a port named %q in container %s", p.StrVal, c.Name)
		}
	}
	if port < 1 || port > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", port)
	}
	return port, nil
}
