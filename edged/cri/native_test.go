package cri

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// field wraps a message as a field of another.
func field(number protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), message)
}

func number(field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), value)
}

func aMount(kind, source string, options ...string) []byte {
	m := text(text(nil, 1, kind), 2, source)
	for _, o := range options {
		m = text(m, 4, o)
	}
	return field(1, m)
}

func TestDecodeTarget(t *testing.T) {
	target := text(text(nil, 1, "application/vnd.oci.image.index.v1+json"), 2, "sha256:a")
	image := append(text(nil, 1, "name"), field(3, target)...)
	if got, err := decodeTarget(field(1, image)); got != "sha256:a" || err != nil {
		t.Errorf("decodeTarget = %q, %v; want sha256:a", got, err)
	}
	if got, err := decodeTarget(nil); got != "" || err != nil {
		t.Errorf("decodeTarget(nil) = %q, %v; want none", got, err)
	}
	if got, err := decodeTarget(field(1, image)[:9]); err == nil {
		t.Errorf("decodeTarget(half a message) = %q, nil, want an error", got)
	}
}

func TestDecodeBlobs(t *testing.T) {
	one := append(text(nil, 1, "sha256:a"), number(2, 17)...)
	got, err := decodeBlobs(append(field(1, one), field(1, text(nil, 1, "sha256:b"))...))
	if diff := cmp.Diff([]Blob{{"sha256:a", 17}, {"sha256:b", 0}}, got); diff != "" || err != nil {
		t.Errorf("decodeBlobs: %v; mismatch (-want +got):\n%s", err, diff)
	}
}

func TestDecodeLayers(t *testing.T) {
	for name, tc := range map[string]struct {
		data []byte
		want []string
		fail bool
	}{
		"one layer":    {aMount("bind", "/s/1/fs", "ro", "rbind"), []string{"/s/1/fs"}, false},
		"three layers": {aMount("overlay", "overlay", "index=off", "lowerdir=/s/3/fs:/s/2/fs:/s/1/fs"), []string{"/s/3/fs", "/s/2/fs", "/s/1/fs"}, false},
		"no overlay":   {aMount("zfs", "pool"), nil, true},
		"two mounts":   {append(aMount("bind", "/a"), aMount("bind", "/b")...), []string{"/a", "/b"}, true},
		"none":         {nil, nil, true},
	} {
		got, err := decodeLayers(tc.data)
		if diff := cmp.Diff(tc.want, got); diff != "" || (err != nil) != tc.fail {
			t.Errorf("%s: %v, want an error: %v; layers mismatch (-want +got):\n%s", name, err, tc.fail, diff)
		}
	}
}

func FuzzDecodeNative(f *testing.F) {
	f.Add(aMount("overlay", "overlay", "lowerdir=/a:/b"))
	f.Add(field(1, text(nil, 1, "sha256:b")))
	f.Add(bytes.Repeat([]byte{0x0a, 0}, 32<<10))
	f.Add(bytes.Repeat([]byte{0x12, 0}, 32<<10))
	f.Add(bytes.Repeat([]byte{0x0a, 2, 0x0a, 0}, 16<<10))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		// An empty element has 2 bytes and becomes a struct of 32 or less, in a list that grows by a quarter.
		limit := membound.Linear(len(data), 256)
		blobs, layers, content, target := []Blob(nil), []string(nil), []byte(nil), ""
		membound.Check(t, limit, func() { blobs, _ = decodeBlobs(data) })
		membound.Check(t, limit, func() { layers, _ = decodeLayers(data) })
		membound.Check(t, limit, func() { content, _ = decodeData(data) })
		membound.Check(t, limit, func() { target, _ = decodeTarget(data) })
		if n := len(data) + 1; len(blobs) > n || len(layers) > n || len(content) > n || len(target) > n {
			t.Errorf("%d blobs, %d layers, %d bytes of data, %d bytes of target, want at most %d of each",
				len(blobs), len(layers), len(content), len(target), n)
		}
	})
}
