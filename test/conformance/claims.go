package conformance

import (
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// boundTo is a claim and a PersistentVolume with a source that are for each other.
func boundTo(source string) string {
	return `
apiVersion: v1
kind: PersistentVolume
metadata: {name: @NODE@-@NAME@}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  claimRef: {apiVersion: v1, kind: PersistentVolumeClaim, namespace: @NODE@, name: @NAME@}
` + indentBy("  ", source) + `
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: @NAME@}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: "@NODE@-@NAME@", resources: {requests: {storage: 1Gi}}}
`
}

func indentBy(by, text string) string {
	return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by)
}

// claimedSpec is a pod with a claim of the row's name.
const claimedSpec = `
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, persistentVolumeClaim: {claimName: @NAME@}}]
`

// onNode is the affinity of a volume to a node.
func onNode(name string) string {
	return `nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: ["` + name + `"]}]}]}}`
}

// hostDir is a folder of the node for a row.
func (p *pod) hostDir() string { return "/tmp/edgecore-" + p.node.name + "-" + p.name }

// claimRows are about volumes that a pod gets through a claim.
func claimRows() []row {
	return []row{
		{
			name:    "claim-hostpath",
			objects: boundTo("hostPath: {path: /tmp/edgecore-@NODE@-@NAME@, type: DirectoryOrCreate}"),
			spec: `
containers:
- {name: main, volumeMounts: [{name: v, mountPath: /v}, {name: ro, mountPath: /ro}]}
volumes:
- {name: v, persistentVolumeClaim: {claimName: @NAME@}}
- {name: ro, persistentVolumeClaim: {claimName: @NAME@, readOnly: true}}
`,
			check: func(p *pod) {
				p.Cleanup(func() { env.Must(p, os.RemoveAll(p.hostDir())) })
				p.running()
				p.says("main", "echo kept >/v/f; cat /ro/f; touch /ro/g 2>/dev/null || echo read-only",
					"kept\nread-only")
				p.delete()
				if data, err := os.ReadFile(filepath.Join(p.hostDir(), "f")); err != nil || string(data) != "kept\n" {
					p.Errorf("the volume after the pod = %q, %v, want \"kept\\n\"", data, err)
				}
			},
		},
		{
			name:    "claim-local",
			objects: boundTo("local: {path: /tmp/edgecore-@NODE@-@NAME@}\n" + onNode("@NODE@")),
			spec: `
securityContext: {fsGroup: 4567, fsGroupChangePolicy: OnRootMismatch, runAsUser: 1000}
` + strings.TrimSpace(claimedSpec),
			check: func(p *pod) {
				p.event("FailedMount", `MountVolume.SetUp failed for volume "v" : path "`+p.hostDir()+
					`" does not exist`)
				made := p.hostDir() + ".new" // whole before the agent sees it
				env.Must(p, os.Mkdir(made, 0o755))
				env.Must(p, os.WriteFile(filepath.Join(made, "old"), []byte("x"), 0o600))
				p.Cleanup(func() { env.Must(p, os.RemoveAll(p.hostDir())) })
				env.Must(p, os.Rename(made, p.hostDir()))
				p.running()
				p.says("main", "stat -c '%a %g' /v /v/old; echo new >/v/new; stat -c %g /v/new",
					"2775 4567\n660 4567\n4567")
			},
		},
		{
			name: "claim-group",
			objects: strings.Replace(boundTo("hostPath: {path: /tmp/edgecore-@NODE@-@NAME@, type: DirectoryOrCreate}"),
				"metadata: {name: @NODE@-@NAME@}",
				"metadata: {name: @NODE@-@NAME@, annotations: {pv.beta.kubernetes.io/gid: \"4321\"}}", 1),
			spec: `
securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 77, supplementalGroups: [88]}
` + strings.TrimSpace(claimedSpec),
			check: func(p *pod) {
				p.Cleanup(func() { env.Must(p, os.RemoveAll(p.hostDir())) })
				p.running()
				p.says("main", "id -G", "1000 77 88 4321")
			},
		},
		{
			name:    "claim-for-another-node",
			objects: boundTo("local: {path: /tmp}\n" + onNode("elsewhere")),
			spec:    claimedSpec,
			check: func(p *pod) {
				p.event("FailedMount",
					`MountVolume.NodeAffinity check failed for volume "v" : no matching NodeSelectorTerms`)
			},
		},
		{
			name: "claim-not-there",
			spec: claimedSpec,
			check: func(p *pod) {
				const prefix = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], " +
					"failed to process volumes=[v]: error processing PVC "
				p.event("FailedMount",
					prefix+p.node.name+
						`/claim-not-there: failed to fetch PVC from API server: persistentvolumeclaim "claim-not-there" not found`)
				p.apply(`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: @NAME@}, spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}}`)
				p.event("FailedMount", prefix+p.node.name+"/claim-not-there: PVC is not bound")
				if s := p.get(); s.Status.Phase != v1.PodPending {
					p.Errorf("phase = %s, want Pending", s.Status.Phase)
				}
				// A volume comes, and the pod starts.
				p.apply(strings.Split(boundTo("hostPath: {path: /tmp}"), "---")[0])
				p.running()
			},
		},
		{
			name: "ephemeral-claim",
			objects: `
apiVersion: v1
kind: PersistentVolume
metadata: {name: @NODE@-@NAME@}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  claimRef: {apiVersion: v1, kind: PersistentVolumeClaim, namespace: @NODE@, name: @NAME@-scratch}
  hostPath: {path: /tmp/edgecore-@NODE@-@NAME@, type: DirectoryOrCreate}
`,
			spec: `
containers: [{name: main, volumeMounts: [{name: scratch, mountPath: /v}]}]
volumes: [{name: scratch, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}}}}]
`,
			check: func(p *pod) {
				p.Cleanup(func() { env.Must(p, os.RemoveAll(p.hostDir())) })
				p.running()
				p.says("main", "touch /v/f && ls /v", "f")
			},
		},
		{
			name:    "ephemeral-claim-of-another",
			objects: strings.ReplaceAll(boundTo("hostPath: {path: /tmp}"), "@NAME@", "@NAME@-v"),
			spec: `
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}}}}]
`,
			check: func(p *pod) {
				p.event("FailedMount", "PVC "+p.node.name+"/ephemeral-claim-of-another-v was not created for pod "+
					p.node.name+"/ephemeral-claim-of-another (pod is not owner)")
			},
		},
		{
			name:    "claim-nfs-fails",
			objects: boundTo("nfs: {server: 127.0.0.1, path: /nowhere}\nmountOptions: [soft, retry=0]"),
			spec:    claimedSpec,
			check: func(p *pod) {
				p.event("FailedMount", `MountVolume.SetUp failed for volume "v" : mount failed`)
			},
		},
		{
			name:    "claim-type-refused",
			objects: boundTo("fc: {targetWWNs: [\"50060e801049cfd1\"], lun: 0}"),
			spec:    claimedSpec,
			check: func(p *pod) {
				p.event("FailedMount",
					"is of type fc, which is not supported by this node; use csi, local, nfs or hostPath")
			},
		},
	}
}
