package repair

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestForeignBlob: an image that names the layers of another one, with blobs of its own that are on the disk, does not
// have them written into these layers.
func TestForeignBlob(t *testing.T) {
	for name, missing := range map[string]bool{"whole layers": false, "a layer whose folder is gone": true} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			var evil bytes.Buffer
			w := tar.NewWriter(&evil)
			body := []byte("#!/bin/evil")
			if err := w.WriteHeader(&tar.Header{
				Name: "app/run", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(body)),
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(body); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			blob := d.add(evil.Bytes())
			// The configuration is the other image's, and with it the layers.
			d.target = d.add(encode(t, map[string]any{
				"config": map[string]string{"digest": d.id},
				"layers": []map[string]string{{"digest": d.layers[0]}, {"digest": blob}},
			}))
			if missing {
				if err := os.RemoveAll(filepath.Dir(d.dirs[0])); err != nil {
					t.Fatal(err)
				}
			}
			rep, err := d.repairer().verify(t.Context(), Suspect{ID: d.id})
			if err != nil {
				t.Fatal(err)
			}
			if len(rep.layers) != 0 || !strings.Contains(rep.unknown, errForeign.Error()) {
				t.Errorf("layers to mend %+v, unknown %q; want none, and %q", rep.layers, rep.unknown, errForeign)
			}
			_ = d.repairer().Examine(t.Context(), d.fails(strong))
			got, err := os.ReadFile(filepath.Join(d.dirs[0], "app/run"))
			if err == nil && bytes.Equal(got, body) {
				t.Errorf("the foreign image's file was written into %s", d.dirs[0])
			}
			if made := d.made(); made != "" { // the image of the same ID may be another tenant's
				t.Errorf("done: %s; want nothing", made)
			}
		})
	}
}

// TestImageOfName: an image that has another one's configuration has its ID, and does not stand in the way of its
// repair.
func TestImageOfName(t *testing.T) {
	d := newDisk(t)
	d.spoilLayer()
	d.byID = d.add(encode(t, map[string]any{
		"config": map[string]string{"digest": d.id},
		"layers": []map[string]string{{"digest": digestOf([]byte("a"))}, {"digest": digestOf([]byte("b"))}},
	}))
	if !d.repairer().Examine(t.Context(), d.fails(strong)) || d.made() != "" {
		t.Errorf("Examine() = false or done %q, want true and nothing; events %q", d.made(), d.words)
	}
	d.mended()
}

// TestShared: an image is not removed if another repository has one of the same ID.
func TestShared(t *testing.T) {
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for name, tc := range map[string]struct {
		list []Image
		want bool
	}{
		"one name":         {[]Image{{ID: "a", Names: []string{"reg.example/a:1"}}}, false},
		"tag and digest":   {[]Image{{ID: "a", Names: []string{"reg.example/a:1", "reg.example/a" + digest}}}, false},
		"two repositories": {[]Image{{ID: "a", Names: []string{"reg.example/a:1", "evil.example/a:1"}}}, true},
		"another image":    {[]Image{{ID: "a", Names: []string{"a:1"}}, {ID: "b", Names: []string{"b:1"}}}, false},
		"listed twice":     {[]Image{{ID: "a", Names: []string{"a:1"}}, {ID: "a", Names: []string{"b:1"}}}, true},
		"no name":          {[]Image{{ID: "a"}}, false},
		"an unknown name":  {[]Image{{ID: "a", Names: []string{"<none>", "a:1"}}}, false},
	} {
		if got := shared(tc.list, "a"); got != tc.want {
			t.Errorf("%s: shared() = %t, want %t", name, got, tc.want)
		}
	}
}
