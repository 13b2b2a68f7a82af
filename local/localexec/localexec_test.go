package localexec

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/runtime/fakecri"
	"github.com/edgecore-io/edgecore/local/localpods"
)

// streamer is a runtime that serves the streams of commands at url, and fails with err if that is set.
type streamer struct {
	runtimeapi.RuntimeServiceClient
	url string
	err error
	got *runtimeapi.ExecRequest
}

func (s *streamer) Exec(
	_ context.Context, r *runtimeapi.ExecRequest, _ ...grpc.CallOption,
) (*runtimeapi.ExecResponse, error) {
	s.got = r
	return &runtimeapi.ExecResponse{Url: s.url}, s.err
}

// newRuntime returns a runtime with pod web of containers main and proxy, and the id of main. A command in it sends one
// line of its input back, if input is passed on, and ends with outcome.
func newRuntime(t *testing.T, input bool, outcome string) (*fakecri.Runtime, *streamer, *cri.Client, string) {
	t.Helper()
	fake, client := fakecri.Start(t)
	labels := map[string]string{
		"io.kubernetes.pod.name":      "web",
		"io.kubernetes.pod.namespace": "default",
		"io.kubernetes.pod.uid":       "u1",
	}
	box := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u1"},
		Labels:   labels,
	}
	made, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: box})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for _, name := range []string{"main", "proxy"} {
		config := &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name},
			Image:    &runtimeapi.ImageSpec{Image: "x"},
			Labels:   map[string]string{"io.kubernetes.container.name": name},
		}
		for key, value := range labels {
			config.Labels[key] = value
		}
		c, err := client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId:  made.PodSandboxId,
			SandboxConfig: box,
			Config:        config,
		})
		if err != nil {
			t.Fatal(err)
		}
		start := &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId}
		if _, err := client.StartContainer(t.Context(), start); err != nil {
			t.Fatal(err)
		}
		ids[name] = c.ContainerId
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		upgrader := &websocket.Upgrader{Subprotocols: []string{"v4.channel.k8s.io"}}
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		text := "\x01no input"
		if input {
			_, data, err := conn.ReadMessage()
			if err != nil {
				t.Error(err)
				return
			}
			text = "\x01" + string(data[1:])
		}
		for _, message := range []string{text, "\x02a warning", "\x03" + outcome} {
			if err := conn.WriteMessage(websocket.BinaryMessage, []byte(message)); err != nil {
				t.Error(err)
			}
		}
	}))
	t.Cleanup(server.Close)
	s := &streamer{RuntimeServiceClient: client.RuntimeServiceClient, url: server.URL}
	return fake, s, &cri.Client{RuntimeServiceClient: s, Images: client.Images}, ids["main"]
}

func TestRun(t *testing.T) {
	const success = `{"status":"Success"}`
	for name, c := range map[string]struct {
		stdin    bool
		outcome  string
		out, err string
	}{
		"without input": {false, success, "no input", ""},
		"with input":    {true, success, "typed", ""},
		"exit code": {
			false,
			`{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}`,
			"no input", "command terminated with exit code 7",
		},
		"no such program": {false, `{"status":"Failure","message":"no such file"}`, "no input", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, s, client, id := newRuntime(t, c.stdin, c.outcome)
			var out, errOut bytes.Buffer
			err := run(t.Context(), client, Command{
				Container: localpods.Query{Pod: "web", Container: "main"},
				Args:      []string{"cat", "-"},
				In:        strings.NewReader("typed"),
				Stdin:     c.stdin,
				Out:       &out,
				Err:       &errOut,
			})
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != c.err || out.String() != c.out || errOut.String() != "a warning" {
				t.Errorf("run = %q, stdout %q, stderr %q; want %q, %q and a warning", text, out.String(),
					errOut.String(), c.err, c.out)
			}
			want := &runtimeapi.ExecRequest{
				ContainerId: id, Cmd: []string{"cat", "-"}, Stdin: c.stdin, Stdout: true, Stderr: true,
			}
			if diff := cmp.Diff(want, s.got, protocmp.Transform()); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExitError: main ends with the exit code of the command.
func TestExitError(t *testing.T) {
	_, _, client, _ := newRuntime(t, false,
		`{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"42"}]}}`)
	var out, errOut bytes.Buffer
	err := run(t.Context(), client, Command{
		Container: localpods.Query{Pod: "web", Container: "main"}, Args: []string{"x"}, Out: &out, Err: &errOut,
	})
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Code != 42 {
		t.Errorf("run = %v, want an ExitError with code 42", err)
	}
}

func TestRunRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		query localpods.Query
		tty   bool
		fault func(*fakecri.Runtime, *streamer)
		want  string
	}{
		"another pod":        {localpods.Query{Pod: "db"}, false, nil, `among the pods that run: pod "db" not found`},
		"several containers": {localpods.Query{Pod: "web"}, false, nil, "(main, proxy); choose one with -c"},
		"no terminal": {
			localpods.Query{Pod: "web", Container: "main"}, true, nil, "the input is not a terminal; leave out -t",
		},
		"runtime is down": {
			localpods.Query{Pod: "web", Container: "main"}, false,
			func(f *fakecri.Runtime, _ *streamer) {
				f.Fail("ListContainers", 1, status.Error(codes.Unavailable, "down"))
			},
			"the container runtime does not answer: ",
		},
		"runtime refuses": {
			localpods.Query{Pod: "web", Container: "main"}, false,
			func(_ *fakecri.Runtime, s *streamer) { s.err = errors.New("container is paused") },
			"container is paused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake, s, client, _ := newRuntime(t, false, "")
			if c.fault != nil {
				c.fault(fake, s)
			}
			err := run(t.Context(), client, Command{
				Container: c.query, Args: []string{"x"}, In: strings.NewReader(""), TTY: c.tty,
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("run = %v, want an error with %q", err, c.want)
			}
		})
	}
}

// TestRunEndpoint: an endpoint that is no socket is refused before anything is asked.
func TestRunEndpoint(t *testing.T) {
	if err := Run(t.Context(), "tcp://192.0.2.1:1", Command{}); err == nil ||
		!strings.Contains(err.Error(), "want a unix socket") {
		t.Errorf("Run = %v, want an error with %q", err, "want a unix socket")
	}
}
