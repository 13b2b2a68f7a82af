package configfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/yamlbound"
)

const (
	// copyName is the newest copy of the configuration, in the folder of the store. Older ones have .1 and .2 in
	// addition: an older version of edgecore may not know what the newest says.
	copyName  = "edgecore.yaml.good"
	copiesMax = 3
	// refusedName is beside it, and says which file is not used although it is valid.
	refusedName = "edgecore.yaml.refused"
	// packagedStore is the store of the package's template.
	packagedStore = "/var/lib/edgecore/edgecore.db"
	// trialName is beside it, and says how long a configuration has been on trial, over all starts.
	trialName = "edgecore.yaml.trial"
	// maxCopy limits what is read of a copy: the configuration, and the line before it.
	maxCopy = 2 << 20
)

// These end the first line of a copy, in this order: an older version of edgecore knows the last one only.
const (
	// ranMark: the agent has reached the container runtime with the copy.
	ranMark = " It has reached the container runtime with it."
	// connectedMark: the agent has been connected with it.
	connectedMark = " It has reached the cloud with it."
)

// Copy is a copy of a configuration with which the agent has run.
type Copy struct {
	// Path is where it is. Data is the configuration as it was in its file.
	Path string
	Data []byte
	Proof
}

// Proof is what the agent has reached with a configuration.
type Proof struct {
	// Connected: the cloud.
	Connected bool
	// Ran: the container runtime, in a state in which it runs pods.
	Ran bool
}

// Any returns what the agent has reached with either.
func (p Proof) Any(other Proof) Proof {
	return Proof{Connected: p.Connected || other.Connected, Ran: p.Ran || other.Ran}
}

// proofOf reads the end of a copy's first line.
func proofOf(head []byte) (p Proof) {
	head, p.Connected = bytes.CutSuffix(head, []byte(connectedMark))
	p.Ran = bytes.HasSuffix(head, []byte(ranMark))
	return p
}

// marks are what proofOf reads.
func (p Proof) marks() (text string) {
	if p.Ran {
		text += ranMark
	}
	if p.Connected {
		text += connectedMark
	}
	return text
}

// Copies keeps the copies of a configuration file, in the folder of the store. One process writes them. While that
// folder has none, as when the file names another store, those in earlier folders are used; Keep removes them.
type Copies struct {
	dir, file string
	before    []string
}

// CopiesOf returns the copies of a file whose configuration names a store.
func CopiesOf(file, store string) Copies {
	c := Copies{dir: filepath.Dir(store), file: file}
	if file == "" {
		return c
	}
	if to, err := os.Readlink(linkOf(file)); err == nil {
		c.before = append(c.before, filepath.Dir(to))
	}
	c.before = append(c.before, filepath.Dir(defaultStore(file)))
	c.before = slices.DeleteFunc(c.before, func(dir string) bool { return dir == c.dir })
	return c
}

// Paths returns the files that there may be, for those who remove them; without a file, not the link beside it.
func (c Copies) Paths() []string {
	paths := []string{c.refusedFile(), c.trialFile()}
	if c.file != "" {
		paths = append(paths, linkOf(c.file))
	}
	paths = append(paths, c.path(0)+".new") // of a write that a power cut has ended
	for i := range copiesMax {
		paths = append(paths, c.path(i))
	}
	return paths
}

func (c Copies) path(i int) string { return copyIn(c.dir, i) }

func copyIn(dir string, i int) string {
	if i == 0 {
		return filepath.Join(dir, copyName)
	}
	return filepath.Join(dir, copyName+"."+strconv.Itoa(i))
}

// List returns the copies, the newest first. One that cannot be read is left out.
func (c Copies) List() []Copy {
	list := copiesIn(c.dir, "#")
	for _, dir := range c.before {
		if len(list) == 0 {
			list = copiesIn(dir, c.head())
		}
	}
	return list
}

