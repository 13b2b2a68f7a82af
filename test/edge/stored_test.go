package edge

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3" // opens the store
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// stored changes the store while the agent is down, as the cloud would have through its messages.
func (n *node) stored(change func(*store.Store)) {
	n.T.Helper()
	env.Must(n.T, n.Stop(n.T.Context()))
	s, recovery, err := store.Open(n.T.Context(), n.Store(), store.Options{})
	if err != nil || recovery != nil {
		n.T.Fatalf("open the store: %v, recovery %v, want no error, no recovery", err, recovery)
	}
	change(s)
	env.Must(n.T, s.Close())
	env.Must(n.T, n.Start(n.T.Context()))
}

func (n *node) put(s *store.Store, key string, obj any) {
	n.T.Helper()
	data, err := json.Marshal(obj)
	env.Must(n.T, err)
	row := store.Meta{Key: key, Type: strings.Split(key, "/")[1], Value: data}
	env.Must(n.T, s.Apply(n.T.Context(), store.Upsert(row)))
}

// cloudPod is a pod as an API server makes it, with a configmap and a secret.
func cloudPod(name string) *v1.Pod {
	return &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:              name,
			Namespace:         "default",
			UID:               "0b2b1a52-7d2c-4b0e-8d19-bd0f1d5b3c11",
			ResourceVersion:   "10",
			CreationTimestamp: metav1.Now(),
		},
		Spec: v1.PodSpec{
			NodeName:                      "node1",
			RestartPolicy:                 v1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			DNSPolicy:                     v1.DNSDefault,
			Volumes: []v1.Volume{
				{
					Name: "conf", VolumeSource: v1.VolumeSource{
						ConfigMap: &v1.ConfigMapVolumeSource{
							LocalObjectReference: v1.LocalObjectReference{Name: "conf"},
						},
					},
				},
				{
					Name: "key", VolumeSource: v1.VolumeSource{
						Secret: &v1.SecretVolumeSource{SecretName: "key", DefaultMode: ptr.To[int32](0o400)},
					},
				},
			},
			Containers: []v1.Container{
				{
					Name:            "main",
					Image:           "edgecore.local/demo:1",
					ImagePullPolicy: v1.PullIfNotPresent,
					Command: []string{
						"sh", "-c",
						"echo conf $(cat /conf/a) key $(cat /key/k) mode $(stat -L -c %a /key/k) env $FROM_MAP; " +
							env.Forever,
					},
					Env: []v1.EnvVar{
						{
							Name: "FROM_MAP", ValueFrom: &v1.EnvVarSource{
								ConfigMapKeyRef: &v1.ConfigMapKeySelector{
									LocalObjectReference: v1.LocalObjectReference{Name: "conf"}, Key: "a",
								},
							},
						},
					},
					VolumeMounts: []v1.VolumeMount{
						{Name: "conf", MountPath: "/conf"}, {Name: "key", MountPath: "/key"},
					},
				},
			},
		},
	}
}

// readStore opens the store to read beside the agent.
func (n *node) readStore() *sql.DB {
	n.T.Helper()
	db, err := sql.Open("sqlite3", "file:"+n.Store()+"?mode=ro&_busy_timeout=10000")
	env.Must(n.T, err)
	n.T.Cleanup(func() { _ = db.Close() })
	return db
}

// kept waits until the store has a phase of a pod, which is shown before.
func (n *node) kept(name string, want v1.PodPhase) {
	n.T.Helper()
	n.keptAs(name, "$.status.phase", string(want))
}

// keptAs waits until the store has a field of a pod's status, by its JSON path; true is "1".
func (n *node) keptAs(name, path, want string) {
	n.T.Helper()
	db := n.readStore()
	wait.Until(n.T, path+" of pod "+name+" in the store", func() error {
		var got sql.NullString
		key := "default/podpatch/" + name + "-" + n.NodeName
		const query = "select json_extract(value, ?) from meta where key = ?"
		err := db.QueryRowContext(n.T.Context(), query, path, key).Scan(&got)
		if err == nil && got.String != want {
			err = fmt.Errorf("%s of pod %s is %q in the store, want %q", path, name, got.String, want)
		}
		return err
	})
}

