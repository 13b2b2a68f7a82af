package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/wan"
)

// The floor of a tunnel's processor time is two small relays, which are this program with a role as its first argument:
// one in cloudcore's place, one in edgecore's. Between them, each caller has a connection of its own.
const (
	// relayCloud accepts callers, and connects to the other relay for each.
	relayCloud = "relay-cloud"
	// relayNode connects to the kubelet API for each of these connections.
	relayNode = "relay-node"
	// relayBuffer is the size of the buffer for each direction. io.Copy uses the same size.
	relayBuffer = 32 << 10
)

// relayKinds are the kinds of the connection between the relays.
var relayKinds = []string{"TCP", "TLS"}

// isRelay reports whether the program is to run as a relay: with a role, a kind, the address at which it accepts
// connections, and the one that it connects to for each.
func isRelay(args []string) bool {
	return len(args) == 5 && (args[1] == relayCloud || args[1] == relayNode)
}

// serveRelay runs a relay until its process is killed, or until the returned error.
func serveRelay(args []string) error {
	role, kind, at, to := args[1], args[2], args[3], args[4]
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	dial := func() (net.Conn, error) { return net.Dial("tcp", to) }
	switch {
	case kind == "TLS" && role == relayNode:
		pair, err := selfSigned()
		if err != nil {
			return err
		}
		l = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}})
	case kind == "TLS":
		config := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}
		dial = func() (net.Conn, error) { return tls.Dial("tcp", to, config) }
	}
	for {
		in, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer in.Close()
			if out, err := dial(); err == nil {
				relay(in, out)
			}
		}()
	}
}

// relay copies both ways until one has ended.
func relay(a, b net.Conn) {
	var both sync.WaitGroup
	one := func(to, from net.Conn) {
		// The structs hide methods with which TCP connections copy inside the kernel.
		_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, relayBuffer))
		_ = to.Close()
		_ = from.Close()
	}
	both.Go(func() { one(a, b) })
	one(b, a)
	both.Wait()
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// startRelays starts both relays of a kind, and returns where callers connect and the process in cloudcore's place.
func (s *tunnelSite) startRelays(ctx context.Context, kind string) (string, *daemon.Process, error) {
	program, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	inNetwork, err := s.network.Wrap(s.dir, program)
	if err != nil {
		return "", nil, err
	}
	start := func(program, role, host, to string) (string, *daemon.Process, error) {
		port, err := daemon.FreePort()
		if err != nil {
			return "", nil, err
		}
		at := net.JoinHostPort(host, strconv.Itoa(port))
		p, err := daemon.Start(filepath.Join(s.dir, role+".log"), nil, program, role, kind, at, to)
		if err != nil {
			return "", nil, err
		}
		s.stops.add(func(ctx context.Context) error { return p.End(ctx, syscall.SIGKILL) })
		return at, p, nil
	}
	between, _, err := start(inNetwork, relayNode, wan.Device, s.direct)
	if err != nil {
		return "", nil, err
	}
	at, p, err := start(program, relayCloud, wan.Host, between)
	if err != nil {
		return "", nil, err
	}
	err = until(ctx, fmt.Sprintf("the relays over %s carry a request", kind), edgeTime, func() (bool, error) {
		_, err := s.client.firstByte(ctx, at)
		return err == nil, wait(ctx, 50*time.Millisecond)
	})
	return at, p, err
}
