package images

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// FuzzPullSecret: whatever stands in a pull secret, or in the node's own file of the same form, looking for the entries
// of an image takes memory in proportion to its size and to maxElements.
func FuzzPullSecret(f *testing.F) {
	f.Add([]byte(`{"auths":{"registry.example:5000/team":{"auth":"dTpw"}}}`), false, "registry.example:5000/team/app:1")
	f.Add([]byte(`{"https://index.docker.io/v1/":{"username":"u","password":"p"}}`), true, "busybox")
	for _, text := range membound.JSON("", "", 64<<10) {
		f.Add([]byte(`{"auths":`+text+`}`), false, "busybox")
		f.Add([]byte(`{"auths":{"docker.io":{"auth":`+text+`}}}`), false, "busybox")
		f.Add([]byte(text), true, "busybox")
	}
	var many strings.Builder
	for i := range 30_000 {
		many.WriteString(`,"` + strings.Repeat("*.", 3) + string(rune('a'+i%26)) + string(rune(0x100+i)) + `":{}`)
	}
	f.Add([]byte(`{"auths":{`+many.String()[1:]+`}}`), false, "a.b.c.d/e")
	f.Add([]byte(`{"auths":{"`+strings.Repeat("*", 10_000)+`":{}}}`), false, strings.Repeat("a", 200)+".b/e")
	f.Fuzz(func(t *testing.T, data []byte, legacy bool, image string) {
		secret := v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{v1.DockerConfigJsonKey: data}}
		if legacy {
			secret = v1.Secret{Type: v1.SecretTypeDockercfg, Data: map[string][]byte{v1.DockerConfigKey: data}}
		}
		var err error
		// An entry is 5 bytes there and 150 here, in a map and in three lists that grow.
		limit := membound.Linear(min(len(data), 5*maxElements), 512) + uint64(len(data)+len(image))*16
		membound.Check(t, limit, func() { _, err = credentials([]v1.Secret{secret}, nil, image) })
		if err != nil && len(err.Error()) > 2*maxRegistry+200 {
			t.Errorf("the error has %d bytes, want at most %d", len(err.Error()), 2*maxRegistry+200)
		}
	})
}
