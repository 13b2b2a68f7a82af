package vm_test

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/test/differential"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// limitPod is a pod whose limits are compared. Few pods have much each, since each container takes seconds to start.
type limitPod struct {
	name, spec string
	// resize is a patch of the pod's resources, "" for none.
	resize string
}

var limitPods = []limitPod{
	{
		name: "guaranteed",
		spec: `containers: [{name: main, resources: {limits: {cpu: 400m, memory: 32Mi}}}]`,
		resize: `{spec: {containers: [{name: main,
resources: {requests: {cpu: 500m, memory: 40Mi}, limits: {cpu: 500m, memory: 40Mi}}}]}}`,
	},
	{
		name: "burstable",
		spec: `volumes: [{name: v, emptyDir: {medium: Memory}}]
containers:
- name: main
  volumeMounts: [{name: v, mountPath: /v}]
  resources: {requests: {cpu: 100m, memory: 48Mi}, limits: {cpu: 600m, memory: 64Mi}}`,
		resize: `{spec: {containers: [{name: main, resources: {requests: {memory: 40Mi}, limits: {memory: 56Mi}}}]}}`,
	},
	{name: "besteffort", spec: `containers: [{name: main}]`},
	{
		name: "requests",
		spec: `containers:
- name: main
  resources:
    requests: {cpu: 1m, memory: 96Mi, ephemeral-storage: 1Mi}
    limits: {cpu: 1500m, ephemeral-storage: 64Mi}`,
		resize: `{spec: {containers: [{name: main, resources: {requests: {cpu: 200m}}}]}}`,
	},
	{
		name: "hugepages",
		spec: `containers: [{name: main, resources: {limits: {cpu: 300m, memory: 16Mi, hugepages-2Mi: 4Mi}}}]`,
	},
	{
		name: "pod-level",
		spec: `resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 700m, memory: 64Mi}}
containers: [{name: main, resources: {requests: {cpu: 20m}}}, {name: none}]`,
	},
	{
		name: "sidecar",
		spec: `initContainers:
- {name: init, command: ["true"], resources: {requests: {cpu: 300m, memory: 20Mi}, limits: {memory: 40Mi}}}
- name: sidecar
  restartPolicy: Always
  resources: {requests: {cpu: 40m, memory: 12Mi}, limits: {cpu: 600m, memory: 24Mi}}
containers:
- {name: main, resources: {requests: {cpu: 30m, memory: 10Mi}}}
- {name: other, resources: {limits: {cpu: 400m, memory: 16Mi}}}`,
		resize: `{spec: {initContainers: [{name: sidecar, resources: {requests: {cpu: 80m}, limits: {cpu: 650m}}}],
containers: [{name: main, resources: {requests: {cpu: 60m}}}]}}`,
	},
}

// pod returns the pod for a node.
func (p limitPod) pod(namespace, node string) (*v1.Pod, error) {
	pod := &v1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(p.spec), &pod.Spec); err != nil {
		return nil, fmt.Errorf("pod %s: %w", p.name, err)
	}
	pod.Name, pod.Namespace = p.name, namespace
	pod.Spec.NodeName = node
	pod.Spec.HostNetwork = true // without what a network takes to set up
	// Otherwise cloudcore changes the tolerations of the pod, and with them its generation.
	pod.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	pod.Spec.AutomountServiceAccountToken = new(bool)
	pod.Spec.TerminationGracePeriodSeconds = new(int64(1))
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			containers[i].Image = images.Demo
			if containers[i].Command == nil {
				containers[i].Command = []string{"sleep", "1000000"}
			}
		}
	}
	return pod, nil
}

