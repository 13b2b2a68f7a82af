package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// told is one run of the program.
type told struct {
	t     *testing.T
	dir   string
	cmd   *exec.Cmd
	input io.WriteCloser
	ended chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

func (p *told) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(data)
}

func (p *told) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// start runs the program as make does, in the checkout's folder. What it leaves behind is removed when the test ends.
func start(t *testing.T, dir string, args ...string) *told {
	t.Helper()
	p := &told{t: t, dir: dir, ended: make(chan struct{})}
	all := append([]string{args[0], "--dir", dir, "--edgecore", built.Edge, "--cloudcore", built.Cloud}, args[1:]...)
	p.cmd = exec.Command(demoProgram, all...)
	p.cmd.Dir = filepath.Join("..", "..")
	p.cmd.Stdout, p.cmd.Stderr = p, p
	var err error
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // its state is looked at
		close(p.ended)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("it has told:\n%s", p.text())
		}
		if !p.hasEnded() {
			stop(t, dir)
			p.end()
		}
	})
	return p
}

func (p *told) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// until waits until the program has told something.
func (p *told) until(text string) {
	p.t.Helper()
	wait.Until(p.t, fmt.Sprintf("the program to tell %q", text), func() error {
		if strings.Contains(p.text(), text) {
			return nil
		}
		if p.hasEnded() {
			p.t.Fatalf("it has ended (%v) and told %s, want %q", p.cmd.ProcessState, p.text(), text)
		}
		return fmt.Errorf("it has not told that")
	})
}

// end waits for the program's end and returns its exit status.
func (p *told) end() int {
	p.t.Helper()
	wait.Closed(p.t, "the end of the program", p.ended)
	return p.cmd.ProcessState.ExitCode()
}

// stop is make demo-stop.
func stop(t *testing.T, dir string) {
	t.Helper()
	out, err := exec.Command(demoProgram, "stop", "--dir", dir).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Nothing of the demo is left.") {
		t.Errorf("demo stop: %v, want no error and that nothing of the demo is left\n%s", err, out)
	}
}

// checkGone checks that nothing of a demo is left, but the files named.
func (p *told) checkGone(but ...string) {
	p.t.Helper()
	var left []string
	entries, err := os.ReadDir(p.dir)
	if err != nil && (!os.IsNotExist(err) || len(but) > 0) {
		p.t.Errorf("ReadDir = %v, want the files %q", err, but)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if !slices.Equal(left, but) {
		p.t.Errorf("in its folder are %q, want %q", left, but)
	}
	if agents, err := agentsOf(p.dir); err != nil || len(agents) > 0 {
		p.t.Errorf("agentsOf = %v, %v; want no processes left", agents, err)
	}
	if mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(p.dir)); err != nil || len(mounts) > 0 {
		p.t.Errorf("GetMounts = %v, %v; want no mounts left", mounts, err)
	}
	owner := regexp.MustCompile(fmt.Sprintf(`"owner": \{\s*"pid": %d,`, p.cmd.Process.Pid))
	for _, pattern := range []string{
		filepath.Join(os.TempDir(), "edgecore-kube-????????", "cluster.json"), "/run/ec-????????/instance.json",
		"/run/ec-????????/nat.json",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, f := range files {
			if data, err := os.ReadFile(f); err == nil && owner.Match(data) {
				p.t.Errorf("%s is left, want it removed:\n%s", f, data)
			}
		}
	}
}

// milestones are what the story must have told, in this order.
var milestones = []string{
	"==> 1. Start a Kubernetes cluster", "Server Version: v1.",
	"==> 2. Install cloudcore", "objectsyncs.reliablesyncs.kubeedge.io created", "readyz check passed",
	"==> 3. Join a device", "/24", "device edgecore join --cloudcore-ipport", "Got a certificate for node edge-1",
	"edge-1   Ready ",
	"==> 4. Run a Deployment on it", `deployment "web" successfully rolled out`, oldPage,
	"==> 5. Reach into its pods with kubectl, through NAT", "Unauthorized", "Failed to connect", "edge-1   ",
	"response:200", oldPage, "$ kubectl top node", "edge-1   ", "$ kubectl top pod", "web-",
	"==> 6. Read a sensor, and set its limit", "device.devices.kubeedge.io/hall created", "limit      60",
	"device.devices.kubeedge.io/hall patched", "in the sensor's register", "limit = 55",
	"==> 7. Cut the link", "edge-1   NotReady ", "CloudUnreachable", "edge-1 is offline since",
	"node.kubernetes.io/unreachable   <none>",
	"==> 8. Kill edgecore, and remove every container", "$ kill -9", "None is left.", "All 3 pods are Ready again",
	"with no cloud", "edge-1\n", oldPage, "temp       31",
	"==> 9. Change the page in the cluster meanwhile", "configmap/page patched", "NotReady", oldPage, "temp = 21",
	"==> 10. Mend the link", "dials again by itself", "the pods showed the new page", newPage, "edge-1   Ready ",
	"response:200", "temp = 31", "No pod was restarted by it",
}

