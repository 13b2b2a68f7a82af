package conformance

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// parse makes a pod of a spec.
func parse(p *pod, name, spec string) *v1.Pod {
	p.Helper()
	obj := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	env.Must(p, yaml.UnmarshalStrict([]byte(strings.NewReplacer("@NODE@", p.node.name, "@NAME@", p.name).Replace(spec)),
		&obj.Spec))
	return obj
}

// environmentRows are about what a container is told.
func environmentRows() []row {
	return slices.Concat(downwardRows(), variableRows(), runtimeClassRows(), imageVolumeRows())
}

func downwardRows() []row {
	return []row{
		{
			name:        "downward-fields",
			labels:      map[string]string{"app": "x", "a.b/c": "d"},
			annotations: map[string]string{"note": "a b"},
			spec: `
containers:
- name: main
  env:
  - {name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: B, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
  - {name: C, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
  - {name: D, valueFrom: {fieldRef: {fieldPath: "metadata.labels['a.b/c']"}}}
  - {name: E, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['note']"}}}
  - {name: F, valueFrom: {fieldRef: {fieldPath: "metadata.labels['none']"}}}
  - {name: G, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
  - {name: H, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
  - {name: I, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: J, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
  - {name: K, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
  - {name: L, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
`,
			check: func(p *pod) {
				s := p.running().Status
				want := []string{p.name, p.node.name, string(p.uid), "d", "a b", "", p.node.name, "default", s.PodIP,
					s.PodIP, s.HostIP, s.HostIP}
				p.says("main",
					`for i in "$A" "$B" "$C" "$D" "$E" "$F" "$G" "$H" "$I" "$J" "$K" "$L"; do echo "<$i>"; done`,
					"<"+strings.Join(want, ">\n<")+">")
				p.says("main", "hostname -i | grep -c "+s.PodIP, "1")
				if len(s.HostIPs) != 1 || s.HostIPs[0].IP != s.HostIP || len(s.PodIPs) != 1 {
					p.Errorf("hostIPs %v, podIPs %v, want %s alone, one address", s.HostIPs, s.PodIPs, s.HostIP)
				}
			},
		},
		{
			name: "downward-resources",
			spec: `
initContainers: [{name: first, command: [sleep, "0"], resources: {limits: {memory: 33Mi}}}]
containers:
- name: main
  resources: {limits: {cpu: 1500m, memory: 65Mi}, requests: {cpu: 10m, memory: 1Mi, ephemeral-storage: 1Ki}}
  env:
  - {name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
  - {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
  - {name: C, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
  - {name: D, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}
  - {name: E, valueFrom: {resourceFieldRef: {resource: requests.memory}}}
  - {name: F, valueFrom: {resourceFieldRef: {resource: requests.ephemeral-storage}}}
  - {name: G, valueFrom: {resourceFieldRef: {containerName: first, resource: limits.memory, divisor: 1Mi}}}
  - {name: H, valueFrom: {resourceFieldRef: {containerName: free, resource: requests.cpu}}}
- name: free
  env:
  - {name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
  - {name: B, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
  - {name: C, valueFrom: {resourceFieldRef: {resource: limits.ephemeral-storage}}}
`,
			check: func(p *pod) {
				p.says("main", "echo $A $B $C $D $E $F $G $H", "2 1500 65 10 1048576 1024 33 0")
				node, err := p.node.api.CoreV1().Nodes().Get(p.Context(), p.node.name, metav1.GetOptions{})
				env.Must(p, err)
				can := node.Status.Allocatable
				p.says("free", "echo $A $B $C", fmt.Sprintf("%d %d %d", can.Cpu().MilliValue(), can.Memory().Value(),
					can.StorageEphemeral().Value()))
			},
		},
	}
}

