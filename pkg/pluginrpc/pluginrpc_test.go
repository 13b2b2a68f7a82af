package pluginrpc

import (
	"bytes"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	devices "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func decode(data []byte, elements int, m proto.Message) error {
	return codec{encoding.GetCodecV2("proto"), elements}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, m)
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestElements: a message with as many elements as are taken is decoded, one with more is not, wherever they are.
func TestElements(t *testing.T) {
	nodes := &devices.TopologyInfo{Nodes: []*devices.NUMANode{{ID: 1}, {}}}
	list := &devices.ListAndWatchResponse{Devices: []*devices.Device{{ID: "a", Topology: nodes}, {ID: "b"}}}
	answers := &devices.AllocateResponse{ContainerResponses: []*devices.ContainerAllocateResponse{
		{Envs: map[string]string{"A": "a", "B": "b"}},
	}}
	for name, tc := range map[string]struct {
		m        proto.Message
		elements int
	}{
		"none": {&devices.Empty{}, 0}, "list": {list, 5}, "map": {answers, 3},
		"strings are not counted": {&registration.PluginInfo{SupportedVersions: []string{"1", "2"}}, 0},
	} {
		got := tc.m.ProtoReflect().New().Interface()
		if err := decode(encode(t, tc.m), tc.elements, got); err != nil || !proto.Equal(got, tc.m) {
			t.Errorf("%s: decoded %v, %v; want %v", name, got, err, tc.m)
		}
		if tc.elements == 0 {
			continue
		}
		err := decode(encode(t, tc.m), tc.elements-1, got)
		if want := "more elements"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s, one element less: %v, want %q", name, err, want)
		}
	}
	if err := decode([]byte{0x0a, 5}, 1, &devices.ListAndWatchResponse{}); err == nil {
		t.Error("decoding a message that was cut off = nil, want an error")
	}
}

// FuzzUnmarshal: what a plugin's answer takes follows from its size and the limit of elements, and it is decoded as
// gRPC's own codec does.
func FuzzUnmarshal(f *testing.F) {
	kinds := []proto.Message{
		&devices.ListAndWatchResponse{}, &devices.AllocateResponse{}, &devices.PreferredAllocationResponse{},
		&devices.DevicePluginOptions{},
		&devices.RegisterRequest{}, &registration.PluginInfo{},
		&csi.NodeGetInfoResponse{}, &csi.NodeGetCapabilitiesResponse{}, &csi.NodeGetVolumeStatsResponse{},
		&csi.NodePublishVolumeResponse{},
	}
	for i := range kinds {
		f.Add(bytes.Repeat([]byte{0x0a, 0}, 64<<10), uint8(i)) // field 1, empty
		f.Add(bytes.Repeat([]byte{0x12, 0}, 64<<10), uint8(i)) // field 2, empty
		// one, of empty ones
		f.Add(append([]byte{0x0a, 0x80, 0x80, 8}, bytes.Repeat([]byte{10, 0}, 64<<10)...), uint8(i))
		// field 127, not known
		f.Add(bytes.Repeat([]byte{0xfa, 7, 0}, 32<<10), uint8(i))
		// a length of 4 GiB
		f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, uint8(i))
	}
	const elements = 1000
	f.Fuzz(func(t *testing.T, data []byte, i uint8) {
		m := kinds[int(i)%len(kinds)].ProtoReflect().New().Interface()
		var err error
		// An element takes at most 256 bytes. The rest are texts, an empty one of which is a string of 16 bytes made of
		// 2, in lists that double, and fields that are not known, which are kept as they are.
		membound.Check(t, membound.Linear(len(data), 40)+elements*256, func() { err = decode(data, elements, m) })
		if err != nil {
			return
		}
		own := m.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(data, own); err != nil {
			t.Errorf("decoded without an error what protobuf refuses: %v", err)
		}
	})
}
