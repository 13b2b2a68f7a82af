package csi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// What a real driver does with all this is shown in test/csi.

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func TestAccessMode(t *testing.T) {
	multi := abilities{csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: true}
	for _, tc := range []struct {
		modes []v1.PersistentVolumeAccessMode
		can   abilities
		want  string
	}{
		{nil, nil, "SINGLE_NODE_WRITER"},
		{nil, multi, "SINGLE_NODE_MULTI_WRITER"},
		{[]v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, nil, "SINGLE_NODE_WRITER"},
		{[]v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, multi, "SINGLE_NODE_MULTI_WRITER"},
		{[]v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, nil, "SINGLE_NODE_WRITER"},
		{[]v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, multi, "SINGLE_NODE_SINGLE_WRITER"},
		{[]v1.PersistentVolumeAccessMode{v1.ReadOnlyMany, v1.ReadWriteOnce}, multi, "MULTI_NODE_READER_ONLY"},
		{[]v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, nil, "MULTI_NODE_MULTI_WRITER"},
	} {
		if got := accessMode(tc.modes, tc.can).String(); got != tc.want {
			t.Errorf("%v, %v: %s, want %s", tc.modes, tc.can, got, tc.want)
		}
	}
}

func TestManners(t *testing.T) {
	def := driverInfo{attach: true, policy: storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy}
	inlineOnly := &storagev1.CSIDriver{
		Spec: storagev1.CSIDriverSpec{
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral},
		},
	}
	noAttach := def
	noAttach.attach = false
	for _, tc := range []struct {
		name  string
		obj   *storagev1.CSIDriver
		known bool
		mode  string
		want  driverInfo
		err   string
	}{
		{"no object", nil, true, persistent, def, ""},
		{"nobody knows", nil, false, persistent, def, ""},
		{"an empty object", &storagev1.CSIDriver{}, true, persistent, def, ""},
		{
			"no object, inline", nil, true, ephemeral, driverInfo{},
			`volume mode "Ephemeral" not supported by driver d (no CSIDriver object)`,
		},
		{"nobody knows, inline", nil, false, ephemeral, noAttach, ""},
		{"inline", inlineOnly, true, ephemeral, noAttach, ""},
		{
			"inline only", inlineOnly, true, persistent, driverInfo{},
			`volume mode "Persistent" not supported by driver d (only supports ["Ephemeral"])`,
		},
		{"no attach", &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}}, true,
			persistent, noAttach, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := driverInfoOf("d", tc.obj, tc.known, tc.mode)
			text := ""
			if err != nil {
				text = err.Error()
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(driverInfo{})); diff != "" || text != tc.err {
				t.Errorf("driverInfoOf: %v, want %q; mismatch (-want +got):\n%s", err, tc.err, diff)
			}
		})
	}
}

func TestAsk(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	pv := func(driver, handle string) volume.Spec {
		return volume.Spec{
			Name: "pv", PV: &v1.PersistentVolume{
				Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
					CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}},
			},
		}
	}
	for want, spec := range map[string]volume.Spec{
		"volume v is not a CSI volume":                     {Name: "v", PV: &v1.PersistentVolume{}},
		"the volume has no volumeHandle":                   pv("d", ""),
		`CSI driver "../d" cannot be the name of a folder`: pv("../d", "h"),
		`CSI driver "" cannot be the name of a folder`:     {Name: "v", Inline: &v1.CSIVolumeSource{}},
		`CSI driver "a/../../b" cannot be the name of a folder`: {
			Name: "v", Inline: &v1.CSIVolumeSource{Driver: "a/../../b"},
		},
	} {
		if _, err := ask(pod, spec, "dir"); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	got, err := ask(pod, volume.Spec{
		Name: "v", Inline: &v1.CSIVolumeSource{Driver: "d", ReadOnly: ptr.To(true), FSType: ptr.To("ext4")},
	}, "dir")
	// The handle is what a kubelet makes of "u" and "v".
	if err != nil || !got.readOnly || got.fsType != "ext4" || got.mode != ephemeral ||
		got.handle != handleOf("u", "v") || len(got.handle) != 68 {
		t.Errorf("volume %+v, %v; want a read-only ephemeral one of ext4", got, err)
	}
}

