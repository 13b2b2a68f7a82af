package repair

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/images"
)

// snapshotterPrefix begins the names of the folders in which containerd keeps layers.
const snapshotterPrefix = "io.containerd.snapshotter.v1."

// report is what an image looks like on the disk.
type report struct {
	// unknown says why something could not be compared; empty: all was.
	unknown string
	// layers are the damaged ones whose blob is sound.
	layers []damagedLayer
	// blobs are the digests of blobs that are not what they should be.
	blobs []string
	// absent are the digests of blobs that the runtime has not kept, and without which something is unknown.
	absent []string
	// documents: what is damaged or absent is a manifest or the configuration.
	documents bool
	// foreign: the image has a layer that is not the one that its configuration names.
	foreign bool
	// target is the digest of the manifest, or list of manifests.
	target string
}

type damagedLayer struct {
	blob, dir string
	bottom    bool
	damage
}

// sound reports whether nothing was found.
func (r report) sound() bool { return len(r.layers) == 0 && len(r.blobs) == 0 }

// whole reports whether all was compared and nothing was found.
func (r report) whole() bool { return r.sound() && r.unknown == "" }

// lacks returns the digests of the blobs that are to be fetched, each once, but those that were tried.
func (r report) lacks(tried []string) []string {
	var digests []string
	for _, digest := range slices.Concat(r.blobs, r.absent) {
		if !slices.Contains(tried, digest) && !slices.Contains(digests, digest) {
			digests = append(digests, digest)
		}
	}
	return digests
}

// maxTold bounds how many files are named to a person.
const maxTold = 3

// String describes the result for users.
func (r report) String() string {
	var parts []string
	for _, digest := range r.blobs {
		parts = append(parts, "blob "+short(digest)+" is damaged or missing")
	}
	for _, l := range r.layers {
		names := make([]string, 0, len(l.files))
		for name := range l.files {
			names = append(names, name)
		}
		slices.Sort(names)
		for i, name := range names[:min(len(names), maxTold)] {
			names[i] = "/" + name + " " + l.files[name]
		}
		text := strings.Join(names[:min(len(names), maxTold)], ", ")
		switch more := len(names) - maxTold; {
		case len(names) == 0:
			text = "all of it is missing"
		case more > 0:
			text += fmt.Sprintf(", and %d more", more)
		}
		parts = append(parts, fmt.Sprintf("layer %s: %s", short(l.blob), text))
	}
	if len(parts) == 0 {
		return r.unknown
	}
	return strings.Join(parts, "; ")
}

