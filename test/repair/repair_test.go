package repair

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/containers/repair"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestRepair damages the files of both kinds of containerd.
func TestRepair(t *testing.T) {
	for name, two := range map[string]bool{"containerd 1": false, "containerd 2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, testenv.Options{Containerd2: two})
			good := n.store.push(t, "good")
			n.Manifest("good", pod("good", good.name, "/"+good.path))
			before := n.Running("good")["good"].Status.ContainerStatuses[0]
			run := func(name string, f func(t *testing.T, n *node)) {
				t.Run(name, func(t *testing.T) {
					n.store.away.Store(false)
					f(t, &node{n.With(t), n.store})
				})
			}
			run("layers, with no network", layers)
			run("a wrong spec", wrongSpec)
			run("blobs, from an archive", fromArchive)
			run("blobs, from the registry", fromRegistry)
			after := n.Running("good")["good"].Status.ContainerStatuses[0]
			if after.ContainerID != before.ContainerID || after.RestartCount != before.RestartCount {
				t.Errorf("container of a good image = %+v, want %+v as before", after, before)
			}
			run("a dead sandbox that cannot be stopped", tornNetwork)
			run("all at once, by a power cut", powerCut)
		})
	}
}

// layers: whatever is wrong with a layer whose blob is sound is put right without a registry, also where the layer is
// another image's, too.
func layers(t *testing.T, n *node) {
	damage := map[string]func(file string) error{
		"empty":  func(file string) error { return os.Truncate(file, 0) },
		"gone":   os.Remove,
		"zeros":  func(file string) error { return zeros(file, 0) },
		"halved": func(file string) error { return os.Truncate(file, 4096) },
		"noexec": func(file string) error { return os.Chmod(file, 0o644) },
		// its folder "fs"
		"layer": func(file string) error { return os.RemoveAll(filepath.Dir(filepath.Dir(filepath.Dir(file)))) },
	}
	var names []string
	pushed := map[string]image{}
	for name := range damage {
		pushed[name] = n.store.push(t, name)
		n.pull(pushed[name].name)
		names = append(names, name)
	}
	n.store.away.Store(true)
	for name, spoil := range damage {
		env.Must(t, spoil(n.unpacked(pushed[name].path)))
	}
	for name := range damage {
		n.Manifest(name, pod(name, pushed[name].name, "/"+pushed[name].path))
	}
	n.Running(names...)
	for name, img := range pushed {
		n.event(repair.EventRepaired, img.name)
		if got := shell(t, n, img); !bytes.Equal(got, img.program) {
			t.Errorf("%s: the program has %d bytes, want those %d of the image", name, len(got), len(img.program))
		}
	}
	n.event(repair.EventDamaged, pushed["empty"].name, "/opt/empty/sh is empty, and should have")
	if text := n.conditions(); strings.Contains(text, "ImageDamaged") {
		t.Errorf("/status = %s, want no ImageDamaged when all is repaired", text)
	}
	n.remove(names...)
}

// shell is the program of an image, as it is in its layer.
func shell(t *testing.T, n *node, img image) []byte {
	t.Helper()
	data, err := os.ReadFile(n.unpacked(img.path))
	env.Must(t, err)
	return data
}

// zeros overwrites all of a file, from an offset on, with zeros.
func zeros(file string, from int64) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, info.Size()-from), from)
	return errors.Join(err, f.Close())
}

