package images

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// Policy says which pods may use an image that is on the node already; the names are the kubelet's
// (imagePullCredentialsVerificationPolicy).
type Policy = kubeletconfig.ImagePullCredentialsVerificationPolicy

// pulledDir is the folder of the records below Options.Dir, and its names begin with prefix: the kubelet's form.
const (
	pulledDir    = "pulled"
	recordPrefix = "sha256-"
)

// access remembers with whose credentials images were pulled, so that a pod without them cannot use a private image for
// the sole reason that another pod brought it here. An image without a record was not pulled by this agent, or was when
// it kept none: it is preloaded.
type access struct {
	dir    string // empty keeps no records
	policy Policy
	allow  []string // images for NeverVerifyAllowlistedImages

	mu sync.Mutex
}

// repository is an image's name without tag and digest, by which its credentials are noted.
func repository(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image
	}
	return reference.TrimNamed(named).Name()
}

// allowed reports whether a pod may use an image that is on the node, given by its ID. The credentials are those from
// the pod's secrets that match the image. err says that the record was invalid; the answer is then that for a preloaded
// one.
func (a *access) allowed(id, image string, creds []credential) (bool, error) {
	if a.dir == "" || a.policy == kubeletconfig.NeverVerify {
		return true, nil
	}
	a.mu.Lock()
	record, err := a.read(id)
	a.mu.Unlock()
	if record == nil {
		return a.preloaded(image), err
	}
	if isIDOf(image, id) {
		return everybodys(record), nil
	}
	grant, known := record.CredentialMapping[repository(image)]
	return known && granted(grant, creds), nil
}

// isIDOf reports whether a name is the ID of an image, or the beginning of it, which some runtimes take for it.
func isIDOf(image, id string) bool {
	hex, named := strings.CutPrefix(image, "sha256:")
	return named && strings.HasPrefix(strings.TrimPrefix(id, "sha256:"), hex)
}

// everybodys reports whether an image was pulled without credentials under any of its names. Who names it by its ID
// shows no credentials for one of them.
func everybodys(record *kubeletconfig.ImagePulledRecord) bool {
	for _, grant := range record.CredentialMapping {
		if grant.NodePodsAccessible {
			return true
		}
	}
	return false
}

// preloaded reports whether any pod may use an image that this agent did not pull.
func (a *access) preloaded(image string) bool {
	switch a.policy {
	case kubeletconfig.AlwaysVerify:
		return false
	case kubeletconfig.NeverVerifyAllowlistedImages:
		name := repository(image)
		return slices.ContainsFunc(a.allow, func(pattern string) bool {
			if prefix, all := strings.CutSuffix(pattern, "/*"); all {
				return strings.HasPrefix(name, prefix+"/")
			}
			return name == repository(pattern)
		})
	}
	return true
}

// granted reports whether one of the credentials is among those of a grant: by its content, or by the secret that it
// comes from, whose content may have been replaced since.
func granted(grant kubeletconfig.ImagePullCredentials, creds []credential) bool {
	if grant.NodePodsAccessible {
		return true
	}
	for _, c := range creds {
		mine := c.secret()
		for _, s := range grant.KubernetesSecrets {
			if s.CredentialHash == mine.CredentialHash ||
				s.UID == mine.UID && s.Namespace == mine.Namespace && s.Name == mine.Name {
				return true
			}
		}
	}
	return false
}

// pulled notes that an image was pulled with a credential; nil: without any. names are all that the image has on the
// node: of one without a record the others were there before, and stay everybody's.
func (a *access) pulled(id, image string, by *credential, names []string) error {
	if a.dir == "" {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	record, err := a.read(id)
	if record == nil { // none, or a damaged one
		record = &kubeletconfig.ImagePulledRecord{
			TypeMeta: metav1.TypeMeta{Kind: "ImagePulledRecord", APIVersion: kubeletconfig.SchemeGroupVersion.String()},
			ImageRef: id, CredentialMapping: map[string]kubeletconfig.ImagePullCredentials{},
		}
		// A runtime that found a short name in a registry of its choice names the image after that: it is not known
		// which of the names came with this pull, so that none is everybody's.
		hasName := func(other string) bool { return repository(other) == repository(image) }
		if !slices.ContainsFunc(names, hasName) {
			names = nil
		}
		for _, other := range names {
			if !hasName(other) {
				record.CredentialMapping[repository(other)] = kubeletconfig.ImagePullCredentials{
					NodePodsAccessible: true,
				}
			}
		}
	}
	name := repository(image)
	before := record.CredentialMapping[name]
	after := with(before, by)
	if err == nil && after.NodePodsAccessible == before.NodePodsAccessible &&
		slices.Equal(after.KubernetesSecrets, before.KubernetesSecrets) {
		return nil // nothing new, nothing written
	}
	if record.CredentialMapping == nil {
		record.CredentialMapping = map[string]kubeletconfig.ImagePullCredentials{}
	}
	record.CredentialMapping[name] = after
	record.LastUpdatedTime = metav1.NewTime(time.Now())
	return a.write(record)
}

// with is a grant with a credential more.
func with(grant kubeletconfig.ImagePullCredentials, by *credential) kubeletconfig.ImagePullCredentials {
	if by == nil || grant.NodePodsAccessible {
		return kubeletconfig.ImagePullCredentials{NodePodsAccessible: true}
	}
	s := by.secret()
	kept := slices.DeleteFunc(slices.Clone(grant.KubernetesSecrets), func(old kubeletconfig.ImagePullSecret) bool {
		return old.UID == s.UID && old.Namespace == s.Namespace && old.Name == s.Name
	})
	return kubeletconfig.ImagePullCredentials{KubernetesSecrets: append(kept, s)}
}

// prune removes the records of images that are not on the node any more.
func (a *access) prune(ids []string) error {
	if a.dir == "" {
		return nil
	}
	keep := map[string]bool{}
	for _, id := range ids {
		keep[filepath.Base(a.path(id))] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	entries, err := os.ReadDir(filepath.Join(a.dir, pulledDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), recordPrefix) && !keep[e.Name()] {
			errs = append(errs, os.Remove(filepath.Join(a.dir, pulledDir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func (a *access) path(id string) string {
	sum := sha256.Sum256([]byte(id))
	return filepath.Join(a.dir, pulledDir, recordPrefix+hex.EncodeToString(sum[:]))
}

// read returns the record of an image, nil where there is none.
func (a *access) read(id string) (*kubeletconfig.ImagePulledRecord, error) {
	data, err := os.ReadFile(a.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var record kubeletconfig.ImagePulledRecord
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	if err == nil && record.ImageRef != id {
		err = fmt.Errorf("it is of image %q", record.ImageRef)
	}
	if err != nil {
		return nil, fmt.Errorf("record of who pulled image %s: %w", id, err)
	}
	return &record, nil
}

// write puts a record in place as a whole.
func (a *access) write(record *kubeletconfig.ImagePulledRecord) error {
	data, err := json.Marshal(record)
	if err != nil {
		return err
	}
	path := a.path(record.ImageRef)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// secret is the credential as records name it: where it comes from, and a hash of its content.
func (c credential) secret() kubeletconfig.ImagePullSecret {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings
	}
	sum := sha256.Sum256(text)
	return kubeletconfig.ImagePullSecret{
		UID:            string(c.from.UID),
		Namespace:      c.from.Namespace,
		Name:           c.from.Name,
		CredentialHash: hex.EncodeToString(sum[:]),
	}
}
