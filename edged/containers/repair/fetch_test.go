package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
)

// TestOthersPullMeanwhile: a registry that sends slowly holds up neither the failed pulls of others nor the containers
// of the same image.
func TestOthersPullMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails if a call waits for the pull
		d := newDisk(t)
		d.spoilLayer()
		d.blobs[d.layers[1]] = nil
		r := d.repairer()
		d.flow = func() {
			d.flow = nil
			if r.PullFailed(t.Context(), "registry.example/other:1", errors.New("no route to host")) {
				t.Error("PullFailed during a pull = true, want false")
			}
			if r.Examine(t.Context(), d.fails(strong)) {
				t.Error("Examine of the image that is being repaired = true, want false")
			}
		}
		if !r.Examine(t.Context(), d.fails(weak)) || d.flow != nil {
			t.Errorf("Examine() = false, want true after a pull; events %q", d.words)
		}
		d.mended()
	})
}

// TestCancelledPull: a pod that goes while its image is fetched leaves the image to the next one.
func TestCancelledPull(t *testing.T) {
	d := newDisk(t)
	d.spoilLayer()
	d.blobs[d.layers[1]] = nil
	d.away = true
	r := d.repairer()
	ctx, cancel := context.WithCancel(t.Context())
	d.flow = cancel
	if r.Examine(ctx, d.fails(weak)) || len(d.health.Snapshot()) > 0 {
		t.Errorf("Examine() for a pod that is gone = true or a condition: %+v", d.health.Snapshot())
	}
	d.flow, d.away = nil, false
	if !r.Examine(t.Context(), d.fails(weak)) {
		t.Errorf("the next Examine() = false, want true; events %q", d.words)
	}
	d.mended()
}

// TestHeld: what a damaged manifest refers to is held until the manifest has come, and no longer.
func TestHeld(t *testing.T) {
	d := newDisk(t)
	d.blobs[d.target] = nil
	d.away = true
	d.names = []string{"registry.example/app@" + d.target} // which CRI need not list while its manifest is gone
	lease := heldBy(d.target)
	if d.repairer().Examine(t.Context(), d.fails(weak)) {
		t.Fatal("Examine() without a network = true, want false")
	}
	if len(d.names) == 0 {
		t.Error("the name of the image by its digest was removed, want it kept")
	}
	config := cri.Ref{Kind: cri.KindContent, ID: d.id}
	if !slices.Contains(d.held[lease], config) {
		t.Errorf("held: %+v, want %+v for %s", d.held, config, lease)
	}
	d.away = false
	if !d.repairer().Examine(t.Context(), d.fails(weak)) || len(d.held) > 0 {
		t.Errorf("Examine() = false or held %+v, want true and nothing held; events %q", d.held, d.words)
	}
}

// TestFetchedNamesGo: the runtime forgets the names by which blobs were fetched, also by an agent that was killed; one
// that stands for an image stays.
func TestFetchedNamesGo(t *testing.T) {
	d := newDisk(t)
	d.spoilLayer()
	d.blobs[d.layers[1]] = nil
	killed := d.repairer().opts.Record
	const listed = "registry.example/app:1"
	for _, name := range []string{"registry.example/app@sha256:1", listed} {
		d.note(killed.SetFetched(name))
		d.names = append(d.names, name)
	}
	r := d.repairer()
	d.note(r.Run(t.Context()))
	if diff := cmp.Diff([]string{listed}, d.names); diff != "" || len(r.opts.Record.Fetched()) > 0 {
		t.Errorf("noted names %v; names of the runtime (-want +got):\n%s", r.opts.Record.Fetched(), diff)
	}
	if !r.Examine(t.Context(), d.fails(weak)) {
		t.Fatalf("Examine() = false, want true; events %q", d.words)
	}
	if diff := cmp.Diff([]string{listed}, d.names); diff != "" || len(r.opts.Record.Fetched()) > 0 {
		t.Errorf("noted names %v; names of the runtime (-want +got):\n%s", r.opts.Record.Fetched(), diff)
	}
}

// TestHostileManifest: whatever digests a manifest names, nothing but blobs of its own repository is asked for, and
// not too many.
func TestHostileManifest(t *testing.T) {
	for name, tc := range map[string]struct {
		layers []string
		says   string
	}{
		"another repository": {[]string{"sha256:../../other/blobs/sha256:1"}, "does not have a SHA-256 digest"},
		"another name":       {[]string{"latest"}, "does not have a SHA-256 digest"},
		"nothing":            {[]string{""}, "does not have a SHA-256 digest"},
		"too many": {slices.Collect(func(yield func(string) bool) {
			for i := range maxFetched + 1 {
				if !yield(digestOf([]byte(fmt.Sprint(i)))) {
					return
				}
			}
		}), "at most 512 are fetched"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			d.dirs = nil
			var diffs []string
			var layers []map[string]string
			for _, digest := range tc.layers {
				diffs, layers = append(diffs, d.layers[0]), append(layers, map[string]string{"digest": digest})
			}
			d.id = d.add(encode(t, map[string]any{"rootfs": map[string]any{"diff_ids": diffs}}))
			d.target = d.add(encode(t, map[string]any{
				"config": map[string]string{"digest": d.id}, "layers": layers,
			}))
			if d.repairer().Examine(t.Context(), d.fails(strong)) || strings.Contains(d.made(), "pull") ||
				strings.Contains(d.made(), "image") {
				t.Errorf("done: %s; want no pull", d.made())
			}
			if last := d.words[len(d.words)-1]; !strings.Contains(last, tc.says) {
				t.Errorf("last event = %q, want %q in it", last, tc.says)
			}
		})
	}
}
