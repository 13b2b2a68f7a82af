package mapper

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/pinned"
)

// FrameworkEnv names a mapper of KubeEdge's framework that was built before.
const FrameworkEnv = "EDGECORE_TEST_MAPPERFRAMEWORK"

// StartFramework runs a mapper that is made of KubeEdge's own mapper framework (test/mapperframework) until the test
// ends. It registers at agent, the agent's socket, as soon as that is there. Each property of its devices has the
// desired value, or counts up without one.
func StartFramework(t testing.TB, agent, protocol string) {
	t.Helper()
	binary, err := pinned.Program{
		Name:   "mapperframework",
		Folder: "mapperframework",
		Target: ".",
		Env:    FrameworkEnv,
		Takes:  "a minute",
	}.Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	config := filepath.Join(dir, "config.yaml")
	text := fmt.Sprintf("grpc_server: {socket_path: %s}\ncommon: {name: framework, version: v1, api_version: v1beta1, "+
		"protocol: %s, address: 127.0.0.1, edgecore_sock: %s}\n", filepath.Join(dir, "mapper.sock"), protocol, agent)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	proc, err := daemon.Start(LogFile(dir), nil, binary, "--config-file", config)
	if err != nil {
		t.Fatal(err)
	}
	endWith(t, dir, proc)
}

// StartModbus runs the Modbus mapper of this repository until the test ends; agent is the agent's socket.
func StartModbus(t testing.TB, agent string) {
	t.Helper()
	dir := shortDir(t)
	proc, err := LaunchModbus(t.Context(), dir, agent)
	if err != nil {
		t.Fatal(err)
	}
	endWith(t, dir, proc)
}

// LaunchModbus builds and runs the Modbus mapper of this repository, for devices at 127.0.0.1, in dir, whose path must
// be short enough for a socket. The caller stops it. The words of a command before it, if there are any, run it
// elsewhere.
func LaunchModbus(ctx context.Context, dir, agent string, before ...string) (*daemon.Process, error) {
	binary := filepath.Join(dir, "modbus")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "github.com/edgecore-io/edgecore/mappers/modbus")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the Modbus mapper: %w\n%s", err, out)
	}
	command := append(before, binary, "--agent", agent, "--socket", filepath.Join(dir, "modbus.sock"),
		"--networks", "127.0.0.0/8")
	return daemon.Start(LogFile(dir), nil, command[0], command[1:]...)
}

// LogFile returns the log of a mapper that runs in dir.
func LogFile(dir string) string { return filepath.Join(dir, "mapper.log") }

// shortDir makes a temporary folder with a short path: t.TempDir is too long for a socket.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mapper")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// endWith ends a mapper with the test.
func endWith(t testing.TB, dir string, proc *daemon.Process) {
	t.Helper()
	t.Cleanup(func() {
		if err := proc.End(context.Background(), syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the end of the log of the mapper:\n%s", daemon.Tail(LogFile(dir), 30))
		}
	})
}
