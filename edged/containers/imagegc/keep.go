package imagegc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// maxKeepFile bounds a keep list.
const maxKeepFile = 1 << 20

// KeepFile is where the keep list of an agent lies, below its root directory.
func KeepFile(rootDir string) string { return filepath.Join(rootDir, "images.keep") }

// keepHead explains the file to anyone who opens it.
const keepHead = "# Images that stay on this device whether a pod uses them or not: one name a line, * and ? within " +
	"a part of it.\n"

// ReadKeep reads a keep list: a pattern a line, '#' begins a comment. A file that is not there is an empty list.
func ReadKeep(file string) ([]string, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := parseKeep(io.LimitReader(f, maxKeepFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return list, nil
}

func parseKeep(r io.Reader) ([]string, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	if len(data) > maxKeepFile {
		return nil, fmt.Errorf("it is larger than %d bytes", maxKeepFile)
	}
	var list []string
	scan := bufio.NewScanner(strings.NewReader(string(data)))
	scan.Buffer(nil, maxKeepFile+1)
	for n := 1; scan.Scan(); n++ {
		line, _, _ := strings.Cut(scan.Text(), "#")
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if _, err := path.Match(line, ""); err != nil || strings.ContainsAny(line, " \t") {
			return nil, fmt.Errorf("line %d: %q is neither an image name nor a pattern of one", n, line)
		}
		list = append(list, line)
	}
	return list, scan.Err()
}

// AddKeep adds names to a keep list, and makes it where there is none. Names that are in it stay there once.
func AddKeep(file string, names ...string) error {
	return editKeep(file, func(text string, have []string) string {
		for _, name := range names {
			if !slices.Contains(have, name) {
				have = append(have, name)
				text += name + "\n"
			}
		}
		return text
	})
}

// DropKeep takes names from a keep list.
func DropKeep(file string, names ...string) error {
	return editKeep(file, func(text string, _ []string) string {
		var out strings.Builder
		for line := range strings.Lines(text) {
			name, _, _ := strings.Cut(line, "#")
			if name = strings.TrimSpace(name); name == "" || !slices.Contains(names, name) {
				out.WriteString(line)
			}
		}
		return out.String()
	})
}

// editKeep changes a keep list in one step: a power cut leaves the old one or the new one.
func editKeep(file string, edit func(text string, have []string) string) error {
	have, err := ReadKeep(file)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := string(data)
	if text == "" {
		text = keepHead
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	after := edit(text, have)
	if after == string(data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".images.keep-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // it has gone where all went well
	_, err = tmp.WriteString(after)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return os.Rename(tmp.Name(), file)
}
