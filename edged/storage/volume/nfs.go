package volume

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
)

// How long a mount, and an unmount, may take while a server does not answer.
const (
	mountTimeout   = 2 * time.Minute // that of mount.nfs itself, by default
	unmountTimeout = 15 * time.Second
)

// nfsMount is a folder of an NFS server that a pod has.
type nfsMount struct {
	name     string
	source   *v1.NFSVolumeSource
	readOnly bool
	options  []string
}

// setupNFS mounts a folder of an NFS server. A server that does not answer holds up this pod alone, for mountTimeout,
// after which it is tried again. Nothing here looks into the mount: that would wait for the server, too.
func (m *Manager) setupNFS(ctx context.Context, pod *v1.Pod, n nfsMount) (PodVolume, error) {
	source, err := nfsSource(n.source)
	if err != nil {
		return PodVolume{}, err
	}
	dir, err := m.folder(pod, volumesDir, pluginNFS, n.name)
	if err != nil {
		return PodVolume{}, err
	}
	place := PodVolume{Path: dir, ReadOnly: n.readOnly}
	points, err := mountsBelow(dir)
	if err != nil || len(points) > 0 {
		return place, err
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !os.IsExist(err) {
		return PodVolume{}, err
	}
	options := n.options
	if n.readOnly {
		options = append(options[:len(options):len(options)], "ro")
	}
	ctx, cancel := context.WithTimeout(ctx, mountTimeout)
	defer cancel()
	if err := m.opts.Mounter.Mount(ctx, source, dir, "nfs", options); err != nil {
		return PodVolume{}, err
	}
	return place, nil
}

// nfsSource is what mount(8) calls a folder of a server: host:/path.
func nfsSource(src *v1.NFSVolumeSource) (string, error) {
	server := src.Server
	if server == "" || strings.HasPrefix(server, "-") || strings.ContainsAny(server, "/ \t\n\x00") {
		return "", fmt.Errorf("nfs server %q is neither a host name nor an address", server)
	}
	if !path.IsAbs(src.Path) || hasDotDot(src.Path) || strings.ContainsAny(src.Path, "\n\x00") {
		return "", fmt.Errorf("nfs path %q must be absolute and must not contain '..'", src.Path)
	}
	if ip, err := netip.ParseAddr(server); err == nil && ip.Is6() {
		server = "[" + server + "]"
	}
	return server + ":" + src.Path, nil
}

// unmountNetwork unmounts the network file systems among some mounts. If that takes too long, it forces it, which drops
// data that was not sent yet. Both could hang for as long as the server does in an unmount of our own.
func (m *Manager) unmountNetwork(ctx context.Context, mounts []*mountinfo.Info) error {
	var errs []error
	for _, i := range mounts {
		if ofServer(i.FSType) {
			errs = append(errs, m.unmountOne(ctx, i.Mountpoint, unmountTimeout))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) unmountOne(ctx context.Context, point string, limit time.Duration) error {
	polite, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if m.opts.Mounter.Unmount(polite, point, false) == nil {
		return nil
	}
	forced, cancelForced := context.WithTimeout(ctx, limit)
	defer cancelForced()
	return m.opts.Mounter.Unmount(forced, point, true)
}

// ofServer reports whether file systems of a type live on a server.
func ofServer(fsType string) bool { return fsType == "nfs" || fsType == "nfs4" }

func hasDotDot(p string) bool {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}
