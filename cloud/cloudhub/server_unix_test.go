package cloudhub

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// driver asks as the CSI driver does: one message to the socket, one back. Without an answer it returns an empty one.
func driver(t *testing.T, path, request string) *model.Message {
	t.Helper()
	m := &model.Message{}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Error(err)
		return m
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(wait.Max()))
	buf := make([]byte, 10480)
	_, err = conn.Write([]byte(request))
	n, errRead := conn.Read(buf)
	if err := errors.Join(err, errRead, json.Unmarshal(buf[:n], m)); err != nil {
		t.Errorf("%s: %q, %v", request, buf[:n], err)
	}
	return m
}

func TestVolumeRequests(t *testing.T) {
	t.Parallel()
	c := startCloud(t, nil)
	path := filepath.Join(t.TempDir(), "run", "kubeedge.sock")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	left, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = left.Close() // as after a kill
	l, err := ListenUnix("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v; want mode 0600", info, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.hub.ServeUnix(ctx, l) }()
	defer func() {
		cancel()
		if err := <-done; err != context.Canceled {
			t.Errorf("the server ended with %v, want %v", err, context.Canceled)
		}
	}()

	e := newEdge(t, "n1")
	e.setMute(true)
	e.dialUpstream(c)
	other := newEdge(t, "n2").dialUpstream(c)
	wait.True(t, "the nodes", func() bool { return len(c.hub.Connected()) == 2 })
	answered := make(chan *model.Message, 1)
	go func() {
		answered <- driver(t, path,
			`{"header":{"msg_id":"csi-1","timestamp":1},"route":{"source":"cloudhub","group":"resource","operation":"createvolume","resource":"node/n1/default/volume/v1"},"content":"{\"name\":\"v1\"}"}`)
	}()
	wait.True(t, "the request", func() bool { return len(e.lines()) == 1 })
	e.mu.Lock()
	request := e.got[0]
	e.mu.Unlock()
	// Another node cannot answer.
	if err := other.send(request.Respond(json.RawMessage(`"forged"`))); err != nil {
		t.Fatal(err)
	}
	wait.True(t, "the forged answer to be read", func() bool {
		return c.hub.session("n2").conn.Stats().MessagesReceived >= 2
	})
	if err := e.send(request.Respond(json.RawMessage(`{"volume":{"volume_id":"v1"}}`))); err != nil {
		t.Fatal(err)
	}
	reply := <-answered
	if reply.Header.ParentID != "csi-1" || reply.Route.Operation != "response" ||
		string(reply.Content) != `{"volume":{"volume_id":"v1"}}` {
		t.Errorf("answer %+v %s, want the volume as a response to csi-1", reply, reply.Content)
	}
	if m := request; m.Route.Resource != "default/volume/v1" || m.Route.Operation != "createvolume" ||
		m.Route.Source != "cloudhub" || string(m.ContentData()) != `{"name":"v1"}` {
		t.Errorf("the edge got %+v %s, want the driver's request from cloudhub", m.Route, m.Content)
	}
	for resource, says := range map[string]string{
		"node/n9/default/volume/v1": "node n9 is not connected",
		"node/n1/default/pod/web":   "want node/<node>/<namespace>/volume/<id>",
		"nonsense":                  "want node/<node>/<namespace>/volume/<id>",
	} {
		reply := driver(t, path,
			`{"header":{"msg_id":"csi-2","timestamp":1},"route":{"operation":"deletevolume","resource":"`+resource+
				`"},"content":null}`)
		if reply.Route.Operation != "error" || reply.Header.ParentID != "csi-2" ||
			!strings.Contains(string(reply.ContentData()), says) {
			t.Errorf("%s: answer %+v %s, want an error with %q", resource, reply.Route, reply.Content, says)
		}
	}
	go e.bye()
	reply = driver(t, path,
		`{"header":{"msg_id":"csi-3","timestamp":1},"route":{"operation":"deletevolume","resource":"node/n1/default/volume/v1"},"content":null}`)
	if reply.Route.Operation != "error" {
		t.Errorf("the answer for a node that left is %+v, want an error", reply.Route)
	}
	// What is no message ends its connection only.
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("nonsense\n")); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(wait.Max()))
	if n, err := conn.Read(make([]byte, 10)); !errors.Is(err, io.EOF) {
		t.Errorf("read %d bytes, %v after nonsense, want the end of the connection", n, err)
	}
}
