package differential

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv/crirecord"
)

// addCalls adds the calls on the runtime to a trace: the order of methods, and the request of each sandbox and
// container. hooked has the containers with a preStop hook.
func addCalls(t Trace, calls []crirecord.Call, hooked map[string]bool, names Names) error {
	counts := map[string]int{}
	for i, call := range calls {
		if strings.HasPrefix(call.Method, "Remove") {
			continue // each agent cleans up at times of its own; addLeft compares what is left
		}
		key := strings.TrimSuffix("cri/"+call.Method+"/"+call.Container, "/")
		n := counts[key]
		counts[key]++
		if call.Method == "PullImage" { // how often depends on time
			if err := addRequest(t, key, n, call, hooked, names); err != nil {
				return err
			}
			continue
		}
		// The order of calls about one container; containers may start beside each other.
		order := "cri/order/" + call.Container
		result := call.Method
		if call.Err != nil {
			result += " failed: " + call.Err.Error()
		}
		repeats := func(later crirecord.Call) bool { return again(call, later) }
		if !canceled(call) || !slices.ContainsFunc(calls[i+1:], repeats) {
			t.Add(order, names.Replace(result))
		}
		if err := addRequest(t, key, n, call, hooked, names); err != nil {
			return err
		}
	}
	return nil
}

// hookedContainers returns the containers of a pod that have a preStop hook.
func hookedContainers(pod *v1.Pod) map[string]bool {
	hooked := map[string]bool{}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			hooked[list[i].Name] = list[i].Lifecycle != nil && list[i].Lifecycle.PreStop != nil
		}
	}
	return hooked
}

// canceled reports whether the agent gave up a stop before the runtime answered: it has learned of a shorter grace
// period, or the runtime took longer than the grace period. If it stops the container again, the result of that counts.
func canceled(call crirecord.Call) bool {
	return call.Method == "StopContainer" && status.Code(call.Err) == codes.Canceled
}

// again reports whether a later call stops the same container.
func again(call, later crirecord.Call) bool {
	first, ok := call.Request.(*runtimeapi.StopContainerRequest)
	second, stops := later.Request.(*runtimeapi.StopContainerRequest)
	return ok && stops && first.GetContainerId() == second.GetContainerId()
}

// addRequest adds the first request of a method about a container; later attempts differ by their number.
func addRequest(
	t Trace, key string, earlier int, call crirecord.Call, hooked map[string]bool, names Names,
) error {
	if earlier > 0 || call.Request == nil {
		return nil
	}
	data, err := protojson.Marshal(call.Request)
	if err != nil {
		return err
	}
	values, err := Flatten(key, rawJSON(data))
	if err != nil {
		return err
	}
	for path, value := range values {
		if strings.Contains(path, ".envs[") && strings.HasSuffix(path, ".value") { // bytes, in JSON
			if text, err := base64.StdEncoding.DecodeString(value); err == nil {
				value = string(text)
			}
		}
		if path == key+".timeout" && hooked[call.Container] {
			value += afterHook
		}
		t.Add(names.Replace(path), names.Replace(value))
	}
	return nil
}

// rawJSON is JSON that is in its final form.
type rawJSON []byte

func (r rawJSON) MarshalJSON() ([]byte, error) { return r, nil }

// addLogs adds the names and contents of a pod's log files to a trace.
func (s *Side) addLogs(t Trace, pod *v1.Pod, names Names) error {
	root := filepath.Join(s.Logs, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var content strings.Builder
		for line := range strings.Lines(string(data)) {
			_, text, _ := strings.Cut(line, " ") // without the time
			fmt.Fprintln(&content, strings.TrimRight(text, "\n"))
		}
		t.Add("logs"+names.Replace(strings.TrimPrefix(path, root)), names.Replace(content.String()))
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// leftovers names what a node still has of a pod outside its runtime: folder, mounts and cgroups.
func (s *Side) leftovers(uid string) ([]string, error) {
	var left []string
	if _, err := os.Lstat(filepath.Join(s.Root, "pods", uid)); err == nil {
		left = append(left, "folder")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	if strings.Contains(string(mounts), s.Root+"/pods/"+uid) {
		left = append(left, "mount")
	}
	groups, err := s.Containerd.PodCgroups()
	if err != nil {
		return nil, err
	}
	for _, group := range groups {
		if strings.Contains(group, uid) {
			left = append(left, "cgroup")
			break
		}
	}
	return left, nil
}

// remains is what a runtime has, or had, of a pod.
type remains struct {
	containers []*runtimeapi.Container
	sandboxes  []*runtimeapi.PodSandbox
	// namespaces are the files of the network namespaces of sandboxes, those of sandboxes that are gone too.
	namespaces map[string]bool
}

// left names what may not stay of a pod that is gone. Containers and sandboxes that have ended may: each agent removes
// them at times of its own.
func (r remains) left(mountinfo string) []string {
	var left []string
	if slices.ContainsFunc(r.containers, func(c *runtimeapi.Container) bool {
		return c.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED
	}) {
		left = append(left, "container")
	}
	if slices.ContainsFunc(r.sandboxes, func(s *runtimeapi.PodSandbox) bool {
		return s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
	}) {
		left = append(left, "sandbox")
	}
	for line := range strings.Lines(mountinfo) {
		if fields := strings.Fields(line); len(fields) > 4 && r.namespaces[fields[4]] {
			return append(left, "network namespace")
		}
	}
	return left
}

// look asks the runtime what it has of a pod, and remembers the network namespaces.
func (r *remains) look(ctx context.Context, runtime *cri.Client, uid string) error {
	labels := map[string]string{"io.kubernetes.pod.uid": uid}
	containers, err := runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: labels},
	})
	if err != nil {
		return err
	}
	sandboxes, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: labels},
	})
	if err != nil {
		return err
	}
	r.containers, r.sandboxes = containers.GetContainers(), sandboxes.GetItems()
	for _, sandbox := range r.sandboxes {
		got, err := runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox.GetId(),
			Verbose: true})
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return err
		}
		file, err := networkNamespace(got.GetInfo()["info"])
		if err != nil {
			return fmt.Errorf("sandbox %s: %w", sandbox.GetId(), err)
		}
		if file == "" {
			continue
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(file)) // as mountinfo has it
		if err != nil {
			return err
		}
		r.namespaces[filepath.Join(dir, filepath.Base(file))] = true
	}
	return nil
}

// networkNamespace returns the file of a sandbox's network namespace from what containerd says of the sandbox; empty
// for the host's.
func networkNamespace(verbose string) (string, error) {
	var info struct {
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		}
	}
	if err := json.Unmarshal([]byte(verbose), &info); err != nil {
		return "", err
	}
	for _, n := range info.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" {
			return n.Path, nil
		}
	}
	return "", nil
}
