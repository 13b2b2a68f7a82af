package vm_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/peer"
)

func TestParseRows(t *testing.T) {
	got, err := parseRows("default/pod/a|101|0|Always\ndefault/pod/b|102|1|Never\ndefault/configmap/c|103|0|\n")
	want := rows{
		stored: map[string]peer.Stored{"default/pod/a": {Version: 101}, "default/pod/b": {Version: 102, Ending: true},
			"default/configmap/c": {Version: 103}},
		policies: map[string]v1.RestartPolicy{"default/pod/a": v1.RestartPolicyAlways},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(rows{})); diff != "" || err != nil {
		t.Errorf("parseRows: %v, want no error; mismatch (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"Error: database is locked\n", "default/pod/a|x|0|Always\n"} {
		if got, err := parseRows(bad); err == nil {
			t.Errorf("parseRows(%q) = %+v, nil, want an error", bad, got)
		}
	}
}

// TestAfter: what is taken for a pod that came back, and what is not.
func TestAfter(t *testing.T) {
	status := func(phase v1.PodPhase, id string, ready bool) v1.PodStatus {
		s := v1.PodStatus{
			Phase: phase, ContainerStatuses: []v1.ContainerStatus{{ContainerID: "containerd://" + id, Ready: ready}},
		}
		if ready {
			s.ContainerStatuses[0].State.Running = &v1.ContainerStateRunning{}
		}
		return s
	}
	const tasks = "TASK    PID    STATUS    \nnew     812    RUNNING\nold     0      STOPPED\n"
	for what, c := range map[string]struct {
		now      v1.PodStatus
		policy   v1.RestartPolicy
		finished bool
		told     v1.PodStatus
		want     string
	}{
		"runs": {now: status(v1.PodRunning, "new", true), policy: v1.RestartPolicyAlways},
		"runs only in its status": {now: status(v1.PodRunning, "old", true), policy: v1.RestartPolicyAlways,
			want: "does not run"},
		"is not ready": {now: status(v1.PodRunning, "new", false), policy: v1.RestartPolicyAlways,
			want: "Running"},
		"waits": {now: v1.PodStatus{Phase: v1.PodPending}, policy: v1.RestartPolicyAlways,
			want: "Pending"},
		"ended without success": {now: status(v1.PodFailed, "old", false), policy: v1.RestartPolicyNever},
		"ended before, as was told": {
			now:      status(v1.PodSucceeded, "old", false),
			policy:   v1.RestartPolicyNever,
			finished: true,
			told:     status(v1.PodSucceeded, "old", false),
		},
		"ended before, and ran again": {
			now:      status(v1.PodSucceeded, "new", false),
			policy:   v1.RestartPolicyNever,
			finished: true,
			told:     status(v1.PodSucceeded, "old", false),
			want:     "ran again",
		},
		"ended well, and failed later": {
			now:      status(v1.PodFailed, "old", false),
			policy:   v1.RestartPolicyNever,
			finished: true,
			told:     status(v1.PodSucceeded, "old", false),
			want:     "was Succeeded",
		},
		"is to run once, and still does": {now: status(v1.PodRunning, "new", true), policy: v1.RestartPolicyNever,
			want: "Running"},
		"no container, so it cannot have": {now: status(v1.PodRunning, "", true), policy: v1.RestartPolicyAlways,
			want: "does not run"},
	} {
		err := after(&v1.Pod{Status: c.now}, c.policy, tasks, c.finished, &c.told)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
	if after(nil, v1.RestartPolicyAlways, tasks, false, nil) == nil {
		t.Error("after(no pod) = nil, want an error")
	}
}
