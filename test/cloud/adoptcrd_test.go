package cloud

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/cloud/adopt"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const (
	devicesCRD = "devices.devices.kubeedge.io"
	oldDevice  = `
apiVersion: devices.kubeedge.io/v1alpha2
kind: Device
metadata: {name: old, namespace: default}
spec: {protocol: {modbus: {slaveID: 1}}, nodeSelector: {}}
`
	newDevice = `
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: new, namespace: default}
spec: {nodeName: edge-1, deviceModelRef: {name: pump}, protocol: {protocolName: modbus}}
`
)

// TestAdoptOldDevices: the CRD of Devices of KubeEdge before 1.15, whose versions edgecore's cannot do without, is back
// after an undo if there are no Devices. With Devices it is left, as they are, and undo can be run again without them.
// An undo may be killed at each step, Devices may be created meanwhile, and apply works after it.
func TestAdoptOldDevices(t *testing.T) {
	t.Parallel()
	a := startAdoption(t, "hostnetwork")
	a.fresh = true
	a.kubectl("delete", "crd", devicesCRD)
	a.create("the old CRD", oldDevices)
	a.create("the API server serves the old Devices", oldDevice)
	a.kubectl("delete", "devices.v1alpha2.devices.kubeedge.io", "old")
	theirs, _ := a.state()

	a.must((*adopt.Adoption).Apply)
	a.must((*adopt.Adoption).Undo)
	a.isBack("undo without Devices", theirs)

	a.must((*adopt.Adoption).Apply)
	a.create("the API server serves Devices", newDevice)
	ours, _ := a.state()
	crd := "CustomResourceDefinition " + devicesCRD
	left := "Left: customresourcedefinition/" + devicesCRD
	for range 2 {
		out, _ := a.must((*adopt.Adoption).Undo)
		for _, want := range []string{
			left + " is not KubeEdge's yet. Objects may be stored as v1beta1,",
			"The objects are: default/new.", "what only v1alpha2 has of them would be lost",
			"kubectl delete devices.devices.kubeedge.io -A --all\n  cloudcore adopt undo\n",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("undo with a Device does not print %q:\n%s", want, out)
			}
		}
		if now, _ := a.state(); now["Device new"] != ours["Device new"] || now[crd] != ours[crd] {
			t.Errorf("after undo there are %s, %s; want the Device and edgecore's CRD", now["Device new"], now[crd])
		}
	}
	out, writes := a.must((*adopt.Adoption).Plan)
	want := "replace            customresourcedefinition/" + devicesCRD
	if writes != 0 || !strings.Contains(out, want) {
		t.Errorf("the plan after an undo with a Device writes %d times, want never, and to print %q:\n%s", writes, want,
			out)
	}
	a.must((*adopt.Adoption).Apply)
	if out, _ := a.must((*adopt.Adoption).Plan); !strings.Contains(out, "nothing is left to do") {
		t.Errorf("the plan after the apply after an undo does not say that nothing is left to do:\n%s", out)
	}
	a.must((*adopt.Adoption).Undo)
	a.kubectl("delete", devicesCRD, "-A", "--all")

	puts := 0
	a.wrote = func(r *http.Request) {
		if puts++; puts == 1 {
			if err := a.cluster.Apply(t.Context(), oldDevice); err != nil {
				t.Error(err)
			}
		}
	}
	out, _ = a.must((*adopt.Adoption).Undo)
	a.wrote = nil
	if now, _ := a.state(); !strings.Contains(out, "The objects are: default/old.") || now[crd] != ours[crd] {
		t.Errorf("with a Device that was created meanwhile, the CRD is %s, want edgecore's, and undo prints:\n%s",
			now[crd], out)
	}
	a.kubectl("delete", devicesCRD, "-A", "--all")
	a.killedBetween()
	out, _ = a.must((*adopt.Adoption).Undo)
	if !strings.Contains(out, "Restored customresourcedefinition/"+devicesCRD) {
		t.Errorf("undo without Devices does not say that the CRD is restored:\n%s", out)
	}
	out, _ = a.must((*adopt.Adoption).Undo)
	if !strings.Contains(out, "nothing to undo") {
		t.Errorf("a last undo does not say that there is nothing to undo:\n%s", out)
	}
	a.isBack("undo after it was killed", theirs)
}

// killedBetween kills an undo that has only the CRD to restore after each of its writes: the other storage version, the
// stored versions, and the CRD. Devices that are created after the first are found.
func (a *adoption) killedBetween() {
	a.t.Helper()
	for i, kill := range []int{1, 2, 1} { // the third undo has nothing to do but the last
		out, n, err := a.run((*adopt.Adoption).Undo, kill, true)
		if n < kill || !errors.Is(err, errKilled) {
			a.t.Fatalf("undo killed at write %d of %d: %v, want %v\n%s", kill, n, err, errKilled, out)
		}
		if i > 0 {
			continue
		}
		a.create("the API server serves the old Devices", oldDevice)
		out, _ = a.must((*adopt.Adoption).Undo)
		if !strings.Contains(out, "The objects are: default/old.") {
			a.t.Errorf("undo with a Device after it was killed does not say so:\n%s", out)
		}
		a.kubectl("delete", devicesCRD, "-A", "--all")
	}
}

// create creates objects, once the API server serves them.
func (a *adoption) create(when, text string) {
	a.t.Helper()
	wait.Until(a.t, when, func() error { return a.cluster.Apply(a.t.Context(), text) })
}

// isBack checks that all is as it was, and that the API server has and keeps Devices of KubeEdge's only version.
func (a *adoption) isBack(what string, theirs map[string]string) {
	a.t.Helper()
	now, _ := a.state()
	same(a.t, what, theirs, now)
	if _, err := a.cluster.Kubectl(a.t.Context(), "get", "secret", "-n", "kubeedge", "cloudcore-adopt"); err == nil {
		a.t.Errorf("%s: there is a journal, want none", what)
	}
	stored := a.kubectl("get", "crd", devicesCRD, "-o", "jsonpath={.status.storedVersions}")
	if stored != `["v1alpha2"]` {
		a.t.Errorf("%s: Devices may be stored as %s, want v1alpha2 alone", what, stored)
	}
	a.create("the API server serves the old Devices", oldDevice)
	wait.Until(a.t, "the protocol of the old Device", func() error {
		id := a.kubectl("get", devicesCRD, "old", "-o", "jsonpath={.spec.protocol.modbus.slaveID}")
		if id != "1" {
			return fmt.Errorf("it is %q, want 1", id)
		}
		return nil
	})
	a.kubectl("delete", devicesCRD, "old")
}
