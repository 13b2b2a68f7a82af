package edge

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
)

// stored changes the store while the agent is down, as the cloud would have through its messages.
func (n *node) stored(change func(*store.Store)) {
	n.t.Helper()
	if err := n.Stop(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	s, recovery, err := store.Open(n.t.Context(), n.Store(), store.Options{})
	if err != nil || recovery != nil {
		n.t.Fatal(recovery, err)
	}
	change(s)
	if err := s.Close(); err != nil {
		n.t.Fatal(err)
	}
	if err := n.Start(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) put(s *store.Store, key string, obj any) {
	n.t.Helper()
	data, err := json.Marshal(obj)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := s.Apply(n.t.Context(), store.Upsert(store.Meta{Key: key, Type: strings.Split(key, "/")[1], Value: data})); err != nil {
		n.t.Fatal(err)
	}
}

// cloudPod is a pod as an API server makes it, with a configmap and a secret.
func cloudPod(name string) *v1.Pod {
	return &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "0b2b1a52-7d2c-4b0e-8d19-bd0f1d5b3c11", ResourceVersion: "10", CreationTimestamp: metav1.Now()},
		Spec: v1.PodSpec{
			NodeName: "node1", RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: ptr.To[int64](1), DNSPolicy: v1.DNSDefault,
			Volumes: []v1.Volume{
				{Name: "conf", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "conf"}}}},
				{Name: "key", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "key", DefaultMode: ptr.To[int32](0o400)}}},
			},
			Containers: []v1.Container{{
				Name: "main", Image: "edgecore.local/demo:1", ImagePullPolicy: v1.PullIfNotPresent,
				Command:      []string{"sh", "-c", "echo conf $(cat /conf/a) key $(cat /key/k) mode $(stat -L -c %a /key/k) env $FROM_MAP; " + forever},
				Env:          []v1.EnvVar{{Name: "FROM_MAP", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "conf"}, Key: "a"}}}},
				VolumeMounts: []v1.VolumeMount{{Name: "conf", MountPath: "/conf"}, {Name: "key", MountPath: "/key"}},
			}},
		},
	}
}

// TestStoredPods: what the store has runs with no cloud, again after a reboot; what it says of configmaps and
// secrets reaches the containers; a deleted pod ends and that is queued for the cloud.
func TestStoredPods(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	p := cloudPod("api")
	n.stored(func(s *store.Store) {
		n.put(s, "default/pod/api", p)
		n.put(s, "default/configmap/conf", &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "default"}, Data: map[string]string{"a": "one"}})
		n.put(s, "default/secret/key", &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key", Namespace: "default"}, Data: map[string][]byte{"k": []byte("hush")}})
	})
	pods := n.until("it runs", running("api"))
	testenv.Poll(t, patience, func() error {
		if out := n.logged(pods["api"], "main"); !strings.Contains(out, "conf one key hush mode 400 env one") {
			return fmt.Errorf("the container says %q", out)
		}
		return nil
	})
	dir := filepath.Join(n.Dir, "root", "pods", string(p.UID), "volumes")
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Join(dir, "kubernetes.io~secret", "key"), &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Errorf("the secret lies on the disk: %v, %v", fs.Type, err)
	}
	before := n.lives()
	n.stored(func(s *store.Store) {
		n.put(s, "default/configmap/conf", &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "default"}, Data: map[string]string{"a": "two"}})
	})
	testenv.Poll(t, patience, func() error {
		data, err := os.ReadFile(filepath.Join(dir, "kubernetes.io~configmap", "conf", "a"))
		if err == nil && string(data) != "two" {
			err = fmt.Errorf("the volume still has %q", data)
		}
		return err
	})
	if after := n.lives(); !maps.Equal(before, after) {
		t.Error("a changed configmap restarted the pod")
	}
	reboot(t, n)
	pods = n.until("back after a reboot", running("api"))
	if got := pods["api"].Status.ContainerStatuses[0].RestartCount; got != 1 {
		t.Errorf("restart count %d, want 1", got)
	}
	n.stored(func(s *store.Store) {
		deleted := p.DeepCopy()
		deleted.DeletionTimestamp, deleted.DeletionGracePeriodSeconds = ptr.To(metav1.Now()), ptr.To[int64](1)
		n.put(s, "default/pod/api", deleted)
	})
	testenv.Poll(t, patience, func() error {
		if left := n.lives(); len(left) > 0 {
			return fmt.Errorf("%d containers run", len(left))
		}
		return nil
	})
	n.nothingLeft()
	// The end is reported last of all.
	db := n.readStore()
	testenv.Poll(t, patience, func() error {
		var keys sql.NullString
		if err := db.QueryRowContext(t.Context(), "select group_concat(key, ', ') from outbox").Scan(&keys); err != nil {
			return err
		}
		if got := keys.String; !strings.Contains(got, "patch default/podpatch/api") || !strings.Contains(got, "delete default/pod/api") {
			return fmt.Errorf("outbox: %s; want the status and the end of the pod", got)
		}
		return nil
	})
}

// TestDamagedStore: the agent starts, says so, and touches nothing that runs.
func TestDamagedStore(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	p := cloudPod("api")
	p.Spec.Volumes, p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].Env = nil, nil, nil
	n.manifest("static.yaml", pod("static", forever))
	n.stored(func(s *store.Store) { n.put(s, "default/pod/api", p) })
	n.until("both run", running("api", "static"))
	before := n.lives()
	if err := n.Kill9(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.Store(), []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(n.Store() + suffix); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.until("the static pod runs", running("static"))
	out, err := n.Run(t.Context(), "status")
	if err != nil || !strings.Contains(out, "StoreRecovered") || !strings.Contains(out, ".corrupt-") {
		t.Errorf("status: %v\n%s", err, out)
	}
	// It stays so over another start: the store cannot tell what it has lost.
	if err := n.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.until("the static pod runs", running("static"))
	n.manifest("new.yaml", pod("new", forever))
	n.until("a new pod runs", running("new"))
	after := n.lives()
	for id, at := range before {
		if after[id] != at {
			t.Errorf("container %s was touched", id)
		}
	}
}

