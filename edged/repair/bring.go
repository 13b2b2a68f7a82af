package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/edged/images"
)

// containerd fetches no blob of a layer that it has unpacked, and CRI cannot be asked to. So the agent fetches blobs
// itself, and gives them to containerd. After each of these steps the device is at least as well off as before:
//
//  1. A lease keeps all blobs and layers of the image.
//  2. A blob comes from the registry into containerd's store, beside the damaged one, and its digest is compared.
//  3. The damaged one is removed, and its bytes with the next garbage collection. Containers go on, and start, from the
//     layers that are unpacked. Only if it was a manifest or configuration nothing starts until the next step.
//  4. The new one takes its place, with the labels of the old one. If the agent is killed between 3 and 4, containerd
//     still has the image by name, and by the lease its other blobs and its layers. The missing blob is fetched after
//     the next start of the agent, by a pull if it is a manifest or configuration.
//  5. The layer is put right from the blob, file by file, or, where files cannot be compared, removed: all blobs are
//     here now, and containerd unpacks it from them when the next container is created, with no network.
//  6. The lease is released.

const (
	// holdFor is how long a lease lasts that is not released.
	holdFor = 24 * time.Hour
	// maxRounds is how often blobs are brought and the image verified: a list of manifests, a manifest, a configuration
	// and layers are each seen only when the ones before are right.
	maxRounds = 5
)

// errByRuntime means that the runtime reaches the registry, and the agent does not.
var errByRuntime = errors.New("only the runtime can fetch it")

// bring fetches the blobs that are damaged or missing, and puts the image right with them. It returns errByRuntime, and
// what the image is like, if it cannot.
func (r *Repairer) bring(ctx context.Context, s Suspect, rep report) (report, bool, error) {
	lease, err := r.hold(ctx, rep.holding)
	if err != nil {
		return rep, false, r.trouble(ctx, s, err)
	}
	after, err := r.bringBlobs(ctx, s, rep, lease)
	if errors.Is(err, images.ErrNoDirectAccess) {
		// Is it the link, which may be there again by now, or only the agent's way?
		if err = r.pull(ctx, s); err == nil {
			after, err = r.verify(ctx, s.ID)
		}
		if err == nil {
			after, err = r.bringBlobs(ctx, s, after, lease)
		}
		if errors.Is(err, images.ErrNoDirectAccess) {
			klog.V(2).InfoS("Blobs of an image are left to the runtime", "image", s.Image, "err", err)
			r.release(ctx, lease)
			return after, false, errByRuntime
		}
	}
	if err != nil {
		if !errors.Is(err, cri.ErrRemoved) { // else the lease is what keeps the rest of the image
			r.release(ctx, lease)
		}
		return after, false, r.trouble(ctx, s, err)
	}
	again, unpack, err := r.settle(ctx, s, after, len(rep.blobs) > 0)
	if !unpack || !after.loose() { // else only the lease keeps what the layers are unpacked from
		r.release(ctx, lease)
	}
	return after, again, err
}

// bringBlobs fetches blobs, and returns what the image is like with them.
func (r *Repairer) bringBlobs(ctx context.Context, s Suspect, rep report, lease string) (report, error) {
	for range maxRounds {
		wanted := slices.Concat(rep.blobs, rep.absent)
		if len(wanted) == 0 {
			break
		}
		for _, digest := range wanted {
			if err := r.bringBlob(ctx, s, lease, digest); err != nil {
				return rep, fmt.Errorf("blob %s cannot be fetched now: %w", short(digest), err)
			}
		}
		var err error
		if rep, err = r.verify(ctx, s.ID); err != nil {
			return rep, err
		}
	}
	return rep, nil
}

func (r *Repairer) bringBlob(ctx context.Context, s Suspect, lease, digest string) error {
	if s.Container != nil && s.Container.ImagePullPolicy == v1.PullNever {
		return errNeverPull
	}
	blob, err := r.opts.Blob(ctx, cmp.Or(s.Reference, s.Image), digest, s.Secrets)
	if err != nil {
		return err
	}
	defer blob.Close()
	if err := r.opts.Store.ReplaceBlob(ctx, lease, digest, blob); err != nil {
		return err
	}
	klog.InfoS("Blob of an image fetched again", "image", s.Image, "blob", digest)
	return nil
}

