// Package strict reads configuration files for people: it merges a YAML file over a program's defaults, and reports
// everything wrong with it at once, each with its line, its path, and what would be right. An unknown key is an error
// that names the nearest known one. A key that the program knows and does not act on is a warning if the file sets it
// to other than the default.
//
// A program describes its file with a Schema; this package knows no particular one. Values of secret keys are in no
// error and no warning.
package strict

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
)

// MaxFile is the most bytes that a file may have, also with each alias counted as what it stands for. A real one has
// a few kilobytes.
const MaxFile = 1 << 20

// Schema describes the configuration file of a program. T is a struct with JSON tags.
type Schema[T any] struct {
	// Program is the name of the command, whose flag --minconfig prints a file to start from.
	Program string
	// Default returns the configuration of an empty file.
	Default func() *T
	// Prepare checks that the tree is of this kind of file, and may remove keys of older versions. The Problems it
	// returns are warnings.
	Prepare func(root map[string]any) (Problems, error)
	// Adapt adjusts the defaults to the tree: it clears what the file replaces as a whole, such as a map of the user's
	// own keys, and computes what depends on other values. All values in the tree fit their types. May be nil.
	Adapt func(tree any, defaults *T)
	// Complete sets values that depend on others; may be nil.
	Complete func(*T)
	// Validate returns nil or Problems.
	Validate func(*T) error

	// Secrets are the values that are not shown.
	Secrets Secrets
	// Live are the keys that the program acts on. A listed mapping is live as a whole.
	Live map[string]bool
	// Absent are the switches of modules that this version lacks. Switching one on, even if that is the default, gives
	// a warning.
	Absent map[string]bool
	// Notes replace the warnings of some keys that are not acted on.
	Notes map[string]string
	// DeprecatedDefaults are the defaults of older versions: a file printed by one of them gets no warnings for these.
	DeprecatedDefaults map[string]string
	// Fallback returns the defaults for a configuration if some depend on its values; nil means Default.
	Fallback func(*T) *T
}

// Load reads a file, fills in the defaults, and checks it. It never writes the file. The error is Problems, with
// everything that is wrong. Warnings name keys that the file sets and the program does not act on.
func (s *Schema[T]) Load(path string) (*T, []string, error) {
	data, err := s.Read(path)
	var cfg *T
	var warnings []string
	if err == nil {
		cfg, warnings, err = s.Parse(data)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return cfg, warnings, nil
}

// Read returns the content of a file.
func (s *Schema[T]) Read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%w; `%s --minconfig > %s` makes one", os.ErrNotExist, s.Program, path)
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, errors.New("is a directory; want the file")
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file") // opening a pipe might block forever
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err == nil && len(data) > MaxFile {
		err = fmt.Errorf("has more than %d KiB; that is not a configuration", MaxFile>>10)
	}
	return data, err
}

// Parse is Load for the content of a file.
func (s *Schema[T]) Parse(data []byte) (*T, []string, error) { return s.parse(data, false) }

// ParseKnown is Parse for a file of another version: keys that this one does not know are left out, with a warning.
func (s *Schema[T]) ParseKnown(data []byte) (*T, []string, error) { return s.parse(data, true) }

func (s *Schema[T]) parse(data []byte, known bool) (*T, []string, error) {
	root, problems, err := readTree(data, s.Program)
	if err != nil {
		return nil, nil, err
	}
	warnings, err := s.Prepare(root)
	if err != nil {
		return nil, nil, err
	}
	cfg, problems, unused, err := s.fit(root, problems)
	if err != nil {
		return nil, nil, err
	}
	if known {
		var rest Problems
		for _, p := range problems {
			if strings.HasPrefix(p.Text, noSuchKey) {
				warnings = append(warnings, p)
			} else {
				rest = append(rest, p)
			}
		}
		problems = rest
	}
	var bad Problems
	if errors.As(s.Validate(cfg), &bad) {
		problems = append(problems, bad...)
	}
	warnings = append(warnings, unused...)
	if len(problems) == 0 && len(warnings) == 0 {
		return cfg, nil, nil
	}
	index := indexLines(data)
	for i := range problems {
		if p := &problems[i]; p.Line == 0 {
			p.Line = index.line(p.Path)
		} else if p.Path == "" {
			p.Path = index.paths[p.Line]
		}
	}
	if len(problems) > 0 {
		return nil, nil, problems.inOrder()
	}
	for i := range warnings {
		warnings[i].Line = index.line(warnings[i].Path)
	}
	return cfg, texts(warnings.inOrder()), nil
}

// Fit merges a tree over the defaults. It returns warnings, or what does not fit; it does not check values.
func (s *Schema[T]) Fit(root map[string]any) (*T, Problems, error) {
	cfg, problems, warnings, err := s.fit(root, nil)
	if err == nil {
		err = problems.OrNil()
	}
	return cfg, warnings, err
}

func (s *Schema[T]) fit(root map[string]any, problems Problems) (*T, Problems, Problems, error) {
	w := &walker{problems: problems, root: reflect.TypeFor[T](), secrets: s.Secrets}
	clean, _ := w.fit("", root, w.root)
	cfg, err := s.overlay(clean)
	if err != nil {
		return nil, nil, nil, err
	}
	return cfg, w.problems, s.unused(clean, cfg), nil
}

// overlay merges the file over the defaults.
func (s *Schema[T]) overlay(tree any) (*T, error) {
	raw, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	cfg := s.Default()
	if s.Adapt != nil {
		s.Adapt(tree, cfg)
	}
	if err := json.Unmarshal(raw, cfg); err != nil {
		return nil, err
	}
	if s.Complete != nil {
		s.Complete(cfg)
	}
	return cfg, nil
}

func texts(p Problems) []string {
	list := make([]string, 0, len(p))
	for _, x := range p {
		list = append(list, x.Error())
	}
	return list
}

// Has reports whether a tree has a value at a path of keys.
func Has(tree any, keys ...string) bool { return At(tree, keys...) != nil }

// At returns a tree's value at a path of keys, or nil.
func At(tree any, keys ...string) any {
	for _, k := range keys {
		m, _ := tree.(map[string]any)
		if tree = m[k]; tree == nil {
			return nil
		}
	}
	return tree
}
