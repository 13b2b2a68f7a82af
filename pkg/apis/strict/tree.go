package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/yamlbound"
)

// readTree reads YAML (or JSON) into maps, lists and scalars. Duplicate keys are problems; the later one is used so
// that the rest can be checked.
func readTree(data []byte, program string) (map[string]any, Problems, error) {
	if err := checkText(data); err != nil {
		return nil, nil, err
	}
	if err := yamlbound.Check(data, MaxFile); err != nil {
		return nil, nil, notYAML(err)
	}
	raw, err := yaml.YAMLToJSONStrict(data)
	var problems Problems
	if err != nil {
		if problems = doubleKeys(err); problems == nil {
			return nil, nil, notYAML(err)
		}
		if raw, err = yaml.YAMLToJSON(data); err != nil {
			return nil, nil, problems
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var tree any
	if err := decoder.Decode(&tree); err != nil {
		return nil, nil, fmt.Errorf("not YAML: %w", err)
	}
	root, ok := tree.(map[string]any)
	switch {
	case tree == nil:
		return nil, nil, fmt.Errorf("is empty; `%s --minconfig` prints one to start from", program)
	case !ok:
		return nil, nil, fmt.Errorf("is not a mapping of keys to values; `%s --minconfig` prints one to start from",
			program)
	}
	return root, problems, nil
}

// notYAML is an error of the YAML library without its prefixes.
func notYAML(err error) error {
	return fmt.Errorf("not YAML: %s", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "),
		"unmarshal errors:\n  "))
}

// checkText reports content that is not text, and a second document, which the YAML library would ignore.
func checkText(data []byte) error {
	if bytes.IndexByte(data, 0) >= 0 || !utf8.Valid(data) {
		return errors.New("is not text in UTF-8, so it is not YAML")
	}
	content, ended := false, false
	number := 0
	for line := range bytes.Lines(data) {
		number++
		text := strings.TrimPrefix(strings.TrimRight(string(line), " \t\r\n"), "\ufeff")
		switch {
		case text == "---" || text == "..." || strings.HasPrefix(text, "--- "):
			ended = content
			content = content || len(text) > 3 && !strings.HasPrefix(strings.TrimLeft(text[3:], " "), "#")
		case text == "" || strings.HasPrefix(strings.TrimLeft(text, " "), "#") || text[0] == '%':
		case ended:
			return fmt.Errorf("line %d: a second document begins; want one", number)
		default:
			content = true
		}
	}
	return nil
}

// doubleKeys converts the YAML library's error about duplicate keys; nil for other errors.
func doubleKeys(err error) Problems {
	var problems Problems
	for line := range strings.Lines(err.Error()) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "line ")
		number, what, found := strings.Cut(rest, ": ")
		n, bad := strconv.Atoi(number)
		if !ok || !found || bad != nil || !strings.HasPrefix(what, "key ") ||
			!strings.HasSuffix(what, " already set in map") {
			continue
		}
		problems = append(problems, Problem{Line: n, Text: "the key is there twice; keep one"})
	}
	return problems
}