// copiesIn returns the copies in a folder whose first line begins with a text.
func copiesIn(dir, begin string) []Copy {
	var list []Copy
	for i := range copiesMax {
		name := copyIn(dir, i)
		info, err := os.Lstat(name)
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxCopy {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		head, data, ok := bytes.Cut(text, []byte("\n"))
		if !ok || !bytes.HasPrefix(head, []byte(begin)) {
			continue
		}
		list = append(list, Copy{name, data, proofOf(head)})
	}
	return list
}

// head begins the first line of each copy.
func (c Copies) head() string { return "# Copy of " + c.file + " with which edgecore last ran." }

// Newest returns the newest copy; ok is false if there is none.
func (c Copies) Newest() (newest Copy, ok bool) {
	if list := c.List(); len(list) > 0 {
		return list[0], true
	}
	return Copy{}, false
}

// Keep makes the newest copy from a configuration with which the agent runs. It writes nothing if that copy is there.
func (c Copies) Keep(data []byte, proof Proof) error {
	newest, ok := c.Newest()
	same := ok && newest.Path == c.path(0) && bytes.Equal(newest.Data, data)
	if same && newest.Proof == proof {
		return c.tidy()
	}
	if ok && !same {
		for i := copiesMax - 1; i > 0; i-- {
			if err := os.Rename(c.path(i-1), c.path(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("copy of the configuration: %w", err)
			}
		}
	}
	head := c.head() + " Change that file: edgecore writes this one." + proof.marks()
	if err := certs.WriteFile(c.path(0), append([]byte(head+"\n"), data...)); err != nil {
		return fmt.Errorf("copy of the configuration: %w", err)
	}
	return c.tidy()
}

// tidy makes the copies in the folder of the store those that count: the link points to them, and those in earlier
// folders are removed.
func (c Copies) tidy() error {
	c.link()
	var errs []error
	for _, dir := range c.before {
		if len(copiesIn(dir, c.head())) == 0 {
			continue
		}
		for _, name := range (Copies{dir: dir}).Paths() {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("old copy of the configuration: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

// link makes a link beside the file to the newest copy: where the store is not at its default, nothing else leads there
// once the file is gone. A folder that takes no writes has none.
func (c Copies) link() {
	name := linkOf(c.file)
	if to, err := os.Readlink(name); err == nil && to == c.path(0) || c.dir == filepath.Dir(defaultStore(c.file)) {
		return
	}
	_ = os.Remove(name) // fails if there is none
	_ = os.Symlink(c.path(0), name)
}

func linkOf(file string) string {
	return filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".good")
}

// defaultStore returns the store of a file that does not name one.
func defaultStore(file string) string {
	if file == Packaged {
		return packagedStore
	}
	return v1alpha2.DefaultDataSource
}

// refusal says which content of the file is not used.
type refusal struct {
	File     string    `json:"file"`
	SHA256   string    `json:"sha256"`
	Modified time.Time `json:"modified"`
	Reason   string    `json:"reason"`
	// Times is how often it was refused, Over that it is to be tried again.
	Times int  `json:"times"`
	Over  bool `json:"over,omitempty"`
	// Final: it is not tried again as it is.
	Final bool `json:"final,omitempty"`
}

// Refuse notes why the content of the file is not used at the next start, until the file changes or is touched, or
// TryAgain is called. final: there is no need to call that, since the file is the cause.
func (c Copies) Refuse(data []byte, reason string, final bool) error {
	info, err := os.Stat(c.file)
	if err != nil {
		return err
	}
	next := refusal{
		File:     c.file,
		SHA256:   digest(data),
		Modified: info.ModTime(),
		Reason:   reason,
		Times:    1,
		Final:    final,
	}
	if r, ok := c.readRefusal(); ok && r.sameAs(next) {
		next.Times = r.Times + 1
	}
	return c.writeRefusal(next)
}

// TryAgain makes the next start use a refused file. How often it was refused is not forgotten.
func (c Copies) TryAgain() error {
	r, ok := c.readRefusal()
	if !ok {
		return nil
	}
	r.Over = true
	return c.writeRefusal(r)
}

// Refusals returns how often the file was refused as it is, and whether it was refused for good.
func (c Copies) Refusals() (times int, final bool) {
	r, _ := c.readRefusal()
	return r.Times, r.Final
}

// Refused returns why the content of the file is not used; "" is that it is.
func (c Copies) Refused(data []byte) string {
	info, err := os.Stat(c.file)
	if err != nil {
		return ""
	}
	now := refusal{File: c.file, SHA256: digest(data), Modified: info.ModTime()}
	if r, ok := c.readRefusal(); ok && r.sameAs(now) && !r.Over {
		return r.Reason
	}
	return ""
}

// Forget makes the next start take the file as new: nothing is refused, and it is not on trial against the copy, whose
// certificate may be gone. Call it after changing the file and the certificates together.
func (c Copies) Forget() error {
	if err := os.Remove(c.refusedFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := c.EndTrial(); err != nil {
		return err
	}
	if newest, ok := c.Newest(); ok && newest.Proof != (Proof{}) {
		return c.Keep(newest.Data, Proof{})
	}
	return nil
}

// trialTime is how long a configuration has been on trial, over all starts: a device that is switched off again and
// again needs no clock for it.
type trialTime struct {
	Of    string        `json:"of"`
	Spent time.Duration `json:"spent"`
}

// TrialOf names the trial of a configuration.
func (c Copies) TrialOf(data []byte) string { return c.file + " " + digest(data) }

// AgainOf names the time until the file that was refused is tried again.
func (c Copies) AgainOf() string {
	r, _ := c.readRefusal()
	return fmt.Sprintf("%s %s refused %d", r.File, r.SHA256, r.Times)
}

// Spent returns how long a trial has lasted before.
func (c Copies) Spent(trial string) time.Duration {
	var t trialTime
	text, err := os.ReadFile(c.trialFile())
	if err != nil || json.Unmarshal(text, &t) != nil || t.Of != trial {
		return 0
	}
	return t.Spent
}

// Spend notes how long a trial has lasted.
func (c Copies) Spend(trial string, spent time.Duration) error {
	text, err := json.Marshal(trialTime{trial, spent})
	if err != nil {
		return err
	}
	return certs.WriteFile(c.trialFile(), text)
}

// EndTrial forgets how long a trial has lasted.
func (c Copies) EndTrial() error {
	if err := os.Remove(c.trialFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (c Copies) trialFile() string { return filepath.Join(c.dir, trialName) }

func (r refusal) sameAs(other refusal) bool {
	return r.File == other.File && r.SHA256 == other.SHA256 && r.Modified.Equal(other.Modified)
}

func (c Copies) refusedFile() string { return filepath.Join(c.dir, refusedName) }

func (c Copies) readRefusal() (r refusal, ok bool) {
	text, err := os.ReadFile(c.refusedFile())
	ok = err == nil && json.Unmarshal(text, &r) == nil && r.Reason != ""
	return r, ok
}

func (c Copies) writeRefusal(r refusal) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return certs.WriteFile(c.refusedFile(), text)
}

// ChangesLink reports whether a configuration differs from a copy in what the link to the cloud needs. A copy of
// another version, which cannot be compared, does.
func ChangesLink(copied []byte, config *v1alpha2.EdgeCore) bool {
	return changesAny(copied, config, "modules.edged.hostnameOverride", "modules.edgeHub.enable",
		"modules.edgeHub.projectID", "modules.edgeHub.token", "modules.edgeHub.httpServer", "modules.edgeHub.tlsCaFile",
		"modules.edgeHub.tlsCertFile", "modules.edgeHub.tlsPrivateKeyFile", "modules.edgeHub.websocket",
		"modules.edgeHub.quic")
}

// ChangesRuntime reports whether a configuration differs from a copy in how pods are run. A copy of another version,
// which cannot be compared, does.
func ChangesRuntime(copied []byte, config *v1alpha2.EdgeCore) bool {
	const kubelet = "modules.edged.tailoredKubeletConfig."
	return changesAny(copied, config, kubelet+"containerRuntimeEndpoint", kubelet+"imageServiceEndpoint",
		kubelet+"cgroupDriver", kubelet+"cgroupRoot", kubelet+"cgroupsPerQOS")
}

// changesAny reports whether a configuration differs from a copy in one of some keys, or in a part of it.
func changesAny(copied []byte, config *v1alpha2.EdgeCore, keys ...string) bool {
	before, _, err := v1alpha2.Parse(copied)
	if err != nil {
		return true
	}
	changes, err := v1alpha2.Changes(before, config)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(changes, func(c v1alpha2.Change) bool {
		return slices.ContainsFunc(keys, func(key string) bool {
			rest, ok := strings.CutPrefix(c.Path, key)
			return ok && (rest == "" || rest[0] == '.')
		})
	})
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// storeLine finds the store in a file that is not YAML.
var storeLine = regexp.MustCompile(`\bdataSource["']?\s*:\s*["']?([^"'#\s,}]+)`)

// copiesFor finds the copies for a file that cannot be used: in the folder of the store that it still names, that the
// link beside it leads to, or of the default store.
func copiesFor(file string, data []byte) []Copies {
	var stores []string
	var tree struct {
		Database struct {
			DataSource string `json:"dataSource"`
		} `json:"database"`
	}
	if yamlbound.Check(data, maxCopy) == nil && yaml.Unmarshal(data, &tree) == nil {
		stores = append(stores, tree.Database.DataSource)
	}
	for _, m := range storeLine.FindAllSubmatch(data, 10) {
		stores = append(stores, string(m[1]))
	}
	if to, err := os.Readlink(linkOf(file)); err == nil {
		stores = append(stores, to)
	}
	stores = append(stores, defaultStore(file))
	var list []Copies
	for _, store := range stores {
		if filepath.IsAbs(store) {
			list = append(list, CopiesOf(file, store))
		}
	}
	return list
}
