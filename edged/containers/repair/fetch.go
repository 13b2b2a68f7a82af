package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/images"
)

// The runtime fetches the blobs that an image lacks. A pull of the image does not bring them: containerd does not fetch
// the blob of a layer that it has unpacked. But it can be asked for the blob alone. A pull of "repository@digest" looks
// for a manifest of that digest and then for a blob, and fetches what there is, with containerd's own mirrors,
// certificates, credentials and checks. The pull of a layer then ends with an error, because a layer is not an image;
// whether the blob has come is seen in containerd's store. Until then, and if it never comes, the image and its
// unpacked layers stay as they are, and containers can be created of them: containerd does not need the blob of a layer
// that is unpacked, not even after a restart.
//
// A manifest, a list of manifests and a configuration are different. Without them no container is created, and all that
// they refer to is collected as garbage. So a lease holds what a damaged one refers to while it is fetched.

const (
	// maxFetched bounds how many blobs an image may lack. overlayfs has no more than 500 layers.
	maxFetched = 512
	// maxHeld bounds what a blob may refer to, if it is to be held.
	maxHeld = 2 * maxFetched
	// keepHeld is how long the rest of an image is kept while a blob cannot be fetched.
	keepHeld = 7 * 24 * time.Hour
	// keepExpected is how long a blob is kept for an agent that was killed, and does not start again.
	keepExpected = 24 * time.Hour
	// maxRounds bounds how often an image is verified while it is brought: a new list of manifests shows the manifest,
	// that the configuration, and both the layers.
	maxRounds = 8
)

// heldBy names the lease that keeps what a blob refers to, and expectedBy the one that keeps the blob when it comes.
func heldBy(digest string) string     { return lookName + "-refs-" + digest }
func expectedBy(digest string) string { return lookName + "-blob-" + digest }

// holdReferences protects what blobs refer to from garbage collection. What a removed blob referred to stays protected.
func (r *Repairer) holdReferences(ctx context.Context, digests []string) error {
	blobs, err := r.opts.Store.Blobs(ctx)
	if err != nil {
		return err
	}
	for _, b := range blobs {
		if len(b.Refs) == 0 || !slices.Contains(digests, b.Digest) {
			continue
		}
		if len(b.Refs) > maxHeld {
			return fmt.Errorf("blob %s refers to more than %d others", short(b.Digest), maxHeld)
		}
		if err := r.opts.Store.Hold(ctx, heldBy(b.Digest), keepHeld, b.Refs); err != nil {
			return fmt.Errorf("protect what blob %s refers to: %w", short(b.Digest), err)
		}
	}
	return nil
}

// expect keeps blobs that are about to come. It does so until release: a registry must not be able to fill the disk
// with what no image needs.
func (r *Repairer) expect(ctx context.Context, digests []string) error {
	for _, digest := range digests {
		if !images.IsID(digest) {
			return fmt.Errorf("its blob %q does not have a SHA-256 digest", short(digest))
		}
		blob := []cri.Ref{{Kind: cri.KindContent, ID: digest}}
		if err := r.opts.Store.Hold(ctx, expectedBy(digest), keepExpected, blob); err != nil {
			return fmt.Errorf("hold blob %s: %w", short(digest), err)
		}
	}
	return nil
}

// release ends the leases that lease names for blobs. One that stays ends by itself.
func (r *Repairer) release(ctx context.Context, digests []string, lease func(digest string) string) {
	for _, digest := range digests {
		if err := r.opts.Store.Release(context.WithoutCancel(ctx), lease(digest)); err != nil {
			klog.ErrorS(err, "Lease of a blob not released; it expires", "lease", lease(digest))
		}
	}
}

