package images

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"
)

// maxConfig is the size, in bytes, from which on a file holds no credentials.
const maxConfig = 1 << 20

// nodeCredentials are those with which the node itself pulls, for all its pods, most often the work of docker login:
// those of the first file that can be read. The files are read at each pull, so that new ones count at once.
func nodeCredentials(files []credentialFile) []credential {
	for _, f := range files {
		data, err := readSmall(f.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var entries []credential
		if err == nil {
			entries, err = f.parse(data)
		}
		if err != nil {
			klog.ErrorS(err, "Credentials for registries not read; the next file is tried", "file", f.path)
			continue
		}
		return entries
	}
	return nil
}

type credentialFile struct {
	path  string
	parse func([]byte) ([]credential, error)
}

// credentialFiles are config.json in root, in .docker of the home folder and in /.docker, then the older .dockercfg in
// root, the home folder and /. An empty folder has none.
func credentialFiles(root, home string) (files []credentialFile) {
	add := func(parse func([]byte) ([]credential, error), folder, name string) {
		if folder != "" {
			files = append(files, credentialFile{filepath.Join(folder, name), parse})
		}
	}
	add(parseConfig, root, "config.json")
	add(parseConfig, home, ".docker/config.json")
	add(parseConfig, "/", ".docker/config.json")
	for _, folder := range []string{root, home, "/"} {
		add(parseLegacy, folder, ".dockercfg")
	}
	return files
}

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(data) > maxConfig {
		err = fmt.Errorf("it has more than %d bytes", maxConfig)
	}
	return data, err
}

// node are the node's credentials.
func (p *Puller) node() []credential { return nodeCredentials(p.credentialFiles()) }

// credentialFiles are the files with the node's credentials. The home folder is HOME alone, as for the kubelet: a
// service of systemd has none, whatever its account.
func (p *Puller) credentialFiles() []credentialFile {
	if p.opts.CredentialsDir == "" {
		return nil
	}
	return credentialFiles(p.opts.CredentialsDir, os.Getenv("HOME"))
}

// pulledBy is the credential of a pod that let a pull in; nil where it was none, or the node's: what the node pulls is
// for all its pods.
func pulledBy(creds []credential, used int) *credential {
	if used < 0 || creds[used].from == (origin{}) {
		return nil
	}
	return &creds[used]
}