// readLimits prints what limits pods: a line with the path and the value for each setting of a cgroup, which are its
// files that can be read and written, then the properties of systemd's units, and what each process has of the node.
const readLimits = `cd /sys/fs/cgroup
echo cgroup.controllers:$(cat cgroup.controllers)
find kubepods.slice -type f -perm -u+rw ! -name cgroup.procs ! -name cgroup.threads ! -name '*.pressure' \
  ! -name '*.peak' -exec grep -H '' {} +
echo ` + unitsBegin + `
systemctl show 'kubepods*' 'cri-containerd-*'
echo ` + processesBegin + `
for dir in $(find kubepods.slice -type d); do
  for pid in $(cat $dir/cgroup.procs); do
    echo "$dir/command:$(cat /proc/$pid/comm)"
    echo "$dir/oom_score_adj:$(cat /proc/$pid/oom_score_adj)"
    sed "s|^|$dir/limits:|" /proc/$pid/limits
    awk -v s="$dir/mounts" '{for (i=7; i<NF; i++) if ($i == "-") break; print s $5 ":" $6 " " $(i+1)}' \
      /proc/$pid/mountinfo
  done
done
`

const (
	unitsBegin     = "--- units"
	processesBegin = "--- processes"
)

// parseLimits makes a trace of what readLimits prints. The IDs of containers and pods are replaced by their names.
func parseLimits(text string, names map[string]string) differential.Trace {
	text = named(text, names)
	files, text, _ := strings.Cut(text, unitsBegin+"\n")
	units, processes, _ := strings.Cut(text, processesBegin+"\n")
	trace := differential.Trace{}
	add := func(kind, lines string) {
		for line := range strings.Lines(lines) {
			if where, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
				trace[kind+"/"+where] = append(trace[kind+"/"+where], strings.Join(strings.Fields(value), " "))
			}
		}
	}
	add("cgroup", files)
	add("process", processes)
	for unit := range strings.SplitSeq(units, "\n\n") {
		properties := map[string]string{}
		for line := range strings.Lines(unit) {
			if key, value, found := strings.Cut(strings.TrimSpace(line), "="); found && !unitState.MatchString(key) {
				properties[key] = value
			}
		}
		// One that has gone since is not listed, and one that was stopped has no cgroup.
		if properties["ControlGroup"] == "" {
			continue
		}
		for key, value := range properties {
			if key == "SliceOf" {
				value = strings.Join(slices.Sorted(strings.FieldsSeq(value)), " ")
			}
			where := "unit" + properties["ControlGroup"] + "/" + key
			trace[where] = append(trace[where], value)
		}
	}
	for where := range trace {
		slices.Sort(trace[where])
	}
	return trace
}

// unitState are the properties of units that tell how a unit is and not how it is to be, and its relations to others,
// which depend on what systemd has loaded first.
var unitState = regexp.MustCompile(`^(.*Timestamp(Monotonic)?|InvocationID|Memory(Current|Available)|CPUUsageNSec|` +
	`TasksCurrent|ControlGroupId|IP(In|E)gress.*|IO(Read|Write)(Bytes|Operations)|Requires|RequiredBy|Conflicts|Before|After|` +
	`WantedBy|EffectiveCPUs|EffectiveMemoryNodes|Job|DropInPaths|FragmentPath|ConsistsOf|Wants)$`)

var longID = regexp.MustCompile(`[0-9a-f]{64}`)

// named replaces the IDs of containers and pods in a text by their names. A container that no pod has is a sandbox.
func named(text string, names map[string]string) string {
	for id, name := range names {
		text = strings.ReplaceAll(text, id, name)
	}
	return longID.ReplaceAllString(text, "sandbox")
}

// addNames adds the IDs of a pod and of its containers, as they are in the names of cgroups.
func addNames(names map[string]string, p *v1.Pod) {
	names[string(p.UID)] = p.Name
	names[strings.ReplaceAll(string(p.UID), "-", "_")] = p.Name
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if id := path.Base(c.ContainerID); longID.MatchString(id) {
			names[id] = p.Name + "." + c.Name
		}
	}
}

