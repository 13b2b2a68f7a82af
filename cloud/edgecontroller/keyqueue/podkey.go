package keyqueue

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodKey returns the key of one pod: a new pod of the same name has another one.
func PodKey(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name + "/" + string(pod.UID) }

// SplitPodKey returns the parts of a PodKey.
func SplitPodKey(key string) (namespace, name string, uid types.UID, err error) {
	parts := strings.Split(key, "/")
	if len(parts) != 3 {
		return "", "", "", fmt.Errorf("key %q is not NAMESPACE/NAME/UID", key)
	}
	return parts[0], parts[1], types.UID(parts[2]), nil
}
