package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/runtime/fakecri"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// endPods runs the command on a runtime that has two pods, one with a folder of the agent's.
func endPods(t *testing.T, prepare func(*fakecri.Runtime), roots ...string) (out, left string, err error) {
	t.Helper()
	fake, client := fakecri.Start(t)
	dir := t.TempDir()
	for _, uid := range []string{"mine", "theirs"} {
		labels := map[string]string{
			"io.kubernetes.pod.name": uid, "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": uid,
		}
		box := &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: uid, Namespace: "default", Uid: uid}, Labels: labels,
		}
		made, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: box})
		if err != nil {
			t.Fatal(err)
		}
		labels["io.kubernetes.container.name"] = "main"
		c, err := client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId: made.PodSandboxId, SandboxConfig: box,
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "x"},
				Labels: labels,
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{
			ContainerId: c.ContainerId,
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "root/pods/mine"), 0o755); err != nil {
		t.Fatal(err)
	}
	prepare(fake)
	root := append(roots, "root")[0] // what the configuration says
	config := filepath.Join(dir, "edgecore.yaml")
	text := "apiVersion: " + v1alpha2.APIVersion + "\nkind: EdgeCore\ndatabase: {dataSource: " + dir +
		"/edgecore.db}\nmodules:\n  edged:\n    rootDirectory: " + dir + "/" + root +
		"\n    tailoredKubeletConfig: {cgroupRoot: /not-made, podLogsDir: " + dir +
		"/logs, containerRuntimeEndpoint: \"" + fake.Endpoint() + "\"}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &endPodsOptions{
		globalOptions: &globalOptions{Config: config},
		within:        time.Minute,
		leftOvers:     filepath.Join(dir, "left"),
		links:         filepath.Join(dir, "links"),
	}
	var buffer bytes.Buffer
	err = o.run(t.Context(), &buffer, io.Discard)
	data, readErr := os.ReadFile(o.leftOvers)
	if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
		t.Fatalf("ReadFile(%s) = %v, want no error or no such file", o.leftOvers, readErr)
	}
	return buffer.String(), strings.ReplaceAll(string(data), dir, ""), err
}

func TestEndPods(t *testing.T) {
	var fake *fakecri.Runtime
	out, left, err := endPods(t, func(f *fakecri.Runtime) { fake = f })
	if err != nil ||
		!strings.HasPrefix(out, "Ended 1 of 1 pods\nLeft alone pod default/theirs, which has no folder in ") {
		t.Errorf("end-pods = %v, %q; want mine of 1 pods ended and default/theirs left alone", err, out)
	}
	if removed := fake.Calls("RemovePodSandbox", "RemoveContainer", "StopContainer"); len(removed) != 3 {
		t.Errorf("calls %v, want 3: stop and remove the container, remove the sandbox", removed)
	}
	if !strings.HasPrefix(left, "/root/pods/mine\n") || !strings.Contains(left, "\n/root/\n") {
		t.Errorf("left over = %q, want the folder of the pod and the root folder", left)
	}
}

// TestEndPodsFails: what may be in use is not named for deletion.
func TestEndPodsFails(t *testing.T) {
	_, left, err := endPods(t, func(f *fakecri.Runtime) {
		f.Fail("RemovePodSandbox", 9, status.Error(codes.Internal, "device or resource busy"))
	})
	if err == nil || !strings.Contains(err.Error(), "end pod default/mine: remove sandbox") || left != "" {
		t.Errorf("end-pods = %v, left over %q; want the error of removing the sandbox and nothing left over", err,
			left)
	}
	// Once is made good by the second attempt.
	out, left, err := endPods(t, func(f *fakecri.Runtime) {
		f.Fail("StopContainer", 1, status.Error(codes.Internal, "busy"))
	})
	if err != nil || left == "" || !strings.HasPrefix(out, "Ended 1 of 1") {
		t.Errorf("end-pods = %v, %q, left over %q; want 1 of 1 ended and its folders", err, out, left)
	}
	if _, left, err = endPods(t, func(f *fakecri.Runtime) {
		f.Fail("ListPodSandbox", 9, status.Error(codes.Unavailable, "down"))
	}); err == nil || !strings.Contains(err.Error(), "does not list its pods") || left != "" {
		t.Errorf("end-pods = %v, left over %q; want that the runtime does not list its pods and nothing left over",
			err, left)
	}
}

// TestEndNoPods: a device that has had none needs no runtime.
func TestEndNoPods(t *testing.T) {
	out, left, err := endPods(t, func(f *fakecri.Runtime) {
		f.Fail("ListPodSandbox", 9, status.Error(codes.Unavailable, "down"))
	}, "other")
	if err != nil || out != "This agent has no pods\n" || left == "" {
		t.Errorf("end-pods = %v, %q, left over %q; want no pods and folders left over", err, out, left)
	}
}
