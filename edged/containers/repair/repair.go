// Package repair repairs images that a power cut left damaged: layers with empty or missing files, blobs that never
// came to the disk.
//
// A runtime does not verify the layers that it has unpacked, so a container of a damaged image fails for ever. How it
// fails is the first sign (judge.go), and no more than that: a wrong command fails in the same way. With containerd the
// suspicion is tested: each file of each layer is compared with the blob from which the layer was unpacked, which is
// compared with its digest (verify.go, layer.go). What this package promises:
//
//   - An image that is whole is never touched. It is not looked at a second time in this boot either.
//   - A layer whose blob is sound is put right from it, in place, with no network, no registry, and no container
//     stopped; other images that share it are right from then on, too.
//   - Where the blob is damaged as well, it is brought again: from an archive in the folder of archives, else from the
//     registry, by the runtime (fetch.go). Nothing is given away for that but bytes which are proven wrong: the image,
//     its other blobs and its layers stay until the new blob is there.
//   - A layer whose blob the runtime has not kept is compared only after a failure that no whole image has. Its blob is
//     brought for that.
//   - Where nothing can be compared even so (another runtime, another kind of layer) only failures that no whole image
//     has count. The image is removed at most once in a boot, when the registry has just answered for it, and not while
//     other containers are made of it or another repository has a name for it.
//   - One repair runs at a time, and one beside each pull. One that fails is tried again later and later; a condition
//     and an event name the image, what is wrong with it, and the remedy, until it is right.
package repair

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// The events of images.
const (
	EventDamaged  = "ImageDamaged"
	EventRepaired = "ImageRepaired"
)

// Store is what containerd has beside CRI; see package cri, whose Client is one.
type Store interface {
	// ImageTarget returns the digest of the manifest, or list of manifests, of an image.
	ImageTarget(ctx context.Context, name string) (digest string, err error)
	// ReadBlob returns the bytes of a blob, which may be damaged.
	ReadBlob(ctx context.Context, digest string) (io.ReadCloser, error)
	// Blobs returns which there should be.
	Blobs(ctx context.Context) ([]cri.Blob, error)
	// DeleteBlob forgets a blob; its bytes are gone after CollectGarbage.
	DeleteBlob(ctx context.Context, digest string) error
	CollectGarbage(ctx context.Context, name string) error
	// Hold adds blobs and unpacked layers to a lease, which protects them and what they refer to from garbage
	// collection until Release, or until keep is over.
	Hold(ctx context.Context, lease string, keep time.Duration, refs []cri.Ref) error
	Release(ctx context.Context, lease string) error
	// DeleteImage forgets the image of a name, and nothing that others refer to. It may be gone already.
	DeleteImage(ctx context.Context, name string) error
	// LayerDirs returns the folders of unpacked layers, the uppermost first.
	LayerDirs(ctx context.Context, snapshotter, chain, name string) ([]string, error)
}

// Runtime is what is needed of CRI.
type Runtime interface {
	// RemoveContainer and RemoveImage remove what may be gone already.
	RemoveContainer(ctx context.Context, id string) error
	RemoveImage(ctx context.Context, id string) error
	// ContainersOf returns the ids of all containers that are made of an image.
	ContainersOf(ctx context.Context, image string) ([]string, error)
	// Images returns the names and ids of the images, and which of them is of sandboxes.
	Images(ctx context.Context) ([]Image, error)
	// LayersAt is the folder in which the runtime keeps layers.
	LayersAt(ctx context.Context) (string, error)
}

// Image is an image that the runtime has.
type Image struct {
	ID    string
	Names []string
	// Sandbox: sandboxes are made of it.
	Sandbox bool
}

// Options configure a Repairer.
type Options struct {
	Store   Store
	Runtime Runtime
	// Pull pulls an image, with the rights of pull secrets.
	Pull func(ctx context.Context, image string, secrets []v1.Secret) error
	// Load gives an archive of images to the runtime, and waits until it lists the one of a name.
	Load func(ctx context.Context, file, name string) error
	// Archives is the folder in which archives of images may lie.
	Archives string
	Recorder events.Interface
	Health   *health.Registry
	// Record says what is known of this boot; see RecordThisBoot.
	Record *Record
}

