package csi

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// recordFile is the name of a record, as the kubelet has it.
const recordFile = "vol_data.json"

// maxRecord bounds what is read of a record.
const maxRecord = 64 << 10

// record says what has to be undone for a volume of a pod, or for one that is staged. The keys up to
// volumeLifecycleMode are the kubelet's, which cannot read a record with values that are not strings.
type record struct {
	Driver     string `json:"driverName"`
	Handle     string `json:"volumeHandle"`
	Name       string `json:"specVolID,omitempty"`
	Node       string `json:"nodeName,omitempty"`
	Attachment string `json:"attachmentID,omitempty"`
	Lifecycle  string `json:"volumeLifecycleMode,omitempty"`
	// Block: it is a device.
	Block bool `json:"block,omitempty,string"`
	// Published: everything was done for it.
	Published bool `json:"published,omitempty,string"`
	// Republish: the driver wants it published again from time to time.
	Republish bool `json:"republish,omitempty,string"`
}

// decodeRecord reads a record, and refuses one whose names would lead elsewhere.
func decodeRecord(data []byte) (record, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, err
	}
	if r.Handle == "" {
		return record{}, errors.New("it has no volumeHandle")
	}
	if err := checkName(r.Driver); err != nil {
		return record{}, fmt.Errorf("driverName: %w", err)
	}
	if r.Block || r.Name != "" {
		if err := checkName(r.Name); err != nil {
			return record{}, fmt.Errorf("specVolID: %w", err)
		}
	}
	return r, nil
}

// checkName reports whether a text may be the name of a folder of ours.
func checkName(name string) error {
	if name == "" || name[0] == '.' || len(name) > 253 || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%q cannot be the name of a folder", name)
	}
	return nil
}

// readRecord reads the record in a folder; fs.ErrNotExist tells that there is none.
func readRecord(dir string) (record, error) {
	path := filepath.Join(dir, recordFile)
	info, err := os.Lstat(path)
	if err != nil {
		return record{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecord {
		return record{}, fmt.Errorf("%s is not a record of a volume", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return record{}, err
	}
	r, err := decodeRecord(data)
	if err != nil {
		return record{}, fmt.Errorf("read %s: %w", path, err)
	}
	return r, nil
}

// writeRecord writes a record so that it is whole or not there at all, after a power cut, too.
func writeRecord(dir string, r record) error {
	if have, err := readRecord(dir); err == nil && have == r {
		return nil
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	next := filepath.Join(dir, "."+recordFile)
	f, err := os.OpenFile(next, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", next, err)
	}
	return os.Rename(next, filepath.Join(dir, recordFile))
}

// removeRecord removes the record of a folder.
func removeRecord(dir string) error {
	for _, name := range []string{"." + recordFile, recordFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// pluginDir is where all of CSI is that belongs to no pod.
func (m *Manager) pluginDir() string {
	return filepath.Join(m.opts.Root, "plugins", "kubernetes.io", "csi")
}

// deviceDir is where the block volumes are.
func (m *Manager) deviceDir() string { return filepath.Join(m.pluginDir(), "volumeDevices") }

// staging returns where a volume is staged, and the folder of the record that says so.
func (m *Manager) staging(r record) (path, home string) {
	if r.Block {
		return filepath.Join(m.deviceDir(), "staging", r.Name), filepath.Join(m.deviceDir(), r.Name, "data")
	}
	home = filepath.Join(m.pluginDir(), r.Driver, fmt.Sprintf("%x", sha256.Sum256([]byte(r.Handle))))
	if old, ok := m.stagedByName(r); ok {
		home = old
	}
	return filepath.Join(home, "globalmount"), home
}

// byName is where kubelets before 1.24 staged volumes: in folders of the names of the PersistentVolumes.
const byName = "pv"

// stagedByName returns the folder of a volume that such a kubelet has staged and this agent has taken over.
func (m *Manager) stagedByName(r record) (home string, ok bool) {
	if r.Name == "" {
		return "", false
	}
	home = filepath.Join(m.pluginDir(), byName, r.Name)
	staged, err := readRecord(home)
	return home, err == nil && staged.Driver == r.Driver && staged.Handle == r.Handle
}

// target returns where a volume is published for a pod.
func (m *Manager) target(r record, uid types.UID, dir string) string {
	if r.Block {
		return filepath.Join(m.published(r), string(uid))
	}
	return filepath.Join(dir, "mount")
}

// published is where a block volume is published for all pods.
func (m *Manager) published(r record) string { return filepath.Join(m.deviceDir(), "publish", r.Name) }

// users returns the folders of the volumes of pods that are one driver's volume.
func (m *Manager) users(driver, handle string) ([]string, error) {
	var dirs []string
	for _, parent := range []string{"volumes", "volumeDevices"} {
		records, err := filepath.Glob(filepath.Join(escape(m.opts.Root), "pods", "*", parent, "kubernetes.io~csi", "*",
			recordFile))
		if err != nil {
			return nil, err
		}
		for _, path := range records {
			dir := filepath.Dir(path)
			r, err := readRecord(dir)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err // the owner of the volume is unknown: it may be this one
			}
			if r.Driver == driver && r.Handle == handle {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs, nil
}

// escape makes a path stand for itself in a pattern.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// handleOf is the name of a volume that is written in a pod, as the kubelet makes it.
func handleOf(uid types.UID, volume string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(uid)+volume)))
}

// attachmentOf is the name of the VolumeAttachment of a volume, as the attach-detach controller makes it.
func attachmentOf(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// lifecycle returns a record's mode; one that an older kubelet wrote has none.
func (r record) lifecycle() string { return cmp.Or(r.Lifecycle, persistent) }
