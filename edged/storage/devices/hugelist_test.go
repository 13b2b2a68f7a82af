package devices

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestHugeList: a list with far more elements than there may be devices is refused before it is decoded.
func TestHugeList(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	(&fake{}).serve(t, dir, "full.sock", slices.Repeat([]string{"a"}, maxElements)...)
	(&fake{}).serve(t, dir, "over.sock", slices.Repeat([]string{"a"}, maxElements+1)...)
	for name, want := range map[string]string{"full.sock": "", "over.sock": "more elements than are taken"} {
		p, err := dial(camera, filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		stream, err := p.client.ListAndWatch(wait.Context(t), &api.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		list, err := stream.Recv()
		if want == "" && (err != nil || len(list.GetDevices()) != maxElements) {
			t.Errorf("%s: %d devices, %v; want %d", name, len(list.GetDevices()), err, maxElements)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if err := p.conn.Close(); err != nil {
			t.Error(err)
		}
	}
}
