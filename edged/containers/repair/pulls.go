package repair

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/images"
)

// A pull fails for ever when containerd counts a blob among what it has and the power cut took its bytes: it neither
// fetches nor finds it. And a pull that fails for want of a network may not be needed, where an archive holds the
// image.

var (
	digestText = regexp.MustCompile(`sha256:[0-9a-f]{64}`)
	// blobSigns are what a pull says of a blob that it takes for complete.
	blobSigns = []string{"blob not found", "failed to get reader from content store", "content digest", "wrong diff id",
		"unexpected eof", "invalid tar header", "gzip: invalid", "unexpected end of json", "invalid character"}
)

// PullFailed is called when a pull failed. It returns true if the image is here now or the obstacle is gone, so that
// the pull should be tried again.
func (r *Repairer) PullFailed(ctx context.Context, name string, failure error) bool {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return false
	}
	r.forgetLeft(ctx)
	if !r.mayTry("pull of " + name) {
		return false
	}
	s := Suspect{Image: name}
	if full, err := images.Normalize(name); err == nil {
		s.Image = full
	}
	freed, err := r.freePull(ctx, failure.Error())
	if err != nil {
		klog.ErrorS(err, "Leftovers that block a pull could not be removed", "image", name)
	}
	loaded, err := r.load(ctx, s)
	if err != nil {
		klog.ErrorS(err, "Image not loaded from its archive", "image", name)
	}
	return freed || loaded
}

// mayTry reports whether something may be tried, and puts the next try off.
func (r *Repairer) mayTry(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	st, now := r.states[key], time.Now()
	if st == nil {
		st = &state{}
		r.states[key] = st
	}
	if now.Before(st.next) {
		return false
	}
	st.wait = min(max(2*st.wait, firstWait), maxWait)
	st.next = now.Add(st.wait)
	return true
}

// freePull removes the blobs that a failed pull stumbled over.
func (r *Repairer) freePull(ctx context.Context, said string) (bool, error) {
	if at := missingDir.FindStringSubmatch(said); at != nil && strings.Contains(said, "failed to stat parent") {
		return r.makeLayer(ctx, filepath.Clean(at[1]))
	}
	lower := strings.ToLower(said)
	if !slices.ContainsFunc(blobSigns, func(sign string) bool { return strings.Contains(lower, sign) }) {
		return false, nil
	}
	blobs, err := r.opts.Store.Blobs(ctx)
	if err != nil {
		return false, err
	}
	named := digestText.FindAllString(said, -1)
	known := slices.ContainsFunc(blobs, func(b cri.Blob) bool { return slices.Contains(named, b.Digest) })
	v := verifier{Store: r.opts.Store, have: map[string]bool{}}
	var bad []string
	for _, b := range blobs {
		if known && !slices.Contains(named, b.Digest) {
			continue // the pull has named which one it is
		}
		v.have[b.Digest] = true
		err := v.read(ctx, b.Digest, func(io.Reader) error { return nil })
		if _, damaged := errors.AsType[*errBlob](err); damaged {
			bad = append(bad, b.Digest)
		} else if err != nil {
			return false, err
		}
	}
	if len(bad) == 0 {
		return false, nil
	}
	klog.InfoS("Blobs of images are damaged on this device and are fetched again", "blobs", bad)
	return true, r.discard(ctx, bad)
}

// makeLayer makes the folder of a layer that is gone. What is not in it is found, and put right, when a container needs
// it.
func (r *Repairer) makeLayer(ctx context.Context, dir string) (bool, error) {
	at, err := r.opts.Runtime.LayersAt(ctx)
	if err != nil || !strings.HasPrefix(dir, at+"/") {
		return false, err
	}
	return true, os.MkdirAll(dir, 0o755)
}
