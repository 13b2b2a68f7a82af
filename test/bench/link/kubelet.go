package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// kubeletClient makes the requests that kube-apiserver makes to a kubelet API, with kube-apiserver's client
// certificate. Each request has its own connection.
type kubeletClient struct{ tls *tls.Config }

func newKubeletClient(cert, key string) (*kubeletClient, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	// The node's certificate is not verified, as in kube-apiserver without --kubelet-certificate-authority.
	return &kubeletClient{&tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true,
	}}, nil
}

// get asks for a path, and returns the body of the answer; closing it closes the connection.
func (k *kubeletClient) get(ctx context.Context, address, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: k.tls.Clone(), DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return nil, errors.Join(fmt.Errorf("GET %s at %s: %s: %s", path, address, resp.Status, text), resp.Body.Close())
	}
	return resp.Body, nil
}

// logsPath is the request of kubectl logs.
const logsPath = "/containerLogs/default/" + tunnelPod + "/main"

// firstByte returns how long kubectl logs takes over a new connection until the first line arrives.
func (k *kubeletClient) firstByte(ctx context.Context, address string) (time.Duration, error) {
	began := time.Now()
	body, err := k.get(ctx, address, logsPath)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	if _, err := io.ReadFull(body, make([]byte, 1)); err != nil {
		return 0, fmt.Errorf("read logs at %s: %w", address, err)
	}
	return time.Since(began), nil
}

// Channels of exec's protocol v4.channel.k8s.io: the first byte of each message.
const (
	execProtocol = "v4.channel.k8s.io"
	execStdout   = 1
	execError    = 3
)

// exec runs a command in the pod. It returns how many bytes the command printed, and how long that took after the first
// byte.
func (k *kubeletClient) exec(ctx context.Context, address string, command ...string) (int64, time.Duration, error) {
	query := url.Values{"output": {"1"}, "command": command}
	dialer := websocket.Dialer{
		TLSClientConfig: k.tls.Clone(), Subprotocols: []string{execProtocol}, ReadBufferSize: 64 << 10,
	}
	ws, resp, err := dialer.DialContext(ctx, "wss://"+address+"/exec/default/"+tunnelPod+"/main?"+query.Encode(), nil)
	if err != nil && resp != nil {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		err = fmt.Errorf("%w: %s: %s", err, resp.Status, text)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("exec at %s: %w", address, err)
	}
	defer ws.Close()
	defer context.AfterFunc(ctx, func() { _ = ws.Close() })()
	var printed int64
	var began time.Time
	buf := make([]byte, 64<<10)
	for {
		_, r, err := ws.NextReader()
		if err != nil {
			return printed, 0, fmt.Errorf("exec at %s after %d bytes: %w", address, printed, err)
		}
		if _, err := io.ReadFull(r, buf[:1]); err != nil {
			return printed, 0, fmt.Errorf("exec at %s: an empty message: %w", address, err)
		}
		if buf[0] == execError {
			status, err := io.ReadAll(r)
			if err == nil && !strings.Contains(string(status), `"Success"`) {
				err = fmt.Errorf("exec at %s: %s", address, status)
			}
			return printed, time.Since(began), err
		}
		if buf[0] == execStdout {
			if began.IsZero() {
				began = time.Now()
			}
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, buf)
			if printed += n; err != nil {
				return printed, 0, fmt.Errorf("exec at %s after %d bytes: %w", address, printed, err)
			}
		}
	}
}
