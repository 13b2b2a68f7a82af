package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// securityRows are about who containers run as, and what they may do.
func securityRows() []row {
	return slices.Concat(userRows(), privilegeRows(), seccompRows(), sysctlRows(), hostRows(), usernsRows())
}

func userRows() []row {
	return []row{
		{
			name: "users-groups",
			spec: `
securityContext: {runAsUser: 2000, runAsGroup: 3000, fsGroup: 4000, supplementalGroups: [5000]}
volumes: [{name: v, emptyDir: {}}]
containers:
- {name: pods, volumeMounts: [{name: v, mountPath: /v}]}
- {name: own, securityContext: {runAsUser: 2001, runAsGroup: 3001}}
- {name: image, image: edgecore.local/nonroot:1}
`,
			check: func(p *pod) {
				got := p.running()
				p.says("pods", "id -u; id -g; id -G", "2000\n3000\n3000 4000 5000")
				p.says("own", "id -u; id -g", "2001\n3001")
				p.says("image", "id -u; id -g", "2000\n3000")
				p.says("pods", "stat -c %g /v; touch /v/f; stat -c %u:%g /v/f", "4000\n2000:4000")
				user := containerStatus(&got.Status, "own").User
				if p.node.name != containerd2 {
					if user != nil {
						p.Errorf("user = %+v, want none from a runtime that does not report it", user)
					}
					return
				}
				want := &v1.LinuxContainerUser{UID: 2001, GID: 3001, SupplementalGroups: []int64{3001, 4000, 5000}}
				if user == nil || cmp.Diff(want, user.Linux) != "" {
					p.Errorf("user in the status: %+v, want %+v", user, want)
				}
			},
		},
		{
			name: "image-users",
			spec: `
containers:
- {name: root}
- {name: number, image: edgecore.local/nonroot:1}
- {name: name, image: edgecore.local/nonroot-name:1}
- {name: groups, image: edgecore.local/groups:1}
`,
			check: func(p *pod) {
				p.running()
				p.says("root", "id -u", "0")
				p.says("number", "id -u", "1000")
				p.says("name", "id -u; id -g", "1000\n1000")
				p.says("groups", "id -u; id -G", "1000\n1000 50000")
			},
		},
		{
			name: "run-as-non-root",
			spec: `
securityContext: {runAsNonRoot: true}
containers:
- {name: root}
- {name: zero, securityContext: {runAsNonRoot: false, runAsUser: 0}}
- {name: number, image: edgecore.local/nonroot:1}
- {name: name, image: edgecore.local/nonroot-name:1}
- {name: pods, image: edgecore.local/nonroot-name:1, securityContext: {runAsUser: 7}}
`,
			check: func(p *pod) {
				p.waits("root", "CreateContainerConfigError",
					"container has runAsNonRoot and image will run as root (pod: \""+p.name)
				p.waits("name", "CreateContainerConfigError",
					"container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root")
				p.event("Failed", "Error: container has runAsNonRoot and image will run as root")
				p.says("zero", "id -u", "0")
				p.says("number", "id -u", "1000")
				p.says("pods", "id -u", "7")
			},
		},
		{
			name: "run-as-root-refused",
			spec: `containers: [{name: main, securityContext: {runAsNonRoot: true, runAsUser: 0}}]`,
			check: func(p *pod) {
				p.waits("main", "CreateContainerConfigError", "container's runAsUser breaks non-root policy")
			},
		},
		{
			name: "groups-merge",
			spec: `
securityContext: {supplementalGroups: [60000], supplementalGroupsPolicy: Merge}
containers: [{name: main, image: edgecore.local/groups:1}]
`,
			check: func(p *pod) { p.says("main", "id -G", "1000 50000 60000") },
		},
		{
			name: "groups-strict",
			spec: `
securityContext: {supplementalGroups: [60000], supplementalGroupsPolicy: Strict}
containers: [{name: main, image: edgecore.local/groups:1}]
`,
			check: func(p *pod) {
				if p.node.name == containerd1 {
					p.rejected("SupplementalGroupsPolicyNotSupported",
						"SupplementalGroupsPolicy=Strict is not supported in this node")
					return
				}
				p.says("main", "id -G", "1000 60000")
				got := p.running().Status.ContainerStatuses[0].User
				if got == nil || got.Linux == nil || !slices.Equal(got.Linux.SupplementalGroups, []int64{1000, 60000}) {
					p.Errorf("user in the status = %+v, want the groups 1000 and 60000", got)
				}
			},
		},
	}
}