// wrongSpec: a command that is not there, one that is no program, and one that fails have nothing repaired: the image
// is compared once, and left as it is.
func wrongSpec(t *testing.T, n *node) {
	img := n.store.push(t, "right")
	n.pull(img.name)
	id := n.id(img.name)
	before, err := os.Stat(n.unpacked(img.path))
	env.Must(t, err)
	n.Manifest("nothing", pod("nothing", img.name, "/opt/right/nothing"))
	n.Manifest("passwd", pod("passwd", img.name, "/etc/passwd"))
	n.Manifest("fails", strings.Replace(pod("fails", img.name, "/"+img.path), "trap", "nonsense; exit 127; trap", 1))
	wait.Until(t, "the pods to be tried again", func() error {
		pods, err := n.Pods(t.Context())
		if err != nil {
			return err
		}
		for _, name := range []string{"nothing", "passwd", "fails"} {
			if p := pods[name]; p == nil || len(p.Status.ContainerStatuses) == 0 ||
				p.Status.ContainerStatuses[0].RestartCount < 2 && !waits(p, "RunContainerError") {
				return fmt.Errorf("pod %s was not tried again: %+v", name, p)
			}
		}
		return nil
	})
	events, err := n.Get(t.Context(), "/events")
	env.Must(t, err)
	for line := range strings.SplitSeq(events, `"kind":"Event"`) {
		if strings.Contains(line, img.name) &&
			(strings.Contains(line, repair.EventDamaged) || strings.Contains(line, repair.EventRepaired)) {
			t.Errorf("event %s, want none of the image for a wrong spec", line)
		}
	}
	after, err := os.Stat(n.unpacked(img.path))
	if err != nil || !os.SameFile(before, after) || n.id(img.name) != id {
		t.Errorf("image %s is %s now, %v, want the same image with the same files", id, n.id(img.name), err)
	}
	record, err := os.ReadFile(filepath.Join(n.Dir, "root", "images.checked"))
	if err != nil || !bytes.Contains(record, []byte(id)) {
		t.Errorf("images found whole = %s, %v, want %s among them", record, err, id)
	}
	n.remove("nothing", "passwd", "fails")
}

func waits(p *v1.Pod, reason string) bool {
	w := p.Status.ContainerStatuses[0].State.Waiting
	return w != nil && w.Reason == reason
}

// spoilBoth leaves neither a layer nor the blob of which it could be made again.
func (n *node) spoilBoth(img image, blob func(file string) error) {
	n.T.Helper()
	env.Must(n.T, errors.Join(os.Truncate(n.unpacked(img.path), 0), blob(n.blob(img.layer))))
}

// fromArchive: an archive in its folder is used before the registry is asked for.
func fromArchive(t *testing.T, n *node) {
	img := n.store.push(t, "saved")
	n.pull(img.name)
	img.archive(t, filepath.Join(repair.ArchiveDir(filepath.Join(n.Dir, "root")), "saved.tar"))
	n.store.away.Store(true)
	n.spoilBoth(img, func(file string) error { return zeros(file, 100) }) // of the right length: only its digest tells
	n.Manifest("saved", pod("saved", img.name, "/"+img.path))
	n.Running("saved")
	n.event(repair.EventRepaired, img.name)
	n.remove("saved")
}

// fromRegistry: with neither an archive nor a way to the registry the image stays and the remedy is reported; with a
// way it comes.
func fromRegistry(t *testing.T, n *node) {
	img := n.store.push(t, "fetched")
	n.pull(img.name)
	n.store.away.Store(true)
	n.spoilBoth(img, os.Remove)
	n.Manifest("fetched", pod("fetched", img.name, "/"+img.path))
	n.event(repair.EventDamaged, img.name, "could not be repaired", "503", "docker save "+img.name, "image-archives")
	if text := n.conditions(); !strings.Contains(text, "ImageDamaged") {
		t.Errorf("/status = %s, want ImageDamaged", text)
	}
	if n.id(img.name) == "" {
		t.Errorf("image %s was removed, want it kept while there is no other", img.name)
	}
	n.store.away.Store(false)
	// Anyone who restarts the agent does not want to wait for the next try.
	env.Must(t, errors.Join(n.Stop(t.Context()), n.Start(t.Context())))
	wait.Until(t, "the layer to be repaired", func() error {
		found, err := filepath.Glob(n.layers(img.path))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("the program is in the layers %v, %v", found, err)
		}
		if data, err := os.ReadFile(found[0]); err != nil || !bytes.Equal(data, img.program) {
			return fmt.Errorf("the program has %d bytes, %v", len(data), err)
		}
		return nil
	})
	n.Running("fetched")
	if text := n.conditions(); strings.Contains(text, "ImageDamaged") {
		t.Errorf("/status = %s, want no ImageDamaged when all is repaired", text)
	}
	n.remove("fetched")
}

