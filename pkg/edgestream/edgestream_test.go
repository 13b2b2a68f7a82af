package edgestream

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"
)

func TestMessage(t *testing.T) {
	m := Message{ID: 300, Kind: Data, Data: []byte("hi")}
	if got := m.Encode(); !bytes.Equal(got, []byte{0xac, 0x02, 0x03, 'h', 'i'}) {
		t.Errorf("Encode = % x, want KubeEdge's ac 02 03 68 69", got)
	}
	got, err := Decode(m.Encode())
	if diff := cmp.Diff(m, got); diff != "" || err != nil {
		t.Errorf("Decode: %v (-want +got):\n%s", err, diff)
	}
	for name, bad := range map[string][]byte{
		"nothing": nil, "no type": {7}, "an endless number": bytes.Repeat([]byte{0xff}, 11),
		"too much": append([]byte{1, 3}, make([]byte, MaxData+1)...),
	} {
		if m, err := Decode(bad); err == nil {
			t.Errorf("%s: Decode = %+v, want an error", name, m)
		}
	}
}

// TestConnect: what KubeEdge's cloud sends is read, and ours has its form.
func TestConnect(t *testing.T) {
	const theirs = `{"MessID":7,"url":{"Scheme":"http","Opaque":"","User":null,"Host":"127.0.0.1:10350",` +
		`"Path":"/containerLogs/default/nginx/nginx","Fragment":"","RawQuery":"follow=true\u0026tailLines=10",` +
		`"RawPath":"","RawFragment":"","ForceQuery":false,"OmitHost":false},"header":{"User-Agent":["kube-apiserver"]}}`
	var c Connect
	if err := json.Unmarshal([]byte(theirs), &c); err != nil {
		t.Fatal(err)
	}
	r, err := c.Request(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Method + " " + r.URL.String() + " " + r.Header.Get("User-Agent"); got !=
		"GET http://127.0.0.1:10350/containerLogs/default/nginx/nginx?follow=true&tailLines=10 kube-apiserver" {
		t.Errorf("the request is %s", got)
	}
	c.Method = http.MethodPost
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"MessID":7,"url":{"Scheme":"http","Host":"127.0.0.1:10350","Path":"/containerLogs/default/nginx/nginx",` +
		`"RawPath":"","RawQuery":"follow=true\u0026tailLines=10"},"header":{"User-Agent":["kube-apiserver"]},` +
		`"method":"POST"}`
	if string(text) != want {
		t.Errorf("a Connect is %s, want %s", text, want)
	}
}

// TestHostile: a peer that sends what the tunnel has not ends it.
func TestHostile(t *testing.T) {
	for name, tc := range map[string]struct {
		kind int
		text []byte
		want string
	}{
		"binary":   {websocket.BinaryMessage, []byte{1, 3, 'x'}, "want text"},
		"no type":  {websocket.TextMessage, []byte{1}, "has no type"},
		"too much": {websocket.TextMessage, make([]byte, MaxData+header+1), "read limit exceeded"},
	} {
		read := make(chan error, 1)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := Accept(w, r)
			if err != nil {
				read <- err
				return
			}
			_, err = c.Read()
			read <- err
			_ = c.Close()
		}))
		ws, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(server.URL, "http")+Path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := ws.WriteMessage(tc.kind, tc.text); err != nil {
			t.Fatal(err)
		}
		if err := <-read; err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: Read = %v, want %q", name, err, tc.want)
		}
		_ = ws.Close()
		server.Close()
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{0xac, 0x02, 0x03, 'h', 'i'})
	f.Add([]byte{1, 0, '{', '}'})
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := Decode(text)
		if err != nil {
			return
		}
		if again, err := Decode(m.Encode()); err != nil || !cmp.Equal(m.Data, again.Data) || again.Kind != m.Kind {
			t.Errorf("%v is %v after Encode, %v", m, again, err)
		}
		var c Connect
		if json.Unmarshal(m.Data, &c) == nil {
			if r, err := c.Request(t.Context()); err == nil && r.URL.Host != KubeletAPI {
				t.Errorf("%s makes a request to %s", m.Data, r.URL.Host)
			}
		}
	})
}

// TestCloseAtOnce: the end of a connection of TLS does not wait for a peer that does not read.
func TestCloseAtOnce(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	config := server.TLS
	server.Close()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c, peer := tls.Server(near, config), tls.Client(far, &tls.Config{InsecureSkipVerify: true})
		read := make(chan error)
		go func() {
			_, err := io.ReadFull(peer, make([]byte, 1))
			read <- err
		}()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := <-read; err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := CloseAtOnce(c); err != nil || time.Since(began) != 0 {
			t.Errorf("%v after %v; want the end at once", err, time.Since(began))
		}
		if _, err := peer.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the peer reads %v, want the end of the connection", err)
		}
	})
}
