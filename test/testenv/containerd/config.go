package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/edgecore-io/edgecore/test/testenv/images"
)

var versionText = regexp.MustCompile(`\bv?(\d+)\.\d+\.`)

// majorVersion asks a containerd binary for its version: 1 and 2 differ in their configuration.
func majorVersion(ctx context.Context, binary string) (int, error) {
	out, err := exec.CommandContext(ctx, binary, "--version").CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%s --version: %w: %s", binary, err, out)
	}
	match := versionText.FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("%s --version: no version in %q", binary, out)
	}
	return strconv.Atoi(string(match[1]))
}

func (i *Instance) writeConfig() error {
	plugins, err := pluginDir()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(i.cniConfDir(), "10-"+i.Name+".conflist"), i.cniConfig(), 0o644); err != nil {
		return err
	}
	config := i.daemonConfig() + i.criConfig1(plugins)
	if i.Major >= 2 {
		config = i.daemonConfig() + i.criConfig2(plugins) + i.handlerOwnUsers()
	}
	return os.WriteFile(i.configFile(), []byte(config), 0o644)
}

// pluginDir is where the machine has its CNI plugins.
func pluginDir() (string, error) {
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin"} {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no CNI plugins in /usr/lib/cni or /opt/cni/bin; install the Debian package " +
		"containernetworking-plugins (hack/setup does)")
}

// cniConfig is the network of the instance's pods. host-local keeps its leases in the instance's
// root, not in the machine's /var/lib/cni.
func (i *Instance) cniConfig() []byte {
	type object = map[string]any
	data, err := json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       i.Name,
		"plugins": []any{
			object{
				"type": "bridge", "bridge": i.Name, "isGateway": true, "ipMasq": true, "hairpinMode": true,
				"ipam": object{
					"type":    "host-local",
					"ranges":  [][]object{{{"subnet": i.Subnet.String()}}},
					"routes":  []object{{"dst": "0.0.0.0/0"}},
					"dataDir": filepath.Join(i.Root, "cni"),
				},
			},
			object{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	}, "", "  ")
	if err != nil {
		panic(err) // maps of strings always encode
	}
	return append(data, '\n')
}

// daemonConfig is the part that every version reads in the same way.
func (i *Instance) daemonConfig() string {
	version := 2
	if i.Major >= 2 {
		version = 3
	}
	return fmt.Sprintf(`version = %d
root = %q
state = %q
# Snapshotters that this instance has no use for, and what would reach outside of its folders.
disabled_plugins = [%s]

[grpc]
address = %q

[debug]
level = "info"

[plugins."io.containerd.internal.v1.opt"]
path = %q
`, version, i.rootDir(), i.stateDir(), quoted(disabledPlugins(i.Major)), i.Socket(), filepath.Join(i.rootDir(), "opt"))
}

func disabledPlugins(major int) []string {
	disabled := []string{
		"io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
		"io.containerd.snapshotter.v1.devmapper",
		"io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.tracing",
		"io.containerd.tracing.processor.v1.otlp",
	}
	if major >= 2 {
		disabled = append(disabled, "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.blockfile",
			"io.containerd.snapshotter.v1.erofs", "io.containerd.image-verifier.v1.bindir")
	}
	return disabled
}

func quoted(values []string) string {
	out := make([]string, len(values))
	for n, v := range values {
		out[n] = strconv.Quote(v)
	}
	return strings.Join(out, ", ")
}

// criConfig1 configures the CRI plugin of containerd 1.x. restrict_oom_score_adj lets it run where
// the daemon may not lower a score (no CAP_SYS_RESOURCE, as in CI); without AppArmor no profile
// stays behind in the kernel.
func (i *Instance) criConfig1(plugins string) string {
	return fmt.Sprintf(`
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = %q
restrict_oom_score_adj = true
disable_apparmor = true
netns_mounts_under_state_dir = true
tolerate_missing_hugetlb_controller = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = %q
conf_dir = %q
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
discard_unpacked_layers = %t
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = %t
Root = %q
# A second handler, for runtime classes.
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.second]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.second.options]
SystemdCgroup = %t
Root = %q
`, images.Pause, plugins, i.cniConfDir(), i.DiscardLayers, i.SystemdCgroup, i.runcRoot(), i.SystemdCgroup,
		i.runcRoot())
}

// criConfig2 says the same to containerd 2.x, which split the plugin in two.
func (i *Instance) criConfig2(plugins string) string {
	return fmt.Sprintf(`
[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
discard_unpacked_layers = %t
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
netns_mounts_under_state_dir = true
tolerate_missing_hugetlb_controller = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [%q]
conf_dir = %q
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = %t
Root = %q
# A second handler, for runtime classes.
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.second]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.second.options]
SystemdCgroup = %t
Root = %q
`, i.DiscardLayers, images.Pause, plugins, i.cniConfDir(), i.SystemdCgroup, i.runcRoot(), i.SystemdCgroup,
		i.runcRoot())
}

func (i *Instance) runcRoot() string { return filepath.Join(i.dir(), "runc") }