func TestValidate(t *testing.T) {
	m := New(Options{})
	for _, tc := range []struct {
		name     string
		versions []string
		want     string
	}{
		{"Hostpath.csi.k8s.io", []string{"0.3.0", "1.0.0"}, ""},
		{"d", []string{"v1"}, ""},
		{"d", []string{"0.3.0"}, `CSI driver d has the versions ["0.3.0"]; this node speaks 1.x`},
		{"d", nil, "CSI driver d has the versions []; this node speaks 1.x"},
		{"d", []string{"2.0", "x"}, `CSI driver d has the versions ["2.0" "x"]; this node speaks 1.x`},
		{"../d", []string{"1.0.0"}, `CSI driver name "../d" is invalid: want at most 63 letters, digits, '-' and '.'`},
		{
			strings.Repeat("d", 64), []string{"1.0.0"}, `CSI driver name "` + strings.Repeat("d", 64) +
				`" is invalid: want at most 63 letters, digits, '-' and '.'`,
		},
	} {
		got := ""
		if err := m.Validate(tc.name, "", tc.versions); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s %q: %q, want %q", tc.name, tc.versions, got, tc.want)
		}
	}
}

func TestCSINodeSteps(t *testing.T) {
	d := func(name, id string) storagev1.CSINodeDriver { return storagev1.CSINodeDriver{Name: name, NodeID: id} }
	set := func(list ...storagev1.CSINodeDriver) map[string]storagev1.CSINodeDriver {
		out := map[string]storagev1.CSINodeDriver{}
		for _, d := range list {
			out[d.Name] = d
		}
		return out
	}
	type drivers = []storagev1.CSINodeDriver
	for _, tc := range []struct {
		name        string
		have        drivers
		before, now map[string]storagev1.CSINodeDriver
		want        []drivers
	}{
		{"new", nil, nil, set(d("a", "1")), []drivers{{d("a", "1")}}},
		{"known", drivers{d("a", "1")}, nil, set(d("a", "1")), nil},
		{"beside another's", drivers{d("x", "9")}, nil, set(d("a", "1")), []drivers{{d("x", "9"), d("a", "1")}}},
		{"gone", drivers{d("x", "9"), d("a", "1")}, set(d("a", "1")), nil, []drivers{{d("x", "9")}}},
		{
			"changed", drivers{d("a", "1"), d("x", "9")}, set(d("a", "1")), set(d("a", "2")),
			[]drivers{{d("x", "9")}, {d("x", "9"), d("a", "2")}},
		},
		{"two", drivers{}, nil, set(d("b", "2"), d("a", "1")), []drivers{{d("a", "1"), d("b", "2")}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []drivers
			for _, n := range csiNodeSteps(&storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: tc.have}}, tc.before,
				tc.now) {
				got = append(got, n.Spec.Drivers)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("steps mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMarkNode(t *testing.T) {
	now := map[string]storagev1.CSINodeDriver{"a": {Name: "a", NodeID: "1"}}
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n", Annotations: map[string]string{"mine": "1", annotationIDs: `{"x":"9","old":"3"}`},
		},
	}
	marked, err := markNode(node, map[string]storagev1.CSINodeDriver{"old": {}}, now, map[string]string{"zone": "z"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"mine": "1", annotationIDs: `{"a":"1","x":"9"}`, annotationAttach: "true"},
		marked.Annotations); diff != "" || marked.Labels["zone"] != "z" {
		t.Errorf("labels %v, want zone z; annotations mismatch (-want +got):\n%s", marked.Labels, diff)
	}
	if again, err := markNode(marked, nil, now, map[string]string{"zone": "z"}); again != nil || err != nil {
		t.Errorf("marked again: %v, %v; want nothing to change", again, err)
	}
	for _, bad := range []string{"{", "null", "7"} {
		node.Annotations[annotationIDs] = bad
		if _, err := markNode(node, nil, now, nil); err == nil ||
			!strings.Contains(err.Error(), "annotation csi.volume.kubernetes.io/nodeid of node n is not readable") {
			t.Errorf("%s: %v, want the annotation is not readable", bad, err)
		}
	}
}

// Operations on one volume wait for one another, those on others do not; who gives up leaves nothing behind.
func TestLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l locks
		release, err := l.lock(t.Context(), "d", "a")
		if err != nil {
			t.Fatal(err)
		}
		other, err := l.lock(t.Context(), "d", "b")
		if err != nil {
			t.Fatal(err)
		}
		other()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.lock(short, "d", "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("take of a lock that is held: %v, want %v", err, context.DeadlineExceeded)
		}
		got := make(chan struct{})
		go func() {
			defer close(got)
			if release, err := l.lock(t.Context(), "d", "a"); err == nil {
				release()
			}
		}()
		synctest.Wait()
		select {
		case <-got:
			t.Error("take(d, a) returned while another call has it, want it to wait")
		default:
		}
		release()
		<-got
		if len(l.held) > 0 {
			t.Errorf("locks left: %v, want none", l.held)
		}
	})
}

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	want := record{
		Driver:     "d",
		Handle:     "h/../h",
		Name:       "pv",
		Node:       "n",
		Attachment: "csi-1",
		Lifecycle:  persistent,
		Published:  true,
	}
	if err := writeRecord(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := readRecord(dir)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("readRecord: %v; mismatch (-want +got):\n%s", err, diff)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("in the folder: %v, %v; want the record only", entries, err)
	}
	// A record of a kubelet.
	text := `{"attachmentID":"csi-5a","driverName":"hostpath.csi.k8s.io","nodeName":"n","specVolID":"pvc-1","volumeHandle":"x","volumeLifecycleMode":"Persistent","seLinuxMountContext":""}`
	if err := os.WriteFile(filepath.Join(dir, recordFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readRecord(dir); err != nil || got.Handle != "x" || got.Name != "pvc-1" ||
		got.lifecycle() != persistent {
		t.Errorf("record of a kubelet %+v, %v; want x, pvc-1, persistent", got, err)
	}
	if err := errors.Join(removeRecord(dir), os.Symlink("/etc/passwd", filepath.Join(dir, recordFile))); err != nil {
		t.Fatal(err)
	}
	if got, err := readRecord(dir); err == nil {
		t.Errorf("readRecord(a symbolic link) = %+v, nil, want an error", got)
	}
}

// Whatever is in a record, the places that follow from it are below the agent's folder.
func FuzzRecord(f *testing.F) {
	for _, seed := range []string{
		`{"driverName":"d","volumeHandle":"h","specVolID":"pv"}`, `{"driverName":"../../d","volumeHandle":"h"}`,
		`{"driverName":"d","volumeHandle":"../h","specVolID":"../pv","block":true}`,
		`{"driverName":".","volumeHandle":"h","block":true}`, `{`,
	} {
		f.Add([]byte(seed))
	}
	for _, text := range membound.JSON(`{"driverName":"d","x":`, `}`, 64<<10) {
		f.Add([]byte(text))
	}
	m := New(Options{Root: "/root"})
	f.Fuzz(func(t *testing.T, data []byte) {
		var r record
		var err error
		// A record has texts only.
		membound.Check(t, membound.Linear(len(data), 16), func() { r, err = decodeRecord(data) })
		if err != nil {
			return
		}
		staging, home := m.staging(r)
		for _, path := range []string{staging, home, m.target(r, "uid", "/root/pods/uid/volumes/v")} {
			if path != filepath.Clean(path) || !strings.HasPrefix(path, "/root/plugins/kubernetes.io/csi/") &&
				path != "/root/pods/uid/volumes/v/mount" {
				t.Fatalf("%q leads to %s, want a place below the agent's folder", data, path)
			}
		}
	})
}