// TestStory tells it whole and keeps it running, uses it as the program says, and ends it from outside.
func TestStory(t *testing.T) {
	needsLong(t)
	p := start(t, filepath.Join(t.TempDir(), "demo"), "run", "--keep")
	for _, m := range milestones {
		p.until(m)
	}
	p.until("mend mends it")
	rest := p.text()
	for _, m := range milestones {
		_, after, found := strings.Cut(rest, m)
		if !found {
			t.Errorf("told %s, want %q next", rest, m)
			continue
		}
		rest = after
	}
	_, use, _ := strings.Cut(p.text(), "To use it from another terminal:")
	use, _, _ = strings.Cut(use, "Then, for example:")
	for _, command := range []string{
		"kubectl get pods", "device edgecore get pods --config " + filepath.Join(p.dir, "edge", "edgecore.yaml"),
	} {
		cmd := exec.Command("sh", "-ec", use+"\n"+command)
		cmd.Dir = "/"
		if out, err := cmd.CombinedOutput(); err != nil || strings.Count(string(out), "Running") != replicas {
			t.Errorf("%s: %v, want %d pods Running\n%s", command, err, replicas, out)
		}
	}
	for _, line := range [][2]string{
		{"cut", "The link is cut."}, {"mend", "The link is mended."}, {"burn", `"burn": want cut or mend`},
	} {
		if _, err := fmt.Fprintln(p.input, line[0]); err != nil {
			t.Fatal(err)
		}
		p.until(line[1])
	}
	second := start(t, p.dir, "run")
	if code := second.end(); code != 1 || !strings.Contains(second.text(), "a demo runs already") ||
		!strings.Contains(second.text(), "make demo-stop") {
		t.Errorf("a second demo in the same folder: status %d, want 1, that one runs already, and make demo-stop\n%s",
			code, second.text())
	}
	stop(t, p.dir)
	if code := p.end(); code != 0 || !strings.Contains(p.text(), "All is removed") {
		t.Errorf("it ended with status %d, want 0 and that all is removed", code)
	}
	p.checkGone()
}

// TestInterrupted ends it with Ctrl-C while it makes things.
func TestInterrupted(t *testing.T) {
	p := start(t, filepath.Join(t.TempDir(), "demo"), "run")
	p.until("==> 3.")
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.end(); code != exitInterrupted || !strings.Contains(p.text(), "Interrupted. Removing") ||
		!strings.Contains(p.text(), "All is removed") {
		t.Errorf("it ended with status %d, want %d and that all is removed", code, exitInterrupted)
	}
	p.checkGone()
}

// TestKilled: what one that was killed leaves is removed by demo stop.
func TestKilled(t *testing.T) {
	needsLong(t)
	p := start(t, filepath.Join(t.TempDir(), "demo"), "run")
	p.until("in the sensor's register")
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.end()
	stop(t, p.dir)
	p.checkGone()
}

// TestFailure: a step that fails is reported with its reason, and the logs stay.
func TestFailure(t *testing.T) {
	no, err := exec.LookPath("false")
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, filepath.Join(t.TempDir(), "demo"), "run", "--cloudcore", no)
	if code := p.end(); code != 1 {
		t.Errorf("it ended with status %d, want 1", code)
	}
	for _, want := range []string{
		"This went wrong: start cloudcore: cloudcore has ended", "Removing everything but the logs.",
		"the logs are in " + filepath.Join(p.dir, "logs"),
	} {
		if !strings.Contains(p.text(), want) {
			t.Errorf("told %s, want %q in it", p.text(), want)
		}
	}
	for _, name := range []string{"cloudcore", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		if _, err := os.Stat(filepath.Join(p.dir, "logs", name+".log")); err != nil {
			t.Error(err)
		}
	}
	p.checkGone("demo.json", "logs")
	stop(t, p.dir)
	p.checkGone()
}
