package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// prison is a volume on a file system of its own, so that whatever is found outside of it has another
// device. Beside it lies a secret that must not be reached.
func prison(t testing.TB) (volume string, dev uint64) {
	t.Helper()
	outside := t.TempDir()
	volume = filepath.Join(outside, "volume")
	for _, err := range []error{
		os.Mkdir(volume, 0o777), os.WriteFile(filepath.Join(outside, "secret"), []byte("key"), 0o600),
		os.Mkdir(filepath.Join(outside, "dir"), 0o755),
		unix.Mount("tmpfs", volume, "tmpfs", 0, "size=8m"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := unmountAll(volume); err != nil {
			t.Error(err)
		}
	})
	var st unix.Stat_t
	if err := unix.Stat(volume, &st); err != nil {
		t.Fatal(err)
	}
	return volume, st.Dev
}

func TestLinksOutOfTheVolume(t *testing.T) {
	volume, dev := prison(t)
	in := func(name string) string { return filepath.Join(volume, name) }
	outside := filepath.Dir(volume)
	must(t,
		os.MkdirAll(in("d/e"), 0o755),
		os.Symlink("/", in("root")), os.Symlink(outside, in("abs")), os.Symlink("..", in("up")),
		os.Symlink("../secret", in("up-file")),
		os.Symlink("../../..", in("d/e/over")), os.Symlink("../../../dir", in("d/e/over-dir")),
		os.Symlink("/proc/self/root", in("magic")),
		os.Symlink("loop", in("loop")), os.Symlink("a-link", in("two")), os.Symlink("up", in("a-link")),
		os.Symlink("nowhere", in("dangling")),
		os.Symlink(volume, in("abs-inside")), os.Symlink(volume+"/d/../d//e", in("abs-below")),
		os.Symlink("../volume/d", in("out-and-in")),
		os.Symlink(volume+"/../dir", in("abs-out")), os.Symlink(volume+"x/d", in("abs-beside")),
		os.Symlink(volume+"/up", in("abs-up")),
		os.Symlink("../dir/../volume", in("through-dir")), os.Symlink(volume+"/missing", in("abs-missing")),
		os.Symlink("../e/../e", in("d/back")), os.Symlink("../..", in("d/e/to-root")))
	for sub, want := range map[string]string{
		"root": "leads out of the volume", "root/etc": "leads out of the volume", "abs": "leads out of the volume",
		"abs/secret": "leads out of the volume",
		"up":         "a link leads out of the volume", "up-file": "a link leads out of the volume",
		"d/e/over":     "a link leads out of the volume",
		"d/e/over-dir": "a link leads out of the volume", "magic": "leads out of the volume",
		"magic/etc": "leads out of the volume",
		"two":       "a link leads out of the volume", "loop": "too many levels of symbolic links",
		"dangling": "no such file", "dangling/x": "no such file",
		"abs-inside": "", "abs-inside/d/e": "", "abs-below": "", "out-and-in": "", "out-and-in/made": "",
		"up/volume/d": "",
		"abs-out":     "leads out of the volume", "abs-beside": "leads out of the volume",
		"abs-up":      "leads out of the volume",
		"through-dir": "leads out of the volume", "abs-missing": "no such file",
		"root/" + strings.Trim(volume, "/") + "/d": "", "d/back": "a link leads out", "d/e/to-root": "",
	} {
		if sub == "d/back" {
			want = "no such file" // d/../e does not exist
		}
		fd, err := openBeneath(volume, sub, folderAccess{mode: 0o755})
		if want == "" {
			if err != nil {
				t.Errorf("openBeneath(%s): %v, want no error", sub, err)
				continue
			}
			var st unix.Stat_t
			must(t, unix.Fstat(fd, &st), unix.Close(fd))
			if st.Dev != dev {
				t.Errorf("openBeneath(%s) opened device %d, want %d: it is outside", sub, st.Dev, dev)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", sub, err, want)
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 3 {
		t.Errorf("something was made outside: %v, %v; want no error, 3 of them", entries, err)
	}
}

// The path of a volume may itself go through a link of the node; a link in the volume may name it either way.
func TestLinksToAVolumeBehindALink(t *testing.T) {
	volume, dev := prison(t)
	alias := filepath.Join(t.TempDir(), "alias")
	must(t, os.Symlink(volume, alias), os.Mkdir(filepath.Join(volume, "d"), 0o755),
		os.Symlink("/dir", filepath.Join(volume, "out")),
		os.Symlink(alias+"/d", filepath.Join(volume, "as-named")),
		os.Symlink(volume+"/d", filepath.Join(volume, "as-is")))
	for _, sub := range []string{"as-named", "as-is"} {
		fd, err := openBeneath(alias, sub, folderAccess{mode: 0o755})
		if err != nil {
			t.Errorf("openBeneath(%s): got %v, want no error", sub, err)
			continue
		}
		var st unix.Stat_t
		must(t, unix.Fstat(fd, &st), unix.Close(fd))
		if st.Dev != dev {
			t.Errorf("openBeneath(%s): got device %d, want %d", sub, st.Dev, dev)
		}
	}
	if _, err := openBeneath(alias, "out", folderAccess{mode: 0o755}); !errors.Is(err, errLeavesVolume) {
		t.Errorf("openBeneath(out): got %v, want %v", err, errLeavesVolume)
	}
}

// A container swaps folders for links while the path is walked: the walk may fail, but never gets out, and
// makes no folder outside.
func TestSubPathRace(t *testing.T) {
	volume, dev := prison(t)
	in := func(name string) string { return filepath.Join(volume, name) }
	must(t, os.MkdirAll(in("a/b/c"), 0o777), os.Symlink("../dir", in("evil")), os.Symlink("/", in("root")))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for _, link := range []string{"evil", "root"} {
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = unix.Renameat2(unix.AT_FDCWD, in("a/b"), unix.AT_FDCWD, in(link), unix.RENAME_EXCHANGE)
				_ = unix.Renameat2(unix.AT_FDCWD, in("a"), unix.AT_FDCWD, in(link), unix.RENAME_EXCHANGE)
				_ = os.Remove(in("a/b/new"))
			}
		})
	}
	var reached, refused int
	try := func() {
		fd, err := openBeneath(volume, "a/b/new", folderAccess{mode: 0o755})
		if err != nil {
			refused++
			return
		}
		reached++
		var st unix.Stat_t
		must(t, unix.Fstat(fd, &st), unix.Close(fd))
		if st.Dev != dev {
			t.Fatalf("openBeneath(a/b/new) opened device %d, want %d: it is outside", st.Dev, dev)
		}
	}
	for range 20000 {
		try()
	}
	wait.Until(t, "walks that reach the end and walks that are refused", func() error {
		for range 1000 {
			try()
		}
		if reached == 0 || refused == 0 {
			return fmt.Errorf("no race: reached %d times, refused %d times, want some of both", reached, refused)
		}
		return nil
	})
	cancel()
	wg.Wait()
	if entries, err := os.ReadDir(filepath.Join(filepath.Dir(volume), "dir")); err != nil || len(entries) != 0 {
		t.Errorf("made outside: %v, %v; want no error, none", entries, err)
	}
	if _, err := os.Lstat("/b/new"); err == nil {
		t.Error("/b/new exists, want it not to")
	}
}

