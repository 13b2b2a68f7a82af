package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
)

const (
	podsOfNode = 30
	// reports is how long after pods run their last statuses and events may come.
	reports = 30 * time.Second
	// still is how long nothing goes over the cable until a reconnect counts as over. Pings are further apart.
	still = 4 * time.Second
	// readyTime is how long pods may take to be Ready.
	readyTime = time.Minute
	// layer says what is counted.
	layer = "payload of TCP: TLS records with all in them"
)

// traffic is what went over the cable, from the edge and to it.
type traffic struct{ up, down int64 }

func (e *edgeSite) counted() traffic { return traffic{e.cable.Up.Load(), e.cable.Down.Load()} }

func (t traffic) since(before traffic) traffic {
	return traffic{t.up - before.up, t.down - before.down}
}

func (t traffic) sum() int64 { return t.up + t.down }

func (t traffic) String() string {
	return fmt.Sprintf("%.2f KB (%d B up, %d B down)", float64(t.sum())/1000, t.up, t.down)
}

// bytes counts what a node with pods puts on the wire: at rest, and when it comes back.
func (e *edgeSite) bytes(ctx context.Context) error {
	say("%d pods", podsOfNode)
	for i := range podsOfNode {
		p := demo(fmt.Sprintf("idle-%d", i))
		p.Spec.AutomountServiceAccountToken = nil
		if _, err := e.api.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := e.allReady(ctx); err != nil {
		return err
	}
	if err := wait(ctx, reports); err != nil {
		return err
	}
	say("at rest for %v", e.opts.idle)
	before := e.counted()
	for last, rest := before, e.opts.idle; rest > 0; rest -= time.Minute {
		if err := wait(ctx, min(rest, time.Minute)); err != nil {
			return err
		}
		say("on the wire: %v", e.counted().since(last))
		last = e.counted()
	}
	idle := e.counted().since(before)
	minutes := e.opts.idle.Minutes()
	a := traffic{int64(float64(idle.up) / minutes), int64(float64(idle.down) / minutes)}
	e.t.row(fmt.Sprintf("on the wire in a minute, %d pods at rest, mean of %v (%s)", podsOfNode, e.opts.idle, layer),
		a.String(), "", "<= 0.5 KB")
	return e.reconnect(ctx)
}

func (e *edgeSite) allReady(ctx context.Context) error {
	return until(ctx, "all pods are Ready", readyTime, func() (bool, error) {
		if err := wait(ctx, time.Second); err != nil {
			return false, err
		}
		list, err := e.api.CoreV1().Pods("default").
			List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			if !podReady(&list.Items[i]) {
				return false, nil
			}
		}
		return true, nil
	})
}

func podReady(p *v1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// reconnect cuts the cable for so long that the node counts as lost, and counts what its coming back takes.
func (e *edgeSite) reconnect(ctx context.Context) error {
	say("cable cut for %v", e.opts.outage)
	e.cable.Set(proxy.Cut)
	if err := wait(ctx, e.opts.outage); err != nil {
		return err
	}
	before, began := e.counted(), time.Now()
	e.cable.Set(proxy.Passing)
	err := until(ctx, "the edge is back", edgeTime, func() (bool, error) {
		return e.counted().sum() > before.sum(), nil
	})
	if err != nil {
		return err
	}
	first, err := e.quiet(ctx)
	if err != nil {
		return err
	}
	back := first.since(before)
	readyIn := "never"
	switch err := e.allReady(ctx); {
	case err == nil:
		readyIn = "in " + seconds(time.Since(began))
	case !errors.Is(err, context.DeadlineExceeded):
		return err
	}
	handshake, err := e.handshake(ctx)
	if err != nil {
		return err
	}
	e.t.row(fmt.Sprintf("to resync %d pods after %v without link, nothing changed (%s)", podsOfNode, e.opts.outage,
		layer), back.String(), "", "<= 10 KB")
	e.t.row("of it the TLS handshake, taken apart", handshake.String(), "", "")
	e.t.row("all pods Ready again in the API, from when the cable was mended", readyIn, "", "")
	return nil
}

// quiet returns what was counted when nothing more has come for a while.
func (e *edgeSite) quiet(ctx context.Context) (traffic, error) {
	last, at := e.counted(), time.Now()
	err := until(ctx, "the cable is quiet", edgeTime, func() (bool, error) {
		if now := e.counted(); now != last {
			last, at = now, time.Now()
		}
		return time.Since(at) > still, nil
	})
	return last, err
}

// handshake counts one that the node makes, without a link after it.
func (e *edgeSite) handshake(ctx context.Context) (traffic, error) {
	files := certs.Files{CA: filepath.Join(e.edge.Dir, "ca.crt"), Cert: filepath.Join(e.edge.Dir, "edge.crt"),
		Key: filepath.Join(e.edge.Dir, "edge.key")}
	identity, err := files.Load()
	if err != nil {
		return traffic{}, err
	}
	cable, err := proxy.Start(hubPort(e.cloud))
	if err != nil {
		return traffic{}, err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: identity.Pool(), Certificates: []tls.Certificate{identity.TLS()},
		ServerName: "127.0.0.1", NextProtos: []string{"http/1.1"},
	}
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", cable.Addr())
	if err != nil {
		return traffic{}, errors.Join(err, cable.Close())
	}
	// What the server sends after the handshake comes now, if it sends anything.
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	_, err = conn.Read(make([]byte, 1))
	if timeout := net.Error(nil); !errors.As(err, &timeout) || !timeout.Timeout() {
		return traffic{}, errors.Join(fmt.Errorf("read after the handshake: %w", err), conn.Close(), cable.Close())
	}
	counted := traffic{cable.Up.Load(), cable.Down.Load()}
	return counted, errors.Join(conn.Close(), cable.Close())
}