func privilegeRows() []row {
	return []row{
		{
			name: "capabilities",
			spec: `
containers:
- {name: usual}
- {name: none, securityContext: {capabilities: {drop: [ALL]}}}
- {name: one, securityContext: {capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}}}
- {name: more, securityContext: {capabilities: {add: [SYS_TIME]}}}
`,
			check: func(p *pod) {
				const has = "grep CapEff /proc/self/status | tr -d '\\t'"
				p.says("usual", has, "CapEff:00000000a80425fb")
				p.says("none", has, "CapEff:0000000000000000")
				p.says("one", has, "CapEff:0000000000000400")
				p.says("more", has, "CapEff:00000000aa0425fb")
			},
		},
		{
			name: "privileged",
			spec: `containers: [{name: main, securityContext: {privileged: true}}, {name: other}]`,
			check: func(p *pod) {
				p.running()
				p.says("main", "mount -t tmpfs none /data && echo mounted; test -e /dev/kmsg && echo devices",
					"mounted\ndevices")
				p.says("other",
					"mount -t tmpfs none /data 2>/dev/null || echo refused; test -e /dev/kmsg || echo 'no devices'",
					"refused\nno devices")
			},
		},
		{
			name: "privilege-escalation",
			spec: `
containers:
- {name: usual}
- {name: never, securityContext: {allowPrivilegeEscalation: false}}
- {name: may, securityContext: {allowPrivilegeEscalation: true}}
`,
			check: func(p *pod) {
				for name, want := range map[string]string{"usual": "0", "never": "1", "may": "0"} {
					p.says(name, "awk '/NoNewPrivs/{print $2}' /proc/self/status", want)
				}
			},
		},
		{
			name: "read-only-root",
			spec: `
volumes: [{name: v, emptyDir: {}}]
containers: [{name: main, securityContext: {readOnlyRootFilesystem: true}, volumeMounts: [{name: v, mountPath: /v}]}, {name: other}]
`,
			check: func(p *pod) {
				p.says("main", "touch /x 2>/dev/null || echo refused; touch /v/x && echo volume", "refused\nvolume")
				p.says("other", "touch /x && echo written", "written")
			},
		},
		{
			name: "proc-mount",
			spec: `containers: [{name: main}, {name: said, securityContext: {procMount: Default}}]`,
			check: func(p *pod) {
				for _, c := range []string{"main", "said"} {
					p.says(c, "wc -c </proc/timer_list; ls /proc/scsi /sys/firmware 2>/dev/null | grep -v :; test -w "+
						"/proc/sysrq-trigger && (echo h >/proc/sysrq-trigger) 2>/dev/null || echo read-only",
						"0\nread-only")
				}
			},
		},
		{
			name: "apparmor",
			spec: `
securityContext: {appArmorProfile: {type: Unconfined}}
containers: [{name: main}, {name: own, securityContext: {appArmorProfile: {type: Unconfined}}}]
`,
			check: func(p *pod) {
				p.running()
				enabled, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled")
				if strings.HasPrefix(string(enabled), "Y") {
					return // whether it holds is the runtime's business, and the one of the tests is not given profiles
				}
				for i, profile := range []string{
					"{type: RuntimeDefault}", "{type: Localhost, localhostProfile: mine}",
				} {
					armed := p.second(fmt.Sprintf("armed%d", i),
						"containers: [{name: main, securityContext: {appArmorProfile: "+profile+"}}]")
					armed.rejected("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host")
					armed.delete()
				}
			},
		},
		{
			name: "selinux",
			spec: `
securityContext: {seLinuxOptions: {user: u, role: r, type: t, level: "s0:c1,c2"}}
containers: [{name: main}, {name: own, securityContext: {seLinuxOptions: {level: "s0:c3"}}}]
`,
			check: func(p *pod) {
				p.running()
				p.selinux("main", &runtimeapi.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "s0:c1,c2"})
				p.selinux("own", &runtimeapi.SELinuxOption{Level: "s0:c3"})
			},
		},
	}
}

// selinux checks what the runtime was asked for: a machine without SELinux shows nothing inside the container.
func (p *pod) selinux(container string, want *runtimeapi.SELinuxOption) {
	p.Helper()
	c, err := p.container(container)
	env.Must(p, err)
	status, err := p.node.cri.ContainerStatus(p.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.Id,
		Verbose: true})
	env.Must(p, err)
	var info struct {
		Config struct {
			Linux struct {
				SecurityContext struct {
					Options *runtimeapi.SELinuxOption `json:"selinux_options"`
				} `json:"security_context"`
			} `json:"linux"`
		} `json:"config"`
	}
	env.Must(p, json.Unmarshal([]byte(status.Info["info"]), &info))
	if got := info.Config.Linux.SecurityContext.Options; got.String() != want.String() {
		p.Errorf("container %s: %v, want %v", container, got, want)
	}
}

