// Package localpods finds a pod and its container on this device by the names that a user gives, as kubectl does: from
// the agent's list, from the folder of the pods' logs, or from the containers that run.
//
// It owns the choice and its errors. A name that fits several pods or containers is never guessed; the error names
// those that there are. The choice is made on a list, without side effects.
package localpods

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Pod is a pod of this device.
type Pod struct {
	Namespace, Name, UID string
	// Containers are the names of those that can be chosen.
	Containers []string
}

// Query is what the user asks for.
type Query struct {
	Pod string
	// Namespace is needed only if several pods have the name, Container only if the pod has several.
	Namespace, Container string
}

// choose returns the pod and the container that a query asks for.
func (q Query) choose(pods []Pod) (Pod, string, error) {
	pod, err := q.choosePod(pods)
	if err != nil {
		return Pod{}, "", err
	}
	container, err := q.chooseContainer(pod)
	return pod, container, err
}

func (q Query) choosePod(pods []Pod) (Pod, error) {
	var found []Pod
	var names []string
	for _, p := range pods {
		if q.Namespace != "" && p.Namespace != q.Namespace {
			continue
		}
		names = append(names, p.Name)
		if p.Name == q.Pod {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		slices.Sort(names)
		return Pod{}, fmt.Errorf("pod %q not found; there are: %s", q.Pod, strings.Join(slices.Compact(names), ", "))
	}
	var where []string
	for _, p := range found {
		where = append(where, p.Namespace)
	}
	return Pod{}, fmt.Errorf("pod %q is in several namespaces (%s); choose one with -n", q.Pod,
		strings.Join(where, ", "))
}

// chooseContainer returns the named container, or the only one; where there are several it has to be named.
func (q Query) chooseContainer(p Pod) (string, error) {
	switch {
	case q.Container == "" && len(p.Containers) == 1:
		return p.Containers[0], nil
	case q.Container == "":
		return "", fmt.Errorf("pod %q has several containers (%s); choose one with -c", p.Name,
			strings.Join(p.Containers, ", "))
	case !slices.Contains(p.Containers, q.Container):
		return "", fmt.Errorf("container %q is not in pod %q; it has: %s", q.Container, p.Name,
			strings.Join(p.Containers, ", "))
	}
	return q.Container, nil
}

// Agent is the agent of this device; see package agentclient.
type Agent interface {
	Pods(ctx context.Context) (*v1.PodList, error)
}

// LogDir returns the folder with the logs of the container that a query asks for, below root. It takes the pods from
// the agent, or from the names of the folders below root if the agent does not answer.
func LogDir(ctx context.Context, agent Agent, root string, q Query) (string, error) {
	var pods []Pod
	list, err := agent.Pods(ctx)
	if err == nil {
		pods = ofList(list)
	} else {
		klog.V(2).InfoS("The agent does not answer; looking at the log folder alone", "err", err)
		if pods, err = ofLogs(root); err != nil {
			return "", err
		}
	}
	pod, container, err := q.choose(pods)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, pod.Namespace+"_"+pod.Name+"_"+pod.UID, container), nil
}

// ofList returns the pods of a list of the API.
func ofList(list *v1.PodList) []Pod {
	pods := make([]Pod, 0, len(list.Items))
	for i := range list.Items {
		p := &list.Items[i]
		pod := Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}
		for j := range p.Spec.Containers {
			pod.Containers = append(pod.Containers, p.Spec.Containers[j].Name)
		}
		for j := range p.Spec.InitContainers {
			pod.Containers = append(pod.Containers, p.Spec.InitContainers[j].Name)
		}
		pods = append(pods, pod)
	}
	return pods
}

// ofLogs reads the pods from the names of their log folders.
func ofLogs(root string) ([]Pod, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("the agent does not answer, and its log folder cannot be read: %w", err)
	}
	var pods []Pod
	for _, e := range entries {
		parts := strings.Split(e.Name(), "_")
		if len(parts) != 3 || !e.IsDir() {
			continue
		}
		p := Pod{Namespace: parts[0], Name: parts[1], UID: parts[2]}
		containers, err := os.ReadDir(filepath.Join(root, e.Name()))
		if err != nil {
			continue // it has just been removed
		}
		for _, c := range containers {
			if c.IsDir() {
				p.Containers = append(p.Containers, c.Name())
			}
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// RunningContainer returns the id of the container that a query asks for, of those that run. Containers that are not a
// pod's are left out.
func RunningContainer(running []*runtimeapi.Container, q Query) (string, error) {
	byUID := map[string]*Pod{}
	ids := map[[2]string]string{}
	for _, c := range running {
		uid := c.Labels[kubelettypes.KubernetesPodUIDLabel]
		name := c.Labels[kubelettypes.KubernetesContainerNameLabel]
		if uid == "" {
			continue
		}
		if byUID[uid] == nil {
			byUID[uid] = &Pod{
				Namespace: c.Labels[kubelettypes.KubernetesPodNamespaceLabel],
				Name:      c.Labels[kubelettypes.KubernetesPodNameLabel],
				UID:       uid,
			}
		}
		byUID[uid].Containers = append(byUID[uid].Containers, name)
		ids[[2]string{uid, name}] = c.Id
	}
	pods := make([]Pod, 0, len(byUID))
	for _, p := range byUID {
		slices.Sort(p.Containers)
		pods = append(pods, *p)
	}
	smallsort.SortFunc(pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.UID, b.UID))
	})
	pod, err := q.choosePod(pods)
	if err != nil {
		return "", fmt.Errorf("among the pods that run: %w", err)
	}
	container, err := q.chooseContainer(pod)
	if err != nil {
		return "", fmt.Errorf("among the containers that run: %w", err)
	}
	return ids[[2]string{pod.UID, container}], nil
}
