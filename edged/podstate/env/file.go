package env

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"
)

// maxFile is the size, in bytes, from which on a file holds no variables.
const maxFile = 1 << 20

// fileKey returns the value of a key in a file of a volume; ok is false for an optional one that is not there.
func fileKey(
	ref *v1.FileKeySelector, read func(volume, path string) ([]byte, error),
) (value string, ok bool, err error) {
	optional := ref.Optional != nil && *ref.Optional
	name := fmt.Sprintf("file %q of volume %q", ref.Path, ref.VolumeName)
	if read == nil {
		return "", false, fmt.Errorf("%s: there are no volumes", name)
	}
	data, err := read(ref.VolumeName, ref.Path)
	if errors.Is(err, os.ErrNotExist) && optional {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("environment variables of %s: %w", name, err)
	}
	if value, err = FindInFile(data, ref.Key); err != nil {
		return "", false, fmt.Errorf("environment variables of %s: %w", name, err)
	}
	if value == "" && !optional { // an empty one counts as none
		return "", false, fmt.Errorf("environment variable key %q not found in %s", ref.Key, name)
	}
	return value, value != "", nil
}

// ReadFile reads a file below a folder that a container may write to: links out of it are not followed, and what is no
// file, or too large, is refused.
func ReadFile(dir, path string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer would hold the pod up
	if err != nil {
		return nil, withoutRoot(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, withoutRoot(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("it has more than %d bytes", maxFile)
	}
	return data, err
}

// withoutRoot leaves out of an error where on the node the volume is.
func withoutRoot(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err
	}
	return err
}

// FindInFile returns the value of the first variable with a name in a file of variables; "" if there is none. Later
// lines are not read. Each variable is NAME='value' on a line of its own: the value is taken as it is and may have
// several lines, and a comment may follow it. Blanks behind the = make the value empty, as in a shell. Lines without a
// variable are empty or begin with #.
func FindInFile(data []byte, name string) (string, error) {
	lines := fileLines{rest: string(data)}
	for lines.next() {
		text := strings.TrimLeft(lines.text, " \t")
		if text == "" || text[0] == '#' {
			continue
		}
		number := lines.number
		found, value, err := variable(text, &lines)
		if err != nil {
			return "", fmt.Errorf("line %d: %w", number, err)
		}
		if found != name {
			continue
		}
		if strings.IndexByte(value, 0) >= 0 {
			return "", fmt.Errorf("line %d: the value of %s has a zero byte", number, name)
		}
		return value, nil
	}
	return "", lines.err
}

// variable reads the variable that begins on a line, and the lines that its value goes on for.
func variable(line string, lines *fileLines) (name, value string, err error) {
	name, quoted, found := strings.Cut(line, "=")
	switch {
	case !found || name == "":
		return "", "", errors.New("want NAME='value'")
	case strings.TrimRight(name, " \t") != name:
		return "", "", errors.New("there are blanks before the =")
	case strings.HasPrefix(quoted, " ") || strings.HasPrefix(quoted, "\t"):
		return name, "", nil
	case !strings.HasPrefix(quoted, "'"):
		return "", "", errors.New("the value of the variable is not in single quotes")
	}
	var all strings.Builder
	part, after, closed := strings.Cut(quoted[1:], "'")
	for !closed {
		all.WriteString(part + "\n")
		if !lines.next() {
			return "", "", cmp.Or(lines.err, errors.New("the value of the variable has no closing quote"))
		}
		part, after, closed = strings.Cut(lines.text, "'")
	}
	all.WriteString(part)
	if after = strings.TrimLeft(after, " \t"); after != "" && after[0] != '#' {
		return "", "", errors.New("there is something after the value of the variable")
	}
	return name, all.String(), nil
}

// maxFileLine is the size, in bytes, from which on a line is too long.
const maxFileLine = 64 << 10

// fileLines are the lines of a file, each without its end.
type fileLines struct {
	rest, text string
	number     int
	err        error
}

// next takes the next line; it returns false at the end, and with err set where the line is too long.
func (l *fileLines) next() bool {
	if l.rest == "" || l.err != nil {
		return false
	}
	l.number++
	l.text, l.rest, _ = strings.Cut(l.rest, "\n")
	if len(l.text) >= maxFileLine {
		l.err = fmt.Errorf("line %d has %d bytes or more", l.number, maxFileLine)
		return false
	}
	l.text = strings.TrimSuffix(l.text, "\r")
	return true
}
