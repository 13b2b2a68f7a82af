package adopt

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// agentManifest is a static pod's, whose UID KubeEdge has made its own way.
const (
	agentManifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: agent}\nspec:\n  hostNetwork: true\n  " +
		"terminationGracePeriodSeconds: 1\n  containers:\n  - name: main\n    image: %s\n    command: [sh, -c, %q]\n"
	agentUID = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
)

// kubeEdgeProgram is the end of the path of KubeEdge's agent.
const kubeEdgeProgram = "usr/local/bin/edgecore"

// web is a pod of the cloud with all that keeps a pod to its node: volumes, a token, probes.
func web() *v1.Pod {
	pod := &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            "web",
			Namespace:       "default",
			UID:             "52a53aab-3e6d-4d2f-a10d-145c4f8f48be",
			ResourceVersion: "7463",
		},
		Spec: v1.PodSpec{
			NodeName:                      "edge1",
			TerminationGracePeriodSeconds: new(int64(1)),
			ServiceAccountName:            "default",
			Volumes: []v1.Volume{
				{
					Name: "conf", VolumeSource: v1.VolumeSource{
						ConfigMap: &v1.ConfigMapVolumeSource{
							LocalObjectReference: v1.LocalObjectReference{Name: "web-conf"},
						},
					},
				},
				{Name: "sec", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "web-sec"}}},
				{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
				{
					Name: "kube-api-access-sk6nn", VolumeSource: v1.VolumeSource{
						Projected: &v1.ProjectedVolumeSource{
							Sources: []v1.VolumeProjection{
								{
									ServiceAccountToken: &v1.ServiceAccountTokenProjection{
										ExpirationSeconds: new(int64(3607)), Path: "token",
									},
								},
							},
						},
					},
				},
			},
			Containers: []v1.Container{
				{
					Name:    "main",
					Image:   images.Demo,
					Command: []string{"sh", "-c", env.Forever},
					VolumeMounts: []v1.VolumeMount{
						{Name: "conf", MountPath: "/conf"}, {Name: "sec", MountPath: "/sec"},
						{Name: "scratch", MountPath: "/scratch"},
						{Name: "kube-api-access-sk6nn", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount",
							ReadOnly: true},
					},
					ReadinessProbe: &v1.Probe{
						PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{
							Exec: &v1.ExecAction{Command: []string{"test", "!", "-e", "/scratch/unready"}},
						},
					},
				},
			},
		},
	}
	source.SetDefaults(pod)
	return pod
}

// job has ended long ago.
func job() *v1.Pod {
	pod := &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "job", Namespace: "default", UID: "0a0a0a0a-0000-4000-8000-00000000000b"},
		Spec: v1.PodSpec{
			NodeName: "edge1", RestartPolicy: v1.RestartPolicyOnFailure,
			Containers: []v1.Container{{Name: "main", Image: images.Demo, Command: []string{"true"}}},
		},
		Status: v1.PodStatus{Phase: v1.PodRunning},
	}
	source.SetDefaults(pod)
	return pod
}

