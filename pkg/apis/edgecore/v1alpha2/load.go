package v1alpha2

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// maxFile bounds the file: a real one has a few kilobytes.
const maxFile = 1 << 20

// Load reads a file, fills in the defaults, and checks it. Warnings name keys that KubeEdge has and this
// version does not act on, where the file sets them to something else than the default.
func Load(path string) (*EdgeCore, []string, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration: %w", err)
	}
	cfg, warnings, err := Parse(data)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return cfg, warnings, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("%w; `edgecore --minconfig > %s` makes one", err, path)
		}
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return data, err
}

// Parse is Load for a file's content.
func Parse(data []byte) (*EdgeCore, []string, error) {
	raw, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, nil, fmt.Errorf("not YAML: %w", cleanYAMLError(err))
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return nil, nil, err
	}
	root, ok := tree.(map[string]any)
	if !ok {
		return nil, nil, fmt.Errorf("it is empty, or no mapping of keys; `edgecore --minconfig` shows one")
	}
	if err := checkKind(root); err != nil {
		return nil, nil, err
	}
	var problems []error
	checkKeys("", root, reflect.TypeFor[EdgeCore](), &problems)
	if len(problems) > 0 {
		return nil, nil, errors.Join(problems...)
	}
	cfg := Default()
	if err := decode(raw, cfg); err != nil {
		return nil, nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, nil, err
	}
	return cfg, unused(root), nil
}

// cleanYAMLError takes the library's own words away.
func cleanYAMLError(err error) error {
	return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
}

func checkKind(root map[string]any) error {
	version, _ := root["apiVersion"].(string)
	kind, _ := root["kind"].(string)
	switch {
	case kind != Kind:
		return fmt.Errorf("kind: %q; want %q", kind, Kind)
	case strings.HasPrefix(version, "edgecore.config.kubeedge.io/v1alpha1"):
		return fmt.Errorf("apiVersion: %q is the form of KubeEdge before 1.12; want %q (`edgecore --defaultconfig` shows it)", version, APIVersion)
	case version != APIVersion:
		return fmt.Errorf("apiVersion: %q; want %q", version, APIVersion)
	}
	return nil
}

// decode overlays the file onto the defaults. A map or list that the file gives takes the place of the default's.
func decode(raw []byte, cfg *EdgeCore) error {
	if hard := path(raw, "modules", "edged", "tailoredKubeletConfig", "evictionHard"); hard != nil {
		cfg.Modules.Edged.TailoredKubeletConfig.EvictionHard = nil
	}
	if err := json.Unmarshal(raw, cfg); err != nil {
		var bad *json.UnmarshalTypeError
		if errors.As(err, &bad) {
			return fmt.Errorf("%s: a %s is of no use here; want %s", bad.Field, bad.Value, bad.Type)
		}
		return err
	}
	return nil
}

func path(raw []byte, keys ...string) any {
	var tree any
	if json.Unmarshal(raw, &tree) != nil {
		return nil
	}
	for _, k := range keys {
		m, ok := tree.(map[string]any)
		if !ok {
			return nil
		}
		tree = m[k]
	}
	return tree
}

// checkKeys finds keys that the type does not have.
func checkKeys(at string, value any, t reflect.Type, problems *[]error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch v := value.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			for i, item := range v {
				checkKeys(fmt.Sprintf("%s[%d]", at, i), item, t.Elem(), problems)
			}
		}
	case map[string]any:
		if t.Kind() != reflect.Struct || hasOwnForm(t) {
			return
		}
		fields := fieldsOf(t)
		for _, key := range sortedKeys(v) {
			name := key
			if at != "" {
				name = at + "." + key
			}
			f, ok := fields[key]
			if !ok {
				*problems = append(*problems, unknownKey(name, key, fields))
				continue
			}
			checkKeys(name, v[key], f, problems)
		}
	}
}

// hasOwnForm: types such as a quantity or a duration read their JSON themselves.
func hasOwnForm(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}

// fieldsOf returns the keys of a struct with their types.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for f := range structFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && (f.Anonymous || strings.Contains(options, "inline")):
			for k, v := range fieldsOf(f.Type) {
				fields[k] = v
			}
		case name != "":
			fields[name] = f.Type
		}
	}
	return fields
}

func structFields(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}

func unknownKey(name, key string, fields map[string]reflect.Type) error {
	best, distance := "", len(key)/2+1
	for _, candidate := range sortedKeys(fields) {
		if d := editDistance(strings.ToLower(key), strings.ToLower(candidate)); d < distance {
			best, distance = candidate, d
		}
	}
	if best == "" {
		return fmt.Errorf("%s: no such key", name)
	}
	return fmt.Errorf("%s: no such key; did you mean %q?", name, best)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// editDistance is the number of letters to change, add or drop to make b of a.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := last
			if a[i] != b[j] {
				cost++
			}
			last = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
