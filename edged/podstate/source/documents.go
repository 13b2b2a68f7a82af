package source

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf16"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/yamlbound"
)

// documents are those of a manifest file, as JSON. The first one is read as a kubelet reads it, which takes the whole
// file for it: with any encoding, directive, marker and line end that YAML has. The others are an addition to that.
type documents struct {
	// stream reads a file that begins like JSON.
	stream *utilyaml.YAMLOrJSONDecoder
	// tooLarge is its error if its YAML is not to be decoded.
	tooLarge error
	// whole is a file of YAML, and texts are its documents.
	whole []byte
	texts [][]byte
	read  int
}

func newDocuments(data []byte) *documents {
	if utilyaml.IsJSONBuffer(data) {
		return &documents{
			stream:   utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), yamlBuffer),
			tooLarge: checkStream(data),
		}
	}
	return &documents{whole: data, texts: splitYAML(decodeUTF(data))}
}

// next returns the next document, which may be empty, or io.EOF. repeated says which keys it has more than once; the
// last of them counts.
func (d *documents) next() (raw json.RawMessage, repeated error, err error) {
	if d.tooLarge != nil {
		return nil, nil, d.tooLarge
	}
	if d.stream != nil {
		return raw, nil, d.stream.Decode(&raw)
	}
	if d.read == len(d.texts) {
		return nil, nil, io.EOF
	}
	d.read++
	text := d.texts[d.read-1]
	for _, data := range [][]byte{d.whole, text} {
		if err := yamlbound.Check(data, maxManifest); err != nil {
			return nil, nil, err
		}
	}
	if d.read == 1 {
		if raw, err = yaml.YAMLToJSON(d.whole); err == nil && !empty(raw) {
			_, repeated = yaml.YAMLToJSONStrict(d.whole)
			return raw, repeated, nil
		}
	}
	if raw, err = yaml.YAMLToJSON(text); err != nil {
		return nil, nil, fmt.Errorf("not YAML: %w", err)
	}
	_, repeated = yaml.YAMLToJSONStrict(text)
	return raw, repeated, nil
}

// checkStream checks what may follow JSON in a file that begins with it: the decoder of streams reads it as YAML.
func checkStream(data []byte) error {
	var value json.RawMessage
	values, end := json.NewDecoder(bytes.NewReader(data)), int64(0)
	for values.Decode(&value) == nil {
		end = values.InputOffset()
	}
	texts := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data[end:])))
	for {
		text, err := texts.Read()
		if err != nil {
			return nil // the end
		}
		if err := yamlbound.Check(text, maxManifest); err != nil {
			return err
		}
	}
}

// empty reports whether a document says nothing, as between two markers.
func empty(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// Byte order marks.
const (
	bomUTF8    = "\xef\xbb\xbf"
	bomUTF16LE = "\xff\xfe"
	bomUTF16BE = "\xfe\xff"
)

// decodeUTF returns a text of YAML as UTF-8 without a byte order mark.
func decodeUTF(data []byte) []byte {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(data, []byte(bomUTF16LE)):
		order = binary.LittleEndian
	case bytes.HasPrefix(data, []byte(bomUTF16BE)):
		order = binary.BigEndian
	default:
		return bytes.TrimPrefix(data, []byte(bomUTF8))
	}
	units := make([]uint16, 0, len(data)/2)
	for data = data[2:]; len(data) >= 2; data = data[2:] {
		units = append(units, order.Uint16(data))
	}
	return []byte(string(utf16.Decode(units)))
}

// splitYAML returns the documents of a text in UTF-8, each with the comments and directives before it. A line that
// begins with a marker begins or ends a document wherever it stands, also within a quoted text.
func splitYAML(text []byte) [][]byte {
	var docs [][]byte
	begin, begun := 0, false
	for at := 0; at < len(text); {
		end := at + lineLength(text[at:])
		line := bytes.TrimPrefix(text[at:end], []byte(bomUTF8))
		switch {
		case isMarker(line, "---"):
			if begun {
				docs = append(docs, text[begin:at])
				begin = at
			}
			begun = true
		case isMarker(line, "..."):
			if begun {
				docs = append(docs, text[begin:at])
			}
			begin, begun = end, false
		case !begun && !bytes.HasPrefix(line, []byte("%")):
			content := bytes.TrimSpace(line)
			begun = len(content) > 0 && content[0] != '#'
		}
		at = end
	}
	if begun {
		docs = append(docs, text[begin:])
	}
	return docs
}

// breaks are the ends of lines that YAML 1.1 has.
const breaks = "\r\n\u0085\u2028\u2029"

// lineLength is the length of the first line of a text, with its end.
func lineLength(text []byte) int {
	at := bytes.IndexAny(text, breaks)
	if at < 0 {
		return len(text)
	}
	switch b := text[at]; {
	case b == '\r' && at+1 < len(text) && text[at+1] == '\n':
		return at + 2
	case b == '\r', b == '\n':
		return at + 1
	case b == 0xc2: // U+0085
		return at + 2
	}
	return at + 3
}

// isMarker reports whether a line begins with a marker of documents.
func isMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || bytes.IndexAny(rest, " \t"+breaks) == 0)
}
