package cloud

import (
	"errors"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/cloud/adopt"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// oldDevices is the CRD of Devices of KubeEdge before 1.15, but for its schema.
const oldDevices = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: devices.devices.kubeedge.io}
spec:
  group: devices.kubeedge.io
  names: {kind: Device, listKind: DeviceList, plural: devices, singular: device}
  scope: Namespaced
  versions:
  - name: v1alpha2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// TestAdoptFaults: Devices that edgecore's CRD would damage are refused, and remain as they are. Neither waits for pods
// that are not cloudcore's or have ended.
func TestAdoptFaults(t *testing.T) {
	t.Parallel()
	a := startAdoption(t, "hostnetwork")
	a.kubectl("delete", "crd", "devices.devices.kubeedge.io")
	if err := a.cluster.Apply(t.Context(), oldDevices); err != nil {
		t.Fatal(err)
	}
	create := func() error {
		return a.cluster.Apply(t.Context(), `
apiVersion: devices.kubeedge.io/v1alpha2
kind: Device
metadata: {name: old, namespace: default}
spec: {protocol: {modbus: {slaveID: 1}}, nodeSelector: {}}
`)
	}
	wait.Until(t, "the API server serves the old Devices", create)
	const device, path = "devices.v1alpha2.devices.kubeedge.io", "-o=jsonpath={.spec.protocol.modbus.slaveID}"
	for what, do := range map[string]command{"plan": (*adopt.Adoption).Plan, "apply": (*adopt.Adoption).Apply} {
		out, _, err := a.run(do, 0, false)
		if !errors.Is(err, adopt.ErrRefused) || !strings.Contains(out, "may be stored as v1alpha2") {
			t.Errorf("%s with Devices of v1alpha2: %v, want a refusal that names the version:\n%s", what, err, out)
		}
		if got := a.kubectl("get", device, "old", path); got != "1" {
			t.Errorf("the protocol of the Device is %q after %s, want 1", got, what)
		}
	}
	a.kubectl("delete", device, "old")

	pod := a.kubectl("get", "pods", "-n", "kubeedge", "-l", "kubeedge=cloudcore", "-o",
		"jsonpath={.items[0].metadata.name}")
	a.kubectl("patch", "pod", "-n", "kubeedge", pod, "--subresource=status", "-p",
		`{"status": {"phase": "Failed", "reason": "Evicted"}}`)
	foreign := `{apiVersion: v1, kind: Pod, metadata: {name: debug, namespace: kubeedge, labels: {k8s-app: kubeedge,
  kubeedge: cloudcore, app.kubernetes.io/name: cloudcore}}, spec: {containers: [{name: a, image: a}]}}`
	if err := a.cluster.Apply(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	a.denied((*adopt.Adoption).Plan, "clusterrole/cloudcore")
	a.denied((*adopt.Adoption).Apply, "clusterrole/cloudcore")
	out, _ := a.must((*adopt.Adoption).Apply)
	if !strings.Contains(out, "pod debug is not cloudcore's") {
		t.Errorf("apply does not warn about the pod that edgecore's Service selects:\n%s", out)
	}
	a.overwritten()
	a.denied((*adopt.Adoption).Undo, "clusterrole/cloudcore")
	out, _ = a.must((*adopt.Adoption).Undo)
	if strings.Contains(out, "Left: customresourcedefinition/devices.devices.kubeedge.io") {
		t.Errorf("undo leaves edgecore's CRD, want KubeEdge's again, as there are no Devices:\n%s", out)
	}
	if out := a.kubectl("get", "deployment", "-n", "kubeedge", "cloudcore", "-o",
		"jsonpath={.spec.template.spec.containers[0].image}"); !strings.Contains(out, "kubeedge/cloudcore") {
		t.Errorf("after undo the image is %q, want KubeEdge's", out)
	}
	a.kubectl("get", "-n", "kubeedge", "secret/cloudcore", "clusterrole/cloudcore-common")
	if _, err := a.cluster.Kubectl(t.Context(), "get", "secret", "-n", "kubeedge", "cloudcore-adopt"); err == nil {
		t.Error("after undo there is a journal, want none")
	}
}

// overwritten does to an adopted cloud what `helm uninstall` and `helm upgrade` do. The plan says so, and apply repairs
// it. Neither touches what an operator has changed.
func (a *adoption) overwritten() {
	a.t.Helper()
	a.kubectl("scale", "-n", "kubeedge", "deployment", "cloudcore", "--replicas=2")
	if out, _ := a.must((*adopt.Adoption).Plan); !strings.Contains(out, "nothing is left to do") {
		a.t.Errorf("the plan after an operator has scaled cloudcore does not say that nothing is left to do:\n%s", out)
	}
	a.kubectl("delete", "-n", "kubeedge", "deployment/cloudcore", "secret/cloudcore")
	a.kubectl("delete", "clusterrole", "cloudcore-common")
	a.kubectl("patch", "-n", "kubeedge", "service", "cloudcore", "-p",
		`{"spec": {"selector": {"kubeedge": "cloudcore"}}}`)
	out, _, err := a.run((*adopt.Adoption).Plan, 0, false)
	for _, want := range []string{
		"deployment/cloudcore is missing\n", "service/cloudcore has KubeEdge's value again in spec.selector.kubeedge\n",
	} {
		if err == nil || strings.Contains(out, "nothing is left") || !strings.Contains(out, want) {
			a.t.Errorf("the plan of an overwritten cloud: %v, want an error and %q:\n%s", err, want, out)
		}
	}
	a.must((*adopt.Adoption).Apply)
	if out, _ := a.must((*adopt.Adoption).Plan); !strings.Contains(out, "nothing is left to do") {
		a.t.Errorf("the plan after the second apply does not say that nothing is left to do:\n%s", out)
	}
	selector := a.kubectl("get", "-n", "kubeedge", "service", "cloudcore", "-o", "jsonpath={.spec.selector}")
	if selector != `{"app.kubernetes.io/name":"cloudcore"}` {
		a.t.Errorf("selector of the Service %s, want edgecore's alone", selector)
	}
}

// mover may read and write all objects, but may not grant rights that it does not have.
const mover = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: mover}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: [get, list, watch, create, update, patch, delete]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: mover}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: mover}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: mover}]
`

// denied runs a command as a user without the right to write cloudcore's roles. It is refused before it changes
// anything.
func (a *adoption) denied(do command, want string) {
	a.t.Helper()
	if err := a.cluster.Apply(a.t.Context(), mover); err != nil {
		a.t.Fatal(err)
	}
	wait.Until(a.t, "the rights of the user", func() error {
		_, err := a.cluster.Kubectl(a.t.Context(), "auth", "can-i", "--as=mover", "delete", "nodes")
		return err
	})
	a.user = "mover"
	out, writes, err := a.run(do, 0, false)
	a.user = ""
	if !errors.Is(err, adopt.ErrRefused) || writes != 0 || !strings.Contains(err.Error(), "nothing was changed") ||
		!strings.Contains(out, "REFUSED: ") || !strings.Contains(out, want) {
		a.t.Errorf("without rights: %v after %d writes, want a refusal before the first that names %s:\n%s", err,
			writes, want, out)
	}
}
