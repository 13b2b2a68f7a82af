package volume

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

// childEnv, when set, makes this binary an agent that sets pods' volumes up and takes them away until it is killed. It
// holds the root and the folder of the node.
const childEnv = "EDGECORE_VOLUME_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		fmt.Fprintln(os.Stderr, liveAndDie(dir))
		os.Exit(3)
	}
	leak.VerifyTestMain(m)
}

// mounting is a driver whose volumes are mounts, with a record beside each.
type mounting struct{}

func (mounting) Setup(_ context.Context, _ *v1.Pod, _ Spec, dir string) (string, error) {
	target := filepath.Join(dir, "mount")
	if err := os.WriteFile(filepath.Join(dir, "vol_data.json"), []byte("{}"), 0o600); err != nil {
		return "", err
	}
	if err := os.Mkdir(target, 0o755); err != nil && !os.IsExist(err) {
		return "", err
	}
	if mounted, err := isMountpoint(target); err != nil || mounted {
		return target, err
	}
	return target, unix.Mount("tmpfs", target, "tmpfs", 0, "")
}

func (mounting) Teardown(_ context.Context, _ types.UID, dir string) error {
	if err := unmountAll(dir); err != nil {
		return err
	}
	for _, name := range []string{"mount", "vol_data.json"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

// mountless does what mount(8) does, with tmpfs in the place of what is on servers.
type mountless struct{}

func (mountless) Mount(_ context.Context, _, target, _ string, _ []string) error {
	return unix.Mount("tmpfs", target, "tmpfs", 0, "")
}

func (mountless) Unmount(_ context.Context, target string, _ bool) error {
	return unix.Unmount(target, unix.MNT_DETACH)
}

func (mountless) Usage(context.Context, string) (FileSystem, error) { return FileSystem{}, nil }

func (mountless) Format(context.Context, string, string) (bool, error) { return false, nil }

// agentOn makes a manager on a root, with everything that pods of it ask for. host is a folder of the node.
func agentOn(dir string) *Manager {
	o := &objects{
		configMaps: map[string]*v1.ConfigMap{"shop/c": {Data: map[string]string{"k": "v"}}},
		secrets:    map[string]*v1.Secret{"shop/s": {Data: map[string][]byte{"k": []byte("v")}}},
	}
	c := &cluster{claims: map[string]*v1.PersistentVolumeClaim{}, volumes: map[string]*v1.PersistentVolume{}}
	c.bound("local", "pv-local", localSource(filepath.Join(dir, "host")))
	c.bound("csi", "pv-csi", csiSource())
	c.bound("nfs", "pv-nfs", v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "nas", Path: "/"}})
	return New(Options{
		Root:    filepath.Join(dir, "root"),
		Objects: o,
		Tokens:  o,
		Fields:  fields{},
		Claims:  c,
		Driver:  mounting{},
		Mounter: mountless{},
	})
}

