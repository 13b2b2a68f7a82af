package runtime

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/dump"
)

// Labels and annotations by which the kubelet, crictl and log collectors know pods and containers
// (k8s.io/kubelet and cri-tools document them).
const (
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"

	annotationHash                     = "io.kubernetes.container.hash"
	annotationRestartCount             = "io.kubernetes.container.restartCount"
	annotationTerminationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	annotationTerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	annotationPreStop                  = "io.kubernetes.container.preStopHandler"
	annotationPorts                    = "io.kubernetes.container.ports"
	annotationPodTerminationGrace      = "io.kubernetes.pod.terminationGracePeriod"
	annotationPodDeletionGrace         = "io.kubernetes.pod.deletionGracePeriod"
)

// Hash is the kubelet's hash of what makes a container another container: its name and image. A
// running container with another hash is restarted.
func Hash(c *v1.Container) uint64 {
	picked, err := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	if err != nil {
		return 0 // two strings always marshal
	}
	h := fnv.New32a()
	fmt.Fprint(h, dump.ForHash(picked))
	return uint64(h.Sum32())
}

func podLabels(pod *v1.Pod) map[string]string {
	labels := maps.Clone(pod.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[labelPodName], labels[labelPodNamespace], labels[labelPodUID] = pod.Name, pod.Namespace, string(pod.UID)
	return labels
}

func containerLabels(pod *v1.Pod, c *v1.Container) map[string]string {
	return map[string]string{
		labelPodName: pod.Name, labelPodNamespace: pod.Namespace, labelPodUID: string(pod.UID),
		labelContainerName: c.Name,
	}
}

func containerAnnotations(pod *v1.Pod, c *v1.Container, restartCount int32) map[string]string {
	a := map[string]string{
		annotationHash:                     strconv.FormatUint(Hash(c), 16),
		annotationRestartCount:             strconv.Itoa(int(restartCount)),
		annotationTerminationMessagePath:   c.TerminationMessagePath,
		annotationTerminationMessagePolicy: string(c.TerminationMessagePolicy),
	}
	if g := pod.DeletionGracePeriodSeconds; g != nil {
		a[annotationPodDeletionGrace] = strconv.FormatInt(*g, 10)
	}
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		a[annotationPodTerminationGrace] = strconv.FormatInt(*g, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if text, err := json.Marshal(c.Lifecycle.PreStop); err == nil {
			a[annotationPreStop] = string(text)
		}
	}
	if len(c.Ports) > 0 {
		if text, err := json.Marshal(c.Ports); err == nil {
			a[annotationPorts] = string(text)
		}
	}
	return a
}

// owner is what the labels say an object of the runtime belongs to.
type owner struct {
	uid             types.UID
	namespace, name string
	container       string
}

// parseOwner reads labels; ok is false for objects that no node agent made.
func parseOwner(labels map[string]string) (o owner, ok bool) {
	o = owner{
		uid:       types.UID(labels[labelPodUID]),
		namespace: labels[labelPodNamespace],
		name:      labels[labelPodName],
		container: labels[labelContainerName],
	}
	return o, o.uid != "" && o.name != "" && o.namespace != ""
}

// notes is what the annotations of a container say; what does not parse is as if it were missing.
type notes struct {
	hash            uint64
	restartCount    int32
	messagePath     string
	messageFromLogs bool
	grace           *int64
}

func parseNotes(a map[string]string) notes {
	n := notes{messagePath: a[annotationTerminationMessagePath]}
	n.hash, _ = strconv.ParseUint(a[annotationHash], 16, 64)
	if count, err := strconv.ParseInt(a[annotationRestartCount], 10, 32); err == nil && count > 0 {
		n.restartCount = int32(count)
	}
	n.messageFromLogs = a[annotationTerminationMessagePolicy] == string(v1.TerminationMessageFallbackToLogsOnError)
	for _, key := range []string{annotationPodDeletionGrace, annotationPodTerminationGrace} {
		if g, err := strconv.ParseInt(a[key], 10, 64); err == nil && g >= 0 {
			n.grace = &g
			break
		}
	}
	return n
}
