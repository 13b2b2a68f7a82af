package userns

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// newDir makes a pods folder with the folders of some pods.
func newDir(t *testing.T, pods ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range pods {
		if err := os.Mkdir(filepath.Join(dir, p), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func newManager(dir string) *Manager {
	return New(Options{PodsDir: dir, Subuid: filepath.Join(dir, "none"), Subgid: filepath.Join(dir, "none")})
}

func first(t *testing.T, m *Manager, uid types.UID) uint32 {
	t.Helper()
	ns, err := m.For(uid)
	if err != nil {
		t.Fatal(err)
	}
	if len(ns.Uids) != 1 || len(ns.Gids) != 1 || ns.Mode != runtimeapi.NamespaceMode_POD ||
		ns.Uids[0].ContainerId != 0 ||
		ns.Uids[0].Length != 65536 || ns.Uids[0].String() != ns.Gids[0].String() {
		t.Errorf("%s: %v, want 65536 users and the same groups", uid, ns)
	}
	return ns.Uids[0].HostId
}

func TestRanges(t *testing.T) {
	dir := newDir(t, "a", "b", "c")
	m := newManager(dir)
	a, b := first(t, m, "a"), first(t, m, "b")
	if a != 65536 || b != 131072 || first(t, m, "a") != a {
		t.Errorf("a has %d and b %d; want 65536 and 131072, and a to keep it", a, b)
	}
	data, err := os.ReadFile(filepath.Join(dir, "a", "userns"))
	if err != nil ||
		string(data) !=
			`{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}` {
		t.Errorf("on the disk: %s %v, want the range of 65536 from 65536 on", data, err)
	}
	m = newManager(dir) // the agent started again
	if c := first(t, m, "c"); c != 196608 {
		t.Errorf("c has %d, want 196608", c)
	}
	if again := first(t, m, "b"); again != b {
		t.Errorf("b had %d and has %d, want %v", b, again, b)
	}
	for range 2 {
		if err := m.Release("a"); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o750); err != nil {
		t.Fatal(err)
	}
	if d := first(t, m, "d"); d != a {
		t.Errorf("d has %d, a's is free; want %v", d, a)
	}
	if got, err := m.For("no-folder"); err == nil {
		t.Errorf("For(a pod without a folder) = %v, nil, want an error", got)
	}
}

func TestConcurrently(t *testing.T) {
	names := strings.Split("abcdefghijklmnop", "")
	m := newManager(newDir(t, names...))
	var mu sync.Mutex
	seen := map[uint32]string{}
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Go(func() {
			ns, err := m.For(types.UID(name))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if other := seen[ns.Uids[0].HostId]; other != "" {
				t.Errorf("%s and %s share a range, want one each", name, other)
			}
			seen[ns.Uids[0].HostId] = name
		})
	}
	wg.Wait()
}

// TestDamaged: what cannot be read is not replaced, as it may be in use.
func TestDamaged(t *testing.T) {
	dir := newDir(t, "a", "b", "c")
	if err := os.WriteFile(filepath.Join(dir, "a", "userns"), []byte(`{"uidMappings":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "b", "userns")); err != nil {
		t.Fatal(err)
	}
	m := newManager(dir)
	for _, pod := range []types.UID{"a", "b"} {
		if _, err := m.For(pod); err == nil ||
			!strings.Contains(err.Error(), "remove it when nothing of the pod runs") {
			t.Errorf("%s: %v, want an error with \"remove it when nothing of the pod runs\"", pod, err)
		}
	}
	first(t, m, "c")
	if err := m.Release("a"); err != nil {
		t.Fatal(err)
	}
	first(t, m, "a")
}

func TestPool(t *testing.T) {
	for _, tc := range []struct {
		subuid, subgid string
		want           pool
		err            string
	}{
		{"", "", wholeNode, ""},
		{"user:100000:65536\n", "user:100000:65536\n", wholeNode, ""},
		{"user:1:2\nkubelet:100000:131072\n", "kubelet:100000:131072\n", pool{100000, 2}, ""},
		{"kubelet:65536:65536\n", "", pool{}, "has other ids"},
		{"kubelet:65536:65536\nkubelet:131072:65536\n", "kubelet:65536:65536\n", pool{}, "more than one range"},
		{"kubelet:1000:65536\n", "", pool{}, "want ids from 65536 on"},
		{"kubelet:4294901760:65536\n", "", pool{}, "below 4294967295"},
		{"kubelet:65536:70000\n", "", pool{}, "want a multiple of 65536 ids"},
		{"kubelet:x\n", "", pool{}, "is not a range"},
	} {
		dir := t.TempDir()
		uids, gids := filepath.Join(dir, "subuid"), filepath.Join(dir, "subgid")
		for path, text := range map[string]string{uids: tc.subuid, gids: tc.subgid} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := readPool(uids, gids)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%q %q: %v %v; want %v and the error %q", tc.subuid, tc.subgid, got, err, tc.want, tc.err)
		}
	}
}

func TestFree(t *testing.T) {
	p := pool{first: 200000, blocks: 3}
	for _, tc := range []struct {
		taken map[types.UID]uint32
		want  uint32 // 0: none
	}{
		{nil, 200000},
		{map[types.UID]uint32{"a": 200000}, 265536},
		{map[types.UID]uint32{"a": 199999}, 265536}, // of an earlier pool
		{map[types.UID]uint32{"a": 200000 - 65536}, 200000},
		{map[types.UID]uint32{"a": 200001}, 331072},
		{map[types.UID]uint32{"a": 1}, 200000},
		{map[types.UID]uint32{"a": 200000, "b": 265536, "c": 331072}, 0},
	} {
		got, err := p.free(tc.taken)
		if got != tc.want || (err != nil) != (tc.want == 0) {
			t.Errorf("%v: %d %v, want %d", tc.taken, got, err, tc.want)
		}
	}
	if last := uint64(wholeNode.first) + uint64(wholeNode.blocks)*Length; last > math.MaxUint32 {
		t.Errorf("the last block ends at %d, want at most %d", last, uint32(math.MaxUint32))
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(
		`{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}`))
	for _, text := range membound.JSON(`{"uidMappings":`, `}`, 64<<10) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var id uint32
		var err error
		// An empty mapping has 3 bytes and becomes a struct in a list that grows by a quarter.
		membound.Check(t, membound.Linear(len(data), 128), func() { id, err = decode(data) })
		if err == nil && (id < Length || uint64(id)+Length > math.MaxUint32) {
			t.Errorf("%q gives %d, want an error or a range within 32 bits", data, id)
		}
	})
}
