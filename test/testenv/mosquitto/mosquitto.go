// Package mosquitto runs Debian's MQTT broker for tests.
package mosquitto

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// Broker is a mosquitto on a port of its own, on the loopback address.
type Broker struct {
	// Port is the port, also after a restart.
	Port string

	t       testing.TB
	config  string
	process *exec.Cmd
}

// Start starts a broker that runs until the test ends. lines are more lines of its configuration; without any it lets
// everyone in.
func Start(t testing.TB, lines ...string) *Broker {
	t.Helper()
	free, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	b := &Broker{Port: strconv.Itoa(free), t: t, config: filepath.Join(t.TempDir(), "mosquitto.conf")}
	config := fmt.Sprintf("log_type error\nlistener %s 127.0.0.1\nmax_queued_messages 0\n%s\n", b.Port,
		strings.Join(lines, "\n"))
	if os.Getuid() == 0 {
		config += "user root\n"
	}
	if len(lines) == 0 {
		config += "allow_anonymous true\n"
	}
	if err := os.WriteFile(b.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Kill)
	b.Restart()
	return b
}

// Server returns the broker's address as a URL.
func (b *Broker) Server() string { return "tcp://127.0.0.1:" + b.Port }

// Restart kills the broker if it runs, starts it, and returns when it listens. It has nothing of its earlier runs.
func (b *Broker) Restart() {
	b.t.Helper()
	b.Kill()
	path, err := exec.LookPath("mosquitto")
	if err != nil {
		path = "/usr/sbin/mosquitto" // sbin is not always in PATH
	}
	b.process = exec.Command(path, "-c", b.config)
	b.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	b.process.Stderr = os.Stderr
	if err := b.process.Start(); err != nil {
		b.t.Fatalf("start mosquitto: %v (hack/setup installs it)", err)
	}
	wait.Until(b.t, "mosquitto to listen", func() error {
		c, err := net.Dial("tcp", "127.0.0.1:"+b.Port)
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

// Kill kills the broker with SIGKILL, and waits for its end.
func (b *Broker) Kill() {
	if b.process != nil {
		_ = b.process.Process.Kill()
		_ = b.process.Wait()
		b.process = nil
	}
}