// TestFullDisk: the agent says that it cannot store, goes on, and is well again when there is room.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	db := filepath.Join(dir, "db")
	if err := os.Mkdir(db, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", db, "tmpfs", 0, "size=512k"); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, testenv.Options{}, agent.Options{Dir: dir})
	ballast := filepath.Join(db, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 512))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names(5) {
		n.manifest(name+".yaml", pod(name, forever))
	}
	n.until("pods run all the same", running(names(5)...))
	testenv.Poll(t, patience, func() error {
		if out, err := n.Run(t.Context(), "status"); err == nil || !strings.Contains(out, "StoreFailing") {
			return fmt.Errorf("status does not tell: %s", out)
		}
		return nil
	})
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, patience, func() error {
		if out, err := n.Run(t.Context(), "status"); err != nil {
			return fmt.Errorf("still unwell: %s", out)
		}
		return nil
	})
	// What could not be stored was not lost.
	n.stored(func(s *store.Store) {
		rows, err := s.List(t.Context(), "podpatch")
		if err != nil || len(rows) != 5 {
			t.Errorf("%d statuses are stored, %v; want 5", len(rows), err)
		}
	})
}

// TestReadOnlyDisk: a device whose disk takes no writes any more runs what it has stored, and says so.
func TestReadOnlyDisk(t *testing.T) {
	dir := t.TempDir()
	db := filepath.Join(dir, "db")
	if err := os.Mkdir(db, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", db, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, testenv.Options{}, agent.Options{Dir: dir})
	p := cloudPod("api")
	p.Spec.Volumes, p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].Env = nil, nil, nil
	n.manifest("static.yaml", pod("static", forever))
	n.stored(func(s *store.Store) { n.put(s, "default/pod/api", p) })
	n.until("both run", running("api", "static"))
	if err := n.Kill9(t.Context()); err != nil { // what was acknowledged last is in the log alone
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", db, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := n.ctrd.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.ctrd.PowerOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.until("both are back", func(pods map[string]*v1.Pod) error {
		if lives := n.lives(); len(lives) != 2 {
			return fmt.Errorf("%d containers run", len(lives))
		}
		return running("api", "static")(pods)
	})
	if out, err := n.Run(t.Context(), "status"); err == nil || !strings.Contains(out, "the disk is read-only") {
		t.Errorf("status does not tell: %s", out)
	}
}

// TestCommands: what a person at the device types.
func TestCommands(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	n.manifest("a.yaml", pod("a", "for i in 1 2 3 4 5; do echo line $i; done; "+forever))
	pods := n.until("it runs", running("a"))
	name := pods["a"].Name
	for _, c := range []struct{ args, want string }{
		{"get pods", "default     a-node1   1/1     Running   0"},
		{"get pods -o wide", pods["a"].Status.PodIP + "   node1"},
		{"get pods -o name", "pod/a-node1\n"},
		{"get pods " + name + " -o yaml", "kubernetes.io/config.source: file"},
		{"get pods -o json", `"kind": "Pod"`},
		{"get events", "Container started"},
		{"status", "All is well."},
		{"logs " + name + " --tail 2", "line 4\nline 5\n"},
		{"config validate", "is valid, with no warnings"},
		{"config print", "hostnameOverride: node1"},
		{"--version", "EdgeCore "},
	} {
		testenv.Poll(t, 10*time.Second, func() error {
			out, err := n.Run(t.Context(), strings.Fields(c.args)...)
			if err != nil || !strings.Contains(out, c.want) {
				return fmt.Errorf("%s: %v\n%s\nwant %q", c.args, err, out, c.want)
			}
			return nil
		})
	}
	for _, c := range []struct{ args, want string }{
		{"logs nothing", `pod "nothing" not found; there are: a-node1`},
		{"logs " + name + " -c x", `container "x" is not in pod "a-node1"; it has: main`},
		{"logs " + name + " -p", "no log"},
		{"get pods nothing", `pod "nothing" not found`},
		{"get pods -o xml", "want wide, json, yaml or name"},
	} {
		if out, err := n.Run(t.Context(), strings.Fields(c.args)...); err == nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v\n%s\nwant %q", c.args, err, out, c.want)
		}
	}
	for path, want := range map[string]string{
		"/pods": `"kind":"PodList","apiVersion":"v1"`, "/healthz": "ok", "/healthz?verbose": "[+]syncloop ok", "/healthz/syncloop": "ok",
		"/metrics": "kubelet_running_pods 1",
	} {
		testenv.Poll(t, 30*time.Second, func() error {
			out, err := n.Get(t.Context(), path)
			if err != nil || !strings.Contains(out, want) {
				return fmt.Errorf("%s: %v\n%.300s\nwant %q", path, err, out, want)
			}
			return nil
		})
	}
	// The agent is down, and the logs are still there.
	if err := n.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := n.Run(t.Context(), "logs", name, "--tail", "1"); err != nil || out != "line 5\n" {
		t.Errorf("without the agent: %v, %q", err, out)
	}
	if out, err := n.Run(t.Context(), "status"); err == nil || !strings.Contains(out, "the agent does not answer") {
		t.Errorf("status without the agent: %v, %s", err, out)
	}
}