// settle puts the layers of an image right, all blobs of which should be here. proven: some were damaged. It returns
// whether the start is to be tried again, and whether layers have to be unpacked for that.
func (r *Repairer) settle(ctx context.Context, s Suspect, rep report, proven bool) (again, unpack bool, err error) {
	switch {
	case len(rep.blobs)+len(rep.absent) > 0, len(rep.chains) == 0:
		return false, false, r.trouble(ctx, s, errors.New(rep.String()))
	case rep.whole() && !proven:
		r.note(r.opts.Record.SetGood(s.ID))
		return false, rep.packed, nil
	case rep.unknown == "":
		if !proven {
			r.damaged(s, rep.String())
		}
		again, err = r.conclude(ctx, s, r.mend(ctx, rep))
		return again, rep.packed, err
	}
	if !proven {
		r.damaged(s, suspected(s, rep))
	}
	if err := r.unpackAgain(ctx, s, rep); err != nil {
		return false, false, r.trouble(ctx, s, err)
	}
	return true, true, nil
}

// unpackAgain removes the layers of an image, all blobs of which are here, so that the runtime unpacks them again when
// a container is created.
func (r *Repairer) unpackAgain(ctx context.Context, s Suspect, rep report) error {
	if err := r.removeLayers(ctx, s, rep, 0); err != nil {
		return err
	}
	r.event(s, v1.EventTypeNormal, EventRepaired, fmt.Sprintf(
		"Image %q was damaged on this device; its layers have been removed and are unpacked again", s.Image))
	return nil
}

// refetch has the runtime fetch the blobs of layers that it has unpacked, which it does only after these layers and
// those above them are removed. The image stays, and so do its blobs, from which all layers are unpacked again but
// those that wait for their blob.
func (r *Repairer) refetch(ctx context.Context, s Suspect, rep report) (bool, error) {
	if len(rep.chains) == 0 {
		return false, r.trouble(ctx, s, errors.New(rep.String()))
	}
	lowest := slices.IndexFunc(rep.layerBlobs, func(digest string) bool {
		return slices.Contains(rep.absent, digest) || slices.Contains(rep.blobs, digest)
	})
	if err := r.removeLayers(ctx, s, rep, max(lowest, 0)); err != nil {
		return false, r.trouble(ctx, s, err)
	}
	if err := r.pull(ctx, s); err != nil {
		return false, r.trouble(ctx, s, err)
	}
	return r.conclude(ctx, s, nil)
}

// removeLayers removes the layers of an image from the uppermost down to the one with an index, which is 0 for the
// bottom. It does so once per boot.
func (r *Repairer) removeLayers(ctx context.Context, s Suspect, rep report, lowest int) error {
	if err := r.removeDead(ctx, s); err != nil {
		return err
	}
	removed, err := r.opts.Store.RemoveLayers(ctx, rep.snapshotter, rep.chains[:len(rep.chains)-lowest])
	if err != nil {
		return fmt.Errorf("remove its layers: %w", err)
	}
	r.note(r.opts.Record.SetReplaced(s.ID))
	if removed == 0 {
		return errHeld
	}
	klog.InfoS("Layers of an image removed", "image", s.Image, "imageID", s.ID, "layers", removed)
	return nil
}

// hold has a lease keep what an image consists of, and returns its name. One that is not released expires.
func (r *Repairer) hold(ctx context.Context, what cri.Holding) (string, error) {
	if len(what.Blobs) == 0 { // another runtime
		return "", nil
	}
	lease := fmt.Sprintf("%s-%d", lookName, time.Now().UnixNano())
	if err := r.opts.Store.Hold(ctx, lease, holdFor, what); err != nil {
		return "", fmt.Errorf("keep what is intact of it: %w", err)
	}
	return lease, nil
}

// release ends a lease.
func (r *Repairer) release(ctx context.Context, lease string) {
	if lease == "" {
		return
	}
	if err := r.opts.Store.Release(context.WithoutCancel(ctx), lease); err != nil {
		klog.V(2).InfoS("Lease of a damaged image not released; it expires", "lease", lease, "err", err)
	}
}
