package v1alpha2

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// maxFile bounds the file: a real one has a few kilobytes.
const maxFile = 1 << 20

// Load reads a file, fills in the defaults, and checks it. The file is only read, never written. All that is
// wrong with it is in the one error, which holds Problems. Warnings name keys that KubeEdge has and this
// version does not act on, where the file sets them to something else than the default.
func Load(path string) (*EdgeCore, []string, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	cfg, warnings, err := Parse(data)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return cfg, warnings, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%w; `edgecore --minconfig > %s` makes one", os.ErrNotExist, path)
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, errors.New("is a directory; want the file")
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file") // to open a pipe might wait for ever
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("has more than %d KiB; that is no configuration", maxFile>>10)
	}
	return data, err
}

// Parse is Load for the content of a file.
func Parse(data []byte) (*EdgeCore, []string, error) {
	root, problems, err := readTree(data)
	if err != nil {
		return nil, nil, err
	}
	if err := checkKind(root); err != nil {
		return nil, nil, err
	}
	warnings := takeFormer(root)
	w := &walker{problems: problems}
	clean, _ := w.fit("", root, reflect.TypeFor[EdgeCore]())
	cfg, err := overlay(clean)
	if err != nil {
		return nil, nil, err
	}
	var bad Problems
	if errors.As(cfg.Validate(), &bad) {
		w.problems = append(w.problems, bad...)
	}
	warnings = append(warnings, unused(clean, cfg)...)
	if len(w.problems) == 0 && len(warnings) == 0 {
		return cfg, nil, nil
	}
	index := indexLines(data)
	for i := range w.problems {
		if p := &w.problems[i]; p.Line == 0 {
			p.Line = index.line(p.Path)
		} else if p.Path == "" {
			p.Path = index.paths[p.Line]
		}
	}
	if len(w.problems) > 0 {
		return nil, nil, Problems(w.problems).inOrder()
	}
	for i := range warnings {
		warnings[i].Line = index.line(warnings[i].Path)
	}
	return cfg, texts(warnings.inOrder()), nil
}

func texts(p Problems) []string {
	list := make([]string, 0, len(p))
	for _, x := range p {
		list = append(list, x.Error())
	}
	return list
}

// readTree reads YAML (or JSON, which is YAML) into maps, lists and scalars. Keys that are there twice are
// problems, and the later of them is taken so that the rest can be checked too.
func readTree(data []byte) (map[string]any, Problems, error) {
	if err := checkText(data); err != nil {
		return nil, nil, err
	}
	raw, err := yaml.YAMLToJSONStrict(data)
	var problems Problems
	if err != nil {
		if problems = doubleKeys(err); problems == nil {
			return nil, nil, fmt.Errorf("not YAML: %s", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:\n  "))
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
		return nil, nil, errors.New("is empty; `edgecore --minconfig` prints one to start from")
	case !ok:
		return nil, nil, errors.New("is no mapping of keys to values; `edgecore --minconfig` prints one to start from")
	}
	return root, problems, nil
}

// checkText tells what is not a text at all, and a second document, which the YAML library would pass over.
func checkText(data []byte) error {
	if bytes.IndexByte(data, 0) >= 0 || !utf8.Valid(data) {
		return errors.New("is not a text in UTF-8, so no YAML")
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

// doubleKeys reads the YAML library's error on keys that are there twice; nil when it is about other things.
func doubleKeys(err error) Problems {
	var problems Problems
	for line := range strings.Lines(err.Error()) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "line ")
		number, what, found := strings.Cut(rest, ": ")
		n, bad := strconv.Atoi(number)
		if !ok || !found || bad != nil || !strings.HasPrefix(what, "key ") || !strings.HasSuffix(what, " already set in map") {
			continue
		}
		problems = append(problems, Problem{Line: n, Text: "the key is there twice; keep one"})
	}
	return problems
}

func checkKind(root map[string]any) error {
	version, kind := root["apiVersion"], root["kind"]
	fail := func(path string, value any, want string) error {
		if value == nil {
			return Problem{Path: path, Text: "is missing; want " + want}
		}
		return Problem{Path: path, Text: notAllowed(path, value, want)}
	}
	want := fmt.Sprintf("%q", Kind)
	switch kind {
	case Kind:
	case "CloudCore":
		return fail("kind", kind, want+": this file is for cloudcore")
	case "KubeletConfiguration":
		return fail("kind", kind, want+", with the kubelet's keys under modules.edged.tailoredKubeletConfig")
	default:
		return fail("kind", kind, want)
	}
	want = fmt.Sprintf("%q", APIVersion)
	switch version {
	case APIVersion:
		return nil
	case "edgecore.config.kubeedge.io/v1alpha1":
		return fail("apiVersion", version, want+"; v1alpha1 is the form of KubeEdge before 1.12, with other keys (`edgecore --defaultconfig` shows those of today)")
	}
	return fail("apiVersion", version, want)
}

// overlay lays what the file says over the defaults. A list or a map of the user's own keys, such as
// evictionHard, takes the place of the default's as a whole, as it does for the kubelet.
func overlay(tree any) (*EdgeCore, error) {
	raw, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	cfg := Default()
	if has(tree, "modules", "edged", "tailoredKubeletConfig", "evictionHard") {
		cfg.Modules.Edged.TailoredKubeletConfig.EvictionHard = nil
	}
	if err := json.Unmarshal(raw, cfg); err != nil {
		return nil, err
	}
	cfg.complete()
	return cfg, nil
}

func has(tree any, keys ...string) bool {
	for _, k := range keys {
		m, _ := tree.(map[string]any)
		if tree = m[k]; tree == nil {
			return false
		}
	}
	return true
}