func TestWalkClosesWhatItOpens(t *testing.T) {
	volume, _ := prison(t)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(entries)
	}
	before := count()
	must(t, os.Symlink("..", filepath.Join(volume, "up")))
	for _, sub := range []string{"a/b/c", "up", "a/b/../c", strings.Repeat("d/", 300)} {
		if fd, err := openBeneath(volume, sub, folderAccess{mode: 0o755}); err == nil {
			must(t, unix.Close(fd))
		}
	}
	if after := count(); after != before {
		t.Errorf("%d files open before, %d after; want %v", before, after, before)
	}
}

// FuzzSubPath lets the fuzzer choose the path and two links of the volume: whatever it finds is inside.
func FuzzSubPath(f *testing.F) {
	volume, dev := prison(f)
	if err := os.MkdirAll(filepath.Join(volume, "d/e"), 0o777); err != nil {
		f.Fatal(err)
	}
	f.Add("d/l2/secret", "..", "../../..")
	f.Add("l1/l2", "d/../d/e", "/etc/passwd")
	f.Add("d/e/../..", ".", "l1")
	f.Add("l1", "l1/../..", "")
	f.Add("l1/d", volume, volume+"/../secret")
	f.Add("d/l2/e", "../volume", "../../volume/d")
	outside := filepath.Dir(volume)
	f.Fuzz(func(t *testing.T, sub, link1, link2 string) {
		if len(sub)+len(link1)+len(link2) > 400 || strings.ContainsRune(link1+link2, 0) {
			return
		}
		for path, link := range map[string]string{"l1": link1, "d/l2": link2} {
			path = filepath.Join(volume, path)
			must(t, os.RemoveAll(path))
			if link != "" {
				must(t, os.Symlink(link, path))
			}
		}
		if checkSubPath(sub) != nil {
			return
		}
		if fd, err := openBeneath(volume, sub, folderAccess{mode: 0o755}); err == nil {
			var st unix.Stat_t
			must(t, unix.Fstat(fd, &st), unix.Close(fd))
			if st.Dev != dev {
				t.Fatalf("%q with links %q, %q opened device %d, want %d: outside", sub, link1, link2, st.Dev, dev)
			}
		}
		if entries, err := os.ReadDir(outside); err != nil || len(entries) != 3 {
			t.Fatalf("%q with links %q and %q: outside are %v, %v; want no error, 3 of them", sub, link1, link2,
				entries, err)
		}
	})
}
