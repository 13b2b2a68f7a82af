package caches

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/evictions"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/podfacts"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Of a large pod of an edge node, the cache has a trimmed copy: what cloudcore decides from, and no more. The rest is
// read from the API server when the node must be sent the pod. So tenants cannot fill the memory with large pods.
//
// A trimmed pod is a v1.Pod whose references are those of the whole one, and whose spec and metadata differ from those
// of another version if they do in the whole one. What was computed from the whole pod is in annotations whose names
// the API server accepts from nobody, so that no other pod has them.

const (
	// TrimBytes is the size above which a pod is trimmed. Ordinary pods have 3 to 15 KB in JSON, 30 KB in memory.
	TrimBytes = 64 << 10
	// MaxReferences limits the ConfigMaps and Secrets of a trimmed pod. Of one that names more, none is known.
	MaxReferences = 256
	// TrimmedMost limits its tolerations, readiness gates and annotations.
	TrimmedMost = 64
)

// The annotations of trimmed pods.
const (
	trimmedContent = "trimmed: hash of the content"
	trimmedSize    = "trimmed: size of the content"
	trimmedUnknown = "trimmed: references unknown" // set if there are more than MaxReferences
)

// IsTrimmed reports whether a pod is a trimmed one.
func IsTrimmed(pod *v1.Pod) bool { return pod.Annotations[trimmedContent] != "" }

// SizeOf returns the ContentSize of a cached pod.
func SizeOf(pod *v1.Pod) int {
	if !IsTrimmed(pod) {
		return ContentSize(pod)
	}
	n, err := strconv.Atoi(pod.Annotations[trimmedSize])
	if err != nil { // trim writes a number
		return TrimBytes
	}
	return n
}

// LacksReferences reports whether it is unknown which ConfigMaps and Secrets a pod names.
func LacksReferences(pod *v1.Pod) bool { return pod.Annotations[trimmedUnknown] != "" }

// TrimIfLarge returns the pod, or a trimmed copy of a large one.
func TrimIfLarge(pod *v1.Pod) *v1.Pod {
	if IsTrimmed(pod) || isPlain(pod) {
		return pod
	}
	if size := ContentSize(pod); size+statusSize(pod) > TrimBytes {
		return trim(pod, size)
	}
	return pod
}

func trim(pod *v1.Pod, size int) *v1.Pod {
	out := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:                  pod.Namespace,
			Name:                       pod.Name,
			UID:                        pod.UID,
			ResourceVersion:            pod.ResourceVersion,
			CreationTimestamp:          pod.CreationTimestamp,
			DeletionTimestamp:          pod.DeletionTimestamp,
			DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			Annotations: map[string]string{
				trimmedContent: contentHash(pod),
				trimmedSize:    strconv.Itoa(size),
			},
		},
		Spec: v1.PodSpec{
			NodeName:           pod.Spec.NodeName,
			ServiceAccountName: pod.Spec.ServiceAccountName,
			EnableServiceLinks: pod.Spec.EnableServiceLinks,
		},
		Status: v1.PodStatus{Phase: pod.Status.Phase, StartTime: pod.Status.StartTime},
	}
	if evictions.KeepsEvictions(pod.Annotations) {
		out.Annotations[marks.KeepEvictions] = "true"
	}
	if hash, is := pod.Annotations[v1.MirrorPodAnnotationKey]; is {
		out.Annotations[v1.MirrorPodAnnotationKey] = strings.Clone(hash[:min(len(hash), TrimmedMost)])
	}
	trimReferences(out, pod)
	trimTolerations(out, pod)
	trimConditions(out, pod)
	keepStatusHashes(out, pod)
	return out
}

// trimReferences gives a trimmed pod the references of the whole one.
func trimReferences(out, pod *v1.Pod) {
	if podfacts.HasClaims([]*v1.Pod{pod}) {
		out.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
	}
	keys := podfacts.References(pod)
	if len(keys) > MaxReferences {
		out.Annotations[trimmedUnknown] = strconv.Itoa(len(keys))
		return
	}
	var maps []v1.VolumeProjection
	for _, key := range keys {
		ref := v1.LocalObjectReference{Name: key.Name}
		if key.Type == resource.TypeSecret {
			out.Spec.ImagePullSecrets = append(out.Spec.ImagePullSecrets, ref)
		} else {
			maps = append(maps, v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: ref}})
		}
	}
	if len(maps) > 0 {
		out.Spec.Volumes = append(out.Spec.Volumes, v1.Volume{
			VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: maps}},
		})
	}
}

