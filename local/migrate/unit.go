package migrate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/edgecore-io/edgecore/deploy/systemd"
)

// unit is KubeEdge's service; its path is "" where there is none.
type unit struct {
	path    string
	text    []byte
	program string
	// active: it runs, or is to run.
	active bool
	// links are those by which it is enabled, with what they point at.
	links map[string]string
}

// unitDirs are the folders of units, in the order in which systemd prefers them: the administrator's first.
func unitDirs() []string {
	return []string{"etc/systemd/system", "lib/systemd/system", "usr/lib/systemd/system"}
}

// findUnit looks for a unit of this agent's name that is not this agent's.
func (s *Service) findUnit(ctx context.Context) (unit, error) {
	links, err := s.findLinks()
	if err != nil {
		return unit{}, err
	}
	for _, dir := range unitDirs() {
		path := filepath.Join(s.Root, dir, systemd.Name)
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return unit{}, err
		}
		if systemd.IsOurs(string(text)) {
			continue
		}
		// One that is enabled is to run, also when it is just being started again.
		active := len(links) > 0 || s.Systemctl(ctx, "is-active", "--quiet", systemd.Name) == nil
		return unit{path: path, text: text, program: programOf(string(text)), active: active, links: links}, nil
	}
	return unit{links: links}, nil
}

// programOf is what a unit starts.
func programOf(text string) string {
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="); ok {
			fields := strings.Fields(strings.TrimLeft(command, "@-:+!"))
			if len(fields) > 0 && filepath.IsAbs(fields[0]) {
				return fields[0]
			}
		}
	}
	return ""
}

// findLinks returns the links because of which systemd starts the service at boot.
func (s *Service) findLinks() (map[string]string, error) {
	names, err := filepath.Glob(filepath.Join(s.Root, "etc/systemd/system/*.wants", systemd.Name))
	if err != nil {
		return nil, err
	}
	links := map[string]string{}
	for _, name := range names {
		if to, err := os.Readlink(name); err == nil {
			links[name] = to
		}
	}
	return links, nil
}

// ownUnit is where this agent's unit is to lie: nowhere new if a package has brought one.
func (t *Migration) ownUnit() (path string, packaged bool) {
	admin := filepath.Join(t.Service.Root, unitDirs()[0], systemd.Name)
	if !t.Service.Packaged(t.Config) {
		return admin, false
	}
	for _, dir := range unitDirs()[1:] {
		path := filepath.Join(t.Service.Root, dir, systemd.Name)
		if text, err := os.ReadFile(path); err == nil && systemd.IsOurs(string(text)) {
			return path, true
		}
	}
	return admin, false
}

// replaced reports whether the unit that is in force is no longer KubeEdge's.
func (t *Migration) replaced(s *state) bool {
	for _, dir := range unitDirs() {
		text, err := os.ReadFile(filepath.Join(t.Service.Root, dir, systemd.Name))
		if err == nil {
			return s.Unit == "" || systemd.IsOurs(string(text))
		}
	}
	return true
}

// replace puts this agent's unit in the place of KubeEdge's. Of each thing that a boot looks at, the old or the new is
// there at any time.
func (t *Migration) replace(s *state) error {
	own, packaged := t.ownUnit()
	if s.Unit != "" {
		if err := linkOnce(s.Unit, s.Unit+aside, s.UnitSum); err != nil {
			return err
		}
		if err := moveIfThere(s.DropIns, s.DropIns+aside); err != nil {
			return err
		}
	}
	for name := range s.Links {
		if err := relink(name, strings.TrimPrefix(own, strings.TrimSuffix(t.Service.Root, "/"))); err != nil {
			return err
		}
	}
	if !packaged {
		if err := writeFile(own, []byte(systemd.Unit(t.Service.Program, t.Config)), 0o644); err != nil {
			return err
		}
	}
	if s.Unit != "" && s.Unit != own {
		if err := os.Remove(s.Unit); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := syncDir(filepath.Dir(own)); err != nil {
		return err
	}
	if s.Unit != "" {
		t.printf("Moved KubeEdge's unit aside (%s)", s.Unit+aside)
		return syncDir(filepath.Dir(s.Unit))
	}
	return nil
}

// restore is the way back.
func (t *Migration) restore(s *state) error {
	own := filepath.Join(t.Service.Root, unitDirs()[0], systemd.Name)
	now, err := t.Service.findLinks()
	if err != nil {
		return err
	}
	for name := range now {
		if _, known := s.Links[name]; !known { // this agent was enabled, and that one was not
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	if s.Unit == "" {
		return removeOurs(own)
	}
	if _, err := os.Lstat(s.Unit + aside); err == nil {
		if err := os.Rename(s.Unit+aside, s.Unit); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(s.Unit)
	if err != nil {
		return fmt.Errorf("KubeEdge's unit is gone: %w; `keadm join` of KubeEdge creates it again", err)
	}
	if sum(text) != s.UnitSum {
		return fmt.Errorf("%s is not the unit that was there before the takeover: put that one back, then undo again",
			s.Unit)
	}
	if own != s.Unit { // KubeEdge's is where packages put theirs
		if err := removeOurs(own); err != nil {
			return err
		}
	}
	if err := moveIfThere(s.DropIns+aside, s.DropIns); err != nil {
		return err
	}
	for name, to := range s.Links {
		if err := relink(name, to); err != nil {
			return err
		}
	}
	return syncDir(filepath.Dir(s.Unit))
}

// dropIns is the folder of the administrator's settings for the unit: they were written for another program.
func (t *Migration) dropIns() string {
	return filepath.Join(t.Service.Root, unitDirs()[0], systemd.Name+".d")
}

// binaryAside renames KubeEdge's executable where a shell would find it in the place of this one: they have one name.
func (t *Migration) binaryAside(s *state) error {
	if s.Program == "" || filepath.Base(s.Program) != filepath.Base(t.Service.Program) ||
		sameFile(s.Program, t.Service.Program) {
		return nil
	}
	if _, err := os.Lstat(s.Program); errors.Is(err, fs.ErrNotExist) {
		return nil // it was done before
	}
	if err := os.Rename(s.Program, s.Program+aside); err != nil {
		return fmt.Errorf("KubeEdge's program: %w", err)
	}
	t.printf("Renamed KubeEdge's program to %s", s.Program+aside)
	return nil
}

func (t *Migration) binaryBack(s *state) error {
	if s.Program == "" {
		return nil
	}
	return moveIfThere(s.Program+aside, s.Program)
}

func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// linkOnce gives a file a second name. One that is there already is of an earlier attempt, unless the file is another.
func linkOnce(name, second, want string) error {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && sum(text) != want {
		if _, there := os.Lstat(second); there == nil {
			return nil // it was replaced before
		}
	}
	if err != nil {
		return err
	}
	if err := os.Remove(second); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(name, second); err != nil {
		return err
	}
	return syncDir(filepath.Dir(second))
}

// relink has a symbolic link point elsewhere, in one step.
func relink(name, to string) error {
	if have, err := os.Readlink(name); err == nil && have == to {
		return nil
	}
	next := name + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(to, next); err != nil {
		return err
	}
	if err := os.Rename(next, name); err != nil {
		return err
	}
	return syncDir(filepath.Dir(name))
}

func moveIfThere(from, to string) error {
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return os.Rename(from, to)
}

// removeOurs removes a unit that this agent wrote.
func removeOurs(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !systemd.IsOurs(string(text)) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(path)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
