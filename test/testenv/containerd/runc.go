package containerd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// OwnUsers is the handler whose pods may have user namespaces, where the instance was given a runc for it.
const OwnUsers = "own-users"

// BuildRunc returns the path of a runc that can map the ids of mounts. The version is that of the module test/runc. It
// has no seccomp, which needs a C library: it runs all containers unconfined.
func BuildRunc(ctx context.Context) (string, error) {
	dir, err := program{module: "runc", packages: []string{"github.com/opencontainers/runc"}}.build(ctx)
	if err != nil {
		return "", err
	}
	wrapper := filepath.Join(dir, "noseccomp")
	if _, err := os.Stat(wrapper); err == nil {
		return wrapper, nil
	}
	// Suites that run at the same time each build it under a name of their own.
	tmp := fmt.Sprintf("%s.%d", wrapper, os.Getpid())
	out, err := exec.CommandContext(ctx, "go", "build", "-o", tmp,
		"github.com/edgecore-io/edgecore/test/testenv/containerd/noseccomp").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build noseccomp: %w\n%s", err, out)
	}
	return wrapper, os.Rename(tmp, wrapper)
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
