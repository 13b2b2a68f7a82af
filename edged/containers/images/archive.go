package images

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
)

const (
	// maxManifest bounds the list of contents of an archive.
	maxManifest = 4 << 20
	// maxLists bounds how many lists an archive may have: one of Docker and one of OCI.
	maxLists = 2
	// maxNames bounds the names of the images in an archive.
	maxNames = 10_000
	// maxEntries bounds how many files are looked through for it.
	maxEntries = 1 << 16
	// Where an index of OCI says what an image is called.
	annotationName    = "io.containerd.image.name"
	annotationRefName = "org.opencontainers.image.ref.name"
)

var gzipMagic = []byte{0x1f, 0x8b}

// Uncompressed returns what is in a file that may be compressed with gzip.
func Uncompressed(r io.Reader) (io.Reader, error) {
	buffered := bufio.NewReader(r)
	head, err := buffered.Peek(len(gzipMagic))
	if err != nil || !bytes.Equal(head, gzipMagic) {
		return buffered, nil // tar says what is wrong with one that is too short
	}
	return gzip.NewReader(buffered)
}

// ArchiveNames returns the complete names of the images in an archive that "docker save" or an OCI tool wrote, sorted.
// Images without a name are left out.
func ArchiveNames(r io.Reader) ([]string, error) {
	plain, err := Uncompressed(r)
	if err != nil {
		return nil, fmt.Errorf("not an archive of images: %w", err)
	}
	var names []string
	found := 0
	archive := tar.NewReader(plain)
	for range maxEntries {
		if found == maxLists {
			break
		}
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("not an archive of images: %w", err)
		}
		var more []string
		switch path.Clean(header.Name) {
		case "manifest.json":
			more, err = dockerNames(archive)
		case "index.json":
			more, err = ociNames(archive)
		default:
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s in the archive: %w", header.Name, err)
		}
		found++
		if names = append(names, more...); len(names) > maxNames {
			return nil, fmt.Errorf("%s in the archive: it names more than %d images", header.Name, maxNames)
		}
	}
	if found == 0 {
		return nil, errors.New("not an archive of images: it has neither a manifest.json nor an index.json")
	}
	for i, name := range names {
		if names[i], err = Normalize(name); err != nil {
			return nil, fmt.Errorf("image %q in the archive: %w", name, err)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// dockerNames reads a manifest.json of docker save.
func dockerNames(r io.Reader) ([]string, error) {
	var doc []struct{ RepoTags []string }
	if err := decodeLimited(r, &doc); err != nil {
		return nil, err
	}
	var names []string
	for _, image := range doc {
		names = append(names, image.RepoTags...)
	}
	return names, nil
}

// ociNames reads the index of an OCI layout. A bare tag is not a name.
func ociNames(r io.Reader) ([]string, error) {
	var doc struct {
		Manifests []struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"manifests"`
	}
	if err := decodeLimited(r, &doc); err != nil {
		return nil, err
	}
	var names []string
	for _, m := range doc.Manifests {
		name := m.Annotations[annotationName]
		if name == "" {
			if name = m.Annotations[annotationRefName]; !bytes.ContainsAny([]byte(name), ":/") {
				continue
			}
		}
		names = append(names, name)
	}
	return names, nil
}

func decodeLimited(r io.Reader, into any) error {
	data, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return err
	}
	if len(data) > maxManifest {
		return fmt.Errorf("it is larger than %d bytes", maxManifest)
	}
	return json.Unmarshal(data, into)
}