func variableRows() []row {
	return []row{
		{
			name: "env-from",
			objects: `
{apiVersion: v1, kind: ConfigMap, metadata: {name: @NAME@}, data: {color: red, size: "1", "with-dash.x": d}}
---
{apiVersion: v1, kind: Secret, metadata: {name: @NAME@}, stringData: {size: "2", password: $(color)}}
`,
			spec: `
containers:
- name: main
  envFrom:
  - {configMapRef: {name: @NAME@}}
  - {prefix: S_, secretRef: {name: @NAME@}}
  - {configMapRef: {name: none, optional: true}}
  - {secretRef: {name: none, optional: true}}
  env: [{name: color, value: blue}, {name: ALL, value: "$(color)-$(S_size)-$(with-dash.x)"}]
`,
			check: func(p *pod) {
				p.says("main",
					`echo "$color $size $S_size $S_password $ALL"; tr '\0' '\n' </proc/1/environ | grep with-dash`,
					"blue 1 2 $(color) blue-2-d\nwith-dash.x=d")
			},
		},
		{
			name: "env-from-missing",
			spec: `containers: [{name: main, envFrom: [{configMapRef: {name: no-such-map}}]}]`,
			check: func(p *pod) {
				p.waits("main", "CreateContainerConfigError", `configmap "no-such-map" not found`)
				p.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: no-such-map}, data: {here: now}}`)
				p.says("main", "echo $here", "now")
			},
		},
		{
			name: "env-keys",
			objects: `
{apiVersion: v1, kind: ConfigMap, metadata: {name: @NAME@}, data: {k: v}}
---
{apiVersion: v1, kind: Secret, metadata: {name: @NAME@}, stringData: {k: s}}
`,
			spec: `
containers:
- name: main
  env:
  - {name: A, valueFrom: {configMapKeyRef: {name: @NAME@, key: k}}}
  - {name: B, valueFrom: {secretKeyRef: {name: @NAME@, key: k}}}
  - {name: C, valueFrom: {configMapKeyRef: {name: @NAME@, key: none, optional: true}}}
  - {name: D, valueFrom: {secretKeyRef: {name: none, key: k, optional: true}}}
- name: wrong
  env: [{name: A, valueFrom: {secretKeyRef: {name: @NAME@, key: none}}}]
`,
			check: func(p *pod) {
				p.says("main", `echo "$A$B${C-unset}${D-unset}"`, "vsunsetunset")
				p.waits("wrong", "CreateContainerConfigError", "couldn't find key none in Secret "+p.node.name+"/"+
					p.name)
			},
		},
		{
			name: "env-expansion",
			spec: `
containers:
- name: main
  command: [sh, -c, "echo command-$(A)-$$(A)-$(NONE); ` + forever + `"]
  env: [{name: A, value: a}, {name: B, value: "<$(A)$(C)>"}, {name: C, value: "$$(A)"}, {name: A, value: "$(A)b"}]
`,
			check: func(p *pod) {
				p.says("main", `echo "$A $B $C"`, "ab <a$(C)> $(A)")
				p.logged("main", "command-ab-")
			},
		},
		{
			name: "env-file",
			spec: `
volumes: [{name: v, emptyDir: {}}]
initContainers:
- {name: writes, image: "edgecore.local/demo:1", command: [sh, -c, "printf \"# x\\nA='one'\\n\\nB='two\\nlines'\\n\" >/v/env; echo A=one >/v/bad"], volumeMounts: [{name: v, mountPath: /v}]}
containers:
- name: main
  env:
  - {name: A, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: A}}}
  - {name: B, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: B}}}
  - {name: C, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: C, optional: true}}}
  - {name: D, valueFrom: {fileKeyRef: {volumeName: v, path: none, key: D, optional: true}}}
- name: missing
  env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: Z}}}]
- name: bad
  env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: bad, key: A}}}]