// TestStoredPods: what the store has runs with no cloud, again after a reboot; what it says of configmaps and
// secrets reaches the containers; a deleted pod ends and that is queued for the cloud.
func TestStoredPods(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	p := cloudPod("api")
	n.stored(func(s *store.Store) {
		n.put(s, "default/pod/api", p)
		n.put(s, "default/configmap/conf", &v1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "default"}, Data: map[string]string{"a": "one"},
		})
		n.put(s, "default/secret/key", &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key", Namespace: "default"},
			Data: map[string][]byte{"k": []byte("hush")}})
	})
	pods := n.Running("api")
	n.saysUntil(pods["api"], "conf one key hush mode 400 env one")
	dir := filepath.Join(n.Dir, "root", "pods", string(p.UID), "volumes")
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Join(dir, "kubernetes.io~secret", "key"), &fs); err != nil ||
		fs.Type != unix.TMPFS_MAGIC {
		t.Errorf("the secret lies on a file system of type %x (%v), want tmpfs", fs.Type, err)
	}
	before := n.RunningContainers()
	n.stored(func(s *store.Store) {
		n.put(s, "default/configmap/conf", &v1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "default"}, Data: map[string]string{"a": "two"},
		})
	})
	wait.Until(t, "the changed configmap in the volume", func() error {
		data, err := os.ReadFile(filepath.Join(dir, "kubernetes.io~configmap", "conf", "a"))
		if err == nil && string(data) != "two" {
			err = fmt.Errorf("the volume still has %q", data)
		}
		return err
	})
	n.same(before) // a changed configmap restarts nothing
	reboot(t, n)
	pods = n.Running("api")
	if got := pods["api"].Status.ContainerStatuses[0].RestartCount; got != 1 {
		t.Errorf("restart count %d, want 1", got)
	}
	n.stored(func(s *store.Store) {
		deleted := p.DeepCopy()
		deleted.DeletionTimestamp, deleted.DeletionGracePeriodSeconds = ptr.To(metav1.Now()), ptr.To[int64](1)
		n.put(s, "default/pod/api", deleted)
	})
	n.nothingRuns()
	n.NothingLeft()
	// The end is reported last of all.
	db := n.readStore()
	wait.Until(t, "the reports in the outbox", func() error {
		var keys sql.NullString
		if err := db.QueryRowContext(t.Context(), "select group_concat(key, ', ') from outbox").
			Scan(&keys); err != nil {
			return err
		}
		if got := keys.String; !strings.Contains(got, " default/podpatch/api") ||
			!strings.Contains(got, " default/pod/api") {
			return fmt.Errorf("outbox: %s; want the status and the end of the pod", got)
		}
		return nil
	})
}

// TestDamagedStore: the agent starts, says so, and touches nothing that runs.
func TestDamagedStore(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	p := cloudPod("api")
	p.Spec.Volumes, p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].Env = nil, nil, nil
	n.Manifest("static", env.Pod("static", env.Forever))
	n.stored(func(s *store.Store) { n.put(s, "default/pod/api", p) })
	n.Running("api", "static")
	before := n.RunningContainers()
	n.kill()
	env.Must(t, os.WriteFile(n.Store(), []byte(strings.Repeat("no database ", 1000)), 0o600))
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(n.Store() + suffix); err != nil && !os.IsNotExist(err) {
			t.Fatalf("remove: %v, want nil or %v", err, os.ErrNotExist)
		}
	}
	n.start()
	n.Running("static")
	out, err := n.Run(t.Context(), "status")
	if err != nil || !strings.Contains(out, "StoreRecovered") || !strings.Contains(out, ".corrupt-") {
		t.Errorf("edgecore status: %v, want StoreRecovered and where the damaged file is:\n%s", err, out)
	}
	// It stays so over another start: the store cannot tell what it has lost.
	env.Must(t, n.Stop(t.Context()))
	n.start()
	n.Running("static")
	n.Manifest("new", env.Pod("new", env.Forever))
	n.Running("new")
	n.untouched(before)
}

