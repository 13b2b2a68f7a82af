package v1alpha2

import (
	"fmt"
	"slices"
	"strings"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// Problem and Problems are what is wrong with a file.
type (
	Problem  = strict.Problem
	Problems = strict.Problems
)

// Load reads a file, fills in the defaults, and checks it. It never writes the file. The error is Problems, with
// everything that is wrong. Warnings name keys of KubeEdge that this version does not act on and that the file sets to
// other than the default.
func Load(path string) (*EdgeCore, []string, error) { return schema().Load(path) }

// Parse is Load for the content of a file.
func Parse(data []byte) (*EdgeCore, []string, error) { return schema().Parse(data) }

// ParseKnown is Parse for a file of another version: keys that this one does not know are left out, with a warning.
func ParseKnown(data []byte) (*EdgeCore, []string, error) { return schema().ParseKnown(data) }

// Read returns the content of a file.
func Read(path string) ([]byte, error) { return schema().Read(path) }

func schema() *strict.Schema[EdgeCore] {
	return &strict.Schema[EdgeCore]{
		Program:  "edgecore",
		Default:  Default,
		Prepare:  prepare,
		Adapt:    adaptDefaults,
		Complete: (*EdgeCore).complete,
		Validate: (*EdgeCore).Validate,
		Secrets:  secrets(),
		Live:     live(), Absent: usedAs(absent), DeprecatedDefaults: deprecatedDefaults(),
	}
}

// secrets are the values that are not shown.
func secrets() strict.Secrets {
	return strict.Secrets{
		Words:  []string{"token", "password", "secret", "staticpodurlheader"},
		Public: []string{"configmapandsecretchangedetectionstrategy"},
	}
}

func prepare(root map[string]any) (Problems, error) {
	if err := checkKind(root); err != nil {
		return nil, err
	}
	return slices.Concat(takeDeprecated(root), noLink(root), ignoredAddresses(root)), nil
}

// noLink warns of a file that names a cloud and switches the link to it off, as KubeEdge's --minconfig writes it.
func noLink(root map[string]any) Problems {
	hub := []string{"modules", "edgeHub"}
	if strict.At(root, append(hub, "enable")...) != false {
		return nil
	}
	for _, key := range [][]string{{"websocket", "server"}, {"quic", "server"}, {"httpServer"}, {"token"}} {
		if value := strict.At(root, append(hub, key...)...); value != nil && value != "" {
			return Problems{{
				Path: "modules.edgeHub.enable",
				Text: "false: this node connects to no cloud, although modules.edgeHub." + strings.Join(key, ".") +
					" names one; want true, or that key left out",
			}}
		}
	}
	return nil
}

func checkKind(root map[string]any) error {
	version, kind := root["apiVersion"], root["kind"]
	fail := func(path string, value any, want string) error {
		if value == nil {
			return strict.Problem{Path: path, Text: "is missing; want " + want}
		}
		return strict.Problem{Path: path, Text: strict.NotAllowed(value, want)}
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
		return fail("apiVersion", version,
			want+"; v1alpha1 is the form of KubeEdge before 1.12, with other keys (`edgecore --defaultconfig` shows "+
				"those of today)")
	}
	return fail("apiVersion", version, want)
}

// adaptDefaults clears defaults that the file replaces: a map of the user's own keys, such as evictionHard, replaces
// the default map completely, as with the kubelet. Whether images are pulled one by one follows maxParallelImagePulls.
func adaptDefaults(tree any, cfg *EdgeCore) {
	cfg.Modules.Edged.TailoredKubeletConfig.SerializeImagePulls = nil
	if strict.Has(tree, "modules", "edged", "tailoredKubeletConfig", "evictionHard") {
		cfg.Modules.Edged.TailoredKubeletConfig.EvictionHard = nil
	}
}