// TestLimitPods: the pods of TestKubelet are pods, with an image and a command each.
func TestLimitPods(t *testing.T) {
	for _, p := range limitPods {
		pod, err := p.pod("here", "edge")
		if err != nil || len(pod.Spec.Containers) == 0 {
			t.Errorf("%s = %+v, %v, want a pod with containers", p.name, pod, err)
			continue
		}
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if c.Image == "" || len(c.Command) == 0 {
				t.Errorf("%s: container %s has image %q and command %q, want both", p.name, c.Name, c.Image, c.Command)
			}
		}
	}
}

const (
	someUID = "0c1a1b5e-0000-4000-8000-000000000000"
	someID  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	boxID   = "1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	someDir = "kubepods.slice/kubepods-pod0c1a1b5e_0000_4000_8000_000000000000.slice"
)

// limitsOf is what readLimits prints on a node with one pod.
func limitsOf(memory, weight, adj string) string {
	return "cgroup.controllers:cpu memory\n" +
		someDir + "/memory.max:" + memory + "\n" + someDir + "/cri-containerd-" + someID + ".scope/io.max:\n" +
		someDir + "/cri-containerd-" + boxID + ".scope/hugetlb.2MB.max:0\n" + unitsBegin + "\n" +
		"CPUWeight=" + weight + "\nControlGroup=/" + someDir + "\nTasksCurrent=7\nInvocationID=abc\n\n" +
		"CPUWeight=1\nControlGroup=\n" + processesBegin + "\n" +
		someDir + "/oom_score_adj:" + adj + "\n" + someDir + "/oom_score_adj:-998\n"
}

func someNames() map[string]string {
	names := map[string]string{}
	p := &v1.Pod{}
	p.Name, p.UID = "a", someUID
	p.Status.ContainerStatuses = []v1.ContainerStatus{
		{Name: "main", ContainerID: "containerd://" + someID},
		{Name: "none"},
	}
	addNames(names, p)
	return names
}

func TestParseLimits(t *testing.T) {
	const dir = "kubepods.slice/kubepods-poda.slice"
	want := differential.Trace{
		"cgroup/cgroup.controllers":                                       {"cpu memory"},
		"cgroup/" + dir + "/memory.max":                                   {"64"},
		"cgroup/" + dir + "/cri-containerd-a.main.scope/io.max":           {""},
		"cgroup/" + dir + "/cri-containerd-sandbox.scope/hugetlb.2MB.max": {"0"},
		"unit/" + dir + "/CPUWeight":                                      {"4"},
		"unit/" + dir + "/ControlGroup":                                   {"/" + dir},
		"process/" + dir + "/oom_score_adj":                               {"-998", "7"},
	}
	if diff := cmp.Diff(want, parseLimits(limitsOf("64", "4", "7"), someNames())); diff != "" {
		t.Errorf("trace, - want, + got:\n%s", diff)
	}
}

// TestPlantedLimits: a limit of each kind that differs is found, and no list allows it.
func TestPlantedLimits(t *testing.T) {
	left := parseLimits(limitsOf("64", "4", "7"), someNames())
	const dir = "kubepods.slice/kubepods-poda.slice"
	for _, c := range []struct{ memory, weight, adj, want string }{
		{"64", "4", "7", ""},
		{"63", "4", "7", "cgroup/" + dir + "/memory.max"},
		{"64", "5", "7", "unit/" + dir + "/CPUWeight"},
		{"64", "4", "8", "process/" + dir + "/oom_score_adj"},
	} {
		right := parseLimits(limitsOf(c.memory, c.weight, c.adj), someNames())
		var got []string
		for _, d := range unlistedLimits(left, right) {
			got = append(got, d.Path)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("memory %s, weight %s, OOM score %s: differences = %q, want %q", c.memory, c.weight, c.adj, got,
				c.want)
		}
	}
	missing := maps.Clone(left)
	delete(missing, "cgroup/"+dir+"/memory.max")
	if got := unlistedLimits(left, missing); len(got) != 1 {
		t.Errorf("differences without a file = %v, want one", got)
	}
}
