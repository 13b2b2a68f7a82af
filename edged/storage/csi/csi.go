// Package csi mounts the volumes of CSI drivers into pods, as the kubelet does. It registers drivers (as a handler of
// package plugins), reports them to the cluster (CSINode, and the Node's annotation and topology labels), and stages,
// publishes, unpublishes and unstages volumes for package volume, whose Driver it is.
//
// # What is on the disk
//
//	<root>/pods/<uid>/volumes/kubernetes.io~csi/<name>/         vol_data.json (type record) and mount, where it is published
//	<root>/pods/<uid>/volumeDevices/kubernetes.io~csi/<name>/   vol_data.json of a block volume
//	<root>/plugins/kubernetes.io/csi/<driver>/<sha256>/         vol_data.json and globalmount, where it is staged
//	<root>/plugins/kubernetes.io/csi/volumeDevices/             staging/<name>, publish/<name>/<uid>, and <name>/data/vol_data.json
//
// These are the kubelet's places. What a kubelet before 1.24 has staged in plugins/kubernetes.io/csi/pv/<name>/ stays
// there. The records are the only truth about which pod has which volume: one is written before the first call to the
// driver and removed after the last, so that whatever an agent that was killed had begun is found and taken back. A
// volume stays staged as long as there is a record of it in any pod.
//
// # Promises
//
//   - Operations on one volume never overlap, those on different volumes run side by side; every call to a driver
//     has a time limit. A driver that hangs holds up the pods with the volume at hand and no others.
//   - A mounted volume is used without any request, even if the driver is dead, the cloud unreachable or the agent
//     restarted.
//   - An attached volume is mounted for a pod only after the cluster has recorded that it is in use, and from then on
//     also without a cloud.
//   - A volume counts as unmounted only when its driver has said so, or when the driver is no longer registered.
package csi

import (
	"context"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

// Objects gives the objects of the cluster that volumes depend on, from the store where there is no link.
// apierrors.IsNotFound means that the object does not exist; any other error, that this is unknown.
type Objects interface {
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	VolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
}

// Cluster stores what the node reports about its drivers. Its calls fail without a link.
type Cluster interface {
	Node(ctx context.Context, name string) (*v1.Node, error)
	UpdateNode(ctx context.Context, node *v1.Node) error
	CSINode(ctx context.Context, name string) (*storagev1.CSINode, error)
	CreateCSINode(ctx context.Context, node *storagev1.CSINode) (*storagev1.CSINode, error)
	UpdateCSINode(ctx context.Context, node *storagev1.CSINode) (*storagev1.CSINode, error)
}

// Tokens gives tokens of pods' service accounts. seconds of 0 leaves the time to the giver.
type Tokens interface {
	PodToken(ctx context.Context, pod *v1.Pod, audience string, seconds int64) (*authenticationv1.TokenRequestStatus,
		error)
}

// Options configure a Manager. Those that are funcs may be nil.
type Options struct {
	// Root is the agent's folder.
	Root     string
	NodeName string
	Objects  Objects
	Tokens   Tokens
	// Cluster is nil where there is no cloud.
	Cluster Cluster
	// Own gives a volume to the fsGroup of a pod; nil means that package volume does.
	Own func(ctx context.Context, pod *v1.Pod, dir string) error
	// Event records an event of a pod; nil records none.
	Event func(pod *v1.Pod, eventType, reason, format string, args ...any)
	// Grown tells the cluster that a claim's file system has the size of its volume. It is called again until it
	// succeeds.
	Grown func(ctx context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity) error
	// Claims are looked at again, from time to time, for what has to grow under a pod.
	Claims volume.Claims
	// Others returns the usage of claims without a CSI driver, which is reported with that of the others.
	Others func(ctx context.Context) []volume.ClaimUsage
	// Registered is called when a driver has registered, or the cluster knows what is in use: pods may have waited for
	// it.
	Registered func()
	// InUse is called when the answer of VolumesInUse changed.
	InUse func()
}

// Manager has the drivers and the volumes. Its methods may be called from any goroutine.
type Manager struct {
	opts  Options
	locks locks

	mu      sync.Mutex
	drivers map[string]*driver
	// volumes are those that this process has set up or found in place, by the folder in the pod.
	volumes map[string]*mounted
	// reported are the volumes that the cluster knows to be in use; waited: a mount was refused for lack of that.
	reported map[v1.UniqueVolumeName]bool
	waited   bool
	// unswept are the drivers that registered since the last sweep.
	unswept []*driver
	// driversChanged says that drivers came or went.
	driversChanged notify.Signal
}

// mounted is a volume in its place.
type mounted struct {
	record record
	path   string
	// pod, claim and block say whose it is, for its figures.
	pod   types.NamespacedName
	uid   types.UID
	claim string
	block bool
	// published is when the driver was last asked for it.
	published time.Time
	// grown is the size in bytes to which the driver has grown the file system; told is the size last reported to the
	// API server.
	grown, told int64
	// looked is when its claim was looked at.
	looked time.Time
	ready  bool
}

// New makes a Manager, which knows at once what pods had in use when the agent ended; Run starts what it does by
// itself.
func New(opts Options) *Manager {
	if opts.Own == nil {
		opts.Own = ownByGroup
	}
	m := &Manager{
		opts:           opts,
		drivers:        map[string]*driver{},
		volumes:        map[string]*mounted{},
		driversChanged: notify.NewSignal(),
	}
	if err := m.recall(); err != nil {
		klog.ErrorS(err, "Volumes of the previous run are not all known; the cluster may detach one that a pod uses")
	}
	return m
}

// ownByGroup gives a volume to the fsGroup of a pod, if it has one.
func ownByGroup(ctx context.Context, pod *v1.Pod, dir string) error {
	if own := volume.OwnershipOf(pod); own != nil {
		return volume.SetOwnership(ctx, dir, *own)
	}
	return nil
}

// locks is a lock for each volume.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	token chan struct{}
	users int
}

// lock waits until no other operation on the volume is in progress. release ends this one.
func (l *locks) lock(ctx context.Context, driver, handle string) (release func(), err error) {
	key := driver + "^" + handle
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*lock{}
	}
	k := l.held[key]
	if k == nil {
		k = &lock{token: make(chan struct{}, 1)}
		l.held[key] = k
	}
	k.users++
	l.mu.Unlock()
	drop := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.held, key)
		}
	}
	select {
	case k.token <- struct{}{}:
		return func() { <-k.token; drop() }, nil
	case <-ctx.Done():
		drop()
		return nil, fmt.Errorf("another operation on volume %s of %s is in progress: %w", handle, driver, ctx.Err())
	}
}