// TestFullDisk: the agent says that it cannot store, goes on, and is well again when there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db := filepath.Join(dir, "db")
	env.Must(t, os.Mkdir(db, 0o700))
	env.Must(t, unix.Mount("tmpfs", db, "tmpfs", 0, "size=512k"))
	n := newNode(t, env.NodeOptions{Agent: agent.Options{Dir: dir}})
	ballast := filepath.Join(db, "ballast")
	f, err := os.Create(ballast)
	env.Must(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 512))
	}
	env.Must(t, f.Close())
	for _, name := range names(5) {
		n.Manifest(name, env.Pod(name, env.Forever))
	}
	n.Running(names(5)...)
	wait.Until(t, "StoreFailing", func() error {
		if out, err := n.Run(t.Context(), "status"); err == nil || !strings.Contains(out, "StoreFailing") {
			return fmt.Errorf("edgecore status: %v, want an error with %q:\n%s", err, "StoreFailing", out)
		}
		return nil
	})
	env.Must(t, os.Remove(ballast))
	wait.Until(t, "the agent to be well again", func() error {
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
	t.Parallel()
	dir := t.TempDir()
	db := filepath.Join(dir, "db")
	env.Must(t, os.Mkdir(db, 0o700))
	env.Must(t, unix.Mount("tmpfs", db, "tmpfs", 0, "size=4m"))
	n := newNode(t, env.NodeOptions{Agent: agent.Options{Dir: dir}})
	p := cloudPod("api")
	p.Spec.Volumes, p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].Env = nil, nil, nil
	n.Manifest("static", env.Pod("static", env.Forever))
	n.stored(func(s *store.Store) { n.put(s, "default/pod/api", p) })
	n.Running("api", "static")
	if err := n.Kill9(t.Context()); err != nil { // what was acknowledged last is in the log alone
		t.Fatal(err)
	}
	env.Must(t, unix.Mount("tmpfs", db, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	env.Must(t, n.Containerd.PowerOff(t.Context()))
	env.Must(t, n.Containerd.PowerOn(t.Context()))
	n.start()
	n.Until("both are back", func(pods map[string]*v1.Pod) error {
		if got := len(n.RunningContainers()); got != 2 {
			return fmt.Errorf("%d containers run, want 2", got)
		}
		return env.Running("api", "static")(pods)
	})
	if out, err := n.Run(t.Context(), "status"); err == nil || !strings.Contains(out, "the disk is read-only") {
		t.Errorf("edgecore status: %v, want an error with %q:\n%s", err, "the disk is read-only", out)
	}
}

// TestCommands: what a person at the device types.
func TestCommands(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	n.Manifest("a", env.Pod("a", "for i in 1 2 3 4 5; do echo line $i; done; "+env.Forever))
	pods := n.Running("a")
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
		wait.Until(t, "edgecore "+c.args, func() error {
			out, err := n.Run(t.Context(), strings.Fields(c.args)...)
			if err != nil || !strings.Contains(out, c.want) {
				return fmt.Errorf("%v\n%s\nwant %q", err, out, c.want)
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
		"/pods": `"kind":"PodList","apiVersion":"v1"`, "/healthz": "ok", "/healthz?verbose": "[+]syncloop ok",
		"/healthz/syncloop": "ok",
		"/metrics":          "kubelet_running_pods 1",
	} {
		wait.Until(t, path, func() error {
			out, err := n.Get(t.Context(), path)
			if err != nil || !strings.Contains(out, want) {
				return fmt.Errorf("%v\n%.300s\nwant %q", err, out, want)
			}
			return nil
		})
	}
	// The agent is down, and the logs are still there.
	env.Must(t, n.Stop(t.Context()))
	if out, err := n.Run(t.Context(), "logs", name, "--tail", "1"); err != nil || out != "line 5\n" {
		t.Errorf("edgecore logs without the agent: %v, %q; want %q", err, out, "line 5\n")
	}
	if out, err := n.Run(t.Context(), "status"); err == nil || !strings.Contains(out, "the agent does not answer") {
		t.Errorf("edgecore status without the agent: %v, %s; want an error that says so", err, out)
	}
}
