package vm_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/peer"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
	"github.com/edgecore-io/edgecore/test/vm"
)

var (
	cuts = flag.Int("cuts", 3, "how often TestPowerCuts takes the power away")
	raw  = flag.Bool("raw-images", false,
		"TestPowerCuts cuts the power while an image that was just unpacked is not on the disk yet")
	seed = flag.Uint64("seed", 1, "the same seed makes the same load, and cuts it at the same moments")
)

const (
	// loadedPods run at a time, besides those that end and the one whose image is new.
	loadedPods = 3
	// A cut comes so long after the load has begun.
	shortestLoad, longestLoad = time.Second, 8 * time.Second
	// archives is where the agent looks for images that are damaged.
	archives = "/var/lib/kubelet/image-archives"
	// pace is the longest pause in the load; less than burst things come without one right before the cut.
	pace  = 400 * time.Millisecond
	burst = 20
)

// loaded is a device whose cloud is in this process: what it acknowledged is known after its power is gone.
type loaded struct {
	*device
	cloud *peer.Cloud
	load  *peer.Load
	rand  *rand.Rand
	lost  int // how many cuts have lost what nobody had asked to be kept
}

// newLoaded makes the device, and waits until its first pods run. extras are images that it does not have yet.
func newLoaded(t *testing.T, extras int) *loaded {
	t.Helper()
	ca := wiretest.NewCA(t)
	cloud, err := peer.Listen(ca.ServerTLS(t, "cloud"), "127.0.0.1:0", "edge")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("refused: %q", cloud.Refused())
		}
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	files := map[string]string{
		// qemu leads this address to the loopback of the machine that it runs on.
		"/etc/hosts": "127.0.0.1 localhost edge\n10.0.2.2 cloud\n",
		configFile: config(
			fmt.Sprintf(
				`enable: true, tlsCaFile: %[1]s/rootCA.crt, tlsCertFile: %[1]s/server.crt, tlsPrivateKeyFile: %[1]s/server.key,
    websocket: {enable: true, server: "cloud:%[2]d"}, httpServer: "https://cloud:1"`, "/etc/edgecore/certs",
				cloud.Port())),
	}
	cert := ca.Write(t, t.TempDir(), ca.Node(t, "edge", time.Now().Add(100*time.Hour)))
	for _, path := range []string{cert.CA, cert.Cert, cert.Key} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files["/etc/edgecore/certs/"+filepath.Base(path)] = string(content)
	}
	payload := packaged(t, vm.AMD64)
	addExtras(t, payload, extras)
	l := &loaded{cloud: cloud, rand: rand.New(rand.NewPCG(*seed, 0))}
	l.device = install(t, vm.Options{Payload: payload, Network: true}, files)
	// A device may have its images as archives, too: what a cut has damaged can be brought again without a network.
	l.sh("mkdir -p " + archives + "; cp /payload/extra/* " + archives + "/")
	l.load = peer.NewLoad(cloud, *seed, loadedPods, images.Demo)
	if err := l.load.Start(); err != nil {
		t.Fatal(err)
	}
	l.inStep("first pods")
	l.sh("sync")
	return l
}

// addExtras adds archives with images that have a layer of their own each.
func addExtras(t *testing.T, payload map[string]string, extras int) {
	t.Helper()
	img, err := vm.BuildImage(t.Context(), vm.AMD64)
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := os.ReadFile(img.Busybox)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for i := 1; i <= extras; i++ {
		path := filepath.Join(dir, extraArchive(i))
		if err := vm.ExtraImage(path, extraImage(i), vm.AMD64, busybox, *seed+uint64(i)); err != nil {
			t.Fatal(err)
		}
		payload["extra/"+extraArchive(i)] = path
	}
}

func extraImage(i int) string   { return fmt.Sprintf("edgecore.local/extra-%d:1", i) }
func extraArchive(i int) string { return fmt.Sprintf("extra-%d.tar", i) }

// unsynced is a new file for each cut: ext4 writes one at once that replaces another's content.
func unsynced(i int) string { return fmt.Sprintf("/var/lib/unsynced-%d", i) }

