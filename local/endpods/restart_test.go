package endpods

import (
	"bytes"
	"cmp"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/runtime/fakecri"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// onWrite calls do before each write.
type onWrite struct {
	bytes.Buffer
	do func()
}

func (w *onWrite) Write(p []byte) (int, error) {
	w.do()
	return w.Buffer.Write(p)
}

// TestEndOfRestartingRuntime: Kill kills no pods of a runtime that comes back, or that answers that it is not
// ready.
func TestEndOfRestartingRuntime(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "server is not initialized yet")
	for name, c := range map[string]struct {
		absent, stale bool   // the socket, at first; whether one that nothing listens at lies there
		method        string // ListPodSandbox if ""
		fails         int
		errSay        string
	}{
		"no socket at first":        {absent: true},
		"a stale socket at first":   {absent: true, stale: true},
		"answers Unavailable once":  {fails: 1},
		"restarts while pods end":   {method: "StopPodSandbox", fails: 5},
		"answers Unavailable again": {fails: 1 << 30, errSay: "does not list its pods"},
	} {
		t.Run(name, func(t *testing.T) {
			fake, client := fakecri.Start(t)
			dir := t.TempDir()
			labels := map[string]string{
				"io.kubernetes.pod.name":      "mine",
				"io.kubernetes.pod.namespace": "default",
				"io.kubernetes.pod.uid":       "mine",
			}
			sandbox := &runtimeapi.PodSandboxConfig{
				Metadata: &runtimeapi.PodSandboxMetadata{Name: "mine", Namespace: "default", Uid: "mine"},
				Labels:   labels,
			}
			request := &runtimeapi.RunPodSandboxRequest{Config: sandbox}
			if _, err := client.RunPodSandbox(t.Context(), request); err != nil {
				t.Fatal(err)
			}
			fake.Fail(cmp.Or(c.method, "ListPodSandbox"), c.fails, unavailable)
			socket := filepath.Join(dir, "cri.sock")
			appear := func() {
				_ = os.Remove(socket)
				if err := os.Symlink(strings.TrimPrefix(fake.Endpoint(), "unix://"), socket); err != nil {
					t.Error(err)
				}
			}
			if c.stale {
				staleSocket(t, socket)
			}
			if !c.absent {
				appear()
			}
			if err := os.MkdirAll(filepath.Join(dir, "root/pods/mine"), 0o755); err != nil {
				t.Fatal(err)
			}
			g := &groups{}
			var out bytes.Buffer
			progress := &onWrite{do: appear}
			o := Options{
				RuntimeEndpoint: "unix://" + socket,
				RuntimeTimeout:  wait.Max(),
				RootDir:         filepath.Join(dir, "root"),
				PodLogsDir:      filepath.Join(dir, "logs"),
				Links:           filepath.Join(dir, "links"),
				Within:          time.Minute,
				Wait:            wait.Max(),
				Interval:        time.Millisecond,
				Kill:            true,
				Cgroups:         g,
				Out:             &out,
				Progress:        progress,
			}
			if c.errSay != "" {
				o.Wait = 20 * time.Millisecond
			}
			err := End(t.Context(), o)
			if diff := gocmp.Diff([]types.UID(nil), g.removed); diff != "" {
				t.Errorf("pods killed by their cgroups (-want +got):\n%s", diff)
			}
			if (err == nil) != (c.errSay == "") || err != nil && !strings.Contains(err.Error(), c.errSay) {
				t.Errorf("End = %v, want an error with %q", err, c.errSay)
			}
			if want := "Ended 1 of 1 pods\n"; err == nil && out.String() != want {
				t.Errorf("End says %q, want %q", out.String(), want)
			}
			output := progress.String()
			if output == "" && c.errSay != "" {
				return // the first answer took as long as the wait; TestAwaitPods looks at the line
			}
			if strings.Count(output, "\n") != 1 || !strings.Contains(output, "waiting for up to ") {
				t.Errorf("End says on stderr %q, want one line that it waits", output)
			}
		})
	}
}

// staleSocket makes a socket that nothing listens at, as a runtime that was killed leaves it.
func staleSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