// fetchMissing makes the runtime fetch what an image lacks, and mends what is found damaged with it. Nothing of the
// image is removed but blobs that are proven wrong; the caller has discarded those of rep. It returns what is left to
// be done, and whether it has put something right.
func (r *Repairer) fetchMissing(ctx context.Context, s Suspect, rep report) (report, bool, error) {
	var tried []string
	defer func() { r.release(ctx, tried, expectedBy) }()
	changed, asked := false, false
	for range maxRounds {
		todo := rep.lacks(tried)
		if len(todo) == 0 && (!rep.documents || asked) {
			break
		}
		if len(todo) > maxFetched {
			return rep, changed, fmt.Errorf("it lacks %d blobs, and at most %d are fetched", len(todo), maxFetched)
		}
		tried = append(tried, todo...)
		if err := r.expect(ctx, todo); err != nil {
			return rep, changed, err
		}
		if rep.documents {
			// A pull of the image brings them, and has containerd note what they refer to.
			changed, asked = true, true
			if err := r.fetchDocuments(ctx, s, rep.target); err != nil {
				return rep, changed, err
			}
			todo = nil
		}
		for _, digest := range todo {
			if err := r.fetchBlob(ctx, s, digest); err != nil {
				return rep, changed, err
			}
		}
		var err error
		if rep, err = r.verify(ctx, s); err == nil {
			err = r.discard(ctx, rep.blobs)
		}
		if err != nil {
			return rep, changed, err
		}
	}
	if len(rep.layers) > 0 {
		r.damaged(s, rep.String())
		changed = true
		err := r.repairLayers(ctx, rep)
		if err == nil {
			rep, err = r.verify(ctx, s)
		}
		if err != nil {
			return rep, changed, err
		}
	}
	if len(rep.blobs) == 0 && !rep.documents {
		r.release(ctx, tried, heldBy)
	}
	return rep, changed, nil
}

// fetchDocuments pulls an image by the digest of its manifest, or list of manifests. Unlike the name of a layer's blob,
// this one may stand for the image already, and is never removed.
func (r *Repairer) fetchDocuments(ctx context.Context, s Suspect, target string) error {
	name, err := images.WithDigest(cmp.Or(s.Reference, s.Image), target)
	if err == nil {
		err = r.pullNamed(ctx, s, name)
	}
	if err != nil {
		return fmt.Errorf("manifest %s cannot be fetched now: %w", short(target), err)
	}
	return nil
}

// fetchBlob makes the runtime fetch a blob of an image.
func (r *Repairer) fetchBlob(ctx context.Context, s Suspect, digest string) error {
	name, err := images.WithDigest(cmp.Or(s.Reference, s.Image), digest)
	if err != nil {
		return fmt.Errorf("blob %s cannot be fetched: %w", short(digest), err)
	}
	if err := r.opts.Record.SetFetched(name); err != nil {
		return err
	}
	pullErr := r.pullNamed(ctx, s, name)
	forgetErr := r.forget(context.WithoutCancel(ctx), name)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	blobs, err := r.opts.Store.Blobs(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(blobs, func(b cri.Blob) bool { return b.Digest == digest }) {
		return fmt.Errorf("blob %s cannot be fetched now: %w", short(digest), cmp.Or(pullErr, errNotFetched))
	}
	return forgetErr
}

var errNotFetched = errors.New("the runtime has not fetched it")

// forget removes a name by which a blob was fetched from the runtime, unless the name stands for an image that the
// runtime lists.
func (r *Repairer) forget(ctx context.Context, name string) error {
	list, err := r.opts.Runtime.Images(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(list, func(i Image) bool { return slices.Contains(i.Names, name) }) {
		if err := r.opts.Store.DeleteImage(ctx, name); err != nil {
			return fmt.Errorf("forget %s: %w", name, err)
		}
	}
	r.logUnrecorded(r.opts.Record.DropFetched(name))
	return nil
}

// forgetLeft does so with the names that an agent has left that was killed. The caller holds the turn.
func (r *Repairer) forgetLeft(ctx context.Context) {
	for len(r.left) > 0 {
		if err := r.forget(ctx, r.left[0]); err != nil {
			klog.V(2).InfoS("Name of a fetched blob not removed from the runtime; it is tried again", "name", r.left[0],
				"err", err)
			return
		}
		if _, digest, ok := strings.Cut(r.left[0], "@"); ok {
			r.release(ctx, []string{digest}, expectedBy)
		}
		r.left = r.left[1:]
	}
}

// pullNamed pulls something with the rights of a pod. Others may repair images meanwhile: a registry may take long.
func (r *Repairer) pullNamed(ctx context.Context, s Suspect, name string) error {
	if s.Container != nil && s.Container.ImagePullPolicy == v1.PullNever {
		return errNeverPull
	}
	<-r.turn
	defer func() { r.turn <- struct{}{} }()
	return r.opts.Pull(ctx, name, s.Secrets)
}
