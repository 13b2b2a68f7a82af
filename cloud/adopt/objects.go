package adopt

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Ref names an object.
type Ref struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// String is the object as kubectl names it.
func (r Ref) String() string { return strings.ToLower(r.Kind) + "/" + r.Name }

// deleteCommand returns the command that deletes the object.
func (r Ref) deleteCommand() string {
	namespace := ""
	if r.Namespace != "" {
		namespace = "-n " + r.Namespace + " "
	}
	return fmt.Sprintf("kubectl %sdelete %s %s", namespace, strings.ToLower(r.Kind), r.Name)
}

func refOf(o *unstructured.Unstructured) Ref {
	return Ref{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
}

func deployment(name string) Ref { return Ref{"apps/v1", "Deployment", Namespace, name} }
func configMap(name string) Ref  { return Ref{"v1", "ConfigMap", Namespace, name} }
func secret(name string) Ref     { return Ref{"v1", "Secret", Namespace, name} }
func service(name string) Ref    { return Ref{"v1", "Service", Namespace, name} }

// The Secrets that KubeEdge's cloudcore makes when it runs. edgecore's cloudcore keeps the first, the devices' CA, and
// writes the others again.
const (
	caSecret     = "casecret"
	serverSecret = "cloudcoresecret"
	tokenSecret  = "tokensecret"
)

// leftObject is an object of KubeEdge's chart that stays.
type leftObject struct {
	ref Ref
	why string
	// needed reports whether KubeEdge's cloudcore needs it: it is saved, and an undo restores it if it is gone.
	needed bool
}

// leftObjects are those of KubeEdge's chart that may be there and stay as they are, in the order in which to remove
// them: the configurations of webhooks before the server that answers them.
func leftObjects() []leftObject {
	const (
		webhooks   = "admissionregistration.k8s.io/v1"
		validating = "ValidatingWebhookConfiguration"
		mutating   = "MutatingWebhookConfiguration"
		tunnels    = "is no longer needed: requests reach nodes through ports of cloudcore"
		iptables   = "is of cloud-iptables-manager, and no longer needed"
		rbac       = "rbac.authorization.k8s.io/v1"
		undo       = "is needed to go back, and nothing else uses it"
		admission  = "checks objects as before"
	)
	return []leftObject{
		{Ref{"apps/v1", "DaemonSet", Namespace, "cloud-iptables-manager"}, tunnels, false},
		{Ref{rbac, "ClusterRoleBinding", "", "iptables-manager"}, iptables, false},
		{Ref{rbac, "ClusterRole", "", "iptables-manager"}, iptables, false},
		{Ref{"v1", "ServiceAccount", Namespace, "iptables-manager-sa"}, iptables, false},
		{configMap("tunnelport"), tunnels, false},
		{Ref{webhooks, validating, "", "kubeedge-crds-validate-webhook-configuration"}, admission, false},
		{Ref{webhooks, mutating, "", "kubeedge-mutating-webhook"}, admission, false},
		{Ref{webhooks, mutating, "", "mutate-offlinemigration"}, admission, false},
		{deployment("kubeedge-admission"), "answers these webhooks", false},
		{
			deployment("kubeedge-controller-manager"),
			"serves NodeGroups and EdgeApplications, and needs only kube-apiserver. Its node jobs reach no device",
			false,
		},
		{Ref{"apps/v1", "DaemonSet", Namespace, "edge-eclipse-mosquitto"}, "is the devices' MQTT broker", false},
		{Ref{rbac, "ClusterRole", "", "cloudcore-common"}, undo, true},
		{Ref{rbac, "ClusterRole", "", "cloudcore-feature"}, undo, true},
		{secret(name), "has KubeEdge's stream certificates, and " + undo, true},
	}
}

// keptRefs are objects that stay, and that KubeEdge's cloudcore needs after an undo.
func keptRefs() []Ref {
	var refs []Ref
	for _, l := range leftObjects() {
		if l.needed {
			refs = append(refs, l.ref)
		}
	}
	return refs
}

// readRefs are the objects that Decide is given.
func readRefs() []Ref {
	return []Ref{
		deployment(name), service(name), configMap(name), secret(caSecret), secret(serverSecret), secret(tokenSecret),
		{"v1", "Namespace", "", Namespace}, {"v1", "ServiceAccount", Namespace, name},
	}
}

// savedRefs are the objects that edgecore's cloudcore changes as it runs, and that KubeEdge's reads.
func savedRefs() []Ref { return []Ref{secret(serverSecret), secret(tokenSecret)} }

// adoptedAnnotation marks what Apply has written; its value is the hash of that.
const adoptedAnnotation = "edgecore.io/adopted"

// isOurs reports whether Apply has written an object.
func isOurs(o *unstructured.Unstructured) bool {
	return o != nil && o.GetAnnotations()[adoptedAnnotation] != ""
}

// isLeft reports whether an object that an undo has left is still edgecore's: kubectl apply keeps the annotation.
func isLeft(o *unstructured.Unstructured) bool {
	return isOurs(o) && o.GetAnnotations()[v1.LastAppliedConfigAnnotation] == ""
}

// withoutServerFields returns a copy without what the API server sets itself, and without a status.
func withoutServerFields(o *unstructured.Unstructured) *unstructured.Unstructured {
	out := o.DeepCopy()
	for _, field := range []string{
		"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink",
		"deletionTimestamp", "deletionGracePeriodSeconds",
	} {
		unstructured.RemoveNestedField(out.Object, "metadata", field)
	}
	delete(out.Object, "status")
	return out
}
