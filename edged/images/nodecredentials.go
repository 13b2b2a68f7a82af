package images

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"

	"k8s.io/klog/v2"
)

// maxConfig is the size, in bytes, from which on a file holds no credentials.
const maxConfig = 1 << 20

// nodeCredentials are those with which the node itself pulls, for all its pods, most often the work of docker login: the first
// that can be read of config.json in root, in .docker of the home folder and in /.docker, and of the older .dockercfg in
// root, the home folder and /. They are read at each pull, so that new ones count at once.
func nodeCredentials(root, home string) []credential {
	for _, f := range credentialFiles(root, home) {
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
func (p *Puller) node() []credential {
	if p.opts.CredentialsDir == "" {
		return nil
	}
	return nodeCredentials(p.opts.CredentialsDir, homeFolder(os.Getenv("HOME"), user.Current))
}

// homeFolder is the home folder that the environment names, else that of the account: systemd names none to services. Empty:
// there is none.
func homeFolder(named string, account func() (*user.User, error)) string {
	if named != "" {
		return named
	}
	own, err := account()
	if err != nil {
		return ""
	}
	return own.HomeDir
}

// pulledBy is the credential of a pod that let a pull in; nil where it was none, or the node's: what the node pulls is for all
// its pods.
func pulledBy(creds []credential, used int) *credential {
	if used < 0 || creds[used].from == (origin{}) {
		return nil
	}
	return &creds[used]
}
