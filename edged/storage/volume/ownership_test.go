package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// owners returns "mode gid" by path of all that is below a folder.
func owners(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		out[rel] = fmt.Sprintf("%04o %d", st.Mode&0o7777, st.Gid)
		return err
	})
	must(t, err)
	return out
}

// tree makes a volume with files of several modes, links that lead out of it, and a mount in it.
func tree(t *testing.T) (dir, outside string) {
	t.Helper()
	root := t.TempDir()
	dir, outside = filepath.Join(root, "volume"), filepath.Join(root, "outside")
	must(t, os.MkdirAll(filepath.Join(dir, "sub/deep"), 0o755), os.Mkdir(filepath.Join(dir, "mounted"), 0o755),
		os.WriteFile(outside, nil, 0o600),
		os.WriteFile(filepath.Join(dir, "plain"), nil, 0o600), os.WriteFile(filepath.Join(dir, "sub/deep/run"), nil,
			0o500),
		os.Chmod(filepath.Join(dir, "sub"), 0o700), os.Symlink(outside, filepath.Join(dir, "link")),
		os.Symlink("/", filepath.Join(dir, "sub/root")), unix.Mkfifo(filepath.Join(dir, "sub/pipe"), 0o600))
	must(t, unix.Mount("tmpfs", filepath.Join(dir, "mounted"), "tmpfs", 0, "mode=0700"),
		os.WriteFile(filepath.Join(dir, "mounted/f"), nil, 0o600))
	t.Cleanup(func() {
		if err := unmountAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir, outside
}

func TestSetOwnership(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatalf("effective user ID = %d, want 0: these tests change owners", os.Geteuid())
	}
	for _, tc := range []struct {
		name string
		o    Ownership
		want map[string]string
	}{
		{"read-write", Ownership{Group: 4321}, map[string]string{
			".": "2775 4321", "link": "0777 4321", "plain": "0660 4321", "sub": "2770 4321", "sub/deep": "2775 4321",
			"sub/deep/run": "0760 4321",
			"sub/root":     "0777 4321", "sub/pipe": "0660 4321", "mounted": "0700 0", "mounted/f": "0600 0",
		}},
		{"read-only", Ownership{Group: 4321, ReadOnly: true}, map[string]string{
			".": "2755 4321", "link": "0777 4321", "plain": "0640 4321", "sub": "2750 4321", "sub/deep": "2755 4321",
			"sub/deep/run": "0540 4321",
			"sub/root":     "0777 4321", "sub/pipe": "0640 4321", "mounted": "0700 0", "mounted/f": "0600 0",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, outside := tree(t)
			must(t, SetOwnership(t.Context(), dir, tc.o))
			if diff := cmp.Diff(tc.want, owners(t, dir)); diff != "" {
				t.Errorf("owners mismatch (-want +got):\n%s", diff)
			}
			if info, err := os.Stat(outside); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("outside: %v, %v; want no error, 0o600", info, err)
			}
			before := stamps(t, dir)
			must(t, SetOwnership(t.Context(), dir, tc.o))
			if diff := cmp.Diff(before, stamps(t, dir)); diff != "" {
				t.Errorf("what the second time wrote, mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSetOwnershipOnRootMismatch(t *testing.T) {
	dir, _ := tree(t)
	o := Ownership{Group: 77, Policy: ptr.To(v1.FSGroupChangeOnRootMismatch)}
	must(t, SetOwnership(t.Context(), dir, o)) // the root does not fit yet
	if got := owners(t, dir)["plain"]; got != "0660 77" {
		t.Errorf("plain: %s, want \"0660 77\"", got)
	}
	must(t, os.Chown(filepath.Join(dir, "plain"), 0, 0), SetOwnership(t.Context(), dir, o))
	if got := owners(t, dir)["plain"]; got != "0660 0" {
		t.Errorf("with a root that fits, plain was changed to %s; want \"0660 0\"", got)
	}
	o.Policy = ptr.To(v1.FSGroupChangeAlways)
	must(t, SetOwnership(t.Context(), dir, o))
	if got := owners(t, dir)["plain"]; got != "0660 77" {
		t.Errorf("with Always, plain is %s; want \"0660 77\"", got)
	}
	for _, mode := range []os.FileMode{0o700, 0o770} { // without what the group needs; without setgid
		must(t, os.Chmod(dir, mode), os.Chown(filepath.Join(dir, "plain"), 0, 0))
		o.Policy = ptr.To(v1.FSGroupChangeOnRootMismatch)
		must(t, SetOwnership(t.Context(), dir, o))
		if got := owners(t, dir); got["plain"] != "0660 77" || got["."] != "2770 77" {
			t.Errorf("root of mode %o: plain is %s, the root %s; want \"0660 77\", \"2770 77\"", mode, got["plain"],
				got["."])
		}
	}
}

// A container can nest folders without end, and make files that even root may not change.
func TestSetOwnershipOfHostileTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "fixed"), nil, 0o600))
	must(t, setFlags(filepath.Join(dir, "fixed"), fsImmutable))
	defer func() { must(t, setFlags(filepath.Join(dir, "fixed"), 0)) }()
	at, err := unix.Open(dir, unix.O_PATH, 0)
	must(t, err)
	const depth = 2200 // "d/" so often is longer than any path may be
	for range depth {
		must(t, unix.Mkdirat(at, "d", 0o755))
		next, err := unix.Openat(at, "d", unix.O_PATH, 0)
		must(t, err, unix.Close(at))
		at = next
	}
	must(t, SetOwnership(t.Context(), dir, Ownership{Group: 99}))
	var st unix.Stat_t
	must(t, unix.Fstat(at, &st), unix.Close(at))
	if st.Gid != 99 {
		t.Errorf("%d folders deep the group is %d, want 99", depth, st.Gid)
	}
	must(t, removeTree(t.Context(), filepath.Join(dir, "d")))
	if got := owners(t, dir); got["fixed"] != "0600 0" || !strings.HasSuffix(got["."], " 99") {
		t.Errorf("owners %v, want the fixed file as it was, and group 99 for the rest", got)
	}
}
