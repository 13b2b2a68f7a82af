package logrotate

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/logdir"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

const (
	// stampForm is the kubelet's: log collectors know it.
	stampForm = "20060102-150405"
	gzSuffix  = ".gz"
	tmpSuffix = ".tmp"
)

// part is a rotated part of a log.
type part struct {
	path  string
	stamp time.Time
	size  int64
	gz    bool
}

// partsOf returns the rotated parts of a log, the oldest first.
func partsOf(log string) ([]part, error) {
	root, err := logdir.Open(filepath.Dir(log))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return partsIn(root, filepath.Base(log))
}

// partsIn returns those of the log called name in an open folder.
func partsIn(root *os.Root, name string) ([]part, error) {
	entries, err := logdir.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var parts []part
	for _, e := range entries {
		p, ok := parsePart(name, e.Name())
		if !ok || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p.path, p.size = filepath.Join(root.Name(), e.Name()), info.Size()
		parts = append(parts, p)
	}
	smallsort.SortFunc(parts, func(a, b part) int { return a.stamp.Compare(b.stamp) })
	return parts, nil
}

// parsePart reads a file's name.
func parsePart(log, name string) (part, bool) {
	text, ok := strings.CutPrefix(name, log+".")
	if !ok {
		return part{}, false
	}
	text, gz := strings.CutSuffix(text, gzSuffix)
	stamp, err := time.Parse(stampForm, text)
	// Parse takes more than it was asked for
	return part{stamp: stamp, gz: gz}, err == nil && stamp.Format(stampForm) == text
}

// nextStamp names the next part: by the time, but after all that there are.
func nextStamp(parts []part, now time.Time) string {
	now = now.UTC().Truncate(time.Second)
	if len(parts) > 0 {
		if after := parts[len(parts)-1].stamp.Add(time.Second); after.After(now) {
			now = after
		}
	}
	return now.Format(stampForm)
}

// surplus returns the parts to remove: all but the newest count, which are further limited to a total of so many bytes.
// It is pure.
func surplus(parts []part, count int, bytes int64) []part {
	keep := len(parts)
	for keep > 0 && len(parts)-keep < count {
		p := parts[keep-1]
		if bytes -= p.size; bytes < 0 {
			break
		}
		keep--
	}
	return parts[:keep]
}

func removeParts(root *os.Root, parts []part) {
	for _, p := range parts {
		if err := root.Remove(filepath.Base(p.path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.ErrorS(err, "Part of a log not removed", "path", p.path)
		}
	}
}