// trimTolerations keeps the tolerations that evictions.Desired looks at. Package nodes reads the whole pod before it
// changes any.
func trimTolerations(out, pod *v1.Pod) {
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		for _, key := range evictions.UnlimitedTaints() {
			taint := v1.Taint{Key: key, Effect: v1.TaintEffectNoExecute}
			if evictions.Tolerates(t, &taint) && len(out.Spec.Tolerations) < TrimmedMost {
				out.Spec.Tolerations = append(out.Spec.Tolerations, v1.Toleration{
					Key: t.Key, Operator: t.Operator, Effect: t.Effect, TolerationSeconds: t.TolerationSeconds,
				})
				break
			}
		}
	}
}

// trimConditions keeps the readiness gates, and the conditions that podfacts.ReadyAgain and evictions.PatchDelay look
// at. With very many gates it keeps none of both: such a pod does not become Ready again before its node reports that.
func trimConditions(out, pod *v1.Pod) {
	if len(pod.Spec.ReadinessGates) > TrimmedMost {
		return
	}
	kept := map[v1.PodConditionType]bool{v1.PodReady: true, v1.ContainersReady: true, v1.PodScheduled: true}
	for _, g := range pod.Spec.ReadinessGates {
		kept[g.ConditionType] = true
		out.Spec.ReadinessGates = append(out.Spec.ReadinessGates, g)
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; kept[c.Type] {
			delete(kept, c.Type)
			out.Status.Conditions = append(out.Status.Conditions, v1.PodCondition{
				Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			})
		}
	}
}

// contentHash returns a hash of what samePod compares.
func contentHash(pod *v1.Pod) string {
	whole := v1.Pod{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
	whole.ResourceVersion, whole.Generation, whole.ManagedFields = "", 0, nil
	for _, g := range pod.Spec.ReadinessGates[:min(len(pod.Spec.ReadinessGates), TrimmedMost)] {
		for _, c := range pod.Status.Conditions {
			if c.Type == g.ConditionType {
				whole.Status.Conditions = append(whole.Status.Conditions, v1.PodCondition{
					Type: c.Type, Status: c.Status,
				})
				break
			}
		}
	}
	data, err := whole.Marshal()
	if err != nil { // it was decoded
		klog.ErrorS(err, "Pod not compared with its next version; it is sent again", "pod", klog.KObj(pod))
		return pod.ResourceVersion
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

// keepStatusHashes keeps the hashes that sameStatus compares, in fields of the status that nothing else reads.
func keepStatusHashes(out, pod *v1.Pod) {
	hash, ready, err := StatusHashes(pod)
	if err != nil {
		klog.ErrorS(err, "Status of a pod not compared with its node's", "pod", klog.KObj(pod))
		return
	}
	out.Status.Message, out.Status.Reason = hash, ready
}

// ErrTrimmed prevents that a trimmed pod is taken for a whole one.
var ErrTrimmed = errors.New("the pod is trimmed")

// asReady returns a pod's status as if the condition Ready were True.
func asReady(status v1.PodStatus) *v1.PodStatus {
	status.Conditions = append([]v1.PodCondition(nil), status.Conditions...)
	for i := range status.Conditions {
		if c := &status.Conditions[i]; c.Type == v1.PodReady {
			c.Status = v1.ConditionTrue
		}
	}
	return &status
}

// StatusHashes returns the hash of a pod's status, and the one that it would have if readiness made the pod Ready
// again; the same if it would not.
func StatusHashes(pod *v1.Pod) (hash, ready string, err error) {
	if IsTrimmed(pod) {
		if hash = pod.Status.Message; hash == "" {
			err = ErrTrimmed
		}
		return hash, pod.Status.Reason, err
	}
	if hash, err = StatusHash(&pod.Status); err != nil || !podfacts.ReadyAgain(pod) {
		return hash, hash, err
	}
	ready, err = StatusHash(asReady(pod.Status))
	return hash, ready, err
}

// StatusHash returns the wire.StatusHash of a status.
func StatusHash(status *v1.PodStatus) (string, error) {
	text, err := json.Marshal(struct {
		Status *v1.PodStatus `json:"status"`
	}{status})
	if err != nil {
		return "", err
	}
	return wire.StatusHash(text)
}
