package endpods

import (
	"testing"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

func TestFromConfig(t *testing.T) {
	no := false
	for name, c := range map[string]struct {
		root         string
		perQOS       *bool
		own, without bool
	}{
		"default":           {"", nil, true, false},
		"root cgroup":       {"/", nil, true, false},
		"shared cgroup":     {"/machines", nil, false, false},
		"no cgroups of pod": {"", &no, true, true},
	} {
		cfg := v1alpha2.Default()
		k := &cfg.Modules.Edged.TailoredKubeletConfig
		k.CgroupRoot, k.CgroupsPerQOS = c.root, c.perQOS
		o := FromConfig(cfg)
		if o.OwnCgroups != c.own || o.NoPodCgroups != c.without {
			t.Errorf("%s: OwnCgroups %v, NoPodCgroups %v; want %v, %v", name, o.OwnCgroups, o.NoPodCgroups, c.own,
				c.without)
		}
		if o.RootDir != cfg.Modules.Edged.RootDirectory || o.RuntimeEndpoint != k.ContainerRuntimeEndpoint {
			t.Errorf("%s: folder %s, runtime %s; want %s, %s", name, o.RootDir, o.RuntimeEndpoint,
				cfg.Modules.Edged.RootDirectory, k.ContainerRuntimeEndpoint)
		}
	}
}
