package edge

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/modbusserver"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// mapperPod returns the pod of deploy/mappers/modbus.yaml with another folder of dmi.sock.
func mapperPod(t *testing.T, dir string) *v1.PodTemplateSpec {
	t.Helper()
	text, err := os.ReadFile("../../deploy/mappers/modbus.yaml")
	env.Must(t, err)
	_, last, _ := strings.Cut(string(text), "\n---\n")
	var set appsv1.DaemonSet
	env.Must(t, yaml.UnmarshalStrict([]byte(strings.ReplaceAll(last, v1alpha2.DefaultDMIDir, dir)), &set))
	return &set.Spec.Template
}

// TestMapperManifest: the Modbus mapper of deploy/mappers works with nothing of the node but the folder of dmi.sock,
// without root's rights, also after the agent was killed.
func TestMapperManifest(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	dir := filepath.Dir(n.DMISocket())
	template := mapperPod(t, dir)
	spec := &template.Spec
	main := &spec.Containers[0]
	if len(spec.Containers) != 1 || len(spec.Volumes) != 1 || spec.Volumes[0].HostPath == nil ||
		spec.Volumes[0].HostPath.Path != dir || ptr.Deref(spec.AutomountServiceAccountToken, true) {
		t.Errorf("containers %+v, volumes %+v; want one container, and no volume but the folder of dmi.sock",
			spec.Containers, spec.Volumes)
	}
	user, pod := main.SecurityContext, spec.SecurityContext
	if !*pod.RunAsNonRoot || *pod.RunAsUser == 0 || fmt.Sprint(*pod.RunAsGroup) != v1alpha2.DefaultDMIGroup ||
		*user.AllowPrivilegeEscalation || !*user.ReadOnlyRootFilesystem || user.RunAsUser != nil ||
		!slices.Equal(user.Capabilities.Drop, []v1.Capability{"ALL"}) || user.Privileged != nil {
		t.Errorf("security contexts %+v and %+v; want a user without rights in group %s", pod, user,
			v1alpha2.DefaultDMIGroup)
	}
	if strings.HasSuffix(main.Image, ":latest") {
		t.Errorf("image %s; want a tag that stays what it is", main.Image)
	}

	binary, archive := filepath.Join(n.Dir, "modbus"), filepath.Join(n.Dir, "modbus.tar")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../mappers/modbus")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	image := exec.CommandContext(t.Context(), "go", "run", "../../hack/image", "-binary", binary, "-user",
		"65530:65530", "-name", main.Image, "-out", archive)
	load := exec.CommandContext(t.Context(), "ctr", "--address", n.Containerd.Socket(), "-n", "k8s.io", "images",
		"import", archive)
	for _, c := range []*exec.Cmd{build, image, load} {
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c.Args, err, out)
		}
	}
	s := modbusserver.Start(t)
	s.Set(2, 5)
	n.stored(func(db *store.Store) {
		for key, value := range map[string]string{
			"shop/devicemodel/boiler": `{"metadata":{"name":"boiler","namespace":"shop","uid":"m1"},"spec":{"properties":[
{"name":"limit","type":"INT","accessMode":"ReadWrite"}]}}`,
			"shop/device/one": `{"metadata":{"name":"one","namespace":"shop","uid":"d1"},"spec":{"deviceModelRef":
{"name":"boiler"},"protocol":{"protocolName":"modbus","configData":{"ip":"127.0.0.1","port":` + fmt.Sprint(s.Port) + `}},
"properties":[{"name":"limit","collectCycle":20,"visitors":{"configData":{"register":"HoldingRegister","offset":2}}}]}}`,
		} {
			row := store.Meta{Key: key, Type: strings.Split(key, "/")[1], Value: []byte(value)}
			env.Must(t, db.Apply(t.Context(), store.Upsert(row)))
		}
	})
	main.Args = append(main.Args, "--networks=127.0.0.1") // the device of this test is on the node
	spec.NodeSelector = nil                               // the node has no cluster that would label it
	manifest, err := yaml.Marshal(&v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "modbus", Namespace: "default"},
		Spec:       *spec,
	})
	env.Must(t, err)
	n.Manifest("modbus", string(manifest))
	n.Running("modbus")
	limit := func(want string) {
		t.Helper()
		wait.Until(t, "the limit "+want, func() error {
			out := n.Command("get", "devices")
			if !strings.Contains(strings.Join(strings.Fields(out), " "), "shop one online limit "+want+" ") {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
	}
	limit("5")
	info, err := os.Stat(filepath.Join(dir, "mappers", "modbus.sock"))
	env.Must(t, err)
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != uint32(*pod.RunAsUser) {
		t.Errorf("the socket of the mapper belongs to user %d, want %d", uid, *pod.RunAsUser)
	}
	before := n.RunningContainers()
	n.kill()
	n.start()
	s.Set(2, 6)
	limit("6")
	n.untouched(before)
}
