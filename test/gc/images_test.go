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

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const mib = 1 << 20

// TestImages fills the disk of a node with images, and then asks by hand.
func TestImages(t *testing.T) {
	t.Parallel()
	n := &node{registry: newMirror(t)}
	n.Node = env.StartNode(t, built, env.NodeOptions{
		Runtime: testenv.Options{Root: smallDisk(t, 256*mib)},
		Agent: agent.Options{Kubelet: map[string]any{
			"imageMinimumGCAge":           "0s",
			"imageGCHighThresholdPercent": 70,
			"imageGCLowThresholdPercent":  50,
			// Evictions, which remove images too, are shown elsewhere.
			"evictionHard": map[string]any{"memory.available": "1Mi"},
		}},
	})
	t.Run("give way when the disk fills", func(t *testing.T) { giveWay(t, n.with(t)) })
	t.Run("come from a file and go by hand", func(t *testing.T) { byHand(t, n.with(t)) })
	t.Run("go when there is not a byte left", func(t *testing.T) { fullDisk(t, n.with(t)) })
}

// giveWay: images go in the order of their last use, the collection stops when there is room, and what anybody needs
// stays.
func giveWay(t *testing.T, n *node) {
	const layer = 12 * mib
	stays := n.registry.push(t, "stays", layer)
	kept := n.registry.push(t, "kept", layer)
	n.Command("images", "keep", n.registry.host+"/kept:*")
	n.Manifest("stays", pod("stays", stays, env.Forever))
	n.Running("stays")
	n.Command("images", "pull", kept)

	// Pods come and go until the disk is full enough. The first one comes again, and is not the oldest any more.
	var order []string
	use := func(k int, image string) {
		name := fmt.Sprintf("filler%d", k)
		n.Manifest(name, pod(name, image, env.Forever))
		n.Running(name)
		n.Remove(name)
		n.Gone(name)
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
			t.Fatalf("the disk is %d%% full after %d images, was %d%%, want 70%%", n.usedPercent(0), k, before)
		}
		use(k, n.registry.push(t, fmt.Sprintf("filler%d", k), layer))
		if k == 1 {
			use(0, order[0])
		}
	}
	t.Logf("%d images of 2 x %d MiB fill the disk from %d%% to %d%%", len(order), layer/mib, before, n.usedPercent(0))
	wait.Until(t, "the collection", func() error {
		if used := n.usedPercent(0); used > 50 {
			return fmt.Errorf("the disk is %d%% full, want at most 50%%", used)
		}
		return nil
	})
	// It may be in the middle of one.
	var left []string
	wait.Until(t, "the images of least recent use to be gone", func() error {
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
		t.Errorf("with one image more the disk would be %d%% full, want more than 50%%: %v were removed",
			used, order[:len(order)-len(left)])
	}
	have := n.images()
	for _, image := range []string{stays, kept, images.Pause} {
		if !have[image] {
			t.Errorf("images = %v, want %s, which is needed, among them", have, image)
		}
	}
	n.Running("stays")
}

// archiveOf writes a file with an image, as docker save does.
func archiveOf(t *testing.T, image string) string {
	t.Helper()
	ref, err := name.NewTag(image)
	env.Must(t, err)
	file := filepath.Join(t.TempDir(), "app.tar")
	env.Must(t, tarball.WriteToFile(file, ref, demo(t, mib)))
	return file
}

// TestImport2: a containerd 2 takes a file, too, and a pod runs of it.
func TestImport2(t *testing.T) {
	t.Parallel()
	n := &node{Node: env.StartNode(t, built, env.NodeOptions{Runtime: testenv.Options{Containerd2: true}})}
	const site = "site.example.com/app:1"
	plain := archiveOf(t, site)
	data, err := os.ReadFile(plain)
	env.Must(t, err)
	f, err := os.Create(plain + ".gz")
	env.Must(t, err)
	w := gzip.NewWriter(f)
	_, err = w.Write(data)
	env.Must(t, err)
	env.Must(t, errors.Join(w.Close(), f.Close()))
	if out := n.Command("images", "import", "--keep=false", plain+".gz"); !strings.Contains(out, "Imported "+site) {
		t.Errorf("edgecore images import printed %q, want %q in it", out, "Imported "+site)
	}
	if out := n.Command("images", "keep"); out != "" {
		t.Errorf("edgecore images keep printed %q, want nothing", out)
	}
	n.Manifest("site", pod("site", site, env.Forever))
	n.Running("site")
	out := n.Command("images", "prune")
	if have := n.images(); !have[site] || !have[images.Pause] || have[images.Volume] {
		t.Errorf("after prune there are %v, want %s and %s, and not %s\n%s", have, site, images.Pause, images.Volume,
			out)
	}
}