// inStep waits until the device has all that the cloud has, and the cloud knows that all pods run, in the containers in
// which they do.
func (l *loaded) inStep(what string) {
	l.t.Helper()
	began := time.Now()
	wait.Until(l.t, what+": the cloud and the device to be in step", func() error {
		if !l.cloud.Connected() {
			return fmt.Errorf("%s: there is no link", what)
		}
		if err := l.cloud.AllAcked(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		pods, err := l.pods()
		if err != nil {
			return err
		}
		for _, name := range l.cloud.Journal().Live("pod") {
			if strings.Contains(name, "/job-") {
				continue
			}
			p, status := pods[name], l.cloud.Status(name)
			if !ready(&status) || p == nil || container(&status) != container(&p.Status) {
				return fmt.Errorf("%s: the cloud knows of %s: %s, %+v", what, name, status.Phase,
					status.ContainerStatuses)
			}
		}
		return nil
	})
	l.t.Logf("%s: in step with the cloud after %v", what, time.Since(began).Round(100*time.Millisecond))
}

// cut loads the device and takes its power away in the midst of it.
func (l *loaded) cut(i int) {
	l.t.Helper()
	ctx := l.t.Context()
	l.sh("ctr -n k8s.io images import /payload/extra/" + extraArchive(i) + " >/dev/null")
	if !*raw { // else the runtime knows it for good, and what was unpacked is on no disk yet
		l.sh("sync")
	}
	if i > 1 {
		if err := l.cloud.Delete(fmt.Sprintf("default/pod/extra-%d", i-1)); err != nil {
			l.t.Fatal(err)
		}
	}
	if err := l.load.Pod(fmt.Sprintf("extra-%d", i), extraImage(i)); err != nil {
		l.t.Fatal(err)
	}
	after := shortestLoad + time.Duration(l.rand.Int64N(int64(longestLoad-shortestLoad)))
	began, steps := time.Now(), 0
	for ; time.Since(began) < after; steps++ {
		if err := l.load.Step(); err != nil {
			l.t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			l.t.Fatalf("the load before the cut: %v after %d steps, want it to go on for %v", ctx.Err(), steps, after)
		case <-time.After(time.Duration(l.rand.Int64N(int64(pace)))):
		}
	}
	// Right before the cut: each container that ends has its overlay unmounted, and with that all of the disk written.
	l.sh("echo yes > " + unsynced(i))
	// The last of it is on its way, or about to be acknowledged.
	for range l.rand.IntN(burst) {
		if err := l.load.Step(); err != nil {
			l.t.Fatal(err)
		}
	}
	if err := l.Cut(); err != nil {
		l.t.Fatal(err)
	}
	// What the device has said is read to its end.
	wait.True(l.t, "the link to end with the machine", func() bool { return !l.cloud.Connected() })
	l.t.Logf("cut %d: after %v and %d steps: %v", i, after.Round(100*time.Millisecond), steps,
		l.cloud.Journal().Tally())
}

// back boots the device with its cable out, and looks at everything that it acknowledged.
func (l *loaded) back(what string, boot func() error) {
	l.t.Helper()
	journal := l.cloud.Journal()
	if err := l.Plug(l.t.Context(), false); err != nil {
		l.t.Fatal(err)
	}
	began := time.Now()
	if err := boot(); err != nil {
		l.t.Fatalf("%s: %v, want no error", what, err)
	}
	up := time.Now()
	rows := l.store(what)
	for _, wrong := range journal.Wrong(rows.stored) {
		l.t.Errorf("%s: %s, want the store as it was acknowledged", what, wrong)
	}
	if carrier := l.sh("cat /sys/class/net/eth0/carrier 2>/dev/null || echo 0"); carrier != "0" {
		l.t.Errorf("%s: carrier of eth0 = %q, want \"0\": no network", what, carrier)
	}
	pods := l.allRun(what, rows, journal)
	l.settings(what, pods)
	l.t.Logf("%s: up after %v, all %d pods with no network %v later; %d objects in the store", what,
		up.Sub(began).Round(time.Second),
		len(rows.policies), time.Since(up).Round(time.Second), len(rows.stored))
	if err := l.Plug(l.t.Context(), true); err != nil {
		l.t.Fatal(err)
	}
	l.inStep(what)
	if l.t.Failed() {
		l.t.FailNow() // what comes next would be about what is wrong already
	}
}

// TestPowerCuts: a device from the package restarts in good order, and then loses its power again and again under load.
// Each time it starts with no network, everything that it had acknowledged is there, and all its pods run.
func TestPowerCuts(t *testing.T) {
	t.Logf("seed %d, %d cuts", *seed, *cuts)
	l := newLoaded(t, *cuts)
	l.back("reboot", func() error { return l.Reboot(t.Context()) })
	for i := 1; i <= *cuts; i++ {
		l.cut(i)
		l.back(fmt.Sprintf("cut %d", i), func() error { return l.Boot(t.Context()) })
		if got := l.sh("cat " + unsynced(i) + " 2>/dev/null || true"); got != "yes" {
			l.lost++
		}
	}
	// A cut that loses nothing would show nothing.
	if t.Logf("%d of %d cuts lost what was not on the disk yet", l.lost, *cuts); l.lost == 0 && *cuts > 0 {
		t.Errorf("%d of %d cuts lost what was not on the disk yet, want at least 1: the disk holds nothing back",
			l.lost, *cuts)
	}
	if repaired :=
		l.sh("journalctl --no-pager -u edgecore -o cat | grep -c 'Damaged image repaired' || true"); repaired != "0" {
		t.Logf("damaged images repaired: %s", repaired)
	}
}
