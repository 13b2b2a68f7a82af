package gc

import (
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

const mib = 1 << 20

// TestImages fills the disk of a node with images, and then asks by hand.
func TestImages(t *testing.T) {
	t.Parallel()
	n := newNode(t, 256*mib, map[string]any{
		"imageMinimumGCAge": "0s", "imageGCHighThresholdPercent": 70, "imageGCLowThresholdPercent": 50,
		"evictionHard": map[string]any{"memory.available": "1Mi"}, // evictions, which remove images too, are shown elsewhere
	})
	t.Run("give way when the disk fills", func(t *testing.T) { n.t = t; giveWay(t, n) })
	t.Run("come from a file and go by hand", func(t *testing.T) { n.t = t; byHand(t, n) })
	t.Run("go when there is not a byte left", func(t *testing.T) { n.t = t; fullDisk(t, n) })
}

// giveWay: images go in the order of their last use, the collection stops when there is room, and what anybody needs stays.
func giveWay(t *testing.T, n *node) {
	const layer = 12 * mib
	stays := n.registry.push(t, "stays", layer)
	kept := n.registry.push(t, "kept", layer)
	n.run("images", "keep", n.registry.host+"/kept:*")
	n.manifest("stays", pod("stays", stays, forever))
	n.running("stays")
	n.run("images", "pull", kept)

	// Pods come and go until the disk is full enough. The first one comes again, and is not the oldest any more.
	var order []string
	use := func(k int, image string) {
		name := fmt.Sprintf("filler%d", k)
		n.manifest(name, pod(name, image, forever))
		n.running(name)
		n.remove(name)
		n.gone(name)
		order = append(slices.DeleteFunc(order, func(have string) bool { return have == image }), image)
	}
	before := n.usedPercent(0)
	// A collection may come between the last image and the next look at the disk.
	collected := func() bool {
		have := n.images()
		return n.usedPercent(0) <= 50 && slices.ContainsFunc(order, func(image string) bool { return !have[image] })
	}
	for k := 0; n.usedPercent(0) < 70 && !collected(); k++ {
		if k == 40 {
			t.Fatalf("the disk is only %d%% full after %d images; it was %d%%", n.usedPercent(0), k, before)
		}
		use(k, n.registry.push(t, fmt.Sprintf("filler%d", k), layer))
		if k == 1 {
			use(0, order[0])
		}
	}
	t.Logf("%d images of 2 x %d MiB fill the disk from %d%% to %d%%", len(order), layer/mib, before, n.usedPercent(0))
	testenv.Poll(t, patience, func() error {
		if used := n.usedPercent(0); used > 50 {
			return fmt.Errorf("the disk is %d%% full", used)
		}
		return nil
	})
	// It may be in the middle of one.
	var left []string
	testenv.Poll(t, patience, func() error {
		have := n.images()
		first := slices.IndexFunc(order, func(image string) bool { return have[image] })
		if first <= 0 {
			return fmt.Errorf("of %v there are %v", order, have)
		}
		for _, image := range order[first:] {
			if !have[image] {
				return fmt.Errorf("%s is gone, and %s is there, which was used before", image, order[first])
			}
		}
		left = order[first:]
		return nil
	})
	if used := n.usedPercent(2 * layer); used <= 50 {
		t.Errorf("with one image more the disk would be %d%% full: %v went one too far", used, order[:len(order)-len(left)])
	}
	have := n.images()
	for _, image := range []string{stays, kept, images.Pause} {
		if !have[image] {
			t.Errorf("%s is gone: it is needed", image)
		}
	}
	n.running("stays")
}

// archiveOf writes a file with an image, as docker save does.
func archiveOf(t *testing.T, image string) string {
	t.Helper()
	ref, err := name.NewTag(image)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "app.tar")
	if err := tarball.WriteToFile(file, ref, demo(t, mib)); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestImport2: a containerd 2 takes a file, too, and a pod runs of it.
func TestImport2(t *testing.T) {
	t.Parallel()
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	ctrd := testenv.StartContainerd(t, testenv.Options{Containerd2: true})
	n := &node{Agent: testenv.StartAgent(t, ctrd, agent.Options{Binary: binary.path}), t: t, ctrd: ctrd, cri: testenv.Dial(t, ctrd)}
	const site = "site.example.com/app:1"
	plain := archiveOf(t, site)
	data, err := os.ReadFile(plain)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(plain + ".gz")
	if err != nil {
		t.Fatal(err)
	}
	w := gzip.NewWriter(f)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if out := n.run("images", "import", "--keep=false", plain+".gz"); !strings.Contains(out, "Imported "+site) {
		t.Error(out)
	}
	if out := n.run("images", "keep"); out != "" {
		t.Errorf("the image is kept, and was not to be: %s", out)
	}
	n.manifest("site", pod("site", site, forever))
	n.running("site")
	out := n.run("images", "prune")
	if have := n.images(); !have[site] || !have[images.Pause] || have[images.Volume] {
		t.Errorf("%v\n%s", have, out)
	}
}

// byHand: a file brings an image which a pod then runs, and prune removes all that nobody needs and nothing else.
func byHand(t *testing.T, n *node) {
	const site = "site.example.com/app:1"
	if out := n.run("images", "import", archiveOf(t, site)); !strings.Contains(out, "Imported "+site) {
		t.Errorf("import: %s", out)
	}
	if out := n.run("images", "keep"); !strings.Contains(out, site+"\n") {
		t.Errorf("an imported image is not kept: %s", out)
	}
	list := n.run("images", "list")
	spare := ""
	for image := range n.images() {
		if strings.Contains(image, "/filler") {
			spare = image // the collection left it
		}
	}
	for image, need := range map[string]string{site: "kept", images.Pause: "sandbox", n.registry.host + "/stays:1": "container", spare: "<none>"} {
		if !slices.ContainsFunc(strings.Split(list, "\n"), func(line string) bool {
			return strings.HasPrefix(line, image+" ") && strings.HasSuffix(line, need)
		}) {
			t.Errorf("%s is to be needed by %s:\n%s", image, need, list)
		}
	}
	n.manifest("site", pod("site", site, forever))
	n.running("site")

	if out, err := n.Run(t.Context(), "images", "import", n.Config()); err == nil || !strings.Contains(out, "no archive of images") {
		t.Errorf("a text file was imported: %s", out)
	}
	if out, err := n.Run(t.Context(), "images", "pull", n.registry.host+"/nothing:1"); err == nil || !strings.Contains(out, "not found") {
		t.Errorf("what is not there was pulled: %s", out)
	}
	before := n.images()
	if out := n.run("images", "prune", "--dry-run"); !strings.Contains(out, "Would remove "+spare) || len(n.images()) != len(before) {
		t.Errorf("dry run: %s", out)
	}
	if err := n.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := n.Run(t.Context(), "images", "prune"); err == nil || !strings.Contains(out, "nothing was removed") || len(n.images()) != len(before) {
		t.Errorf("images were removed without asking which pods there are: %s", out)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.running("stays", "site")
	out := n.run("images", "prune")
	have := n.images()
	for _, image := range []string{site, images.Pause, n.registry.host + "/stays:1", n.registry.host + "/kept:1"} {
		if !have[image] {
			t.Errorf("%s was removed", image)
		}
	}
	if len(have) != 4 {
		t.Errorf("there is more than what is needed: %v\n%s", have, out)
	}
	n.running("stays", "site")
}

// fullDisk: on a disk without a free byte images still go, those that are needed stay, the pods run on, and what stands in the way
// is said until it is gone. What has the agent look is a change of its configuration.
func fullDisk(t *testing.T, n *node) {
	spare := n.registry.push(t, "spare", 12*mib)
	n.run("images", "pull", spare)
	ballast := filepath.Join(n.ctrd.Root, "containerd", "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	for piece := make([]byte, mib); ; {
		if _, err := f.Write(piece); err != nil {
			if len(piece) == 1 {
				break
			}
			piece = piece[:len(piece)/2]
		}
	}
	if used := n.usedPercent(0); used != 100 {
		t.Fatalf("the disk is %d%% full", used)
	}
	threshold := func(from, to int) {
		t.Helper()
		const key = "imageGCHighThresholdPercent: "
		data, err := os.ReadFile(n.Config())
		if err == nil {
			err = os.WriteFile(n.Config(), []byte(strings.Replace(string(data), fmt.Sprint(key, from), fmt.Sprint(key, to), 1)), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	condition := func(want bool) {
		t.Helper()
		testenv.Poll(t, patience, func() error {
			status, err := n.Get(t.Context(), "/status")
			if err == nil && strings.Contains(status, "ImagesFillDisk") != want {
				err = fmt.Errorf("condition ImagesFillDisk is to be there: %v; %s", want, status)
			}
			return err
		})
	}
	threshold(70, 71)
	condition(true)
	have := n.images()
	for image, stays := range map[string]bool{spare: false, images.Pause: true, n.registry.host + "/stays:1": true, n.registry.host + "/kept:1": true} {
		if have[image] != stays {
			t.Errorf("%s is to be there: %v", image, stays)
		}
	}
	if events, err := n.Get(t.Context(), "/events"); err != nil || !strings.Contains(events, "FreeDiskSpaceFailed") {
		t.Errorf("no event on the node, %v: %s", err, events)
	}
	n.running("stays", "site")
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	threshold(71, 70)
	condition(false)
}

// TestKeepListStaysReadable: what a person wrote into the keep list stays in it.
func TestKeepListStaysReadable(t *testing.T) {
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	a, err := agent0(t)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(a.Dir, "root", "images.keep")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("# why: no link in winter\nexample.com/a:1 # the app"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"images", "keep", "example.com/b:1"}, {"images", "keep", "--drop", "example.com/c:1"}} {
		if out, err := a.Run(t.Context(), args...); err != nil {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
	data, err := os.ReadFile(file)
	if want := "# why: no link in winter\nexample.com/a:1 # the app\nexample.com/b:1\n"; err != nil || string(data) != want {
		t.Errorf("%q, %v", data, err)
	}
	start := time.Now()
	if out, err := a.Run(t.Context(), "images", "list"); err == nil || !strings.Contains(out, "does not answer at unix:///run/nobody.sock") {
		t.Errorf("no runtime, after %v: %s", time.Since(start), out)
	}
}