// powerCut: the device goes down, and what comes back is damaged in many places: the sandboxes' image, a layer of all
// images, what containers wrote, and the runtime's own files of containers. All pods run again with no network.
func powerCut(t *testing.T, n *node) {
	names := []string{"good"}
	var last image
	for i := range 3 {
		last = n.store.push(t, fmt.Sprintf("cut%d", i))
		names = append(names, fmt.Sprintf("cut%d", i))
		n.Manifest(names[i+1], pod(names[i+1], last.name, "/"+last.path))
	}
	n.Running(names...)
	n.store.away.Store(true)
	env.Must(t, errors.Join(n.Kill9(t.Context()), n.Containerd.PowerOff(t.Context())))
	root := filepath.Join(n.Containerd.Root, "containerd")
	// in the lowest layer
	seeds, err := filepath.Glob(filepath.Join(root, "io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs/data/seed"))
	if err != nil || len(seeds) == 0 {
		t.Fatalf("seeds in the lowest layer = %v, %v, want one or more", seeds, err)
	}
	for _, path := range append([]string{n.unpacked("pause"), n.unpacked(last.path)}, seeds...) {
		env.Must(t, os.Truncate(path, 0))
	}
	written, err := filepath.Glob(filepath.Join(root, "io.containerd.*cri*/containers/*/status"))
	if err != nil || len(written) < len(names) {
		t.Fatalf("%d containers are on the disk, %v, want %d or more", len(written), err, len(names))
	}
	for i, file := range written {
		if i%2 == 0 {
			err = os.Truncate(file, 0)
		} else {
			err = os.RemoveAll(filepath.Dir(file))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	record := filepath.Join(n.Dir, "root", "images.checked")
	// it is the same machine after all
	if err := os.WriteFile(record, []byte(`{"boot":"another"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	env.Must(t, errors.Join(n.Containerd.PowerOn(t.Context()), n.Start(t.Context())))
	n.Running(names...)
	n.event(repair.EventRepaired, images.Pause)
	n.event(repair.EventRepaired, last.name)
	if !slices.ContainsFunc(seeds, func(file string) bool {
		data, err := os.ReadFile(file)
		return err == nil && string(data) == "from the image\n"
	}) {
		t.Errorf("no file of %v has its content, want the lowest layer repaired", seeds)
	}
}

// tornNetwork: what the network's plugins remember of a dead sandbox is torn, and the runtime cannot stop it; the pod
// gets another.
func tornNetwork(t *testing.T, n *node) {
	n.Manifest("torn", pod("torn", images.Demo, "sh"))
	uid := string(n.Running("torn")["torn"].UID)
	box := n.sandbox(uid)
	files, err := filepath.Glob("/var/lib/cni/results/*" + box.id + "*")
	if err != nil || len(files) == 0 {
		t.Fatalf("results of the network's plugins for sandbox %s = %v, %v, want some", box.id, files, err)
	}
	for _, file := range files {
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		env.Must(t, os.Truncate(file, int64(len(whole)/2)))
		t.Cleanup(func() { // whose file it is, is in its content
			if _, err := os.Stat(file); err == nil {
				err = os.WriteFile(file, whole, 0o600)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	env.Must(t, syscall.Kill(box.pid, syscall.SIGKILL))
	wait.Until(t, "the pod to get another sandbox", func() error {
		if now := n.sandbox(uid); now.id == box.id || !now.ready {
			return fmt.Errorf("the newest sandbox is %+v", now)
		}
		return nil
	})
	if n.Containerd.Major == 1 { // the plugins' library in later ones puts up with it
		n.event("FailedKillPod", "The dead sandbox cannot be stopped, and the pod gets another one")
	}
	n.Running("torn")
}