func claimed(name string) v1.Volume {
	return vol(name, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
}

// liveAndDie sets up and takes away pods until it is killed, or fails.
func liveAndDie(dir string) error {
	m := agentOn(dir)
	if _, err := os.Stdout.WriteString("x"); err != nil { // from here on it may be killed
		return err
	}
	failed := make(chan error, 3)
	for i := range 3 {
		go func() {
			for {
				if err := onePod(m, filepath.Join(dir, "host"), types.UID("pod-"+strconv.Itoa(i))); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return <-failed
}

// onePod is the life of a pod, which does what it can against its end.
func onePod(m *Manager, host string, id types.UID) error {
	ctx := context.Background()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: id}, Spec: v1.PodSpec{
			Volumes: []v1.Volume{
				vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
				vol("memory", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}),
				vol("h", v1.VolumeSource{
					HostPath: &v1.HostPathVolumeSource{Path: host, Type: ptr.To(v1.HostPathDirectory)},
				}),
				vol("c", v1.VolumeSource{
					ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "c"}},
				}),
				vol("s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}),
				claimed("local"), claimed("csi"), claimed("nfs"),
			}, Containers: []v1.Container{{Name: "app"}},
		},
	}
	mountAll(pod)
	vols, err := m.Setup(ctx, pod)
	if err != nil {
		return err
	}
	c := container(v1.VolumeMount{Name: "h", SubPath: "sub"}, v1.VolumeMount{Name: "h", SubPath: "precious"},
		v1.VolumeMount{Name: "disk", SubPath: "made/of"},
		v1.VolumeMount{Name: "c", SubPath: "k"}, v1.VolumeMount{Name: "csi", SubPath: "x"},
		v1.VolumeMount{Name: "local", SubPath: "sub"}, v1.VolumeMount{Name: "nfs", SubPath: "y"})
	if _, err := m.Mounts(pod, c, vols, noExpand); err != nil {
		return err
	}
	disk := vols["disk"].Path
	for _, err := range []error{
		os.Symlink(host, filepath.Join(disk, "link")), os.MkdirAll(filepath.Join(disk, "a/b/c"), 0o755),
		os.MkdirAll(filepath.Join(disk, "bound"), 0o755),
		os.WriteFile(filepath.Join(disk, "a/fixed"), nil, 0o600), setFlags(filepath.Join(disk, "a/fixed"), fsImmutable),
	} {
		if err != nil && !errors.Is(err, os.ErrExist) && !errors.Is(err, os.ErrPermission) {
			return err
		}
	}
	// What a privileged container does with Bidirectional mounts.
	if err := errors.Join(unix.Mount(host, filepath.Join(disk, "bound"), "", unix.MS_BIND, ""),
		unix.Mount("tmpfs", filepath.Join(disk, "a/b"), "tmpfs", 0, "")); err != nil {
		return err
	}
	if err := m.Teardown(ctx, id); err != nil {
		return err
	}
	return m.RemovePodDir(id)
}

// long has TestKilledAgent kill many more agents.
var long = flag.Bool("long", false, "kill many agents, not only a few")

// TestKilledAgent kills an agent at random points of setting volumes up and taking them away, many times: what the one
// before left, the next one deals with. In the end nothing is mounted, nothing is left, and the node has lost nothing.
func TestKilledAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	host := filepath.Join(dir, "host")
	must(t, os.MkdirAll(filepath.Join(host, "sub"), 0o755), os.WriteFile(filepath.Join(host, "precious"), []byte("x"),
		0o644), os.WriteFile(filepath.Join(host, "sub/precious"), []byte("x"), 0o644))
	t.Cleanup(func() {
		if err := unmountAll(dir); err != nil {
			t.Error(err)
		}
	})
	random := rand.New(rand.NewPCG(1, 2))
	found, rounds := 0, 9
	if *long {
		rounds = 120
	}
	for round := range rounds { // after every third, so also the last, all is cleaned up
		killed(t, dir, time.Duration(random.IntN(150))*time.Millisecond)
		checkPrecious(t, host)
		if round%3 != 2 {
			continue // the next agent finds what this one left
		}
		m := agentOn(dir)
		uids, err := m.Pods()
		must(t, err)
		found += len(uids)
		var wg sync.WaitGroup
		for _, id := range uids {
			wg.Go(func() {
				if err := errors.Join(m.Teardown(t.Context(), id), m.RemovePodDir(id)); err != nil {
					t.Errorf("round %d: Teardown and RemovePodDir: %v, want no error", round, err)
				}
			})
		}
		wg.Wait()
		checkPrecious(t, host)
		if points, err := mountsBelow(dir); err != nil || len(points) > 0 {
			t.Fatalf("round %d: still mounted: %v, %v; want no error, none", round, points, err)
		}
		if left, err := os.ReadDir(filepath.Join(dir, "root/pods")); err != nil && !os.IsNotExist(err) ||
			len(left) > 0 {
			t.Fatalf("round %d: pod folders = %v, %v, want none", round, left, err)
		}
	}
	if found == 0 {
		t.Errorf("%d pods were left by killed agents, want at least 1", found)
	}
}

// killed runs an agent and kills it after a time.
func killed(t *testing.T, dir string, after time.Duration) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	cmd.Stderr = os.Stderr
	began, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	if _, err := began.Read(make([]byte, 1)); err != nil {
		t.Fatalf("read of the agent's first output: %v, want no error", err)
	}
	timer := time.AfterFunc(after, func() {
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("kill: %v, want nil or %v", err, os.ErrProcessDone)
		}
	})
	defer timer.Stop()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("agent's exit code = %d (%v), want -1: killed", cmd.ProcessState.ExitCode(), err)
	}
}
