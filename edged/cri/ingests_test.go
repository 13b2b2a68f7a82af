package cri

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func aStatus(ref string, offset, total uint64) []byte {
	var b []byte
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendBytes(b, []byte{8, 1})
	b = protowire.AppendTag(b, 3, protowire.BytesType)
	b = protowire.AppendString(b, ref)
	b = protowire.AppendTag(b, 4, protowire.VarintType)
	b = protowire.AppendVarint(b, offset)
	b = protowire.AppendTag(b, 5, protowire.VarintType)
	b = protowire.AppendVarint(b, total)
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), b)
}

func TestDecodeIngests(t *testing.T) {
	got, err := decodeIngests(append(aStatus("layer-sha256:a", 17, 100), aStatus("config-sha256:b", 0, 0)...))
	want := []Ingest{{"layer-sha256:a", 17, 100}, {"config-sha256:b", 0, 0}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("decodeIngests: %v; mismatch (-want +got):\n%s", err, diff)
	}
	if got, err := decodeIngests(nil); len(got) > 0 || err != nil {
		t.Errorf("decodeIngests(nil) = %v, %v; want none", got, err)
	}
	if got, err := decodeIngests(aStatus("x", 1, 2)[:5]); err == nil {
		t.Errorf("decodeIngests(half a message) = %v, nil, want an error", got)
	}
}

func FuzzDecodeIngests(f *testing.F) {
	f.Add(aStatus("layer-sha256:a", 17, 100))
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0x0a, 0}, 32<<10))
	f.Fuzz(func(t *testing.T, data []byte) {
		var list []Ingest
		var err error
		// An empty blob has 2 bytes and becomes a struct of 32, in a list that grows by a quarter.
		membound.Check(t, membound.Linear(len(data), 128), func() { list, err = decodeIngests(data) })
		if err == nil && len(list) > len(data) {
			t.Errorf("%d blobs in %d bytes, want no more than bytes", len(list), len(data))
		}
	})
}
