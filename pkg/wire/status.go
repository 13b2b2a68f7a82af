package wire

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// StatusPending in Held.Status says that the node has a newer status of the pod and will send it: the cloud need not
// request it.
const StatusPending = "pending"

// podStatus is the part of a v1.PodStatus that a node reports and that users and controllers act on. Times of
// conditions, addresses of the node and resources are left out: the API server, other writers or older versions may
// write them in another way. A field that is added here changes every hash: nodes then report each status once more.
type podStatus struct {
	Phase      string         `json:"phase,omitempty"`
	Reason     string         `json:"reason,omitempty"`
	Message    string         `json:"message,omitempty"`
	PodIPs     []podIP        `json:"podIPs,omitempty"`
	Conditions []podCondition `json:"conditions,omitempty"`
	Init       []podContainer `json:"initContainerStatuses,omitempty"`
	Containers []podContainer `json:"containerStatuses,omitempty"`
	Ephemeral  []podContainer `json:"ephemeralContainerStatuses,omitempty"`
}

type podIP struct {
	IP string `json:"ip"`
}

type podCondition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

type podContainer struct {
	Name         string         `json:"name"`
	State        containerState `json:"state"`
	LastState    containerState `json:"lastState"`
	Ready        bool           `json:"ready,omitempty"`
	Started      bool           `json:"started,omitempty"`
	RestartCount int32          `json:"restartCount,omitempty"`
	ImageID      string         `json:"imageID,omitempty"`
	ContainerID  string         `json:"containerID,omitempty"`
}

type containerState struct {
	Waiting *struct {
		Reason  string `json:"reason,omitempty"`
		Message string `json:"message,omitempty"`
	} `json:"waiting,omitempty"`
	Running *struct {
		StartedAt string `json:"startedAt,omitempty"`
	} `json:"running,omitempty"`
	Terminated *struct {
		ExitCode   int32  `json:"exitCode,omitempty"`
		Signal     int32  `json:"signal,omitempty"`
		Reason     string `json:"reason,omitempty"`
		Message    string `json:"message,omitempty"`
		FinishedAt string `json:"finishedAt,omitempty"`
	} `json:"terminated,omitempty"`
}

// nodeConditions are the conditions of a pod that its node writes. The scheduler, the node lifecycle controller
// (DisruptionTarget) and the owners of readiness gates write the others.
var nodeConditions = [...]string{"PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"}

// StatusHash returns a short hash of a pod's status, from an object in JSON that has it in its field "status": a
// v1.Pod, or the patch with which a node reports it. Two statuses with the same hash say the same about the pod and its
// containers.
func StatusHash(object []byte) (string, error) {
	var o struct {
		Status *podStatus `json:"status"`
	}
	if err := json.Unmarshal(object, &o); err != nil {
		return "", fmt.Errorf("hash of a pod's status: %w", err)
	}
	if o.Status == nil {
		return "", fmt.Errorf("hash of a pod's status: the object has no status")
	}
	s := *o.Status
	// The directives of a patch ("$patch") are entries without a value.
	s.PodIPs = slices.DeleteFunc(s.PodIPs, func(ip podIP) bool { return ip.IP == "" })
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c podCondition) bool {
		return c.Status == "" || !slices.Contains(nodeConditions[:], c.Type)
	})
	smallsort.SortStableFunc(s.Conditions, func(a, b podCondition) int {
		return slices.Index(nodeConditions[:], a.Type) - slices.Index(nodeConditions[:], b.Type)
	})
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("hash of a pod's status: %w", err)
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:9]), nil
}
