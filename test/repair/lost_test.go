package repair

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/repair"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestLostLink: whatever is damaged, an image stays on the device until what is to take its place is there, wherever
// the link is lost and the agent killed.
func TestLostLink(t *testing.T) {
	for name, two := range map[string]bool{"containerd 1": false, "containerd 2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, testenv.Options{Containerd2: two})
			for name, f := range map[string]func(t *testing.T, n *node){
				"a layer":               lostLayer,
				"a manifest":            lostManifest,
				"a configuration":       lostConfig,
				"a restart of the node": killedAgent,
			} {
				t.Run(name, func(t *testing.T) {
					n.store.away.Store(false)
					n.store.lost.Store(nil)
					f(t, &node{n.With(t), n.store})
				})
			}
		})
	}
}

// restart restarts the agent and containerd, as a power cut does.
func (n *node) restart() {
	n.T.Helper()
	env.Must(n.T, errors.Join(n.Kill9(n.T.Context()), n.Containerd.PowerOff(n.T.Context())))
	env.Must(n.T, errors.Join(n.Containerd.PowerOn(n.T.Context()), n.Start(n.T.Context())))
}

// linked gives the node its link again. An agent that starts does not wait for its next try.
func (n *node) linked() {
	n.T.Helper()
	n.store.away.Store(false)
	n.store.lost.Store(nil)
	env.Must(n.T, errors.Join(n.Stop(n.T.Context()), n.Start(n.T.Context())))
}

// mended waits until the pod of an image runs, and its program is what it was.
func (n *node) mended(t *testing.T, name string, img image) {
	t.Helper()
	wait.Until(t, "the program to be repaired", func() error {
		if got := shell(t, n, img); !bytes.Equal(got, img.program) {
			return fmt.Errorf("it has %d bytes, want those %d of the image", len(got), len(img.program))
		}
		return nil
	})
	n.Running(name)
	n.noneFetched(img)
}

// noneFetched fails the test if the blob of the image's own layer counts as an image.
func (n *node) noneFetched(img image) {
	n.T.Helper()
	wait.Until(n.T, "the fetched blob to be no image", func() error {
		name := strings.TrimSuffix(img.name, ":1") + "@" + img.layer
		if target, err := n.CRI.ImageTarget(n.T.Context(), name); !cri.IsNotFound(err) {
			return fmt.Errorf("image %s has the target %s, %v, want none", name, target, err)
		}
		return nil
	})
}

// lostLayer: a layer and its blob are damaged, and the link is lost while the blob comes.
func lostLayer(t *testing.T, n *node) {
	img := n.store.push(t, "lostlayer")
	n.pull(img.name)
	n.spoilBoth(img, os.Remove)
	lost := n.store.lose(img.layer, false)
	n.Manifest("lostlayer", pod("lostlayer", img.name, "/"+img.path))
	lost.wait(t)
	n.event(repair.EventDamaged, img.name, "could not be repaired")
	n.noneFetched(img)
	if n.id(img.name) == "" {
		t.Fatalf("image %s is gone, want it kept until its blob has come", img.name)
	}
	n.restart()
	// What is sound of the image can be started.
	n.Manifest("rest", pod("rest", img.name, "/bin/sh"))
	n.Running("rest")
	n.remove("rest")
	n.linked()
	n.mended(t, "lostlayer", img)
	n.remove("lostlayer")
}

// lostManifest: a manifest comes again, and nothing of what it names has to.
func lostManifest(t *testing.T, n *node) {
	img := n.store.push(t, "lostmanifest")
	digest, err := img.Digest()
	env.Must(t, err)
	lostDocument(t, n, "lostmanifest", img, digest.String())
}

func lostConfig(t *testing.T, n *node) {
	img := n.store.push(t, "lostconfig")
	digest, err := img.ConfigName()
	env.Must(t, err)
	lostDocument(t, n, "lostconfig", img, digest.String())
}

func lostDocument(t *testing.T, n *node, name string, img image, digest string) {
	n.pull(img.name)
	env.Must(t, errors.Join(os.Truncate(n.unpacked(img.path), 0), os.Remove(n.blob(digest))))
	n.store.away.Store(true)
	n.Manifest(name, pod(name, img.name, "/"+img.path))
	n.event(repair.EventDamaged, img.name, "could not be repaired")
	if _, err := os.Stat(n.blob(img.layer)); err != nil {
		t.Errorf("blob of a layer: %v, want it kept", err)
	}
	lost := n.store.lose(img.layer, false) // a layer cannot come
	n.store.away.Store(false)
	env.Must(t, errors.Join(n.Stop(t.Context()), n.Start(t.Context())))
	n.mended(t, name, img)
	if closed(lost.reached) == nil {
		t.Error("a layer was fetched, want the damaged blob only")
	}
	n.remove(name)
}

// killedAgent: the agent is killed while a blob comes.
func killedAgent(t *testing.T, n *node) {
	img := n.store.push(t, "killed")
	n.pull(img.name)
	n.spoilBoth(img, os.Remove)
	lost := n.store.lose(img.layer, true)
	n.Manifest("killed", pod("killed", img.name, "/"+img.path))
	lost.wait(t)
	if n.id(img.name) == "" {
		t.Fatalf("image %s is gone, want it kept until its blob has come", img.name)
	}
	env.Must(t, n.Kill9(t.Context()))
	wait.Until(t, "containerd to end the pull", func() error { return closed(lost.left) })
	n.store.lost.Store(nil)
	env.Must(t, n.Start(t.Context()))
	n.mended(t, "killed", img)
	n.remove("killed")
}

// TestDiscardedLayers: containerd does not keep the blobs of layers. They are fetched to compare the image, and it is
// never removed.
func TestDiscardedLayers(t *testing.T) {
	for name, two := range map[string]bool{"containerd 1": false, "containerd 2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, testenv.Options{Containerd2: two, DiscardLayers: true})
			img := n.store.push(t, "discarded")
			n.pull(img.name)
			env.Must(t, n.CRI.CollectGarbage(t.Context(), "test"))
			if _, err := os.Stat(n.blob(img.layer)); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("blob of an unpacked layer: %v, want none", err)
			}
			env.Must(t, zeros(n.unpacked(img.path), 0))
			lost := n.store.lose(img.layer, false)
			n.Manifest("discarded", pod("discarded", img.name, "/"+img.path))
			lost.wait(t)
			n.event(repair.EventDamaged, img.name, "could not be repaired")
			if n.id(img.name) == "" {
				t.Fatalf("image %s is gone, want it kept until its blobs have come", img.name)
			}
			n.linked()
			n.mended(t, "discarded", img)
			n.remove("discarded")
		})
	}
}
