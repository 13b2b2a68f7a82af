package fakes

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Key parses the key of an object.
func Key(text string) resource.Key {
	k, err := resource.Parse(text)
	if err != nil {
		panic(err)
	}
	return k
}

// Record returns a record of a run that connected at a second.
func Record(instance byte, second int64) cloudhub.Record {
	return cloudhub.Record{Instance: wire.Instance{instance}, Since: time.Unix(second, 0).UTC()}
}

// Annotated puts a record into the annotations of a Node, and returns the Node.
func Annotated(node *v1.Node, r cloudhub.Record) *v1.Node {
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, marks.InstanceAnnotation, r.String())
	return node
}

// Condition returns a condition of a pod.
func Condition(name v1.PodConditionType, status v1.ConditionStatus) v1.PodCondition {
	return v1.PodCondition{Type: name, Status: status}
}

// MarkedPod is one that Kubernetes made not Ready since its node said nothing.
func MarkedPod(node, name string) *v1.Pod {
	p := Pod(node, "ns", name)
	p.Status.Phase = v1.PodRunning
	p.Status.Conditions = []v1.PodCondition{
		Condition(v1.PodInitialized, v1.ConditionTrue), Condition(v1.PodReady, v1.ConditionFalse),
		Condition(v1.ContainersReady, v1.ConditionTrue),
	}
	return p
}

// ReadyNode returns a Node of an edge with a status of its condition Ready.
func ReadyNode(name string, status v1.ConditionStatus) *v1.Node {
	n := Node(name)
	n.Status.Conditions = []v1.NodeCondition{
		{Type: v1.NodeDiskPressure, Status: v1.ConditionFalse}, {Type: v1.NodeReady, Status: status},
	}
	return n
}

// ObjectMeta returns the metadata of an object with the UID uid-<name>.
func ObjectMeta(namespace, name, rv string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), ResourceVersion: rv}
}

// Pod names configmap cm-<name> and secret shared.
func Pod(node, namespace, name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: ObjectMeta(namespace, name, "1"), Spec: v1.PodSpec{
		NodeName: node, ImagePullSecrets: []v1.LocalObjectReference{{Name: "shared"}},
		Containers: []v1.Container{{Name: "c", EnvFrom: []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{
			LocalObjectReference: v1.LocalObjectReference{Name: "cm-" + name}}}}}},
	}}
}

// Node returns a Node of an edge.
func Node(name string) *v1.Node {
	n := &v1.Node{ObjectMeta: ObjectMeta("", name, "1")}
	n.Labels = map[string]string{marks.EdgeLabel: ""}
	return n
}

// Limited returns tolerations of the taints of nodes that are offline, for so many seconds.
func Limited(seconds int64) []v1.Toleration {
	var all []v1.Toleration
	for _, key := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
		all = append(all, v1.Toleration{
			Key:               key,
			Operator:          v1.TolerationOpExists,
			Effect:            v1.TaintEffectNoExecute,
			TolerationSeconds: &seconds,
		})
	}
	return all
}