func short(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

// errBlob is a blob that is not what its digest says.
type errBlob struct{ digest string }

func (e *errBlob) Error() string { return "blob " + e.digest + " is damaged" }

// errAbsent is a blob that containerd does not have, and does not believe to have.
var errAbsent = errors.New("not here")

// absentBlob is errAbsent of a blob.
type absentBlob struct{ digest string }

func (e *absentBlob) Error() string { return fmt.Sprintf("blob %s: %v", short(e.digest), errAbsent) }
func (e *absentBlob) Unwrap() error { return errAbsent }

// verifier reads one image.
type verifier struct {
	Store
	// have are the blobs that should be there.
	have map[string]bool
}

// verify compares an image with its blobs. An error is one of the runtime, not of the image.
func (r *Repairer) verify(ctx context.Context, s Suspect) (report, error) {
	blobs, err := r.opts.Store.Blobs(ctx)
	if cri.IsUnimplemented(err) {
		return report{unknown: "the runtime is not containerd, and does not show what is in its images"}, nil
	}
	if err != nil {
		return report{}, fmt.Errorf("blobs of the runtime: %w", err)
	}
	v := verifier{Store: r.opts.Store, have: map[string]bool{}}
	for _, b := range blobs {
		v.have[b.Digest] = true
	}
	target, im, err := v.find(ctx, s)
	if bad, ok := errors.AsType[*errBlob](err); ok {
		return report{blobs: []string{bad.digest}, unknown: err.Error(), documents: true, target: target}, nil
	}
	if errors.Is(err, errAbsent) {
		rep := report{unknown: err.Error(), documents: true, target: target}
		if gone, ok := errors.AsType[*absentBlob](err); ok {
			rep.absent = []string{gone.digest}
		}
		return rep, nil
	}
	if err != nil {
		return report{}, err
	}
	dirs, unknown, err := r.layerDirs(ctx, im.chain())
	if err != nil {
		return report{}, err
	}
	rep := report{unknown: unknown, target: target}
	if len(dirs) != 0 && len(dirs) != len(im.layers) {
		rep.unknown, dirs = fmt.Sprintf("it has %d layers, and was unpacked into %d", len(im.layers), len(dirs)), nil
	}
	for i, digest := range im.layers {
		dir := ""
		if len(dirs) > 0 {
			dir = dirs[len(dirs)-1-i]
		}
		if err := v.layer(ctx, layerOf{digest, im.diffs[i], dir, i == 0}, &rep); err != nil {
			return report{}, err
		}
	}
	return rep, nil
}

// find finds an image by the name that the pod has for it, else by its ID. Images with one configuration have one ID,
// and the ID stands for the one that was pulled last, which may be another tenant's, with other layers.
func (v *verifier) find(ctx context.Context, s Suspect) (string, image, error) {
	if target, err := v.ImageTarget(ctx, s.Image); err == nil {
		im, err := v.image(ctx, target, s.ID)
		if !errors.Is(err, errOther) {
			return target, im, err
		}
	} else if !cri.IsNotFound(err) {
		return "", image{}, fmt.Errorf("manifest of image %s: %w", s.Image, err)
	}
	target, err := v.ImageTarget(ctx, s.ID)
	if err != nil {
		return "", image{}, fmt.Errorf("manifest of image %s: %w", s.ID, err)
	}
	im, err := v.image(ctx, target, s.ID)
	return target, im, err
}

// layerOf is a layer as its image has it: the digest of its blob, and of what is in that (the diff ID). dir is where
// the layer is unpacked; "" is nowhere.
type layerOf struct {
	digest, diff, dir string
	bottom            bool
}

// layer compares one layer; without a folder its blob alone.
func (v *verifier) layer(ctx context.Context, at layerOf, rep *report) error {
	digest, dir := at.digest, at.dir
	if !v.have[digest] {
		if dir == "" { // neither the layer nor what it is unpacked from
			rep.blobs = append(rep.blobs, digest)
		} else {
			rep.absent = append(rep.absent, digest)
			rep.unknown = "layer " + short(digest) +
				" cannot be compared: the runtime has not kept what it was unpacked from"
		}
		return nil
	}
	var found damage
	var compareErr error
	err := v.read(ctx, digest, func(raw io.Reader) error {
		if dir == "" {
			return nil
		}
		found, compareErr = compareLayer(ctx, at, raw)
		return ctx.Err()
	})
	_, bad := errors.AsType[*errBlob](err)
	switch {
	case bad:
		rep.blobs = append(rep.blobs, digest)
	case err != nil:
		return err
	case compareErr != nil:
		rep.unknown = "layer " + short(digest) + " cannot be compared: " + compareErr.Error()
		rep.foreign = rep.foreign || errors.Is(compareErr, errForeign)
	case !found.none():
		rep.layers = append(rep.layers, damagedLayer{digest, dir, at.bottom, found})
	}
	return nil
}

var (
	errZstd    = errors.New("it is compressed with zstd")
	errForeign = errors.New("what is in the image's blob is not what the layer was unpacked from")
)

// compareLayer compares a layer's folder with its blob, which may be compressed. One that is missing lacks everything.
//
// The folder is found by the diff IDs in the image's configuration, which the image's author chose: it may name the
// layers of another image, and a blob of its own. So only a blob whose content has the diff ID says anything about the
// folder; with any other, the files of one tenant's image would be written into another's.
func compareLayer(ctx context.Context, at layerOf, blob io.Reader) (damage, error) {
	raw, err := unpacked(blob)
	if err != nil {
		return damage{}, err
	}
	sum := sha256.New()
	plain := io.TeeReader(raw, sum)
	found, err := compareFolder(ctx, at, plain)
	if err == nil {
		_, err = io.Copy(io.Discard, plain)
	}
	if err == nil && "sha256:"+hex.EncodeToString(sum.Sum(nil)) != at.diff {
		err = errForeign
	}
	if err != nil {
		return damage{}, err
	}
	return found, nil
}

func compareFolder(ctx context.Context, at layerOf, plain io.Reader) (damage, error) {
	if _, err := os.Lstat(filepath.Dir(at.dir)); errors.Is(err, os.ErrNotExist) {
		return damage{all: true}, nil
	}
	l, err := openLayer(at.dir, at.bottom)
	if err != nil {
		return damage{}, err
	}
	defer l.close()
	return l.compare(ctx, plain)
}

// unpacked returns the archive that is in a blob.
func unpacked(blob io.Reader) (io.Reader, error) {
	b := bufio.NewReader(blob)
	if head, err := b.Peek(4); err == nil && bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return nil, errZstd
	}
	return images.Uncompressed(b)
}