// Suspect is a failure that may be that of a damaged image.
type Suspect struct {
	Failure
	// Image is its complete name, ID what the runtime calls it.
	Image, ID string
	// Reference is the name by which it is pulled, as the pod writes it; empty is Image.
	Reference string
	// Pod and Container are whose it is; nil for a sandbox.
	Pod       *v1.Pod
	Container *v1.Container
	Secrets   []v1.Secret
	// Dead are the containers of the pod that were made of the image and do not run: they may be removed.
	Dead []string
	// Since is when the attempt that failed began: a repair after it is an answer to it.
	Since time.Time
}

// backoff of repairs that fail.
const (
	firstWait = time.Minute
	maxWait   = 30 * time.Minute
)

// Repairer repairs images. Its methods may be called from any goroutine.
type Repairer struct {
	opts Options
	// turn is held by the one who repairs, but not while the runtime pulls.
	turn chan struct{}
	// left are names by which a killed agent was fetching blobs.
	left []string

	mu     sync.Mutex
	states map[string]*state
}

// state is what is remembered of one image.
type state struct {
	// repaired is when it was put right; zero: not yet.
	repaired time.Time
	wait     time.Duration
	// busy: it is being examined.
	busy bool
	// next is when a repair that failed may be tried again.
	next time.Time
}

// New makes a Repairer.
func New(opts Options) *Repairer {
	return &Repairer{opts: opts, turn: make(chan struct{}, 1), left: opts.Record.Fetched(), states: map[string]*state{}}
}

// Run removes from the runtime what a killed agent has left there, and returns.
func (r *Repairer) Run(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
		r.forgetLeft(ctx)
		<-r.turn
	case <-ctx.Done():
	}
	return nil
}

// Examine looks at an image after a failure, and repairs it where that is called for. It returns true when the failure
// is to be forgotten and the start tried again at once: the image is right now, or gone and to be pulled.
func (r *Repairer) Examine(ctx context.Context, s Suspect) bool {
	suspicion := Assess(s.Failure, r.opts.Record.Unclean())
	if suspicion == None || r.opts.Record.Good(s.ID) {
		return false
	}
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return false
	}
	r.forgetLeft(ctx)
	if done, again := r.beginExamination(s); done {
		return again
	}
	again, err := r.repair(ctx, s, suspicion)
	r.endExamination(s, again, err, ctx.Err() != nil)
	return again && ctx.Err() == nil
}

// beginExamination reports whether the question is answered already: by a repair meanwhile, or one that failed a short
// time ago. Else the image is busy until after.
func (r *Repairer) beginExamination(s Suspect) (done, again bool) {
	if r.opts.Record.Good(s.ID) {
		return true, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.states[s.ID]
	if st == nil {
		st = &state{}
		r.states[s.ID] = st
	}
	switch {
	case st.repaired.After(s.Since):
		return true, true
	case st.busy, time.Now().Before(st.next):
		return true, false
	}
	st.busy = true
	return false, false
}

// endExamination remembers how an examination ended. An image is not examined over and over: one that was put right and
// still fails is looked at as late as one that could not be put right. cancelled: nobody waits for it any more, and it
// says nothing.
func (r *Repairer) endExamination(s Suspect, repaired bool, err error, cancelled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.states[s.ID]
	if st.busy = false; cancelled {
		return
	}
	now := time.Now()
	st.wait = min(max(2*st.wait, firstWait), maxWait)
	st.next = now.Add(st.wait)
	if repaired {
		st.repaired = now
	}
	if err == nil {
		r.opts.Health.Clear(health.ImageDamaged, s.Image)
	}
}

// ExamineSandbox is Examine for the images of sandboxes. since is when the attempt that failed began.
func (r *Repairer) ExamineSandbox(ctx context.Context, f Failure, since time.Time) bool {
	if Assess(f, r.opts.Record.Unclean()) == None {
		return false
	}
	list, err := r.opts.Runtime.Images(ctx)
	if err != nil {
		klog.V(2).InfoS("Sandbox image unknown", "err", err)
		return false
	}
	again := false
	for _, i := range list {
		if i.Sandbox && len(i.Names) > 0 && r.Examine(ctx, Suspect{
			Failure: f,
			Image:   i.Names[0],
			ID:      i.ID,
			Since:   since,
		}) {
			again = true
		}
	}
	return again
}

// ForgetExcept clears the conditions of images that no pod names any more.
func (r *Repairer) ForgetExcept(names []string) {
	for _, c := range r.opts.Health.Snapshot() {
		if c.Code == health.ImageDamaged && !slices.Contains(names, c.Object) {
			r.opts.Health.Clear(c.Code, c.Object)
		}
	}
}
