package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// testAuthority is a certificate of an authority of nothing.
const testAuthority = `-----BEGIN CERTIFICATE-----
MIIBADCBs6ADAgECAgEBMAUGAytlcDAPMQ0wCwYDVQQDEwR0ZXN0MCAXDTIwMDEw
MTAwMDAwMFoYDzIwOTkwMTAxMDAwMDAwWjAPMQ0wCwYDVQQDEwR0ZXN0MCowBQYD
K2VwAyEAWEtzr7g2+ESohLW3LDJBgHNJppN5YaPX5BjhZv6PaSujMjAwMA8GA1Ud
EwEB/wQFMAMBAf8wHQYDVR0OBBYEFFRiRPnPNDUSEQyC+due97j6CUE0MAUGAytl
cANBAMsYZM9+YE4w85c1phbxKyxfS9TJ12KnK6PqnTzqzIQzy4JCQ13eLXZGpcL0
PwefDXA+hUnE0CZxuCLzEfy7oQI=
-----END CERTIFICATE-----
`

// volumeRows are about the volumes that need no claim.
func volumeRows() []row {
	return append([]row{
		{
			name: "emptydir",
			spec: `
securityContext: {fsGroup: 2345}
containers:
- name: main
  volumeMounts: [{name: disk, mountPath: /disk}, {name: memory, mountPath: /memory}]
- name: other
  securityContext: {runAsUser: 1000}
  volumeMounts: [{name: disk, mountPath: /disk, readOnly: true}, {name: disk, mountPath: /again}]
volumes:
- {name: disk, emptyDir: {}}
- {name: memory, emptyDir: {medium: Memory, sizeLimit: 4Mi}}
`,
			check: func(p *pod) {
				s := p.running()
				p.says("main", "stat -c '%a %g' /disk /memory", "2777 2345\n3777 2345")
				p.says("main",
					"grep ' /memory ' /proc/mounts | cut -d' ' -f3; df -k /memory | tail -1 | awk '{print $2}'",
					"tmpfs\n4096")
				if out, err := p.tryExec("main", "dd", "if=/dev/zero", "of=/memory/f", "bs=1M", "count=6"); err == nil {
					p.Errorf("write of 6 MiB into a volume of 4 MiB: no error, %q, want an error", out)
				}
				p.says("main", "echo hello >/disk/f && chmod 664 /disk/f && stat -c %g /disk/f", "2345")
				p.says("other", "echo more >>/again/f && cat /disk/f", "hello\nmore")
				if out, err := p.tryExec("other", "touch", "/disk/x"); err == nil {
					p.Errorf("write to a read-only mount: no error, %q, want an error", out)
				}
				want := v1.VolumeMountStatus{
					Name:              "disk",
					MountPath:         "/disk",
					ReadOnly:          true,
					RecursiveReadOnly: new(v1.RecursiveReadOnlyDisabled),
				}
				mounts := containerStatus(&s.Status, "other").VolumeMounts
				if len(mounts) < 2 || mounts[0].Name != want.Name || mounts[0].MountPath != want.MountPath ||
					!mounts[0].ReadOnly || *mounts[0].RecursiveReadOnly != *want.RecursiveReadOnly ||
					mounts[1].ReadOnly {
					p.Errorf("volumeMounts in the status = %+v, want first %+v, then a writable one", mounts, want)
				}
			},
		},
		{
			name: "emptydir-limit",
			spec: `
terminationGracePeriodSeconds: 60
containers: [{name: main, command: [sh, -c, "dd if=/dev/zero of=/v/f bs=1M count=3; trap '' TERM; sleep 3600"], volumeMounts: [{name: scratch, mountPath: /v}]}]
volumes: [{name: scratch, emptyDir: {sizeLimit: 1Mi}}]
`,
			check: func(p *pod) {
				const message = `Usage of EmptyDir volume "scratch" exceeds the limit "1Mi". `
				s := p.phase(v1.PodFailed)
				if s.Status.Reason != "Evicted" || s.Status.Message != message {
					p.Errorf("reason %q, message %q, want Evicted, %q", s.Status.Reason, s.Status.Message, message)
				}
				p.event("Evicted", strings.TrimSpace(message))
			},
		},
		{
			name: "ephemeral-storage-limit",
			spec: `
containers: [{name: main, command: [sh, -c, "dd if=/dev/zero of=/f bs=1M count=4; sleep 3600"], resources: {limits: {ephemeral-storage: 2Mi}}}]
`,
			check: func(p *pod) {
				s := p.phase(v1.PodFailed)
				if s.Status.Reason != "Evicted" ||
					s.Status.Message != "Pod ephemeral local storage usage exceeds the total limit of "+
						"containers 2Mi. " {
					p.Errorf("reason %q, message %q, want Evicted for the containers' limit 2Mi",
						s.Status.Reason, s.Status.Message)
				}
			},
		},
		{
			name: "hostpath",
			spec: `
containers:
- name: main
  volumeMounts: [{name: dir, mountPath: /dir}, {name: file, mountPath: /file}, {name: same, mountPath: /same}, {name: "null", mountPath: /null}, {name: loop, mountPath: /loop}, {name: unset, mountPath: /unset, readOnly: true}]
volumes:
- {name: dir, hostPath: {path: /tmp/edgecore-@NODE@-@NAME@, type: DirectoryOrCreate}}
- {name: file, hostPath: {path: /tmp/edgecore-@NODE@-@NAME@/file, type: FileOrCreate}}
- {name: same, hostPath: {path: /tmp/edgecore-@NODE@-@NAME@/file, type: File}}
- {name: "null", hostPath: {path: /dev/null, type: CharDevice}}
- {name: loop, hostPath: {path: /dev/loop0, type: BlockDevice}}
- {name: unset, hostPath: {path: /etc}}
`,
			check: func(p *pod) {
				dir := "/tmp/edgecore-" + p.node.name + "-hostpath"
				p.Cleanup(func() { env.Must(p, os.RemoveAll(dir)) })
				p.running()
				p.says("main", "echo x >/file; cat /same /dir/file; stat -c '%a %F' /dir /dir/file; stat -c %F /null "+
					"/loop; test -f /unset/passwd && echo there",
					"x\nx\n755 directory\n644 regular file\ncharacter special file\nblock special file\nthere")
				p.delete()
				if data, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(data) != "x\n" {
					p.Errorf("what the pod wrote on the node = %q, %v, want \"x\\n\"", data, err)
				}
			},
		},
		{
			name: "hostpath-wrong-type",
			spec: `
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, hostPath: {path: /dev/null, type: Socket}}]
`,
			check: func(p *pod) {
				p.event("FailedMount",
					`MountVolume.SetUp failed for volume "v" : hostPath type check failed: /dev/null is not a socket file`)
			},
		},
		{
			name: "configmap-volume",
			objects: "{apiVersion: v1, kind: ConfigMap, metadata: {name: @NAME@}, data: {a: one, b: two}, " +
				"binaryData: {c: AAEC}}",
			spec: `
containers: [{name: main, volumeMounts: [{name: all, mountPath: /all}, {name: some, mountPath: /some}, {name: none, mountPath: /none}]}]
volumes:
- {name: all, configMap: {name: @NAME@, defaultMode: 0440}}
- {name: some, configMap: {name: @NAME@, items: [{key: b, path: x/y, mode: 0400}, {key: gone, path: z}], optional: true}}
- {name: none, configMap: {name: @NAME@-missing, optional: true}}
`,
			check: func(p *pod) {
				p.running()
				p.says("main", "cd /all; cat a b; wc -c <c; stat -Lc %a a; cat /some/x/y; stat -Lc %a /some/x/y; ls "+
					"/some /none; touch /all/w 2>/dev/null || echo read-only",
					"onetwo3\n440\ntwo400\n/none:\n\n/some:\nx\nread-only")
				p.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: @NAME@}, data: {a: three}}")
				p.says("main", "cat /all/a; ls /all", "threea")
			},
		},
		{
			name:    "configmap-immutable",
			objects: "{apiVersion: v1, kind: ConfigMap, metadata: {name: @NAME@}, immutable: true, data: {a: fixed}}",
			spec: `
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, configMap: {name: @NAME@}}]
`,
			check: func(p *pod) { p.running(); p.says("main", "cat /v/a", "fixed") },
		},
		{
			name:    "secret-volume",
			objects: "{apiVersion: v1, kind: Secret, metadata: {name: @NAME@}, stringData: {key: hush, other: x}}",
			spec: `
securityContext: {fsGroup: 3456, runAsUser: 1000}
containers: [{name: main, volumeMounts: [{name: s, mountPath: /s}]}]
volumes: [{name: s, secret: {secretName: @NAME@, items: [{key: key, path: k}], defaultMode: 0400}}]
`,
			check: func(p *pod) {
				p.running()
				p.says("main", "cat /s/k; ls /s; stat -Lc '%a %g' /s/k; grep ' /s ' /proc/mounts | cut -d' ' -f3",
					"hushk\n440 3456\ntmpfs")
			},
		},
		{
			name: "secret-missing",
			spec: `
containers: [{name: main, volumeMounts: [{name: s, mountPath: /s}]}]
volumes: [{name: s, secret: {secretName: @NAME@-later}}]
`,
			check: func(p *pod) {
				p.event("FailedMount",
					`MountVolume.SetUp failed for volume "s" : secret "secret-missing-later" not found`)
				p.apply("{apiVersion: v1, kind: Secret, metadata: {name: @NAME@-later}, stringData: {key: here}}")
				p.running()
				p.says("main", "cat /s/key", "here")
			},
		},
		{
			name:        "downward-volume",
			labels:      map[string]string{"color": "red"},
			annotations: map[string]string{"note": "first"},
			spec: `
containers: [{name: main, resources: {limits: {cpu: 250m, memory: 64Mi}}, volumeMounts: [{name: d, mountPath: /d}]}]
volumes:
- name: d
  downwardAPI:
    defaultMode: 0444
    items:
    - {path: name, fieldRef: {fieldPath: metadata.name}}
    - {path: labels, fieldRef: {fieldPath: metadata.labels}}
    - {path: note, fieldRef: {fieldPath: "metadata.annotations['note']"}, mode: 0400}
    - {path: cpu, resourceFieldRef: {containerName: main, resource: limits.cpu, divisor: 1m}}
    - {path: memory, resourceFieldRef: {containerName: main, resource: limits.memory}}
`,
			check: func(p *pod) {
				p.running()
				p.says("main",
					"cd /d; for f in name labels note cpu memory; do cat $f; echo; done; stat -Lc %a name note",
					"downward-volume\ncolor=\"red\"\nfirst\n250\n67108864\n444\n400")
				p.patch("metadata: {labels: {color: blue}, annotations: {note: second}}")
				p.says("main", "cat /d/labels /d/note", `color="blue"second`)
			},
		},
		{
			name: "projected-volume",
			objects: `
{apiVersion: v1, kind: ConfigMap, metadata: {name: @NAME@}, data: {a: one}}
---
{apiVersion: v1, kind: Secret, metadata: {name: @NAME@}, stringData: {key: hush}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: @NAME@}}
`,
			spec: `
serviceAccountName: @NAME@
securityContext: {runAsUser: 1234}
containers: [{name: main, volumeMounts: [{name: all, mountPath: /all}]}]
volumes:
- name: all
  projected:
    defaultMode: 0444
    sources:
    - {configMap: {name: @NAME@, items: [{key: a, path: cm/a}]}}
    - {secret: {name: @NAME@, items: [{key: key, path: k, mode: 0440}]}}
    - {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
    - {serviceAccountToken: {path: token, audience: vault, expirationSeconds: 700}}
`,
			check: func(p *pod) {
				p.running()
				p.says("main", "cd /all; cat cm/a k name; echo; stat -Lc '%a %u' cm/a k name token; grep ' /all ' "+
					"/proc/mounts | cut -d' ' -f3",
					"onehushprojected-volume\n444 0\n440 0\n444 0\n600 1234\ntmpfs")
				p.says("main",
					`cut -d. -f2 /all/token | tr _- /+ | sed 's/$/===/' | base64 -d 2>/dev/null | grep -o '"aud":\["vault"\]'`, `"aud":["vault"]`)
				p.says("main",
					`cut -d. -f2 /all/token | tr _- /+ | sed 's/$/===/' | base64 -d 2>/dev/null | grep -o 'system:serviceaccount:[^"]*'`,
					"system:serviceaccount:"+p.node.name+":projected-volume")
			},
		},
		{
			name: "trust-bundle",
			objects: `
apiVersion: certificates.k8s.io/v1beta1
kind: ClusterTrustBundle
metadata: {name: "example.com:signer:@NODE@-@NAME@", labels: {of: @NODE@}}
spec:
  signerName: example.com/signer
  trustBundle: |
` + indent(testAuthority) + `
`,
			spec: `
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]
volumes:
- name: v
  projected:
    sources:
    - {clusterTrustBundle: {name: "example.com:signer:@NODE@-@NAME@", path: named.pem}}
    - {clusterTrustBundle: {signerName: example.com/signer, labelSelector: {matchLabels: {of: @NODE@}}, path: signer.pem}}
    - {clusterTrustBundle: {name: missing, optional: true, path: none.pem}}
`,
			check: func(p *pod) {
				p.running()
				p.says("main", "cat /v/named.pem", strings.TrimSpace(testAuthority))
				p.says("main", "cmp /v/named.pem /v/signer.pem && wc -c </v/none.pem", "0")
			},
		},
		{
			name: "volume-unused",
			spec: `
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]
volumes:
- {name: v, emptyDir: {}}
- {name: missing, secret: {secretName: @NAME@}}
- {name: unbound, persistentVolumeClaim: {claimName: @NAME@}}
- {name: unsupported, iscsi: {targetPortal: "10.0.0.1:3260", iqn: "iqn.2001-04.com.example:a", lun: 0}}
`,
			check: func(p *pod) { p.running(); p.says("main", "touch /v/f && ls /v", "f") },
		},
		{
			name: "volume-types-refused",
			spec: `
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, iscsi: {targetPortal: "10.0.0.1:3260", iqn: "iqn.2001-04.com.example:a", lun: 0}}]
`,
			check: func(p *pod) {
				p.event("FailedMount", `MountVolume.SetUp failed for volume "v" : pod `+p.node.name+
					`/volume-types-refused: volume type iscsi is not supported by this node; use one of`)
			},
		},
	}, mountRows()...)
}

