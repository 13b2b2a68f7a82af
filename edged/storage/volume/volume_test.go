package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// objects is a store in memory. It words a missing object as an API server does.
type objects struct {
	configMaps map[string]*v1.ConfigMap
	secrets    map[string]*v1.Secret
	broken     error
	renewAt    time.Time
}

func (o *objects) ConfigMap(_ context.Context, namespace, name string) (*v1.ConfigMap, error) {
	if o.broken != nil {
		return nil, o.broken
	}
	if cm, ok := o.configMaps[namespace+"/"+name]; ok {
		return cm, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("configmaps"), name)
}

func (o *objects) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	if o.broken != nil {
		return nil, o.broken
	}
	if s, ok := o.secrets[namespace+"/"+name]; ok {
		return s, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("secrets"), name)
}

func (o *objects) Token(_ context.Context, pod *v1.Pod, ask *v1.ServiceAccountTokenProjection) (
	string, time.Time, error,
) {
	if o.broken != nil {
		return "", time.Time{}, o.broken
	}
	return "token of " + pod.Name + " for " + ask.Audience, o.renewAt, nil
}

type fields struct{}

func (fields) Field(pod *v1.Pod, path string) (string, error) {
	if path != "metadata.name" {
		return "", fmt.Errorf("unsupported fieldPath: %s", path)
	}
	return pod.Name, nil
}

func (fields) Resource(_ *v1.Pod, container string, ref *v1.ResourceFieldSelector) (string, error) {
	return container + "." + ref.Resource, nil
}

const uid = types.UID("3f2a9d8e-0000-4000-8000-000000000001")

// start makes a Manager on a fresh root, and takes all mounts below that away in the end.
func start(t *testing.T) (*Manager, *objects) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatalf("effective user ID = %d, want 0: these tests mount things", os.Geteuid())
	}
	root := t.TempDir()
	t.Cleanup(func() {
		if err := unmountAll(root); err != nil {
			t.Error(err)
		}
	})
	o := &objects{configMaps: map[string]*v1.ConfigMap{}, secrets: map[string]*v1.Secret{}}
	return New(Options{Root: root, Objects: o, Tokens: o, Fields: fields{}}), o
}

// podWith makes a pod with volumes, and a container that mounts them all.
func podWith(vols ...v1.Volume) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: uid}, Spec: v1.PodSpec{Volumes: vols},
	}
	pod.Spec.Containers = []v1.Container{{Name: "app"}}
	mountAll(pod)
	return pod
}

// mountAll has the first container of a pod mount all volumes.
func mountAll(pod *v1.Pod) {
	c := &pod.Spec.Containers[0]
	for _, v := range pod.Spec.Volumes {
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
}

func vol(name string, src v1.VolumeSource) v1.Volume { return v1.Volume{Name: name, VolumeSource: src} }

func setup(t *testing.T, m *Manager, pod *v1.Pod) Volumes {
	t.Helper()
	vols, err := m.Setup(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	return vols
}

// content reads the visible files of a volume, as "mode data" by path.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	var read func(rel string)
	read = func(rel string) {
		entries, err := os.ReadDir(filepath.Join(dir, rel))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			name := filepath.Join(rel, e.Name())
			if strings.HasPrefix(name, "..") {
				continue
			}
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if info.IsDir() {
				read(name)
				continue
			}
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			out[name] = fmt.Sprintf("%04o %s", info.Mode().Perm(), data)
		}
	}
	read("")
	return out
}

// stamps returns the inode and change time of everything below a folder: what any write would alter.
func stamps(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		out[path] = fmt.Sprintf("ino %d ctime %d.%09d", st.Ino, st.Ctim.Sec, st.Ctim.Nsec)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSetupOfNothing(t *testing.T) {
	m, _ := start(t)
	if got := setup(t, m, podWith()); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
}

func TestLayout(t *testing.T) {
	m, o := start(t)
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"k": "v"}}
	o.secrets["shop/s"] = &v1.Secret{Data: map[string][]byte{"k": []byte("v")}}
	host := t.TempDir()
	got := setup(t, m, podWith(
		vol("e", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		vol("h", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}),
		vol("c", v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "c"}},
		}),
		vol("s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}),
		vol("d", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{}}),
		vol("p", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}),
	))
	pod := filepath.Join(m.opts.Root, "pods", string(uid))
	want := Volumes{
		"e": {Path: pod + "/volumes/kubernetes.io~empty-dir/e"}, "h": {Path: host},
		"c": {Path: pod + "/volumes/kubernetes.io~configmap/c", ReadOnly: true},
		"s": {Path: pod + "/volumes/kubernetes.io~secret/s", ReadOnly: true},
		"d": {Path: pod + "/volumes/kubernetes.io~downward-api/d", ReadOnly: true},
		"p": {Path: pod + "/volumes/kubernetes.io~projected/p", ReadOnly: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mounts mismatch (-want +got):\n%s", diff)
	}
	info, err := os.Stat(pod)
	if err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("pod folder: %v, %v; want no error, 0o750", info, err)
	}
}

