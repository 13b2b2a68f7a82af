package volume

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestClaimUsages(t *testing.T) {
	m, c, _ := withClaims(t)
	m.opts.Mounter = &server{}
	host := t.TempDir()
	must(t, unix.Mount("tmpfs", host, "tmpfs", 0, "size=4m,nr_inodes=64"))
	t.Cleanup(func() { must(t, unmountAll(host)) })
	c.bound("local", "pv-local", localSource(host))
	c.bound("nfs", "pv-nfs", v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "nas", Path: "/"}})
	c.bound("host", "pv-host", v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}})
	c.bound("csi", "pv-csi", csiSource())
	device := loopDevice(t, false)
	_, pv := c.bound("raw", "pv-raw", localSource(device))
	pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	pod := podWith(claimed("local"), claimed("nfs"), claimed("host"), claimed("csi"), claimed("raw"))
	app := &pod.Spec.Containers[0]
	app.VolumeMounts, app.VolumeDevices = app.VolumeMounts[:4], []v1.VolumeDevice{{Name: "raw", DevicePath: "/dev/raw"}}
	if got := m.ClaimUsages(t.Context()); len(got) != 0 {
		t.Errorf("usages before the volumes are set up: got %v, want none", got)
	}
	setup(t, m, pod)
	got := m.ClaimUsages(t.Context())
	slices.SortFunc(got, func(a, b ClaimUsage) int { return cmp.Compare(a.Name, b.Name) })
	if len(got) != 3 {
		t.Fatalf("usages: got %v, want those of the local, the nfs and the raw volume", got)
	}
	usage := func(claim string, fs FileSystem) ClaimUsage {
		return ClaimUsage{
			PodUID:     uid,
			Claim:      types.NamespacedName{Namespace: "shop", Name: claim},
			Name:       "pv-" + claim,
			FileSystem: fs,
		}
	}
	local := FileSystem{Capacity: 4 << 20, Available: 4 << 20, Inodes: 64, InodesFree: 63, InodesUsed: 1}
	for i, want := range []ClaimUsage{
		usage("local", local), usage("nfs", got[1].FileSystem), usage("raw", FileSystem{Capacity: 8 << 20}),
	} {
		if diff := gocmp.Diff(want, got[i]); diff != "" {
			t.Errorf("usage %d (-want +got):\n%s", i, diff)
		}
	}
	if fs := got[1].FileSystem; fs.Capacity <= 0 || fs.Used != fs.Capacity-fs.Available ||
		fs.Inodes != fs.InodesFree+fs.InodesUsed {
		t.Errorf("usage of the nfs volume: got %+v, want that of a file system", fs)
	}
	must(t, m.Teardown(t.Context(), uid))
	if got := m.ClaimUsages(t.Context()); len(got) != 0 {
		t.Errorf("usages after the pod: got %v, want none", got)
	}
}

// A server that hangs takes its own figures, and no more time than usageTimeout.
func TestClaimUsageOfAHangingServer(t *testing.T) {
	m, c, _ := withClaims(t)
	s := &server{}
	m.opts.Mounter = s
	c.bound("nfs", "pv-nfs", v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "nas", Path: "/"}})
	setup(t, m, podWith(claimed("nfs")))
	s.hangs = true
	synctest.Test(t, func(t *testing.T) {
		if got := m.ClaimUsages(context.WithoutCancel(t.Context())); len(got) != 0 {
			t.Errorf("usages of a server that hangs: got %v, want none", got)
		}
	})
	s.hangs = false
}

// deaf is a Mounter whose Usage comes back only when it is let, whatever its context says.
type deaf struct {
	server
	asked atomic.Int32
	let   chan struct{}
}

func (d *deaf) Usage(context.Context, string) (FileSystem, error) {
	d.asked.Add(1)
	<-d.let
	return FileSystem{Capacity: 7}, nil
}

// A local disk that hangs takes its own figures, one look, and no more time than usageTimeout, whatever ends the look.
func TestClaimUsageOfAHangingDisk(t *testing.T) {
	m, c, _ := withClaims(t)
	c.bound("local", "pv-local", localSource(t.TempDir()))
	setup(t, m, podWith(claimed("local")))
	synctest.Test(t, func(t *testing.T) {
		d := &deaf{let: make(chan struct{})}
		m.opts.Mounter = d
		for range 3 {
			if got := m.ClaimUsages(context.WithoutCancel(t.Context())); len(got) != 0 {
				t.Errorf("usages of a disk that hangs: got %v, want none", got)
			}
		}
		if got := d.asked.Load(); got != 1 {
			t.Errorf("looks at a disk that hangs: got %d, want 1", got)
		}
		close(d.let)
		synctest.Wait()
		got := m.ClaimUsages(t.Context())
		if len(got) != 1 || got[0].Capacity != 7 {
			t.Errorf("usages of a disk that answers again: got %v, want one of capacity 7", got)
		}
	})
}

