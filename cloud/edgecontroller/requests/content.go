package requests

import (
	"bytes"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// contentLimit bounds the cost of decoding a request's content. A limit in bytes is not enough: "{}," is three bytes of
// JSON, and decodes to a v1.Container of 400.
type contentLimit struct {
	bytes int
	// items limits the elements of all arrays. values limits these and the members of all objects; each array and
	// object counts once more.
	items, values int
}

// Limits of contents. The largest are the statuses of nodes and pods: the API server accepts 3 MiB, etcd stores 1.5
// MiB, and the status of 500 containers with ten volume mounts each has 7,000 items and 50,000 values.
const (
	smallBytes, smallItems, smallValues    = 64 << 10, 1000, 4000
	mediumBytes, mediumItems, mediumValues = 256 << 10, 2000, 8000
	largeBytes, largeItems, largeValues    = 3 << 20, 10_000, 75_000
)

const (
	// maxDepth is the maximum nesting of arrays and objects; a Pod has about ten levels.
	maxDepth = 64
	// maxEscaped is how many bytes of JSON may encode one byte of a string, as in \u003c for <.
	maxEscaped = 6
	// maxDigits and maxExponent limit a resource.Quantity, which expands to all of its digits: 1e-999999999 takes
	// hundreds of megabytes and hours.
	maxDigits   = 5000
	maxExponent = 999
	// fastDigits is the most digits with which a resource.Quantity is never expanded for a positive exponent.
	fastDigits = 18
)

// smallContent is the limit of requests with little or no content.
func smallContent() contentLimit { return contentLimit{smallBytes, smallItems, smallValues} }

func mediumContent() contentLimit { return contentLimit{mediumBytes, mediumItems, mediumValues} }

func largeContent() contentLimit { return contentLimit{largeBytes, largeItems, largeValues} }

// read returns the content of a message, or an error (413) if decoding it would exceed the limit.
func (l contentLimit) read(r *request, m *model.Message) ([]byte, error) {
	err := l.checkBytes(len(m.Content) / maxEscaped)
	var content []byte
	if err == nil {
		content = contentOf(m)
		err = l.check(content)
	}
	if err != nil {
		return nil, tooLarge(r, err)
	}
	return content, nil
}

// tooLarge refuses a content that exceeds a limit. Retrying cannot succeed.
func tooLarge(r *request, err error) error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s: %s by node %s refused: its content %v. "+
		"Reduce what the node reports there: containers and volumes of a pod, images of a node", r.key, r.op, r.node,
		err))
}

func (l contentLimit) checkBytes(n int) error {
	if n > l.bytes {
		return fmt.Errorf("has %d bytes, limit %d", n, l.bytes)
	}
	return nil
}

// check scans JSON without decoding it. Invalid JSON may pass: decoding rejects it cheaply.
func (l contentLimit) check(data []byte) error {
	if err := l.checkBytes(len(data)); err != nil {
		return err
	}
	s := jsonScan{data: data}
	for s.next() {
		switch {
		case s.depth > maxDepth:
			return fmt.Errorf("is nested more than %d levels deep", maxDepth)
		case s.items > l.items:
			return fmt.Errorf("has more than %d elements of arrays", l.items)
		case s.values > l.values:
			return fmt.Errorf("has more than %d values", l.values)
		case s.scalar != nil && expands(s.scalar) && !s.inTerminationMessage():
			return fmt.Errorf("has a number with more than %d digits or an exponent over %d, %.40q",
				maxDigits, maxExponent, s.scalar)
		}
	}
	return nil
}

// jsonScan reads JSON token by token. It allocates nothing.
type jsonScan struct {
	data []byte
	at   int

	depth, items, values int
	// scalar is the current string (still escaped) or number, nil at other tokens and keys.
	scalar []byte
	// levels are the open arrays and objects; deeper ones are only counted.
	levels [maxDepth]jsonLevel
}

// jsonLevel is an open array, or an object with its last key.
type jsonLevel struct {
	array bool
	key   []byte
}

// next moves to the next token and reports whether there is one.
func (s *jsonScan) next() bool {
	s.scalar = nil
	if s.at >= len(s.data) {
		return false
	}
	switch c := s.data[s.at]; c {
	case '{', '[':
		s.open(c == '[')
	case '}', ']':
		s.depth = max(s.depth-1, 0)
	case ',':
		s.values++
		if l := s.level(0); l != nil && l.array {
			s.items++
		}
	case '"':
		s.skipString()
		return true
	case '-', '+', '.', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		begin := s.at
		for s.at < len(s.data) && bytes.IndexByte([]byte(",]} \t\r\n"), s.data[s.at]) < 0 {
			s.at++
		}
		s.scalar = s.data[begin:s.at]
		return true
	}
	s.at++
	return true
}

func (s *jsonScan) open(array bool) {
	s.values++
	if array {
		s.items++
	}
	if s.depth < maxDepth {
		s.levels[s.depth] = jsonLevel{array: array}
	}
	s.depth++
}

// level returns the level that encloses the token, or the up-th above it; nil if there is none.
func (s *jsonScan) level(up int) *jsonLevel {
	if i := s.depth - 1 - up; i >= 0 && i < maxDepth {
		return &s.levels[i]
	}
	return nil
}

// skipString skips a string.
func (s *jsonScan) skipString() {
	begin := s.at + 1
	for s.at = begin; s.at < len(s.data) && s.data[s.at] != '"'; s.at++ {
		if s.data[s.at] == '\\' {
			s.at++
		}
	}
	text := s.data[min(begin, len(s.data)):min(s.at, len(s.data))]
	s.at++
	after := s.at
	for after < len(s.data) && bytes.IndexByte([]byte(" \t\r\n"), s.data[after]) >= 0 {
		after++
	}
	if l := s.level(0); l != nil && !l.array && after < len(s.data) && s.data[after] == ':' {
		l.key = text
		return
	}
	s.scalar = text
}

// inTerminationMessage reports whether the scan is at a container's termination message, which is never a quantity.
func (s *jsonScan) inTerminationMessage() bool {
	in, above := s.level(0), s.level(1)
	return in != nil && above != nil && string(in.key) == "message" && string(above.key) == "terminated"
}

// expands reports whether text is a resource.Quantity that expands out of proportion to its length.
func expands(text []byte) bool {
	text = bytes.TrimSpace(text)
	if len(text) > 0 && (text[0] == '-' || text[0] == '+') {
		text = text[1:]
	}
	suffix := bytes.TrimLeft(text, "0123456789.")
	digits := len(text) - len(suffix)
	if digits == 0 || len(bytes.TrimLeft(suffix, "eEinumkKMGTP+-0123456789")) > 0 {
		return false
	}
	if digits > maxDigits {
		return true
	}
	if len(suffix) < 2 || suffix[0] != 'e' && suffix[0] != 'E' {
		return false
	}
	n, err := strconv.ParseInt(string(suffix[1:]), 10, 64)
	exponent := int32(n) // the type that Quantity uses
	return err == nil && (exponent < -maxExponent || exponent > maxExponent && digits > fastDigits)
}
