package migrate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

// The phases of a takeover.
const (
	// preparing: KubeEdge has its place; what was written for this agent is worth nothing yet.
	preparing = "preparing"
	// switching: this agent has all that it needs, and takes the place.
	switching = "switching"
	// settled: this agent has the place.
	settled = "adopted"
	// undoing: KubeEdge gets its place back.
	undoing = "undoing"
)

// stateVersion is that of the journal's form.
const stateVersion = 1

// state is the journal of a takeover.
type state struct {
	Version int       `json:"version"`
	Phase   string    `json:"phase"`
	At      time.Time `json:"at"`
	// From is KubeEdge's configuration; Config and Store are this agent's.
	From   string `json:"from"`
	Config string `json:"config"`
	Store  string `json:"store"`
	// Endpoint is the container runtime's.
	Endpoint string `json:"endpoint"`
	// Unit is KubeEdge's, "" where it had none; UnitSum tells it from others. Active: it ran, or was to run.
	Unit    string `json:"unit,omitempty"`
	UnitSum string `json:"unitSum,omitempty"`
	Active  bool   `json:"active"`
	// Links are those by which it was enabled, with what they pointed at.
	Links map[string]string `json:"links,omitempty"`
	// DropIns is the folder of the administrator's settings for the unit.
	DropIns string `json:"dropIns"`
	// Program is KubeEdge's executable.
	Program string `json:"program,omitempty"`
	// Before is what Config was, nil where there was none.
	Before     []byte      `json:"before,omitempty"`
	BeforeMode fs.FileMode `json:"beforeMode,omitempty"`
	// Made are the files that are this agent's alone.
	Made []string `json:"made"`
}

// aside is the end of the names under which KubeEdge's files wait.
const aside = ".kubeedge"

// keepConfig saves this agent's earlier configuration, such as a package's.
func (s *state) keepConfig() error {
	text, err := os.ReadFile(s.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := os.Stat(s.Config)
	if err != nil {
		return err
	}
	s.Before, s.BeforeMode = text, info.Mode().Perm()
	if s.Before == nil {
		s.Before = []byte{}
	}
	return nil
}

// restoreConfig puts it back.
func (s *state) restoreConfig() error {
	if s.Before != nil {
		return writeFile(s.Config, s.Before, s.BeforeMode)
	}
	if err := os.Remove(s.Config); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// journal is the file of a state.
type journal struct{ path string }

// load returns nil where there is none.
func (j journal) load() (*state, error) {
	data, err := os.ReadFile(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &state{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("journal %s: %w", j.path, err)
	}
	switch s.Phase {
	case preparing, switching, settled, undoing:
	default:
		return nil, fmt.Errorf("journal %s: it has the phase %q, which is unknown", j.path, s.Phase)
	}
	if s.Version != stateVersion {
		return nil,
			fmt.Errorf("journal %s: it has version %d, and this edgecore knows %d: use the version that took the "+
				"device over", j.path, s.Version, stateVersion)
	}
	return s, nil
}

// save is durable on return.
func (j journal) save(s *state) error {
	s.Version = stateVersion
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return certs.WriteFile(j.path, append(data, '\n'))
}

func (j journal) remove() error {
	if err := os.Remove(j.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(filepath.Dir(j.path)) // if nothing of others is in it
	return nil
}

// writeFile writes a file in one step, with a mode.
func writeFile(name string, data []byte, mode fs.FileMode) error {
	if err := certs.WriteFile(name, data); err != nil {
		return err
	}
	if mode == 0o600 {
		return nil
	}
	return os.Chmod(name, mode)
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}