// populate runs the pods on the device, and writes what KubeEdge stores of them.
func (d *device) populate() map[string]*made {
	pods := map[string]*made{}
	w := web()
	scratch := d.podFolder(w, "volumes", "kubernetes.io~empty-dir", "scratch")
	env.Must(d.t, os.MkdirAll(scratch, 0o777))
	env.Must(d.t, os.Chmod(scratch, 0o777))
	env.Must(d.t, os.WriteFile(filepath.Join(scratch, "kept"), []byte("of before"), 0o644))
	pods["web"] = d.start(w, 2, false, map[string]string{
		"/conf":    d.volume(w, "configmap", "conf", false, map[string]string{"a": "b"}),
		"/sec":     d.volume(w, "secret", "sec", true, map[string]string{"p": "secret"}),
		"/scratch": scratch, "/var/run/secrets/kubernetes.io/serviceaccount": d.volume(w, "projected",
			"kube-api-access-sk6nn", true, map[string]string{"token": "of-before"}),
	})

	manifest := fmt.Sprintf(agentManifest, images.Demo, env.Forever)
	d.write("etc/kubeedge/manifests/agent.yaml", manifest, 0o644)
	static, _, err := source.Decode([]byte(manifest), "edge1")
	env.Must(d.t, err)
	if static[0].UID == agentUID {
		d.t.Fatalf("UID of the static pod = %s, want another than KubeEdge gave it", static[0].UID)
	}
	static[0].UID = agentUID
	pods["agent-edge1"] = d.start(static[0], 0, true, nil)

	mirror := static[0].DeepCopy()
	mirror.UID, mirror.Annotations = "6d6d6d6d-0000-4000-8000-00000000000c",
		map[string]string{
			"kubernetes.io/config.mirror": agentUID, "kubernetes.io/config.hash": agentUID,
			"kubernetes.io/config.source": "file",
		}
	w.Status = v1.PodStatus{Phase: v1.PodPending, QOSClass: v1.PodQOSBestEffort}
	d.store([][3]string{
		{"default/pod/web", "pod", d.asJSON(w)},
		{
			"default/podpatch/web", "podpatch",
			fmt.Sprintf(
				`{"metadata":{"uid":%q},"status":{"$setElementOrder/conditions":[{"type":"Ready"}],"conditions":[{"lastTransitionTime":"2026-11-21T03:25:04Z","message":null,"reason":null,"status":"True","type":"Ready"}],"containerStatuses":[{"name":"main","ready":true,"restartCount":2,"image":%q,"imageID":"x","containerID":"containerd://%s","state":{"running":{"startedAt":"2026-11-21T03:25:04Z"}}}],"phase":"Running"}}`,
				w.UID, images.Demo, pods["web"].container),
		},
		{"default/pod/job", "pod", d.asJSON(job())},
		{
			"default/podpatch/job", "podpatch",
			`{"metadata":{"uid":"0a0a0a0a-0000-4000-8000-00000000000b"},"status":{"phase":"Succeeded"}}`,
		},
		{"default/pod/agent-edge1", "pod", d.asJSON(mirror)},
		{
			"default/configmap/web-conf", "configmap",
			`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"web-conf","namespace":"default","uid":"c1"},"data":{"a":"b"}}`,
		},
		{
			"default/secret/web-sec", "secret",
			`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"web-sec","namespace":"default","uid":"s1"},"data":{"p":"c2VjcmV0"},"type":"Opaque"}`,
		},
		{
			fmt.Sprintf(
				`"default"/"default"/[]string(nil)/3607/v1.BoundObjectReference{Kind:"Pod", APIVersion:"v1", Name:"web", UID:%q}`, w.UID), "serviceaccounttoken",
			`{"metadata":{"name":"default","namespace":"default","creationTimestamp":null},"spec":{"audiences":null,"expirationSeconds":3607,"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"web","uid":"52a53aab-3e6d-4d2f-a10d-145c4f8f48be"}},"status":{"token":"of-before","expirationTimestamp":"2026-11-21T03:25:10Z"}}`,
		},
		{
			"null/node/edge1", "node",
			`{"metadata":{"name":"edge1","uid":"49a5a644-26de-4f4a-9bc7-5a012fd83993","labels":{"kubernetes.io/hostname":"edge1"}}}`,
		},
		{"null/lease/edge1", "lease", `{"metadata":{"name":"edge1"}}`},
		{"default/rule/r1", "rule", `{}`},
	})
	return pods
}

// TestAdopt takes a device over, works with its pods, and gives it back.
func TestAdopt(t *testing.T) {
	for name, runtime := range map[string]testenv.Options{"containerd1": {}, "containerd2": {Containerd2: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			takeOver(t, newDevice(t, runtime))
		})
	}
}

