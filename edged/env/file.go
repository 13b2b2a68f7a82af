package env

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// maxFile is the size, in bytes, from which on a file holds no variables.
const maxFile = 1 << 20

// fileKey returns the value of a key in a file of a volume; ok is false for an optional one that is not there.
func fileKey(ref *v1.FileKeySelector, read func(volume, path string) ([]byte, error)) (value string, ok bool, err error) {
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
	values, err := ParseFile(data)
	if err != nil {
		return "", false, fmt.Errorf("environment variables of %s: %w", name, err)
	}
	value, ok = values[ref.Key]
	if !ok && !optional {
		return "", false, fmt.Errorf("environment variable key %q not found in %s", ref.Key, name)
	}
	return value, ok, nil
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
		return nil, errors.New("it is no regular file")
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

// ParseFile reads a file of variables: lines of NAME='value', where the value is taken as it is and may have several
// lines; blank lines, and those that begin with #. Nothing else is allowed, so that a shell would read the same. Source:
// "Define Environment Variable Values Using An Init Container", Env File syntax.
func ParseFile(data []byte) (map[string]string, error) {
	values := map[string]string{}
	rest, number := string(data), 1
	for rest != "" {
		line, after, _ := strings.Cut(rest, "\n")
		text := strings.TrimLeft(line, " \t\r")
		if text == "" || text[0] == '#' {
			rest, number = after, number+1
			continue
		}
		name, quoted, found := strings.Cut(rest, "=")
		if name = strings.TrimSpace(name); !found || strings.Contains(name, "\n") {
			return nil, fmt.Errorf("line %d: want NAME='value'", number)
		}
		if faults := validation.IsRelaxedEnvVarName(name); len(faults) > 0 {
			return nil, fmt.Errorf("line %d: the name of the variable: %s", number, strings.Join(faults, "; "))
		}
		quoted = strings.TrimLeft(quoted, " \t")
		if !strings.HasPrefix(quoted, "'") {
			return nil, fmt.Errorf("line %d: the value of %s is not in single quotes", number, name)
		}
		value, after, closed := strings.Cut(quoted[1:], "'")
		if !closed {
			return nil, fmt.Errorf("line %d: the value of %s has no closing quote", number, name)
		}
		end, after, _ := strings.Cut(after, "\n")
		if strings.TrimSpace(end) != "" {
			return nil, fmt.Errorf("line %d: there is something after the value of %s", number, name)
		}
		if bytes.IndexByte([]byte(value), 0) >= 0 {
			return nil, fmt.Errorf("line %d: the value of %s has a zero byte", number, name)
		}
		values[name] = value
		number += 1 + strings.Count(value, "\n")
		rest = after
	}
	return values, nil
}