// An idle node writes nothing: the second Setup must not even touch a time stamp.
func TestSetupAgainWritesNothing(t *testing.T) {
	m, o := start(t)
	o.configMaps["shop/c"] = &v1.ConfigMap{
		Data: map[string]string{"a": "1", "b": "2"}, BinaryData: map[string][]byte{"c": {0, 1}},
	}
	o.secrets["shop/s"] = &v1.Secret{Data: map[string][]byte{"k": []byte("v")}}
	pod := podWith(
		vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		vol("memory", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}),
		vol("c", v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "c"},
				Items: []v1.KeyToPath{{Key: "a", Path: "deep/er/a"}, {Key: "c", Path: "c"}}},
		}),
		vol("s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}),
	)
	for _, group := range []*int64{nil, ptr.To[int64](4711)} {
		pod.UID = types.UID(fmt.Sprintf("pod-%v", ptr.Deref(group, 0)))
		pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: group}
		setup(t, m, pod)
		before := stamps(t, m.opts.Root)
		setup(t, m, pod)
		if diff := cmp.Diff(before, stamps(t, m.opts.Root)); diff != "" {
			t.Errorf("fsGroup %v mismatch (-want +got):\n%s", ptr.Deref(group, 0), diff)
		}
	}
}

func TestHostileNames(t *testing.T) {
	m, _ := start(t)
	empty := v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}
	for _, id := range []types.UID{
		"", ".", "..", "a/b", "../x", "lost+found", "a\x00b", types.UID(strings.Repeat("a", 129)),
	} {
		pod := podWith(vol("v", empty))
		pod.UID = id
		if _, err := m.Setup(t.Context(), pod); err == nil {
			t.Errorf("Setup(UID %q) = nil, want an error", id)
		}
		if err := m.Teardown(t.Context(), id); err == nil {
			t.Errorf("Teardown(UID %q) = nil, want an error", id)
		}
		if err := m.RemovePodDir(id); err == nil {
			t.Errorf("RemovePodDir(UID %q) = nil, want an error", id)
		}
	}
	for _, name := range []string{"", "..", "../../../x", "a/b", ".a.new"} {
		if _, err := m.Setup(t.Context(), podWith(vol(name, empty))); err == nil {
			t.Errorf("Setup(volume name %q) = nil, want an error", name)
		}
	}
}

func TestPods(t *testing.T) {
	m, _ := start(t)
	if got, err := m.Pods(); err != nil || got != nil {
		t.Errorf("with no folder: %v, %v; want no error, nil", got, err)
	}
	setup(t, m, podWith(vol("v", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})))
	for _, name := range []string{"lost+found", ".cache"} {
		if err := os.MkdirAll(filepath.Join(m.opts.Root, "pods", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(m.opts.Root, "pods", "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := m.Pods()
	if diff := cmp.Diff([]types.UID{uid}, got); err != nil || diff != "" {
		t.Errorf("Pods(): %v, mismatch (-want +got):\n%s", err, diff)
	}
}

func TestUnsupported(t *testing.T) {
	token := v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}}
	for _, tc := range []struct {
		name string
		src  v1.VolumeSource
		want string
	}{
		{"emptyDir", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, ""},
		{"hostPath", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{}}, ""},
		{"configMap", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}, ""},
		{"secret", v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}, ""},
		{"downwardAPI", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{}}, ""},
		{"pvc", v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}, ""},
		{"ephemeral", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}, ""},
		{"csi", v1.VolumeSource{CSI: &v1.CSIVolumeSource{}}, ""},
		{"nfs", v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}, ""},
		{"nothing", v1.VolumeSource{}, "volume type unknown is not supported"},
		{"hugepages", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: "HugePages-2Mi"}}, ""},
		{
			"unknown medium", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: "Paper"}},
			`emptyDir medium "Paper" is not supported`,
		},
		{"iscsi", v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{}}, "volume type iscsi is not supported"},
		{"fc", v1.VolumeSource{FC: &v1.FCVolumeSource{}}, "volume type fc is not supported"},
		{"flexVolume", v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{}}, "volume type flexVolume is not supported"},
		{"gitRepo", v1.VolumeSource{GitRepo: &v1.GitRepoVolumeSource{}}, "volume type gitRepo is not supported"},
		{"cephfs", v1.VolumeSource{CephFS: &v1.CephFSVolumeSource{}}, "volume type cephfs is not supported"},
		{
			"projected token", v1.VolumeSource{
				Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{token}},
			}, "",
		},
		{
			"projected bundle", v1.VolumeSource{
				Projected: &v1.ProjectedVolumeSource{
					Sources: []v1.VolumeProjection{{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{}}},
				},
			}, "",
		},
		{
			"projected certificate", v1.VolumeSource{
				Projected: &v1.ProjectedVolumeSource{
					Sources: []v1.VolumeProjection{{PodCertificate: &v1.PodCertificateProjection{}}},
				},
			},
			"projected source podCertificate is not supported",
		},
		{"projected others", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ConfigMap: &v1.ConfigMapProjection{}}, {Secret: &v1.SecretProjection{}},
			{DownwardAPI: &v1.DownwardAPIProjection{}}}}}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := podWith(vol("ok", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), vol("data", tc.src))
			err := Unsupported(pod)
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			for _, want := range []string{`MountVolume.SetUp failed for volume "data" : pod shop/web: `, tc.want} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
			m, _ := start(t)
			if _, setupErr := m.Setup(t.Context(), pod); setupErr == nil || setupErr.Error() != err.Error() {
				t.Errorf("Setup says %v, want %v", setupErr, err)
			}
			if left, _ := os.ReadDir(m.opts.Root); len(left) != 0 {
				t.Errorf("Setup left %v, want none", left)
			}
		})
	}
}

