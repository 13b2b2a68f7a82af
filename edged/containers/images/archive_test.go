package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func archive(t testing.TB, files ...string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i := 0; i < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{
			Name:     files[i],
			Mode:     0o644,
			Size:     int64(len(files[i+1])),
			Typeflag: tar.TypeReg,
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func compressed(t testing.TB, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestArchiveNames(t *testing.T) {
	many := membound.Repeat(`[{"RepoTags":[`, `"a"`, `,`, `]}]`, 1<<20)
	docker := archive(t, "layer.tar", "x", "manifest.json",
		`[{"Config":"c","RepoTags":["nginx:1","example.com/a"],"Layers":[]},{"RepoTags":null}]`)
	oci := archive(t, "./index.json",
		`{"manifests":[{"annotations":{"io.containerd.image.name":"docker.io/library/nginx:1","org.opencontainers.image.ref.name":"1"}},
		{"annotations":{"org.opencontainers.image.ref.name":"example.com/b:2"}},{"annotations":{"org.opencontainers.image.ref.name":"latest"}},{}]}`)
	for _, c := range []struct {
		name string
		data []byte
		want []string
		err  string
	}{
		{"docker", docker, []string{"docker.io/library/nginx:1", "example.com/a:latest"}, ""},
		{"compressed", compressed(t, docker), []string{"docker.io/library/nginx:1", "example.com/a:latest"}, ""},
		{"oci", oci, []string{"docker.io/library/nginx:1", "example.com/b:2"}, ""},
		{"another tar", archive(t, "etc/passwd", "root"), nil, "neither a manifest.json nor an index.json"},
		{"no tar", []byte("hello, this is no archive at all"), nil, "not an archive of images"},
		{"empty", nil, nil, "not an archive of images"},
		{"cut off", docker[:700], nil, "not an archive of images"},
		{"bad list", archive(t, "manifest.json", "{"), nil, "manifest.json in the archive"},
		{
			"bad name", archive(t, "manifest.json", `[{"RepoTags":["Not A Name"]}]`), nil,
			`image "Not A Name" in the archive`,
		},
		{"many names", archive(t, "manifest.json", many), nil, "more than 10000 images"},
		{
			"endless list", archive(t, "manifest.json", "["+strings.Repeat(" ", maxManifest)+"]"), nil,
			"it is larger than",
		},
	} {
		got, err := ArchiveNames(bytes.NewReader(c.data))
		if diff := cmp.Diff(c.want, got); diff != "" || (c.err == "") != (err == nil) ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: ArchiveNames: %v, want %q; names mismatch (-want +got):\n%s", c.name, err, c.err, diff)
		}
	}
}

func FuzzArchiveNames(f *testing.F) {
	f.Add(archive(f, "manifest.json", `[{"RepoTags":["nginx:1"]}]`))
	f.Add(compressed(f, archive(f, "index.json", `{"manifests":[{"annotations":{"io.containerd.image.name":"a"}}]}`)))
	for _, text := range membound.JSON("", "", 64<<10) {
		f.Add(archive(f, "manifest.json", text))
		f.Add(archive(f, "index.json", `{"manifests":`+text+`}`))
	}
	f.Add(compressed(f, archive(f, "manifest.json", membound.Repeat("[", "{}", ",", "]", 1<<20))))
	f.Add(compressed(f, bytes.Repeat([]byte{0}, 8<<20)))
	f.Add(compressed(f, archive(f, "manifest.json", membound.Repeat(`[{"RepoTags":[`, `"a"`, `,`, `]}]`, 1<<20))))
	f.Fuzz(func(t *testing.T, data []byte) {
		var names []string
		var err error
		// Gzip makes a thousand bytes of one at most. Of them no more than two lists of maxManifest are kept; an empty
		// image in one has 3 bytes and becomes a list of 24, in a list that grows by a quarter. A field of a PAX header
		// of 5 bytes becomes an entry of a map.
		limit := membound.Linear(len(data), 512)
		if bytes.HasPrefix(data, gzipMagic) {
			limit = membound.Linear(min(2*maxManifest, 1032*len(data)), 200) + uint64(len(data))*4096
		}
		membound.Check(t, limit, func() { names, err = ArchiveNames(bytes.NewReader(data)) })
		if err != nil {
			return
		}
		if !slices.IsSorted(names) {
			t.Errorf("names %q, want them sorted", names)
		}
		for _, name := range names {
			if again, err := Normalize(name); err != nil || again != name {
				t.Errorf("Normalize(%q) = %q, %v; want the same: it is a complete name", name, again, err)
			}
		}
	})
}