// counted is a Mounter that counts how often it is asked how full a file system is.
type counted struct {
	server
	asked int
}

func (c *counted) Usage(context.Context, string) (FileSystem, error) {
	c.asked++
	if c.asked == 1 {
		return FileSystem{}, errors.New("not yet")
	}
	return FileSystem{Capacity: int64(c.asked)}, nil
}

// Figures are good for a minute, however many ask for them; a failure is not kept.
func TestClaimUsageIsKept(t *testing.T) {
	m, c, _ := withClaims(t)
	c.bound("local", "pv-local", localSource(t.TempDir()))
	setup(t, m, podWith(claimed("local")))
	synctest.Test(t, func(t *testing.T) {
		server := &counted{}
		m.opts.Mounter = server
		for i, step := range []struct {
			after    time.Duration
			capacity []int64
		}{
			{0, nil}, {0, []int64{2}}, {30 * time.Second, []int64{2}}, {29 * time.Second, []int64{2}},
			{time.Second, []int64{3}},
		} {
			time.Sleep(step.after)
			var got []int64
			for _, u := range m.ClaimUsages(t.Context()) {
				got = append(got, u.Capacity)
			}
			if !slices.Equal(got, step.capacity) {
				t.Errorf("capacities at step %d: got %v, want %v", i, got, step.capacity)
			}
		}
	})
}

// The same with mount(8)'s programs and a file system of the kernel's, which holds anyone who asks it so that no signal
// ends the process.
func TestClaimUsageOfAHangingFileSystem(t *testing.T) {
	m, c, _ := withClaims(t)
	m.opts.Mounter = mountCommand{}
	c.bound("local", "pv-local", localSource(t.TempDir()))
	setup(t, m, podWith(claimed("local")))
	dir, err := m.podVolume(uid, pluginLocal, "pv-local")
	must(t, err)
	asked := hangingFileSystem(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan []ClaimUsage, 1)
	go func() { got <- m.ClaimUsages(ctx) }()
	wait.Closed(t, "question to the file system how full it is", asked)
	cancel()
	if got := wait.Receive(t, "usages of a file system that hangs", got); len(got) != 0 {
		t.Errorf("usages of a file system that hangs: got %v, want none", got)
	}
}

// hangingFileSystem mounts a file system on a folder that does not answer how full it is until the test ends. The
// channel is closed when it has been asked.
func hangingFileSystem(t *testing.T, dir string) <-chan struct{} {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	must(t, unix.Mount("hanging", dir, "fuse.hanging", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)))
	asked, end := make(chan struct{}), make(chan struct{})
	var served sync.WaitGroup
	served.Go(func() { serveHanging(fd, asked, end) })
	t.Cleanup(func() {
		close(end)
		must(t, unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH)) // by force: callers that still wait get an error
		served.Wait()
		must(t, unix.Close(fd))
	})
	return asked
}

// Requests of FUSE, and sizes of its messages.
const (
	fuseStatfs, fuseInit         = 17, 26
	fuseOutHeader, fuseInitReply = 16, 64
	fuseMajor, fuseMinor         = 7, 31
	fuseBuffer                   = 1 << 17
)

// serveHanging answers the requests of a file system, those after its figures only once end is closed, until it is
// unmounted.
func serveHanging(fd int, asked chan<- struct{}, end <-chan struct{}) {
	once := sync.OnceFunc(func() { close(asked) })
	request := make([]byte, fuseBuffer)
	for {
		n, err := unix.Read(fd, request)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		reply := make([]byte, fuseOutHeader)
		copy(reply[8:], request[8:16]) // which request it is of
		order := binary.NativeEndian
		switch order.Uint32(request[4:]) {
		case fuseInit:
			reply = append(reply, make([]byte, fuseInitReply)...)
			order.PutUint32(reply[16:], fuseMajor)
			order.PutUint32(reply[20:], fuseMinor)
			order.PutUint32(reply[36:], 4096)
		case fuseStatfs:
			once()
			<-end
			fallthrough
		default:
			order.PutUint32(reply[4:], ^uint32(unix.ENOSYS)+1)
		}
		order.PutUint32(reply, uint32(len(reply)))
		_, _ = unix.Write(fd, reply) // the process that asked may be gone
	}
}
