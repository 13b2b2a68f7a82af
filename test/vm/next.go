package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
)

// NextKey is a key of the configuration that only programs of BuildNext know.
const NextKey = "nextKey"

// BuildNext builds edgecore as a later version would be, with one more migration of the store and a key of the
// configuration that this version does not know. compatible is what the migration says: that this version can use the
// store after it. The sources stay as they are.
func BuildNext(ctx context.Context, target string, compatible bool) error {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	dir := target + ".overlay"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	replace := map[string]string{}
	for source, change := range map[string][2]string{
		"metamanager/store/schema.go": {
			"\n}\n\n// migration is one step",
			fmt.Sprintf("\n\t{sql: `CREATE TABLE next (x); ALTER TABLE meta ADD COLUMN next integer`, compatible: %v},",
				compatible),
		},
		"pkg/apis/edgecore/v1alpha2/types.go": {
			"\n\tModules  Modules ", "\n\tNextKey string `json:\"" + NextKey + ",omitempty\"`",
		},
	} {
		text, err := os.ReadFile(filepath.Join(root, source))
		if err != nil {
			return err
		}
		before, after, found := strings.Cut(string(text), change[0])
		if !found {
			return fmt.Errorf("%s has no %q", source, change[0])
		}
		copied := filepath.Join(dir, filepath.Base(source))
		if err := os.WriteFile(copied, []byte(before+change[1]+change[0]+after), 0o644); err != nil {
			return err
		}
		replace[filepath.Join(root, source)] = copied
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o644); err != nil {
		return err
	}
	return goCommand(ctx, []string{"CGO_ENABLED=1"}, "build", "-overlay", file, "-tags", agent.Tags, "-o", target,
		"./cmd/edgecore")
}