// mountRows are about how volumes are mounted into containers.
func mountRows() []row {
	return []row{
		{
			name: "subpath",
			spec: `
containers:
- name: main
  env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
  volumeMounts:
  - {name: v, mountPath: /whole}
  - {name: v, mountPath: /made, subPath: a/b}
  - {name: v, mountPath: /file, subPath: f}
  - {name: v, mountPath: /mine, subPathExpr: "logs/$(POD)"}
initContainers:
- {name: prepare, image: "edgecore.local/demo:1", command: [sh, -c, "echo text >/v/f"], volumeMounts: [{name: v, mountPath: /v}]}
volumes: [{name: v, emptyDir: {}}]
`,
			check: func(p *pod) {
				p.running()
				p.says("main", "cat /file; touch /made/x /mine/y; cd /whole; find . -type f | sort",
					"text\n./a/b/x\n./f\n./logs/subpath/y")
			},
		},
		{
			name: "subpath-escape",
			spec: `
initContainers:
- {name: prepare, image: "edgecore.local/demo:1", command: [sh, -c, "ln -s / /v/out; ln -s ../../../../.. /v/up; mkdir /v/real; ln -s real /v/in; ln -s ../v/real /v/back"], volumeMounts: [{name: v, mountPath: /v}]}
containers:
- {name: out, volumeMounts: [{name: v, mountPath: /x, subPath: out/etc}]}
- {name: up, volumeMounts: [{name: v, mountPath: /x, subPath: up}]}
- {name: in, volumeMounts: [{name: v, mountPath: /x, subPath: in}]}
- {name: back, volumeMounts: [{name: v, mountPath: /x, subPath: back}]}
volumes: [{name: v, emptyDir: {}}]
`,
			check: func(p *pod) {
				p.waits("out", "CreateContainerConfigError",
					`failed to prepare subPath for volumeMount "v" of container "out"`)
				p.waits("up", "CreateContainerConfigError",
					`failed to prepare subPath for volumeMount "v" of container "up"`)
				p.says("back", "ls -d /x", "/x")
				p.says("in", "touch /x/f && echo made", "made")
			},
		},
		{
			name: "subpath-expr-empty",
			spec: `
containers:
- name: main
  env: [{name: EMPTY, value: ""}]
  volumeMounts: [{name: v, mountPath: /x, subPathExpr: "$(EMPTY)/$(GONE)"}]
volumes: [{name: v, emptyDir: {}}]
`,
			check: func(p *pod) { p.waits("main", "CreateContainerConfigError", "missing value for EMPTY, GONE") },
		},
		{
			name:    "nested-mounts",
			objects: "{apiVersion: v1, kind: ConfigMap, metadata: {name: @NAME@}, data: {a: one}}",
			spec: `
securityContext: {fsGroup: 3456, runAsUser: 1000}
containers:
- {name: main, volumeMounts: [{name: c, mountPath: /etc/app}, {name: w, mountPath: /etc/app/cache/deep}, {name: d, mountPath: /d}, {name: w, mountPath: /d/w}]}
volumes:
- {name: c, configMap: {name: @NAME@}}
- {name: d, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
- {name: w, emptyDir: {}}
`,
			check: func(p *pod) {
				p.running()
				p.says("main", "touch /etc/app/cache/deep/f && ls /d/w && cat /etc/app/a /d/name",
					"f\nonenested-mounts")
				p.says("main", "stat -c '%a %g' /etc/app /etc/app/cache /d; stat -c %g /etc/app/..data /etc/app/a; "+
					"stat -Lc '%a %g' /etc/app/..data", "2777 3456\n2755 3456\n3777 3456\n3456\n3456\n2755 3456")
				p.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: @NAME@}, data: {a: two}}")
				p.says("main", "cat /etc/app/a; ls /etc/app/cache/deep", "twof")
			},
		},
		{
			name: "mount-propagation",
			spec: `
containers:
- name: privileged
  securityContext: {privileged: true}
  volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]
- {name: listens, volumeMounts: [{name: v, mountPath: /v, mountPropagation: HostToContainer}]}
- {name: alone, volumeMounts: [{name: v, mountPath: /v, mountPropagation: None}]}
volumes: [{name: v, hostPath: {path: /tmp/edgecore-@NODE@-@NAME@/in, type: Directory}}]
`,
			check: func(p *pod) {
				// Bidirectional mounts need a folder whose mount is shared; the pod waits for it.
				dir := "/tmp/edgecore-" + p.node.name + "-mount-propagation"
				p.event("FailedMount", "is not a directory")
				env.Must(p, os.MkdirAll(dir, 0o755))
				env.Must(p, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
				p.Cleanup(func() {
					for _, d := range []string{dir + "/in/in", dir} {
						if err := unix.Unmount(d, unix.MNT_DETACH); err != nil && d == dir {
							p.Error(err)
						}
					}
					env.Must(p, os.Remove(dir))
				})
				env.Must(p, unix.Mount("", dir, "", unix.MS_SHARED, ""))
				env.Must(p, os.MkdirAll(filepath.Join(dir, "in/in"), 0o755))
				p.running()
				p.exec("privileged", "mount -t tmpfs none /v/in && touch /v/in/seen")
				p.says("listens", "ls /v/in", "seen")
				if _, err := os.Stat(filepath.Join(dir, "in/in/seen")); err != nil {
					p.Errorf("the node does not see the mount of a Bidirectional volume: %v", err)
				}
				p.says("alone", "ls /v/in", "")
			},
		},
		{
			name: "recursive-read-only",
			spec: `
initContainers:
- {name: first, image: "edgecore.local/demo:1", command: [sh, -c, "true"], volumeMounts: [{name: v, mountPath: /v}]}
containers:
- {name: possible, volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: IfPossible}]}
- {name: enabled, volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled}]}
- {name: disabled, volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Disabled}]}
volumes: [{name: v, emptyDir: {}}]
`,
			check: func(p *pod) {
				mode := func(container string) v1.RecursiveReadOnlyMode {
					return *containerStatus(&p.get().Status, container).VolumeMounts[0].RecursiveReadOnly
				}
				p.says("disabled", "touch /v/x 2>/dev/null || echo read-only", "read-only")
				p.says("possible", "touch /v/x 2>/dev/null || echo read-only", "read-only")
				if p.node.name == containerd1 { // too old
					p.waits("enabled", "CreateContainerConfigError",
						`failed to resolve recursive read-only mode: volume "v" requested recursive read-only mode, but it is not supported by the runtime`)
					if got := mode("possible"); got != v1.RecursiveReadOnlyDisabled {
						p.Errorf("mode in the status = %s, want %s", got, v1.RecursiveReadOnlyDisabled)
					}
					return
				}
				p.running()
				p.says("enabled", "touch /v/x 2>/dev/null || echo read-only", "read-only")
				if got := fmt.Sprintf("%s %s %s", mode("possible"), mode("enabled"),
					mode("disabled")); got != "Enabled Enabled Disabled" {
					p.Errorf("modes in the status = %s, want Enabled Enabled Disabled", got)
				}
			},
		},
		{
			name: "hugepages-medium",
			spec: `
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, emptyDir: {medium: HugePages}}]
`,
			check: func(p *pod) {
				p.event("FailedMount",
					"medium HugePages: hugePages storage requested, but there is no resource request for huge pages")
			},
		},
		{
			name: "mounts-twice",
			spec: `
containers: [{name: main, volumeMounts: [{name: v, mountPath: /a}, {name: v, mountPath: /b/c, readOnly: true}, {name: etc, mountPath: /etc/hosts}]}]
volumes: [{name: v, emptyDir: {}}, {name: etc, hostPath: {path: /etc/hostname}}]
`,
			check: func(p *pod) {
				p.running()
				p.says("main", "echo x >/a/f; cat /b/c/f; cmp /etc/hosts /etc/hosts && grep -c . /etc/hosts", "x\n1")
			},
		},
	}
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}