func takeOver(t *testing.T, d *device) {
	pods := d.populate()
	env.Must(t, d.systemctl("start"))
	before, run := d.files(), d.containers()
	if len(run) != 2 {
		t.Fatalf("running containers = %v, want 2", run)
	}

	plan, err := d.edgecore("adopt", "--dry-run")
	must2(t, plan, err)
	for _, want := range []string{
		"2 containers run on as they are", "autonomyWithoutAuthorization", "modules.serviceBus.enable", `"rule"`,
		"Steps:", "default/job does not run now",
	} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan does not say %q:\n%s", want, plan)
		}
	}
	if diff := cmp.Diff(before, d.files()); diff != "" {
		t.Fatalf("the plan changed KubeEdge's files (-want +got):\n%s", diff)
	}
	d.runs(kubeEdgeProgram)

	output, err := d.edgecore("adopt")
	must2(t, output, err)
	t.Logf("taken over; it said:\n%s", output)
	d.runs(built.Edge)
	d.same(run)
	d.works(pods)

	again, err := d.edgecore("adopt")
	if err != nil || !strings.Contains(again, "taken over before") {
		t.Errorf("adopt a second time: %v, want that the device was taken over before:\n%s", err, again)
	}
	output, err = d.edgecore("adopt", "--undo")
	must2(t, output, err)
	t.Logf("given back; it said:\n%s", output)
	if diff := cmp.Diff(before, d.files()); diff != "" {
		t.Errorf("KubeEdge's files mismatch (-want +got):\n%s", diff)
	}
	d.runs(kubeEdgeProgram)
	for _, left := range []string{"etc/edgecore", "var/lib/edgecore/edgecore.db", "var/lib/edgecore/adopt"} {
		if _, err := os.Stat(d.path(left)); err == nil {
			t.Errorf("%s exists after undo, want it removed", left)
		}
	}
	if now := d.containers(); len(now) != 2 || now["agent-edge1"] != run["agent-edge1"] {
		t.Errorf("containers = %v, want those of before but web's: %v", now, run)
	}
}

// same waits until the agent shows the pods as they were, and checks that no container was restarted.
func (d *device) same(run map[string]string) {
	d.t.Helper()
	d.isReady("web", 2)
	d.isReady("agent-edge1", 0)
	if diff := cmp.Diff(run, d.containers()); diff != "" {
		d.t.Fatalf("containers mismatch (-want +got):\n%s", diff)
	}
	pods, err := d.pods()
	env.Must(d.t, err)
	if uid := pods["agent-edge1"].UID; uid != types.UID(agentUID) {
		d.t.Errorf("UID of the static pod = %s, want %s", uid, agentUID)
	}
	if p := pods["job"]; p == nil || p.Status.Phase != v1.PodSucceeded {
		d.t.Errorf("the job that has ended is %+v, want it Succeeded", p)
	}
}