// read reads a blob with f and on to its end, and returns errBlob when it has not the digest that it should have.
func (v *verifier) read(ctx context.Context, digest string, f func(raw io.Reader) error) error {
	if !v.have[digest] {
		return &absentBlob{digest}
	}
	blob, err := v.ReadBlob(ctx, digest)
	if err == nil {
		defer blob.Close()
		sum := sha256.New()
		raw := io.TeeReader(blob, sum)
		if err := f(raw); err != nil {
			return err
		}
		if _, err = io.Copy(io.Discard, raw); err == nil {
			if "sha256:"+hex.EncodeToString(sum.Sum(nil)) != digest && strings.HasPrefix(digest, "sha256:") {
				return &errBlob{digest}
			}
			return nil
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if cri.IsDown(err) {
		return err
	}
	return &errBlob{digest} // it is listed, and cannot be read
}

var missingDir = regexp.MustCompile(`stat (/\S+): no such file or directory`)

// layerDirs returns where the layers of an image are; none where it is not unpacked. unknown says why that cannot be
// told.
func (r *Repairer) layerDirs(ctx context.Context, chain string) (dirs []string, unknown string, err error) {
	at, err := r.opts.Runtime.LayersAt(ctx)
	if err != nil {
		return nil, "", err
	}
	snapshotter, ok := strings.CutPrefix(filepath.Base(at), snapshotterPrefix)
	if !ok || snapshotter != "overlayfs" {
		return nil, "the layers are kept in " + at + ", in a form that cannot be compared", nil
	}
	for range 2 {
		dirs, err = r.opts.Store.LayerDirs(ctx, snapshotter, chain, lookName)
		if cri.IsNotFound(err) && !missingDir.MatchString(err.Error()) && !strings.Contains(err.Error(), "bucket") {
			// a layer that is known to one half of containerd only is not like one that is not unpacked
			return nil, "", nil
		}
		if err == nil {
			return dirs, "", nil
		}
		// The folder of the uppermost layer is gone. An empty one is as damaged, and can be filled.
		missing := missingDir.FindStringSubmatch(err.Error())
		if missing == nil || !strings.HasPrefix(filepath.Clean(missing[1]), at+"/") {
			break
		}
		if err := os.MkdirAll(filepath.Clean(missing[1]), 0o755); err != nil {
			return nil, "", err
		}
	}
	if cri.IsDown(err) || ctx.Err() != nil {
		return nil, "", err
	}
	return nil, "its layers cannot be found: " + err.Error(), nil
}

// lookName is what this package calls things of containerd that it has for a moment.
const lookName = "edgecore-repair"
