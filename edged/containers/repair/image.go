package repair

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxDocument bounds manifests and configurations of images.
const maxDocument = 8 << 20

// document reads a small blob.
func (v *verifier) document(ctx context.Context, digest string, into any) error {
	var data []byte
	err := v.read(ctx, digest, func(raw io.Reader) (err error) {
		data, err = io.ReadAll(io.LimitReader(raw, maxDocument+1))
		if err != nil {
			err = nil // the digest tells
		}
		return err
	})
	if err != nil {
		return err
	}
	if len(data) > maxDocument {
		return fmt.Errorf("blob %s is larger than %d bytes", digest, maxDocument)
	}
	return json.Unmarshal(data, into)
}

// image is what its documents say of an image, the lowest layer first.
type image struct {
	layers, diffs []string
}

// manifest is a manifest, or a list of them.
type manifest struct {
	Config    struct{ Digest string }
	Layers    []struct{ Digest string }
	Manifests []struct{ Digest string }
}

const (
	// maxLists is how deep lists of manifests may be in one another, and maxManifests how many of them and of manifests
	// are read to find an image. A list may name the same one often, so that few small documents could be read for
	// ever.
	maxLists, maxManifests = 4, 256
)

// errOther is errAbsent of a manifest in whose place there is one of another image.
var errOther = fmt.Errorf("%w; there is one of another image", errAbsent)

// image finds the image of an id, which is the digest of its configuration, below a target.
func (v *verifier) image(ctx context.Context, target, id string) (image, error) {
	return v.imageBelow(ctx, target, id, maxLists, map[string]bool{})
}

// imageBelow looks no deeper than that many lists, and not again at what was seen.
func (v *verifier) imageBelow(ctx context.Context, target, id string, deep int, seen map[string]bool) (image, error) {
	seen[target] = true
	var m manifest
	if err := v.document(ctx, target, &m); err != nil {
		return image{}, err
	}
	if len(m.Manifests) > 0 {
		var bad error
		for _, one := range m.Manifests {
			if !v.have[one.Digest] || seen[one.Digest] {
				continue // of another platform, or without the image
			}
			if deep == 0 || len(seen) >= maxManifests {
				return image{}, fmt.Errorf("image %s is %w: lists of manifests in one another, or more than %d",
					short(id), errAbsent, maxManifests)
			}
			im, err := v.imageBelow(ctx, one.Digest, id, deep-1, seen)
			if err == nil {
				return im, nil
			}
			if bad == nil || !errors.Is(err, errAbsent) {
				bad = err
			}
		}
		if bad == nil {
			bad = fmt.Errorf("its manifest is %w", errAbsent)
		}
		return image{}, bad
	}
	if m.Config.Digest != id {
		return image{}, fmt.Errorf("manifest of image %s is %w", short(id), errOther)
	}
	var config struct {
		RootFS struct {
			Diffs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := v.document(ctx, m.Config.Digest, &config); err != nil {
		return image{}, err
	}
	im := image{diffs: config.RootFS.Diffs}
	for _, l := range m.Layers {
		im.layers = append(im.layers, l.Digest)
	}
	if len(im.layers) == 0 || len(im.layers) != len(im.diffs) {
		return image{}, fmt.Errorf("its layers in a form that can be compared are %w", errAbsent)
	}
	return im, nil
}

// chain names the layers of an image as they lie on one another: https://github.com/opencontainers/image-spec,
// config.md, ChainID.
func (im image) chain() string {
	chain := im.diffs[0]
	for _, diff := range im.diffs[1:] {
		sum := sha256.Sum256([]byte(chain + " " + diff))
		chain = "sha256:" + hex.EncodeToString(sum[:])
	}
	return chain
}