func TestReferences(t *testing.T) {
	ref := func(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }
	env := func(kind, cm, secret string) ([]v1.EnvVar, []v1.EnvFromSource) {
		return []v1.EnvVar{
				{Name: "A", Value: "x"},
				{
					Name: "B", ValueFrom: &v1.EnvVarSource{
						ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: ref(cm)},
					},
				},
				{
					Name: "C", ValueFrom: &v1.EnvVarSource{
						SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: ref(secret)},
					},
				},
				{Name: "D", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{}}},
			}, []v1.EnvFromSource{
				{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: ref(kind + "-from-cm")}},
				{SecretRef: &v1.SecretEnvSource{LocalObjectReference: ref(kind + "-from-secret")}},
			}
	}
	pod := podWith(
		vol("c", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("vol-cm")}}),
		vol("s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "vol-secret"}}),
		vol("p", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: ref("proj-cm")}},
			{Secret: &v1.SecretProjection{LocalObjectReference: ref("proj-secret")}},
			{DownwardAPI: &v1.DownwardAPIProjection{}}}}}),
		vol("again", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "vol-secret"}}),
	)
	pod.Spec.ImagePullSecrets = []v1.LocalObjectReference{ref("pull"), ref("")}
	var c v1.Container
	c.Env, c.EnvFrom = env("init", "init-cm", "init-secret")
	pod.Spec.InitContainers = []v1.Container{c}
	c.Env, c.EnvFrom = env("main", "main-cm", "main-secret")
	pod.Spec.Containers = []v1.Container{c}
	var e v1.EphemeralContainer
	e.Env, e.EnvFrom = env("debug", "debug-cm", "debug-secret")
	pod.Spec.EphemeralContainers = []v1.EphemeralContainer{e}

	want := map[Kind][]string{
		KindConfigMap: {
			"vol-cm", "proj-cm", "init-cm", "init-from-cm", "main-cm", "main-from-cm", "debug-cm", "debug-from-cm",
		},
		KindSecret: {
			"pull", "vol-secret", "proj-secret", "init-secret", "init-from-secret", "main-secret", "main-from-secret",
			"debug-secret", "debug-from-secret",
		},
	}
	for kind, names := range want {
		got := References(pod, kind)
		if diff := cmp.Diff(names, got); diff != "" {
			t.Errorf("%s mismatch (-want +got):\n%s", kind, diff)
		}
		for _, name := range names {
			if !Refers(pod, kind, name) {
				t.Errorf("Refers(%s %s) = false, want true", kind, name)
			}
		}
	}
	if Refers(pod, KindConfigMap, "pull") {
		t.Error("Refers(ConfigMap pull) = true, want false")
	}
	if got := References(pod, KindSecret); slices.Contains(got, "") {
		t.Errorf("References(Secret) = %q, want no empty name", got)
	}
}

func TestBrokenStore(t *testing.T) {
	m, o := start(t)
	o.broken = errors.New("database is locked")
	_, err := m.Setup(t.Context(), podWith(vol("c", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: "x"}, Optional: ptr.To(true)}})))
	if want := `MountVolume.SetUp failed for volume "c" : configmap "x": database is locked`; err == nil ||
		err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