// byHand: a file brings an image which a pod then runs, and prune removes all that nobody needs and nothing else.
func byHand(t *testing.T, n *node) {
	const site = "site.example.com/app:1"
	if out := n.Command("images", "import", archiveOf(t, site)); !strings.Contains(out, "Imported "+site) {
		t.Errorf("edgecore images import printed %q, want %q in it", out, "Imported "+site)
	}
	if out := n.Command("images", "keep"); !strings.Contains(out, site+"\n") {
		t.Errorf("edgecore images keep printed %q, want the imported %s in it", out, site)
	}
	list := n.Command("images", "list")
	spare := ""
	for image := range n.images() {
		if strings.Contains(image, "/filler") {
			spare = image // the collection left it
		}
	}
	for image, need := range map[string]string{
		site: "kept", images.Pause: "sandbox", n.registry.host + "/stays:1": "container", spare: "<none>",
	} {
		if !slices.ContainsFunc(strings.Split(list, "\n"), func(line string) bool {
			return strings.HasPrefix(line, image+" ") && strings.HasSuffix(line, need)
		}) {
			t.Errorf("list = %s\nwant %s needed by %s", list, image, need)
		}
	}
	n.Manifest("site", pod("site", site, env.Forever))
	n.Running("site")

	if out, err := n.Run(t.Context(), "images", "import", n.Config()); err == nil ||
		!strings.Contains(out, "not an archive of images") {
		t.Errorf("import of a text file: %v, %s; want an error that says so", err, out)
	}
	if out, err := n.Run(t.Context(), "images", "pull", n.registry.host+"/nothing:1"); err == nil ||
		!strings.Contains(out, "not found") {
		t.Errorf("pull of an image that is not there: %v, %s; want an error that says so", err, out)
	}
	before := n.images()
	out := n.Command("images", "prune", "--dry-run")
	if !strings.Contains(out, "Would remove "+spare) || len(n.images()) != len(before) {
		t.Errorf("prune --dry-run printed %q and left %v, want %s in it and %v", out, n.images(), spare, before)
	}
	env.Must(t, n.Stop(t.Context()))
	if out, err := n.Run(t.Context(), "images", "prune"); err == nil || !strings.Contains(out, "nothing was removed") ||
		len(n.images()) != len(before) {
		t.Errorf("prune without the agent: %v, %s, and left %v; want an error and %v", err, out, n.images(), before)
	}
	env.Must(t, n.Start(t.Context()))
	n.Running("stays", "site")
	out = n.Command("images", "prune")
	have := n.images()
	for _, image := range []string{site, images.Pause, n.registry.host + "/stays:1", n.registry.host + "/kept:1"} {
		if !have[image] {
			t.Errorf("images after prune = %v, want %s among them", have, image)
		}
	}
	if len(have) != 4 {
		t.Errorf("after prune there are %v, want the 4 that are needed\n%s", have, out)
	}
	n.Running("stays", "site")
}

// fullDisk: on a disk without a free byte images still go, those that are needed stay, the pods run on, and what stands
// in the way is said until it is gone. What has the agent look is a change of its configuration and a SIGHUP.
func fullDisk(t *testing.T, n *node) {
	spare := n.registry.push(t, "spare", 12*mib)
	n.Command("images", "pull", spare)
	ballast := filepath.Join(n.Containerd.Root, "containerd", "ballast")
	f, err := os.Create(ballast)
	env.Must(t, err)
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
		t.Fatalf("the disk is %d%% full, want 100%%", used)
	}
	threshold := func(from, to int) {
		t.Helper()
		const key = "imageGCHighThresholdPercent: "
		data, err := os.ReadFile(n.Config())
		if err == nil {
			err = os.WriteFile(n.Config(),
				[]byte(strings.Replace(string(data), fmt.Sprint(key, from), fmt.Sprint(key, to), 1)), 0o644)
		}
		env.Must(t, err)
	}
	condition := func(want bool) {
		t.Helper()
		wait.Until(t, fmt.Sprintf("condition ImagesFillDisk to be %v", want), func() error {
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
	for image, stays := range map[string]bool{spare: false, images.Pause: true, n.registry.host + "/stays:1": true,
		n.registry.host + "/kept:1": true} {
		if have[image] != stays {
			t.Errorf("image %s is there: %v, want %v", image, have[image], stays)
		}
	}
	if events, err := n.Get(t.Context(), "/events"); err != nil || !strings.Contains(events, "FreeDiskSpaceFailed") {
		t.Errorf("events of the node: %v, %s\nwant FreeDiskSpaceFailed among them", err, events)
	}
	n.Running("stays", "site")
	env.Must(t, os.Remove(ballast))
	env.Must(t, f.Close())
	threshold(71, 70)
	condition(false)
}

// TestKeepListStaysReadable: what a person wrote into the keep list stays in it.
func TestKeepListStaysReadable(t *testing.T) {
	a, err := agent.New(agent.Options{
		Binary:     built.Edge,
		Dir:        t.TempDir(),
		Endpoint:   "unix:///run/nobody.sock",
		CgroupRoot: "/none",
	})
	env.Must(t, err)
	file := filepath.Join(a.Dir, "root", "images.keep")
	env.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	env.Must(t, os.WriteFile(file, []byte("# why: no link in winter\nexample.com/a:1 # the app"), 0o644))
	for _, args := range [][]string{
		{"images", "keep", "example.com/b:1"}, {"images", "keep", "--drop", "example.com/c:1"},
	} {
		if out, err := a.Run(t.Context(), args...); err != nil {
			t.Errorf("%v: %v, want no error\n%s", args, err, out)
		}
	}
	data, err := os.ReadFile(file)
	if want := "# why: no link in winter\nexample.com/a:1 # the app\nexample.com/b:1\n"; err != nil ||
		string(data) != want {
		t.Errorf("the keep list is %q (%v), want %q", data, err, want)
	}
	if out, err := a.Run(t.Context(), "images", "list"); err == nil ||
		!strings.Contains(out, "does not answer at unix:///run/nobody.sock") {
		t.Errorf("edgecore images list without a runtime: %v, %s; want an error that says so", err, out)
	}
}
