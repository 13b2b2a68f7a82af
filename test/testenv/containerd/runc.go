package containerd

import (
	"context"
	"fmt"
	"path/filepath"
)

// OwnUsers is the handler whose pods may have user namespaces, where the instance was given a runc for it.
const OwnUsers = "own-users"

// BuildRunc returns the path of a runc that can map the ids of mounts. The version is that of the module test/runc. It has
// no seccomp, which needs a C library.
func BuildRunc(ctx context.Context) (string, error) {
	dir, err := program{module: "runc", packages: []string{"github.com/opencontainers/runc"}}.build(ctx)
	return filepath.Join(dir, "runc"), err
}

// handlerOwnUsers configures the handler OwnUsers of containerd 2.x; nothing without a runc for it.
func (i *Instance) handlerOwnUsers() string {
	if i.Runc == "" {
		return ""
	}
	return fmt.Sprintf(`
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.%s]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.%s.options]
SystemdCgroup = %t
Root = %q
BinaryName = %q
`, OwnUsers, OwnUsers, i.SystemdCgroup, filepath.Join(i.dir(), OwnUsers), i.Runc)
}
