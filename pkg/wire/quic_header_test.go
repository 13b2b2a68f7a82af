package wire

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/quic-go/quic-go"

	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
)

// The header exchange over QUIC, byte for byte: the packer's head, then the message. XX are bytes of an id or a time.
const (
	// headerIDs has a new message's id of 36 bytes and its time; answerIDs the id of what it answers, too.
	headerIDs = "0a2d" + "0a24" + anyID + "18" + anyTime
	answerIDs = "0a4d" + "0a24" + anyID + "121e" + "68656c6c6f2d68656c6c6f2d68656c6c6f2d68656c6c6f2d68656c6c6f2d" +
		"18" + anyTime

	anyID   = "XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX"
	anyTime = "XXXXXXXXXXXX"
)

// TestQUICHeaderOfEdge: the control stream of an edge that introduces itself, and the stream that follows.
func TestQUICHeaderOfEdge(t *testing.T) {
	ca := wiretest.NewCA(t)
	config := ca.ServerTLS(t)
	config.NextProtos = []string{alpn}
	l, err := quic.ListenAddr("127.0.0.1:0", config, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dialled, seen := make(chan error, 1), make(chan struct{})
	go func() {
		header := http.Header{}
		header.Set(HeaderNodeID, "edge-1")
		conn, err := DialQUIC(ctx, DialOptions{
			URL:      "quic://" + l.Addr().String() + "/p/edge-1/events",
			TLS:      ca.ClientTLS(t, "edge-1"),
			Header:   header,
			Limits:   patient,
			Features: AllFeatures(),
		})
		if err == nil {
			<-seen
			err = conn.Close(CloseNormal, "")
		}
		dialled <- err
	}()
	conn, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	control, err := conn.AcceptStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const content = `{"Edgecore-Features":["inventory,lease,report,batch"],"Node_id":["edge-1"]}`
	want := "010101000100" + "00000091" + headerIDs + // head, header
		"1210" + "1a06" + hexed("header") + "2206" + hexed("header") + // operation and resource
		"1a4b" + hexed(content) + "a00601" // the content, which is JSON
	if diff := cmp.Diff(want, masked(readHex(t, control, want), want)); diff != "" {
		t.Errorf("header mismatch (-want +got):\n%s", diff)
	}
	if _, err :=
		control.Write(unhex(t, "010101000100"+"0000001d"+"0a05"+"0a03"+hexed("abc")+"1206"+"1a04"+hexed("nope")+"1a0c"+
			hexed(`{"ack":true}`))); err != nil {
		t.Fatal(err)
	}
	messages, err := conn.AcceptStream(ctx)
	if err != nil {
		t.Fatalf("AcceptStream = %v, dial: %v; want no error", err, <-dialled)
	}
	if got := readHex(t, messages, hexed("msg")); got != hexed("msg") {
		t.Errorf("the stream of messages begins with %s, want %s", got, hexed("msg"))
	}
	close(seen)
	if err := <-dialled; err != nil {
		t.Error(err)
	}
}

// TestQUICHeaderOfCloud: what the cloud answers on the control stream, to an edge that it lets in and to one that it
// does not.
func TestQUICHeaderOfCloud(t *testing.T) {
	cloud := newQUICCloud(t, func(c Caller) (AcceptOptions, error) {
		if c.Header.Get(HeaderNodeID) != "edge-1" {
			return AcceptOptions{}, errors.New("who?")
		}
		return AcceptOptions{Limits: patient, Features: AllFeatures()}, nil
	})
	config := cloud.ca.ClientTLS(t, "edge-1")
	config.NextProtos = []string{alpn}
	for _, c := range []struct{ node, length, answer string }{
		{"edge-1", "9d", `{"ack":true,"header":{"Edgecore-Features":["lease"]}}`},
		{"edge-2", "85", `{"ack":false,"reason":"who?"}`},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		conn, err := quic.DialAddr(ctx, cloud.addr, config, nil)
		if err != nil {
			t.Fatal(err)
		}
		control, err := conn.OpenStreamSync(ctx)
		if err != nil {
			t.Fatal(err)
		}
		hello := "010101000100" + "0000006e" + "0a20" + "0a1e" + hexed("hello-hello-hello-hello-hello-") +
			"1210" + "1a06" + hexed("header") + "2206" + hexed("header") +
			"1a38" + hexed(`{"Node_id":["`+c.node+`"],"Edgecore-Features":["new,lease"]}`)
		if _, err := control.Write(unhex(t, hello)); err != nil {
			t.Fatal(err)
		}
		want := "010101000100" + "000000" + c.length + answerIDs +
			"1212" + "1a08" + hexed("response") + "2206" + hexed("header") +
			"1a" + hex.EncodeToString([]byte{byte(len(c.answer))}) + hexed(c.answer) + "a00601"
		if diff := cmp.Diff(want, masked(readHex(t, control, want), want)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.node, diff)
		}
		_ = conn.CloseWithError(0, "")
		cancel()
	}
}

func hexed(text string) string { return hex.EncodeToString([]byte(text)) }

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// readHex reads as much as is wanted.
func readHex(t *testing.T, r io.Reader, want string) string {
	t.Helper()
	data := make([]byte, len(want)/2)
	n, err := io.ReadFull(r, data)
	if err != nil {
		t.Errorf("after %x: %v", data[:n], err)
	}
	return hex.EncodeToString(data[:n])
}

// masked hides what is another each time.
func masked(got, want string) string {
	out := []byte(got)
	for i := range min(len(out), len(want)) {
		if want[i] == 'X' {
			out[i] = 'X'
		}
	}
	return string(out)
}
