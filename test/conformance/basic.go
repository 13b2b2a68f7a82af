package conformance

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// basicRows are about containers and images, as such.
func basicRows() []row {
	return []row{
		{
			name: "command-args",
			spec: `
containers:
- {name: both, image: edgecore.local/entrypoint:1, command: [sh, -c], args: ["echo $0-$1-$HOME-$(WHO); sleep 3600", a, b], env: [{name: WHO, value: me}]}
- {name: args, image: edgecore.local/entrypoint:1, args: ["3599"]}
- {name: none, image: edgecore.local/entrypoint:1}
- {name: dir, workingDir: /tmp}
`,
			check: func(p *pod) {
				p.running()
				p.logged("both", "a-b-/root-me")
				p.says("args", `tr '\0' ' ' </proc/1/cmdline; pwd`, "sleep 3599 /srv")
				p.says("none", `tr '\0' ' ' </proc/1/cmdline; echo $GREETING`, "sleep 3600 hello")
				p.says("dir", "readlink /proc/1/cwd", "/tmp")
			},
		},
		{
			name: "image-missing",
			spec: `
containers:
- {name: here}
- {name: gone, image: "edgecore.local/nowhere:1", imagePullPolicy: Never}
`,
			check: func(p *pod) {
				got := p.waits("gone", "ErrImageNeverPull", "edgecore.local/nowhere:1")
				if got.Status.Phase != v1.PodPending && got.Status.Phase != v1.PodRunning {
					p.Errorf("phase = %s, want Pending or Running", got.Status.Phase)
				}
				p.event("ErrImageNeverPull", "is not present with pull policy of Never")
			},
		},
		{
			name: "image-id",
			spec: `containers: [{name: main}]`,
			check: func(p *pod) {
				s := p.running().Status.ContainerStatuses[0]
				// The runtime gives one of the image's names.
				if !strings.HasSuffix(s.Image, ":1") || !strings.Contains(s.ImageID, "sha256:") ||
					!strings.HasPrefix(s.ContainerID, "containerd://") {
					p.Errorf("image %q, ID %q, container %q, want ...:1, sha256:..., containerd://...",
						s.Image, s.ImageID, s.ContainerID)
				}
			},
		},
	}
}
