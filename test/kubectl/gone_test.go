package kubectl

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// testCallerGone: a kubectl that is killed while the container is silent leaves no stream at either end.
func (n *node) testCallerGone(t *testing.T) {
	for name, vars := range protocols {
		t.Run(name, func(t *testing.T) {
			n.streamsUntil(t, "no streams", func(count int) bool { return count == 0 })
			for verb, start := range map[string]func(*testing.T, *call){
				"logs":         follows("three"),
				"exec":         follows("there"),
				"attach":       func(t *testing.T, c *call) { c.talk(t) },
				"port-forward": forwards,
			} {
				c := n.kubectl(t, map[string][]string{
					"logs":         {"logs", "-f", "talker"},
					"exec":         {"exec", "web", "-c", "main", "--", "sh", "-c", "echo there; exec sleep 600"},
					"attach":       {"attach", "-i", "asker"},
					"port-forward": {"port-forward", "pod/web", ":8080"},
				}[verb]...).env(vars...)
				start(t, c)
				n.streamsUntil(t, verb+" to have a stream", func(count int) bool { return count > 0 })
				_ = c.Process.Kill()
				_ = c.Wait()
				n.streamsUntil(t, verb+" to have no stream after it was killed", func(count int) bool {
					return count == 0
				})
			}
		})
	}
}

// streamsUntil waits until both ends have the same number of streams, for which done is true.
func (n *node) streamsUntil(t *testing.T, what string, done func(count int) bool) {
	t.Helper()
	wait.Until(t, what, func() error {
		cloud, err := n.fixture.Cloud.Get(t.Context(), "/metrics")
		if err != nil {
			return err
		}
		device, err := n.Get(t.Context(), "/metrics")
		if err != nil {
			return err
		}
		in, out := value(cloud, "cloudcore_tunnel_streams"), value(device, "edgecore_tunnel_streams")
		count := 0
		if _, err := fmt.Sscan(in, &count); err != nil || in != out || !done(count) {
			return fmt.Errorf("cloudcore has %q, and the device %q", in, out)
		}
		return nil
	})
}

// follows starts a kubectl and returns when it has printed a line.
func follows(line string) func(*testing.T, *call) {
	return func(t *testing.T, c *call) {
		t.Helper()
		out, err := c.output()
		env.Must(t, err)
		env.Must(t, c.Start())
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if lines.Text() == line {
				return
			}
		}
		t.Errorf("kubectl ended without %q: %s", line, c.errOut.String())
	}
}

// forwards starts a kubectl port-forward and leaves a connection open that says nothing.
func forwards(t *testing.T, c *call) {
	t.Helper()
	conn, err := net.Dial("tcp", c.forwards(t))
	env.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, "GET ")
	env.Must(t, err)
}
