package adopt

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate/metaclient"
	"github.com/edgecore-io/edgecore/edged/podstate/mirror"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Row is one of the table meta, which both agents have.
type Row struct {
	Key, Type string
	Value     []byte
}

// Stored is what of the other agent's store is taken over.
type Stored struct {
	// Rows are those of this agent's store.
	Rows []Row
	// Pods are the pods for this node, with their last known status; without the mirrors of static pods.
	Pods []*v1.Pod
	// Notes say what was left out.
	Notes []Note
}

// Rows translates the rows of the table meta, in any order. It is pure.
//
// Objects stay as they are, byte for byte: they are the cluster's. Of the status that was reported last KubeEdge keeps
// only what had changed, so that it is laid over the status in the pod's own row, which is what the cloud knew; a pod
// that had ended has ended. Rows of modules that do not exist here (devices, rules), and rows that hold an error
// instead of an object, are left out.
func Rows(rows []Row, node string) *Stored {
	r := &reading{
		node:    node,
		out:     &Stored{},
		pods:    map[string]*v1.Pod{},
		patches: map[string][]byte{},
		other:   map[string]int{},
	}
	rows = slices.Clone(rows)
	smallsort.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Key, b.Key) })
	for _, row := range rows {
		if err := r.row(row); err != nil {
			r.addNote(row.Key, "left out: "+err.Error())
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.pods)) {
		r.pod(key)
	}
	for _, typ := range slices.Sorted(maps.Keys(r.other)) {
		r.addNote("", fmt.Sprintf("%d of the type %q: left out, since this version has no use for them", r.other[typ],
			typ))
	}
	return r.out
}

type reading struct {
	node    string
	out     *Stored
	pods    map[string]*v1.Pod
	patches map[string][]byte
	other   map[string]int
}

func (r *reading) addNote(key, text string) { r.out.Notes = append(r.out.Notes, Note{key, text}) }

func (r *reading) addRow(row Row) { r.out.Rows = append(r.out.Rows, row) }

func (r *reading) row(row Row) error {
	switch row.Type {
	case resource.TypeServiceAccountToken: // its key is made of what was asked for
		var token struct {
			Spec *json.RawMessage `json:"spec"`
		}
		if err := json.Unmarshal(row.Value, &token); err != nil || token.Spec == nil {
			return fmt.Errorf("it is not a token")
		}
		r.addRow(row)
		return nil
	case resource.TypePod, resource.TypePodPatch, resource.TypeConfigMap, resource.TypeSecret, resource.TypeService,
		resource.TypeNode,
		resource.TypePersistentVolume, resource.TypePersistentVolumeClaim, resource.TypeVolumeAttachment:
	case resource.TypePodStatus, resource.TypeNodeStatus, resource.TypeNodePatch, resource.TypeLease:
		return nil // reports, which are made again
	default:
		r.other[row.Type]++
		return nil
	}
	key, err := resource.Parse(row.Key)
	if err != nil {
		return err
	}
	if key.Type != row.Type || key.Name == "" {
		return fmt.Errorf("its key is not that of a %s", row.Type)
	}
	if row.Type == resource.TypePodPatch {
		r.patches[resource.Key{Namespace: key.Namespace, Type: resource.TypePod, Name: key.Name}.String()] = row.Value
		return nil
	}
	return r.object(key, row)
}

// object takes over a row that holds an object.
func (r *reading) object(key resource.Key, row Row) error {
	var obj struct {
		Metadata struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
			UID       string `json:"uid"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(row.Value, &obj); err != nil {
		return fmt.Errorf("it is not an object: %w", err)
	}
	switch {
	case obj.Metadata.Name != key.Name:
		return fmt.Errorf("it holds something other than a %s of that name, perhaps the error that came instead",
			key.Type)
	case obj.Metadata.UID == "":
		return fmt.Errorf("the object has no UID")
	case obj.Metadata.Namespace != "" && obj.Metadata.Namespace != key.Namespace && key.Type != resource.TypeNode:
		return fmt.Errorf("the object is of the namespace %q", obj.Metadata.Namespace)
	}
	switch key.Type {
	case resource.TypeNode: // nodes have no namespace; older versions gave this one the namespace of its registration
		key.Namespace = resource.NullNamespace
		row.Key = key.String()
	case resource.TypePod:
		pod, err := metaclient.DecodePod(row.Value)
		if err != nil {
			return err
		}
		if pod.Spec.NodeName != "" && pod.Spec.NodeName != r.node {
			return fmt.Errorf("the pod is for the node %s", pod.Spec.NodeName)
		}
		r.pods[row.Key] = pod
	}
	r.addRow(row)
	return nil
}

// pod takes over a pod's status, and hands the pod on.
func (r *reading) pod(key string) {
	pod := r.pods[key]
	if text := r.patches[key]; len(text) > 0 {
		uid, changed, err := metaclient.ReadPatch(text)
		switch {
		case err != nil:
			r.addNote(strings.Replace(key, "/pod/", "/podpatch/", 1),
				"left out: "+err.Error()+"; the status is generated again")
		case uid == pod.UID || uid == "":
			layOver(&pod.Status, changed)
		}
	}
	if pod.Status.Phase != "" {
		text, err := metaclient.WritePatch(pod.UID, pod.Status)
		if err == nil {
			r.addRow(Row{Key: strings.Replace(key, "/pod/", "/podpatch/", 1), Type: resource.TypePodPatch, Value: text})
		}
	}
	if !mirror.Is(pod) {
		r.out.Pods = append(r.out.Pods, pod)
	}
}

// layOver brings a status up to date by what has changed since; lists of containers come whole, conditions by their
// type.
func layOver(s *v1.PodStatus, changed v1.PodStatus) {
	s.Phase, s.Reason, s.Message = cmp.Or(changed.Phase, s.Phase), cmp.Or(changed.Reason, s.Reason),
		cmp.Or(changed.Message, s.Message)
	s.PodIP, s.HostIP, s.QOSClass = cmp.Or(changed.PodIP, s.PodIP), cmp.Or(changed.HostIP, s.HostIP),
		cmp.Or(changed.QOSClass, s.QOSClass)
	if changed.StartTime != nil {
		s.StartTime = changed.StartTime
	}
	if len(changed.PodIPs) > 0 {
		s.PodIPs = changed.PodIPs
	}
	if len(changed.HostIPs) > 0 {
		s.HostIPs = changed.HostIPs
	}
	for _, lists := range [][2]*[]v1.ContainerStatus{
		{&s.InitContainerStatuses, &changed.InitContainerStatuses}, {&s.ContainerStatuses, &changed.ContainerStatuses},
		{&s.EphemeralContainerStatuses, &changed.EphemeralContainerStatuses},
	} {
		if len(*lists[1]) > 0 {
			*lists[0] = *lists[1]
		}
	}
	for _, c := range changed.Conditions {
		i := slices.IndexFunc(s.Conditions, func(old v1.PodCondition) bool { return old.Type == c.Type })
		if i < 0 {
			s.Conditions = append(s.Conditions, c)
			continue
		}
		s.Conditions[i] = c
	}
}

// UIDs are those of pods, for anyone who looks for their folders.
func UIDs(pods []*v1.Pod) []types.UID {
	var list []types.UID
	for _, pod := range pods {
		list = append(list, pod.UID)
	}
	return list
}
