// Package yamlbound limits what the aliases of a YAML text stand for, before it is decoded: an alias repeats all of its
// anchor, so a file of a megabyte can become gigabytes.
package yamlbound

import (
	"bytes"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v2"
)

// Check returns an error if the first document of a YAML text has aliases, and more than limit bytes where these are
// written out. It returns none for a text that is not YAML: decoding that fails.
func Check(data []byte, limit int) error {
	if bytes.IndexByte(data, '&') < 0 || bytes.IndexByte(data, '*') < 0 {
		return nil // no aliases
	}
	var doc document
	err := yaml.Unmarshal(data, &doc)
	switch {
	case errors.Is(err, errTooLarge) || int(doc.size) > limit:
		return fmt.Errorf("its aliases (*name) stand for too much, more than %d KiB: write out what they stand for",
			limit>>10)
	case !doc.parsed || isTypeError(err):
		return nil
	}
	return err // an alias within its anchor, or very many
}

// document is the whole of a YAML document. It is parsed before anything is decoded.
type document struct {
	size   size
	parsed bool
}

// UnmarshalYAML adds up the document.
func (d *document) UnmarshalYAML(unmarshal func(any) error) error {
	d.parsed = true
	return unmarshal(&d.size)
}

// size is the size of a YAML node in bytes, with its aliases written out. Decoding a node into a size adds it up, and
// does not keep its text.
type size int

// most ends decoding: it is more than any caller allows.
const most = 64 << 20

var errTooLarge = errors.New("too large")

// UnmarshalYAML adds up a node.
func (s *size) UnmarshalYAML(unmarshal func(any) error) error {
	var (
		text   string
		list   []size
		fields map[any]size
	)
	err := unmarshal(&text)
	if err == nil {
		*s = size(len(text))
		return nil
	}
	if isTypeError(err) {
		err = unmarshal(&list)
	}
	if isTypeError(err) {
		err = unmarshal(&fields)
	}
	for _, item := range list {
		*s += item + 1
	}
	for key, value := range fields {
		name, _ := key.(string)
		*s += size(len(name)) + value + 2
	}
	if err == nil && *s > most {
		err = errTooLarge
	}
	return err
}

func isTypeError(err error) bool {
	var other *yaml.TypeError
	return errors.As(err, &other)
}
