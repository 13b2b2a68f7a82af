package images

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestArchiveHoldsEveryImage(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	archive, err := Archive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{Pause, Demo, Entrypoint, NonRoot, NonRootName, NoCommand, StopSignal, Volume,
		Groups} {
		tag, err := name.NewTag(want)
		if err != nil {
			t.Fatal(err)
		}
		img, err := tarball.ImageFromPath(archive, &tag)
		if err != nil {
			t.Errorf("image %s: %v", want, err)
			continue
		}
		if cfg, err := img.ConfigFile(); err != nil || cfg.OS != "linux" || cfg.Architecture == "" {
			t.Errorf("image %s: config %+v, error %v: want one with os and architecture", want, cfg, err)
		}
	}

	before, err := os.Stat(archive)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Archive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(again)
	if err != nil {
		t.Fatal(err)
	}
	if again != archive || !os.SameFile(before, after) {
		t.Errorf("second Archive() built %s again; want %s from the cache", again, archive)
	}
}

// The same programs give the same bytes: image ids stay equal from run to run.
func TestAllIsReproducible(t *testing.T) {
	digests := func() map[string]string {
		all, err := All([]byte("busybox"), []byte("pause"))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, img := range all {
			d, err := img.Image.Digest()
			if err != nil {
				t.Fatal(err)
			}
			got[img.Name] = d.String()
		}
		return got
	}
	first := digests()
	if diff := cmp.Diff(first, digests()); diff != "" {
		t.Errorf("two builds differ (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(first)), slices.Sorted(slices.Values(Names()))); diff != "" {
		t.Errorf("Names (-built +named):\n%s", diff)
	}
}

func TestCheckStatic(t *testing.T) {
	self, err := os.ReadFile("/bin/ls")
	if err != nil {
		t.Fatal(err)
	}
	if checkStatic(self) == nil {
		t.Error("checkStatic(/bin/ls) = nil, want an error: it is linked dynamically")
	}
	if checkStatic([]byte("#!/bin/sh\n")) == nil {
		t.Error("checkStatic(a script) = nil, want an error")
	}
	busybox, err := findBusybox()
	if err != nil {
		t.Fatal(err)
	}
	if err := checkStatic(busybox); err != nil {
		t.Errorf("checkStatic(busybox) = %v, want nil", err)
	}
}
