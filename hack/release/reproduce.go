package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// reproduce builds the last commit in two folders that share nothing, not even build caches, and compares the results.
func (r *release) reproduce(ctx context.Context, targets []target) error {
	var names []string
	for _, t := range targets {
		names = append(names, t.name)
	}
	var results []map[string]string
	for _, folder := range []string{"first", filepath.Join("second", "with-a-longer-name")} {
		dir := filepath.Join(r.work, folder)
		if err := command(ctx, r.source, nil, "git", "clone", "--quiet", "--no-local", ".", dir); err != nil {
			return err
		}
		version, err := output(ctx, dir, nil, "git", "describe", "--tags", "--always", "--dirty")
		if err != nil {
			return err
		}
		commit, err := output(ctx, dir, nil, "git", "rev-parse", "--short", "HEAD")
		if err != nil {
			return err
		}
		cache := dir + ".cache"
		args := []string{
			"run", "./hack/release", "--version", strings.TrimSpace(version), "--commit", strings.TrimSpace(commit),
			"--tags", r.tags, "--lintian=false", "deb",
		}
		if err := command(ctx, dir, []string{"GOCACHE=" + cache}, "go", append(args, names...)...); err != nil {
			return err
		}
		sums, err := sumsOf(filepath.Join(dir, "bin"))
		if err != nil {
			return err
		}
		results = append(results, sums)
		if err := errors.Join(os.RemoveAll(cache), os.RemoveAll(filepath.Join(dir, ".git"))); err != nil {
			return err
		}
	}
	if len(results[0]) == 0 {
		return errors.New("nothing was built")
	}
	if different := differences(results[0], results[1]); len(different) > 0 {
		return fmt.Errorf("not reproducible: %s", strings.Join(different, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(results[0])) {
		fmt.Println(results[0][name], name)
	}
	fmt.Printf("reproducible: %d files, the same from two folders\n", len(results[0]))
	return nil
}

// sumsOf are the sums of the files in a folder.
func sumsOf(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		sums[e.Name()] = fmt.Sprintf("%x", sha256.Sum256(data))
	}
	return sums, nil
}

// differences returns the names of files that differ, or exist only in one.
func differences(a, b map[string]string) []string {
	names := map[string]bool{}
	for _, list := range []map[string]string{a, b} {
		for name := range list {
			if a[name] != b[name] {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}