func seccompRows() []row {
	const mode = "awk '/^Seccomp:/{print $2}' /proc/self/status"
	return []row{
		{
			name: "seccomp",
			spec: `
securityContext: {seccompProfile: {type: RuntimeDefault}}
containers:
- {name: pods}
- {name: own, securityContext: {seccompProfile: {type: Unconfined}}}
`,
			check: func(p *pod) {
				p.says("pods", mode, "2")
				p.says("own", mode, "0")
				none := p.second("none", "containers: [{name: main}]")
				none.says("main", mode, "0")
				none.delete()
			},
		},
		{
			name: "seccomp-localhost",
			spec: `
containers:
- {name: main, securityContext: {seccompProfile: {type: Localhost, localhostProfile: profiles/@NAME@.json}}}
`,
			check: func(p *pod) {
				p.waits("main", "CreateContainerError", "profiles/"+p.name+".json")
				// The pod's profile is its containers': a sandbox is there, and the other container runs.
				whole := p.second("whole",
					"{securityContext: {seccompProfile: {type: Localhost, localhostProfile: none.json}}, "+
						"containers: [{name: main}, {name: own, securityContext: {seccompProfile: {type: "+
						"RuntimeDefault}}}]}")
				whole.waits("main", "CreateContainerError", "none.json")
				whole.says("own", mode, "2")
				whole.delete()
				dir := filepath.Join(p.node.Dir, "root", "seccomp", "profiles")
				env.Must(p, os.MkdirAll(dir, 0o755))
				env.Must(p, os.WriteFile(filepath.Join(dir, p.name+".json"),
					[]byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":1}]}`), 0o644))
				p.running()
				p.says("main", mode+"; mkdir /x 2>&1 || true",
					"2\nmkdir: can't create directory '/x': Operation not permitted")
			},
		},
	}
}

func sysctlRows() []row {
	return []row{
		{
			name: "sysctls",
			spec: `
securityContext:
  sysctls:
  - {name: net.ipv4.ip_unprivileged_port_start, value: "81"}
  - {name: kernel.shm_rmid_forced, value: "1"}
  - {name: net/core/somaxconn, value: "1017"}
  - {name: kernel.msgmax, value: "65537"}
  - {name: net.ipv4.tcp_slow_start_after_idle, value: "0"}
  - {name: net.ipv4.tcp_notsent_lowat, value: "131072"}
containers: [{name: main}]
`,
			check: func(p *pod) {
				p.running()
				p.says("main", "cd /proc/sys; cat net/ipv4/ip_unprivileged_port_start kernel/shm_rmid_forced "+
					"net/core/somaxconn kernel/msgmax net/ipv4/tcp_slow_start_after_idle net/ipv4/tcp_notsent_lowat",
					"81\n1\n1017\n65537\n0\n131072")
			},
		},
		{
			name: "sysctl-forbidden",
			spec: `
securityContext: {sysctls: [{name: kernel.shm_rmid_forced, value: "1"}, {name: kernel.shmmax, value: "65536"}]}
containers: [{name: main}]
`,
			check: func(p *pod) {
				p.rejected("SysctlForbidden", `forbidden sysctl: "kernel.shmmax" not allowlisted`)
				p.event("SysctlForbidden", `forbidden sysctl: "kernel.shmmax" not allowlisted`)
			},
		},
	}
}

// hostRows are about the namespaces of the node.
func hostRows() []row {
	own := func(kind string) string {
		link, _ := os.Readlink("/proc/self/ns/" + kind)
		return link
	}
	namespaces := func(p *pod, container string, host map[string]bool) {
		p.Helper()
		for kind, shared := range host {
			got := p.exec(container, "readlink /proc/self/ns/"+kind)
			if (got == own(kind)) != shared {
				p.Errorf("%s: namespace %s, the node's is %s; shared: want %v", kind, got, own(kind), shared)
			}
		}
	}
	return []row{
		{
			name: "host-none",
			spec: `containers: [{name: main}, {name: other}]`,
			check: func(p *pod) {
				p.running()
				namespaces(p, "main", map[string]bool{
					"net": false, "ipc": false, "pid": false, "mnt": false, "uts": false,
				})
				if a, b := p.exec("main", "readlink /proc/self/ns/ipc"),
					p.exec("other", "readlink /proc/self/ns/ipc"); a != b {
					p.Errorf("IPC namespaces of the containers = %s and %s, want the same", a, b)
				}
			},
		},
		{
			name: "host-pid-ipc",
			spec: `{hostPID: true, hostIPC: true, containers: [{name: main}]}`,
			check: func(p *pod) {
				p.running()
				namespaces(p, "main", map[string]bool{"net": false, "ipc": true, "pid": true})
			},
		},
		{
			name: "host-network",
			spec: `{hostNetwork: true, containers: [{name: main, env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}]}`,
			check: func(p *pod) {
				got := p.running()
				namespaces(p, "main", map[string]bool{"net": true, "ipc": false, "pid": false})
				if got.Status.PodIP == "" || got.Status.PodIP != got.Status.HostIP {
					p.Errorf("podIP = %q, want hostIP %q", got.Status.PodIP, got.Status.HostIP)
				}
				name, err := os.Hostname()
				env.Must(p, err)
				p.says("main", "hostname; echo $IP; head -1 /etc/hosts", name+"\n"+got.Status.HostIP+
					"\n# Kubernetes-managed hosts file (host network).")
			},
		},
	}
}

// usernsRows run in the runc of the suite, which has no seccomp.
func usernsRows() []row {
	const refused = "Failed to create pod sandbox: spec.hostUsers: the handler"
	class := "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: @NODE@-@NAME@}, handler: " +
		containerd.OwnUsers + "}"
	return []row{
		{
			name: "host-users-refused",
			spec: `{hostUsers: false, containers: [{name: main}]}`,
			check: func(p *pod) { // the machine's own runc cannot map the ids of mounts
				p.event("FailedCreatePodSandBox", refused)
				p.phase(v1.PodPending)
			},
		},
		{
			name:    "host-users",
			objects: class,
			spec: `
hostUsers: false
runtimeClassName: @NODE@-@NAME@
securityContext: {fsGroup: 4000}
volumes: [{name: v, emptyDir: {}}, {name: m, emptyDir: {medium: Memory}}]
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}, {name: m, mountPath: /m}]}, {name: user, securityContext: {runAsUser: 1000}}]
`,
			check: func(p *pod) {
				if p.node.name == containerd1 {
					p.event("FailedCreatePodSandBox", "own-users")
					return
				}
				p.running()
				other := p.second("other",
					"{hostUsers: false, runtimeClassName: @NODE@-@NAME@, containers: [{name: main}]}")
				other.running()
				seen := map[string]bool{}
				for _, pod := range []*pod{p, other} {
					ids := strings.Fields(pod.exec("main", "cat /proc/self/uid_map"))
					if len(ids) != 3 || ids[0] != "0" || ids[1] == "0" || ids[2] != "65536" || seen[ids[1]] {
						p.Errorf("user IDs = %v, want 0, the first of a range other than %v and 0, 65536", ids, seen)
					}
					seen[ids[1]] = true
				}
				other.delete()
				for _, dir := range []string{"/v", "/m"} {
					p.says("main", "touch "+dir+"/f; stat -c %u:%g "+dir+"/f "+dir, "0:4000\n0:4000")
				}
				p.says("main", "stat -c %u /etc/hosts /dev/termination-log; tail -1 /etc/hosts | grep -c "+p.name,
					"0\n0\n1")
				p.says("user", "id -u; cat /proc/self/uid_map | wc -l", "1000\n1")
			},
		},
		{
			name:    "proc-mount-unmasked",
			objects: class,
			spec:    `{hostUsers: false, runtimeClassName: @NODE@-@NAME@, containers: [{name: main, securityContext: {procMount: Unmasked}}, {name: usual}]}`,
			check: func(p *pod) {
				if p.node.name == containerd1 {
					p.event("FailedCreatePodSandBox", "own-users")
					return
				}
				p.running()
				p.says("main", "grep -c ' /proc/' /proc/self/mounts || true", "0")
				p.says("usual", "grep -c ' /proc/sys ' /proc/self/mounts", "1")
			},
		},
	}
}

// second makes one more pod of a row; the row deletes it.
func (p *pod) second(name, spec string) *pod {
	p.Helper()
	return p.node.create(p.T, parse(p, p.name+"-"+name, spec))
}