// works does to the pods what is done in the life of a node.
func (d *device) works(pods map[string]*made) {
	d.t.Helper()
	step := func(what string) { d.t.Log(what) }
	run := d.containers()
	// The record outlives the agent.
	env.Must(d.t, syscall.Kill(d.pid(), syscall.SIGKILL))
	env.Must(d.t, d.systemctl("restart"))
	d.same(run)

	step("the agent was killed, and is back")

	// Probes see the container, and volumes are where they were.
	scratch := d.podFolder(pods["web"].pod, "volumes", "kubernetes.io~empty-dir", "scratch")
	env.Must(d.t, os.WriteFile(filepath.Join(scratch, "unready"), nil, 0o644))
	wait.True(d.t, "web not to be ready", func() bool { return d.ready("web", 2) != nil })
	env.Must(d.t, os.Remove(filepath.Join(scratch, "unready")))
	d.isReady("web", 2)
	out, err := d.cri.ExecSync(d.t.Context(), &runtimeapi.ExecSyncRequest{
		ContainerId: run["web"], Cmd: []string{
			"cat", "/conf/a", "/sec/p", "/scratch/kept", "/var/run/secrets/kubernetes.io/serviceaccount/token",
		},
	})
	env.Must(d.t, err)
	if got, want := string(out.Stdout), "bsecretof beforeof-before"; got != want {
		d.t.Errorf("the container sees %q, %s, want %q", got, out.Stderr, want)
	}

	step("probes and volumes")

	// A container that ends is started again, counted on, in the same sandbox and with the same volumes.
	_, err = d.cri.StopContainer(d.t.Context(), &runtimeapi.StopContainerRequest{ContainerId: run["web"], Timeout: 5})
	env.Must(d.t, err)
	d.isReady("web", 3)
	now := d.containers()
	status, err := d.cri.ContainerStatus(d.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: now["web"]})
	env.Must(d.t, err)
	if now["web"] == run["web"] || now["agent-edge1"] != run["agent-edge1"] || status.Status.Metadata.Attempt != 3 {
		d.t.Errorf("containers = %v with attempt %d of web, want only web's changed in %v, with attempt 3", now,
			status.Status.Metadata.Attempt, run)
	}
	boxes, err := d.cri.ListPodSandbox(d.t.Context(), &runtimeapi.ListPodSandboxRequest{})
	env.Must(d.t, err)
	if !slices.ContainsFunc(boxes.Items, func(b *runtimeapi.PodSandbox) bool { return b.Id == pods["web"].sandbox }) ||
		len(boxes.Items) != 2 {
		d.t.Errorf("sandboxes = %v, want 2, of them %s", boxes.Items, pods["web"].sandbox)
	}

	step("a container was started again")

	// Another manifest is another pod, and one that is taken away is gone with all that KubeEdge had made of it.
	other := fmt.Sprintf(strings.Replace(agentManifest, "name: agent", "name: other", 1), images.Demo, env.Forever)
	d.write("etc/kubeedge/manifests/other.yaml", other, 0o644)
	d.isReady("other-edge1", 0)
	env.Must(d.t, os.Remove(d.path("etc/kubeedge/manifests/other.yaml")))
	d.ends("other-edge1")
}

// TestRemove: a pod that was taken over ends as any other, and nothing of it is left.
func TestRemove(t *testing.T) {
	t.Parallel()
	d := newDevice(t, testenv.Options{})
	pods := d.populate()
	env.Must(t, d.systemctl("start"))
	output, err := d.edgecore("adopt")
	must2(t, output, err)
	env.Must(t, os.Remove(d.path("etc/kubeedge/manifests/agent.yaml")))
	gone := pods["agent-edge1"]
	d.ends("agent-edge1")
	wait.Until(t, "nothing to be left of the pod", func() error {
		for _, dir := range []string{
			d.podFolder(gone.pod), filepath.Join(d.path("var/log/pods"), "default_agent-edge1_"+agentUID),
		} {
			if _, err := os.Stat(dir); err == nil {
				return fmt.Errorf("%s is there", dir)
			}
		}
		return nil
	})
	d.isReady("web", 2)
	if id := d.containers()["web"]; id != pods["web"].container {
		t.Errorf("container of web = %s, want %s as before", id, pods["web"].container)
	}
}

// TestRefuses: pods that the store does not have would be ended, and so nothing is done.
func TestRefuses(t *testing.T) {
	t.Parallel()
	d := newDevice(t, testenv.Options{})
	d.populate()
	stray := web()
	stray.Name, stray.UID, stray.Spec.Volumes = "stray", "11111111-0000-4000-8000-00000000000d", nil
	d.start(stray, 0, false, nil)
	env.Must(t, d.systemctl("start"))
	before, run := d.files(), d.containers()
	output, err := d.edgecore("adopt")
	const want = "default/stray: it runs, and neither the store nor a manifest has it"
	if err == nil || !strings.Contains(output, want) {
		t.Errorf("adopt: %v, want it to fail with %q:\n%s", err, want, output)
	}
	if diff := cmp.Diff(before, d.files()); diff != "" {
		t.Errorf("KubeEdge's files mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(run, d.containers()); diff != "" {
		t.Errorf("containers mismatch (-want +got):\n%s", diff)
	}
	d.runs(kubeEdgeProgram)
}

func must2(t *testing.T, output string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v, want no error\n%s", err, output)
	}
}