`,
			check: func(p *pod) {
				p.says("main", `echo "$A $B ${C-unset} ${D-unset}"`, "one two\nlines unset unset")
				p.waits("missing", "CreateContainerConfigError",
					`environment variable key "Z" not found in file "env" of volume "v"`)
				p.waits("bad", "CreateContainerConfigError",
					"line 1: the value of the variable is not in single quotes")
			},
		},
		{
			name: "service-links",
			objects: `
{apiVersion: v1, kind: Service, metadata: {name: link-db}, spec: {selector: {app: none}, ports: [{name: sql, port: 5432}]}}
`,
			spec: `containers: [{name: main, env: [{name: AT, value: "$(LINK_DB_SERVICE_HOST):$(LINK_DB_SERVICE_PORT_SQL)"}]}]`,
			check: func(p *pod) {
				svc, err := p.node.api.CoreV1().Services(p.node.name).Get(p.Context(), "link-db", metav1.GetOptions{})
				env.Must(p, err)
				// The services of a namespace come to the node with its first pod, maybe after that one has started.
				for try := 0; ; try++ {
					late := p.second(fmt.Sprintf("late%d", try),
						`containers: [{name: main, env: [{name: AT, value: "$(LINK_DB_SERVICE_HOST):$(LINK_DB_SERVICE_PORT_SQL)"}]}]`)
					late.running()
					got := late.exec("main", "echo $AT $LINK_DB_PORT_5432_TCP_PROTO")
					late.delete()
					if got == svc.Spec.ClusterIP+":5432 tcp" {
						break
					}
					if try > 10 {
						p.Fatalf("AT is %s, want %s:5432", got, svc.Spec.ClusterIP)
					}
				}
				off := p.second("off", `{enableServiceLinks: false, containers: [{name: main}]}`)
				off.running()
				off.says("main", `echo "${LINK_DB_SERVICE_HOST-none} ${KUBERNETES_SERVICE_HOST-none}"`,
					"none 10.96.0.1")
				off.delete()
			},
		},
	}
}

func runtimeClassRows() []row {
	return []row{
		{
			name: "runtime-class",
			objects: `
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: @NODE@-second}, handler: second, overhead: {podFixed: {cpu: 20m, memory: 12Mi}}}
`,
			spec: `
runtimeClassName: @NODE@-second
containers: [{name: main, resources: {limits: {cpu: 100m, memory: 20Mi}}}]
`,
			check: func(p *pod) {
				got := p.running()
				if got.Spec.Overhead.Memory().Value() != 12<<20 {
					p.Errorf("overhead = %v, want 12Mi of memory", got.Spec.Overhead)
				}
				list, err := p.node.cri.ListPodSandbox(p.Context(),
					&runtimeapi.ListPodSandboxRequest{
						Filter: &runtimeapi.PodSandboxFilter{
							LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(p.uid)},
						},
					})
				env.Must(p, err)
				if len(list.Items) != 1 || list.Items[0].RuntimeHandler != "second" {
					p.Errorf("sandboxes = %v, want one with the handler \"second\"", list.Items)
				}
			},
		},
		{
			name: "runtime-class-no-handler",
			objects: `
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: @NODE@-nowhere}, handler: nowhere}
`,
			spec: `{runtimeClassName: @NODE@-nowhere, containers: [{name: main}]}`,
			check: func(p *pod) {
				p.event("FailedCreatePodSandBox", `Failed to create pod sandbox: `)
				p.event("FailedCreatePodSandBox", `"nowhere"`)
				p.phase(v1.PodPending)
			},
		},
	}
}

func imageVolumeRows() []row {
	return []row{
		{
			name: "image-volume",
			spec: `
volumes: [{name: v, image: {reference: "edgecore.local/demo:1", pullPolicy: IfNotPresent}}]
containers: [{name: main, volumeMounts: [{name: v, mountPath: /all}, {name: v, mountPath: /sub, subPath: www}]}]
`,
			check: func(p *pod) {
				if p.node.name == containerd1 {
					p.event("FailedCreatePodSandBox", "spec.volumes[0].image: the runtime containerd 1.6")
					p.phase(v1.PodPending)
					return
				}
				got := p.running()
				p.says("main", "cat /all/www/index.html /sub/index.html; touch /all/x 2>/dev/null || echo read-only",
					"edgecore demo\nedgecore demo\nread-only")
				for _, m := range containerStatus(&got.Status, "main").VolumeMounts {
					if m.Name == "v" && (m.VolumeStatus == nil || m.VolumeStatus.Image == nil ||
						!strings.Contains(m.VolumeStatus.Image.ImageRef, "sha256:")) {
						p.Errorf("mount in the status = %+v, want an image by its digest", m)
					}
				}
			},
		},
		{
			name: "image-volume-missing",
			spec: `
volumes: [{name: v, image: {reference: "edgecore.local/nowhere:2", pullPolicy: Never}}]
containers: [{name: main, volumeMounts: [{name: v, mountPath: /all}]}, {name: other}]
`,
			check: func(p *pod) {
				if p.node.name == containerd1 {
					p.event("FailedCreatePodSandBox", "spec.volumes[0].image: ")
					return
				}
				p.waits("main", "ErrImageNeverPull", "edgecore.local/nowhere:2")
				p.says("other", "echo runs", "runs")
			},
		},
	}
}
