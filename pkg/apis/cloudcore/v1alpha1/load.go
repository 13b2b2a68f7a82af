package v1alpha1

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/apis/strict/keytable"
)

// Load reads a file, fills in the defaults, and checks it. It never writes the file. The error is strict.Problems, with
// everything that is wrong. Warnings name keys of KubeEdge that this version does not act on and that the file sets to
// other than the default.
func Load(path string) (*CloudCore, []string, error) { return schema().Load(path) }

// Parse is Load for the content of a file.
func Parse(data []byte) (*CloudCore, []string, error) { return schema().Parse(data) }

func schema() *strict.Schema[CloudCore] {
	return &strict.Schema[CloudCore]{
		Program:  "cloudcore",
		Default:  Default,
		Prepare:  prepare,
		Adapt:    adaptDefaults,
		Validate: (*CloudCore).Validate,
		Live:     live(), Absent: keytable.UsedAs(rows(), absent),
		DeprecatedDefaults: deprecatedDefaults(), Notes: notes(),
		Fallback: func(c *CloudCore) *CloudCore { return defaultFor(max(1, c.Modules.CloudHub.NodeLimit)) },
	}
}

func prepare(root map[string]any) (strict.Problems, error) {
	warnings, err := checkKind(root)
	if err != nil {
		return nil, err
	}
	return append(warnings, takeDeprecated(root)...), nil
}

// checkKind also accepts the version that KubeEdge's chart writes for this one.
func checkKind(root map[string]any) (strict.Problems, error) {
	fail := func(path, want string) error {
		value := root[path]
		if value == nil {
			return strict.Problem{Path: path, Text: "is missing; want " + want}
		}
		return strict.Problem{Path: path, Text: strict.NotAllowed(value, want)}
	}
	want := fmt.Sprintf("%q", Kind)
	switch root["kind"] {
	case Kind:
	case "EdgeCore":
		return nil, fail("kind", want+": this file is for edgecore")
	default:
		return nil, fail("kind", want)
	}
	switch root["apiVersion"] {
	case APIVersion:
		return nil, nil
	case helmVersion:
		root["apiVersion"] = APIVersion
		return strict.Problems{
			{
				Path: "apiVersion", Text: fmt.Sprintf("%q is read as %q; the keys are the same", helmVersion,
					APIVersion),
			},
		}, nil
	}
	return nil, fail("apiVersion", fmt.Sprintf("%q", APIVersion))
}

// adaptDefaults computes defaults that grow with the file's node limit. A list of mappings replaces the default list
// completely.
func adaptDefaults(tree any, defaults *CloudCore) {
	if limit, ok := strict.At(tree, "modules", "cloudHub", "nodeLimit").(json.Number); ok {
		if n, err := strconv.ParseInt(limit.String(), 10, 32); err == nil && n > 0 {
			*defaults = *defaultFor(int32(n))
		}
	}
	if strict.Has(tree, "modules", "cloudHub", "authorization", "modes") {
		defaults.Modules.CloudHub.Authorization.Modes = nil
	}
}
