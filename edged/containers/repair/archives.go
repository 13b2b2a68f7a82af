package repair

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/images"
)

// ArchiveDir is the folder of archives of an agent, below its root directory.
func ArchiveDir(rootDir string) string { return filepath.Join(rootDir, "image-archives") }

// archiveKinds are the ends of the names of archives.
var archiveKinds = []string{".tar", ".tar.gz", ".tgz"}

// archiveWith returns the first archive in a folder that holds an image of one of these names; "" where there is none.
// An archive that cannot be read is left out: another may hold the image.
func archiveWith(dir string, names []string) (string, error) {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("archives of images: %w", err)
	}
	for _, f := range files {
		if !f.Type().IsRegular() || !slices.ContainsFunc(archiveKinds, func(kind string) bool {
			return strings.HasSuffix(f.Name(), kind)
		}) {
			continue
		}
		file := filepath.Join(dir, f.Name())
		inside, err := namesIn(file)
		if err != nil {
			klog.ErrorS(err, "Image archive is invalid", "file", file)
			continue
		}
		if slices.ContainsFunc(inside, func(name string) bool { return slices.Contains(names, name) }) {
			return file, nil
		}
	}
	return "", nil
}

func namesIn(file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return images.ArchiveNames(f)
}

// archiveOf returns the archive that holds an image, under the name that is wanted or another of its own; "" where
// there is none.
func (r *Repairer) archiveOf(ctx context.Context, s Suspect) (string, error) {
	names := []string{s.Image}
	list, err := r.opts.Runtime.Images(ctx)
	if err != nil {
		return "", err
	}
	for _, i := range list {
		if s.ID != "" && i.ID == s.ID {
			names = append(names, i.Names...)
		}
	}
	return archiveWith(r.opts.Archives, names)
}

// load brings an image from an archive, if one holds it.
func (r *Repairer) load(ctx context.Context, s Suspect) (bool, error) {
	file, err := r.archiveOf(ctx, s)
	if err != nil || file == "" {
		return false, err
	}
	if err := r.opts.Load(ctx, file, s.Image); err != nil {
		return false, fmt.Errorf("load %s: %w", file, err)
	}
	klog.InfoS("Images loaded from an archive", "file", file, "for", s.Image)
	return true, nil
}
